"""Calls that wait for the device: for its work to end, or for a place in the launch queue.

Synchronization: a blocking call ends after the device work it waits for.

What a call waits for is said in the words of the program ("everything launched
before it on this stream") and resolved when the graph is lowered, so it stays
right after insert and remove. The call keeps two costs of its own: what it takes
to enter, from the same call's unblocked instances, and what it takes to return
once the device is done. The time between is a wait and comes out of the simulation.

Launch queue: a stream holds a bounded number of launches in flight.

When it is full, the launching call is blocked until the launch `depth` places
before it has ended; its recorded duration is its own cost plus that wait. Keeping
the wait as work replays perfectly and then answers "a faster GPU gains nothing".
The depth is learned from the trace: the smallest number of launches that hardly a call
ever ran ahead of. About 1,022 on NVIDIA (measured on V100, A100, RTX 3070 Ti);
AMD queues are deeper than any seen filled. Event records and waits take places too, so
a call may find the queue full a few launches below the depth (1,015 to 1,020 seen on an H200).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy import ndarray

from daydream.arrays import lookup, take
from daydream.graph.calls import GRAPH_LAUNCH, MAY_SYNC
from daydream.graph.draft import Draft
from daydream.graph.lower import follow_instead
from daydream.graph.plan import around
from daydream.graph.rules import (
    LEAST_BLOCKED,
    NVIDIA_QUEUE_DEPTH,
    QUEUE_AHEAD_SHARE,
    QUEUE_BLOCKED_SHARE,
    QUEUE_CHANCE,
    QUEUE_FULL_SHARE,
    RETURN_CLOCK_NS,
    SYNC_ENTRY_NS,
    UNKNOWN_LAUNCH_NS,
)
from daydream.graph.tables import ALL_LANES, CPU, MEMCPY
from daydream.lazy import regex
from daydream.text import counted

DEVICE_SYNC = regex(
    r"^(cuda|hip)(DeviceSynchronize|ThreadSynchronize)|^(cu|hip)CtxSynchronize|^aclrtSynchronizeDevice"
)
STREAM_SYNC = regex(
    r"^(cuda|cu|hip|aclrt)StreamSynchronize|^aclrtSynchronizeStream|^synchronizeStream$"
    r"|^urQueueFinish|^zeCommand(Queue|List(Host)?)Synchronize"
)
EVENT_SYNC = regex(r"^(cuda|cu|hip)EventSynchronize|^urEventWait$|^ze(Event|Fence)HostSynchronize")
EVENT_RECORD = regex(r"^(cuda|cu|hip)EventRecord")
# Copies whose call lasts as long as the copy: from or to memory that is not pinned, and the synchronous
# interfaces (CUDA runtime documentation, "API synchronization behavior"). Small copies to the device are
# staged and return at once; large ones wait for their stream, and return 30 to 80 us before the last piece
# has arrived (V100, RTX 2080 Ti).
BLOCKING_COPY = regex(r"Pageable|Device -> Host|DtoH \(|CopyDeviceToHost")
BLOCKING_COPY_CALL = regex(
    r"^(cudaMemcpy|hipMemcpy)(WithStream|DtoH|HtoD|DtoD|2D|3D|ToSymbol|FromSymbol)?(_ptsz|_ptds)?$"
)
ARRAY_WAIT = regex(r"^(block_until_ready|_value)$")
RETURN_PLACE = 6  # program-order distance from a call to its return; device work comes before it

# Calls, the lane that each waits for, when that had ended, and up to which program point (-1: the call).
Waits = Iterable[ndarray]


def wait_in_calls(draft: Draft) -> None:
    """Find the calls that wait for the device and split the wait from their cost."""
    if not (draft.kind != CPU).any():
        return
    find = (
        _device_syncs,
        _stream_syncs,
        _event_syncs,
        _allocations,
        _blocking_copies,
        _array_waits,
    )
    found = [each(draft) for each in find]
    _split(draft, *map(np.concatenate, zip(*found, strict=True)))


def _ended(draft: Draft, lanes: ndarray, calls: ndarray) -> ndarray:
    """Return when all work of a lane launched before each call had ended; 0 for none."""
    ended = np.zeros(draft.size + 1, np.int64)
    for _, tasks in draft.streams():
        ended[tasks] = np.maximum.accumulate(draft.end_ns[tasks])
    before, _ = around(draft.on, draft.order, lanes, draft.order[calls])
    return ended[before]


def _all_ended(draft: Draft, calls: ndarray) -> tuple[ndarray, ndarray]:
    """Return the lanes of the streams and -1, which has no work, and the same for each lane and call.

    0 for lanes of other ranks: shape (lanes, calls).
    """
    lanes = np.array([-1, *(lane for lane, _ in draft.streams())])
    ended = _ended(draft, np.repeat(lanes, len(calls)), np.tile(calls, len(lanes)))
    same_rank = draft.ranks[lanes][:, None] == draft.rank[calls]
    return lanes, np.where(same_rank, ended.reshape(same_rank.shape), 0)


def device_records(draft: Draft, name: str, calls: ndarray) -> ndarray:
    """Return what the device's own records of a synchronization of this name say of calls, -1 where nothing.

    int64, shape (3, calls): the lane of the record, the lane that is waited for, the call that recorded the
    event.
    """
    trace = draft.trace
    rows = np.flatnonzero(trace.is_kind("sync") & (trace["name"] == trace.code("name", name)))
    at = lookup(draft.units(rows), draft.units(draft.row[calls]))
    busiest_first = sorted(draft.streams(), key=lambda stream: -len(stream[1]))
    lanes = np.array([lane for lane, _ in busiest_first], np.int64)
    firsts = np.array([tasks.min() for _, tasks in busiest_first], np.int64)
    streams = draft.units(draft.row[firsts], "stream")
    records = draft.calls_named(EVENT_RECORD.search)
    found = []
    for column, keys, values in (
        ("stream", streams, lanes),
        ("wait_stream", streams, lanes),
        ("wait_correlation", draft.units(draft.row[records]), records),
    ):
        key = take(draft.units(rows, column), at)
        found.append(np.where(key >= 0, take(values, lookup(keys, key)), -1))
    return np.array(found)


def is_sync(name: str) -> bool:
    """Tell whether a call of this name waits for the device by what it is."""
    return any(pattern.search(name) for pattern in (DEVICE_SYNC, STREAM_SYNC, EVENT_SYNC))


def _device_syncs(draft: Draft) -> Waits:
    calls = draft.calls_named(DEVICE_SYNC.search)
    ended = _all_ended(draft, calls)[1].max(axis=0)
    return np.broadcast_arrays(calls, ALL_LANES, ended, -1)


def _stream_syncs(draft: Draft) -> Waits:
    """The device's own record names the stream; else it is the one that is likely."""
    calls = draft.calls_named(STREAM_SYNC.search)
    recorded, _, _ = device_records(draft, "Stream Sync", calls)
    # What its thread used last is likely, unless time forbids it; else what ended last before the call returned.
    last = _launched_last(draft, calls)
    streams, ended = _all_ended(draft, calls)
    ended[ended > draft.end_ns[calls] + RETURN_CLOCK_NS] = 0
    used = ((streams[:, None] == last) & (ended > 0)).any(axis=0)
    likely = np.where(used, last, streams[ended.argmax(axis=0)])
    lanes = np.where(recorded >= 0, recorded, likely)
    known = lanes >= 0
    draft.facts.unresolved_syncs += int((~known).sum())
    calls = calls[known]
    lanes = lanes[known]
    return np.broadcast_arrays(calls, lanes, _ended(draft, lanes, calls), -1)


def _launched_last(draft: Draft, calls: ndarray) -> ndarray:
    """Return, for each call, the stream its thread last launched work on, or -1."""
    return take(draft.lane, draft.launched_around(calls)[0])


def _event_syncs(draft: Draft) -> Waits:
    """An event ends with the work before its record call; sync rows or times say which record."""
    calls = draft.calls_named(EVENT_SYNC.search)
    records = draft.calls_named(EVENT_RECORD.search)
    order = draft.order
    ranks = draft.rank
    lanes = _launched_last(draft, records)
    ended = np.where(lanes >= 0, _ended(draft, lanes, records), -1)
    _, on, by = device_records(draft, "Event Sync", calls)
    waits = np.stack([calls, on, _ended(draft, on, by), by])
    known = (np.minimum(on, by) >= 0) & (order[by] < order[calls])
    for place in np.flatnonzero(~known).tolist():
        call = calls[place]
        near = (ended >= 0) & (ended <= draft.end_ns[call] + RETURN_CLOCK_NS)
        near &= (ranks[records] == ranks[call]) & (order[records] < order[call])
        if near.any():
            last = np.where(near, ended, -1).argmax()
            waits[1:, place] = lanes[last], ended[last], records[last]
            known[place] = True
    draft.facts.unresolved_syncs += int((~known).sum())
    return waits[:, known]


def _allocations(draft: Draft) -> Waits:
    """Allocation calls that lasted until the device was idle, and longer than they do otherwise.

    Where no such call met an idle device, most of each call must lie before the device was done.
    """
    calls = draft.calls_named(MAY_SYNC.search)
    ended = _all_ended(draft, calls)[1].max(axis=0)
    names = draft.name[calls]
    start = draft.start_ns[calls]
    end = draft.end_ns[calls]
    busy = ended > start
    cost = draft.usual_costs(calls[~busy], -1)[names]
    after = end - ended
    as_usual = (after <= 2 * cost) & (end - start > 2 * cost)
    mostly = 2 * (ended - start) > end - start
    waited = busy & (after >= -RETURN_CLOCK_NS) & np.where(cost >= 0, as_usual, mostly)
    return np.broadcast_arrays(calls[waited], ALL_LANES, ended[waited], -1)


def blocking_copies(draft: Draft) -> tuple[ndarray, ndarray]:
    """Return the calls that last as long as the copy they ask for, and the copies."""
    copies = draft.launched()
    copies = copies[draft.kind[copies] == MEMCPY]
    calls = draft.launch[copies]
    blocking = draft.named(BLOCKING_COPY.search, copies) | draft.named(
        BLOCKING_COPY_CALL.search, calls
    )
    returned = draft.end_ns[calls]
    begun = draft.start_ns[copies]
    ended = draft.end_ns[copies]
    lasted = (returned > begun) & (2 * (returned - begun) >= ended - begun)
    return calls[blocking & lasted], copies[blocking & lasted]


def _blocking_copies(draft: Draft) -> Waits:
    calls, copies = blocking_copies(draft)
    return np.broadcast_arrays(calls, draft.lane[copies], draft.end_ns[copies], -1)


def _array_waits(draft: Draft) -> Waits:
    """Calls that wait for arrays: JAX's `block_until_ready`, and what copies an array to the host.

    Such a call returns when its arrays are computed, which may be before the last work that was launched.
    Which task computes them was not recorded: it is the last one, launched before the call, that had ended as
    the call returned. Where all had ended, the call waited for all.
    """
    calls = np.flatnonzero(draft.named(ARRAY_WAIT.search) & (draft.kind == CPU))
    ranks = draft.rank
    order = draft.order
    waits = []
    for call in calls.tolist():
        tasks = np.flatnonzero((draft.kind != CPU) & (ranks == ranks[call]) & (order < order[call]))
        done = draft.end_ns[tasks]
        ended = done <= draft.end_ns[call] + RETURN_CLOCK_NS
        if not ended.any():
            draft.facts.unresolved_syncs += 1
        elif ended.all():
            waits.append((call, ALL_LANES, done.max(), -1))
        else:
            last = tasks[ended][np.argmax(done[ended])]
            waits.append((call, draft.lane[last], draft.end_ns[last], last))
    return np.array(waits, np.int64).reshape(-1, 4).T


def _split(draft: Draft, calls: ndarray, lanes: ndarray, done: ndarray, point: ndarray) -> None:
    """Divide each call that was blocked into its call and its return; the return waits."""
    start = draft.start_ns[calls]
    end = draft.end_ns[calls]
    launching = np.isin(np.arange(draft.size), draft.launch)
    copying = launching[calls]
    late = (done > end + RETURN_CLOCK_NS) & ~copying
    if late.any():
        draft.note(
            f"{counted(late.sum(), 'synchronizing call')} returned before the work they seem to "
            "wait for; kept as plain calls."
        )
    blocked = ~late & ((done > start) | copying)
    free = ~late & ~blocked
    points = np.where(point >= 0, point, calls)
    draft.syncs.add(task=calls[free], lane=lanes[free], point=points[free])
    unblocked = calls[free & (done > 0)]  # with no work before it in the window, nothing is known
    columns = (calls, lanes, done, point, start, end)
    calls, lanes, done, point, start, end = (values[blocked] for values in columns)
    # Of synchronizing calls only those known to have found the device done: others may have waited unseen.
    # So may copies of which nothing was recorded but the call.
    others = np.zeros(draft.size, bool)
    others[draft.calls_named(lambda name: not is_sync(name))] = True
    others &= launching | ~np.isin(draft.name, draft.name[calls[launching[calls]]])
    others[calls] = False
    others[unblocked] = True
    usual = draft.usual_costs(np.flatnonzero(others), -1)[draft.name[calls]]
    plain = np.flatnonzero(launching & others)
    plain = plain[~draft.named(lambda name: GRAPH_LAUNCH in name, plain)]
    overall = int(np.median(draft.duration_ns[plain])) if len(plain) else 0
    entry = np.where(usual >= 0, usual, np.where(launching[calls], overall, SYNC_ENTRY_NS))
    entry = np.minimum(np.clip(entry, 0, np.maximum(done - start, 0)), end - start)
    returns = draft.turn_into_wait(
        calls, start + entry, np.clip(done, start, end), end,
        order=draft.order[calls] + RETURN_PLACE, works_on=True,
    )  # fmt: skip
    draft.waited[calls] = draft.waited[returns] = True
    # A thread that hands over when such a call ends does so as it returns.
    follow_instead(draft, calls, returns)
    points = np.where(point >= 0, point, returns)
    draft.syncs.add(task=returns, lane=lanes, point=points, latency_ns=np.minimum(end - done, 0))


def bound_queues(draft: Draft) -> None:
    """Learn the depth of the launch queue and take the waits for a place out of the launch calls."""
    launches = {}  # by stream the calls that launched on it, -1 for unknown, and when their work had ended
    for lane, tasks in draft.streams():
        unit = draft.unit[tasks]  # one for the nodes of a graph launch, its call known or not
        last = np.append(unit[1:] != unit[:-1], True) | (unit < 0)
        ends = np.maximum.accumulate(draft.end_ns[tasks])
        launches[lane] = draft.launch[tasks[last]], ends[last]
    seen = [_learn(draft, calls, ends) for calls, ends in launches.values()]
    learned = [depth for depth, full in seen if full]
    draft.facts.queue_learned = bool(learned)
    if learned:
        depth = max(learned)
    elif draft.trace.metadata.get("vendor") == "cuda" and launches:
        depth = max(NVIDIA_QUEUE_DEPTH, *(depth for depth, _ in seen))
    else:
        return
    draft.facts.queue_depth = depth
    for lane, (calls, ends) in launches.items():
        draft.queue_depth[lane] = depth
        if learned and len(calls) > depth:
            _take_out_waits(draft, calls, ends, depth)


def _learn(draft: Draft, calls: ndarray, ends: ndarray) -> tuple[int, bool]:
    """Return the most launches in flight when a call returned, and whether the queue was full then."""
    place = np.flatnonzero(calls >= 0)
    if len(place) < LEAST_BLOCKED:
        return 0, False
    calls = calls[place]
    own_end = ends[place]
    started = draft.start_ns[calls]
    returned = draft.end_ns[calls]
    in_flight = place + 1 - np.searchsorted(ends, returned, side="right")
    depth = in_flight.max()
    if depth < 1:
        return 0, False
    counts = np.bincount(np.maximum(in_flight, 0))
    ahead = counts[::-1].cumsum()[::-1] - counts  # of each number in flight
    few = (ahead <= QUEUE_AHEAD_SHARE * counts) & (
        np.arange(len(counts)) >= QUEUE_FULL_SHARE * depth
    )
    depth = int(few.argmax())
    # A call that found no place left must have waited for one, and most of its time until then;
    # one that returned after its own work had ended waited for that.
    free = np.where(place >= depth, ends[place - depth], 0)
    met_full = (free > started) & (returned < own_end)
    cost = draft.usual_costs(calls[free <= started], UNKNOWN_LAUNCH_NS)[draft.name[calls]]
    duration = returned - started
    blocked = met_full & (duration > 2 * cost) & (2 * (free - started) > duration)
    if blocked.sum() < max(1, QUEUE_BLOCKED_SHARE * met_full.sum()):
        return depth, False
    if blocked.sum() >= LEAST_BLOCKED:
        return depth, True
    # One call alone is believed if it returned just as a place came free, and that can hardly be chance.
    near = 2 * cost[blocked][0]
    chance = len(ends) * near / max(ends[-1] - ends[0], 1)
    return depth, (returned - free)[blocked][0] <= near and chance <= QUEUE_CHANCE


def _take_out_waits(draft: Draft, calls: ndarray, ends: ndarray, depth: int) -> None:
    """Give the blocked calls of a stream their own cost: what their kind of call takes when there is room.

    Where none of its kind is known to have met room, it is no more than what was left
    of the call once there was: the first calls of a window may have been blocked by
    work from before it.
    """
    free = ends[:-depth]
    late = calls[depth:]  # when the place for each of these came free
    met_full = (late >= 0) & (free > draft.start_ns[late])
    blocked = met_full & (ends[depth:] > draft.end_ns[late])
    unblocked = late[(late >= 0) & ~met_full]
    # With almost `depth` launches in flight those were blocked, too, that took over twice what their kind
    # takes, and returned just as a launch ended.
    place = np.flatnonzero(calls >= 0)
    early = calls[place]
    started = draft.start_ns[early]
    returned = draft.end_ns[early]
    in_flight = place - np.searchsorted(ends, started, side="right")
    almost = in_flight >= QUEUE_FULL_SHARE * depth
    cost = draft.usual_costs(early[~almost], UNKNOWN_LAUNCH_NS)[draft.name[early]]
    freed = ends[np.maximum(np.searchsorted(ends, returned, side="right") - 1, 0)]
    held = almost & (in_flight < depth) & (returned - started > 2 * cost)
    held &= (freed > started) & (returned - freed <= 2 * cost)
    calls = np.append(late[blocked], early[held])
    free = np.append(free[blocked], freed[held])

    work = draft.launched()
    launching = draft.launch[work]
    copied = (draft.kind[work] == MEMCPY) & (draft.end_ns[work] <= draft.end_ns[launching])
    waited = np.append(calls, launching[copied])  # a copy whose call outlasts it was waited for
    usual = draft.usual_costs(np.setdiff1d(unblocked, waited), -1)[draft.name[calls]]
    rest = np.maximum(draft.end_ns[calls] - free, 0)
    cost = np.minimum(np.where(usual >= 0, usual, rest), draft.duration_ns[calls])
    draft.wait_first(calls, draft.end_ns[calls] - cost)
