"""Rule 4, synchronization: a blocking call ends after the device work it waits for.

What a call waits for is said in the words of the program ("everything launched
before it on this stream") and resolved when the graph is lowered, so it stays
right after insert and remove. The call keeps two costs of its own: what it takes
to enter, from the same call's unblocked instances, and what it takes to return
once the device is done. The time between is a wait and comes out of the simulation.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from daydream.arrays import unique
from daydream.graph.builder import GraphBuilder
from daydream.graph.graph import ALL_LANES
from daydream.graph.rules.array_waits import Waits, array_waits
from daydream.graph.rules.queue import usual_costs
from daydream.graph.tables import CPU, MEMCPY
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
# Allocation may or may not wait for the device (cudaFree usually, cudaMalloc seldom): judged call by call.
MAY_SYNC = regex(
    r"^(cuda|cu|hip)(Free|Malloc|Mem(Alloc|Free|Unmap|Release|Create|Map)|Host(Alloc|Free|Register|Unregister)|ModuleLoad|ModuleUnload|FreeHost)"
)
# Copies whose call lasts as long as the copy: from or to memory that is not pinned, and the synchronous
# interfaces (CUDA runtime documentation, "API synchronization behavior"). Small copies to the device are
# staged and return at once; large ones wait for their stream, and return 30 to 80 us before the last piece
# has arrived (V100, RTX 2080 Ti).
BLOCKING_COPY = regex(r"Pageable|Device -> Host|DtoH \(|CopyDeviceToHost")
BLOCKING_COPY_CALL = regex(
    r"^(cudaMemcpy|hipMemcpy)(WithStream|DtoH|HtoD|DtoD|2D|3D|ToSymbol|FromSymbol)?(_ptsz|_ptds)?$"
)
CLOCK_SKEW_NS = (
    5_000  # a call may seem to return this much before the work it waited for; int-us traces: 2 us
)
# Where no synchronize of the trace found the device done. Those that do take 2 to 5 us in all (V100), of
# which the return is measured call by call.
SYNC_ENTRY_NS = 1_500
NEAR_NS = 30_000  # synchronizing calls return 2 to 25 us after the work they waited for (A100, RTX 3070 Ti)
NEAREST = 64  # records before a call that it may wait for
LEAST_WAITED = 2  # allocation calls of a kind, to believe that all of them wait
RETURN_PLACE = 6  # program-order distance from a call to its return; device work comes before it


class Streams:
    """When the device work launched before a point of the program had ended, lane by lane."""

    def __init__(self, builder: GraphBuilder) -> None:
        order = builder.graph.columns["order"]
        self.lanes: dict[int, tuple[np.ndarray, np.ndarray]] = {
            lane: (order[tasks], np.maximum.accumulate(builder.end_ns[tasks]))
            for lane, tasks in builder.tasks.streams()
        }

    def ended(self, lane: int, order: np.ndarray) -> np.ndarray:
        """Return when all work of a lane launched before each program point had ended; 0 for none."""
        keys, ends = self.lanes[lane]
        place = np.searchsorted(keys, order) - 1
        return np.where(place >= 0, ends[np.maximum(place, 0)], 0)

    def ended_on(self, lanes: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Return the same for a lane for each program point; 0 where that is -1."""
        ended = np.zeros(len(order), np.int64)
        for lane in unique(lanes[lanes >= 0]).tolist():
            ended[lanes == lane] = self.ended(lane, order[lanes == lane])
        return ended


def wait_in_calls(builder: GraphBuilder) -> None:
    """Find the calls that wait for the device and split the wait from their cost."""
    graph = builder.graph
    if not (graph.columns["kind"] != CPU).any():
        return
    streams = Streams(builder)
    waits: Waits = []
    for find in (_device_syncs, _stream_syncs, _event_syncs, _allocations, blocking_copies):
        waits += find(builder, streams)
    waits += array_waits(builder)
    if waits:
        _split(builder, *np.array(waits, np.int64).T)


def _device_syncs(builder: GraphBuilder, streams: Streams) -> Waits:
    calls = _calls(builder, DEVICE_SYNC)
    ended = _all_ended(builder, streams, calls)
    return [(call, ALL_LANES, end, -1) for call, end in zip(calls.tolist(), ended.tolist(), strict=True)]


def _stream_syncs(builder: GraphBuilder, streams: Streams) -> Waits:
    calls = _calls(builder, STREAM_SYNC)
    order = builder.graph.columns["order"][calls]
    recorded = _recorded_lanes(builder, calls)
    likely = _likely_lanes(builder, streams, calls) if (recorded < 0).any() else recorded
    chosen = np.where(recorded >= 0, recorded, likely)
    known = chosen >= 0
    builder.graph.facts.unresolved_syncs += int((~known).sum())
    ended = streams.ended_on(chosen, order)
    return [(call, lane, end, -1) for call, lane, end in _rows(calls[known], chosen[known], ended[known])]


def _likely_lanes(builder: GraphBuilder, streams: Streams, calls: np.ndarray) -> np.ndarray:
    """Return the stream that each call waited for, or -1: what its thread used last, unless time forbids it.

    Else the one that ended last before the call returned.
    """
    columns, lanes = builder.graph.columns, builder.graph.lanes
    order, returned = columns["order"][calls], builder.end_ns[calls] + CLOCK_SKEW_NS
    mine = _ranks(builder, calls)
    last = _lane_launched_last(builder, calls)
    latest, likely = np.zeros(len(calls), np.int64), np.full(len(calls), -1)
    used = np.zeros(len(calls), bool)
    for lane in streams.lanes:
        ended = streams.ended(lane, order)
        ended[(ended > returned) | (mine != lanes[lane].rank)] = 0
        used |= (last == lane) & (ended > 0)
        likely = np.where(ended > latest, lane, likely)
        latest = np.maximum(ended, latest)
    return np.where(used, last, likely)


def _event_syncs(builder: GraphBuilder, streams: Streams) -> Waits:
    """An event ends with the work before its record call; sync rows or times say which record."""
    calls = _calls(builder, EVENT_SYNC)
    if not len(calls):
        return []
    order = builder.graph.columns["order"]
    records = _calls(builder, RECORD)
    record_lane = _lane_launched_last(builder, records)
    recorded = builder.sync_rows("Event Sync")
    ranks, record_ranks = _ranks(builder, calls), _ranks(builder, records)
    waits = {}
    for rank in unique(ranks).tolist():
        own = record_ranks == rank
        mine, lanes = records[own], record_lane[own]
        ended = np.where(lanes >= 0, streams.ended_on(lanes, order[mine]), -1)
        place_of: dict[int, list[int]] = {}
        for place, correlation in enumerate(builder.correlation(mine).tolist() if recorded else []):
            place_of.setdefault(correlation, []).append(place)
        here = calls[ranks == rank]
        before = np.searchsorted(order[mine], order[here])
        for call, stop, correlation in _rows(here, before, builder.correlation(here)):
            best = (-1, -1, -1)
            stream, record = recorded.get(correlation, (-1, -1))
            places = place_of.get(record, []) if record >= 0 else []
            lane = builder.lane_of(call, stream) if places and places[0] < stop else -1
            if lane >= 0:
                chosen = int(mine[places[bisect_left(places, stop) - 1]])
                best = (chosen, lane, int(streams.ended(lane, order[chosen : chosen + 1])[0]))
            if best[0] < 0:
                some = slice(max(stop - NEAREST, 0), stop)
                best = _last_ended(builder, call, mine[some], lanes[some], ended[some])
            if best[0] < 0:
                best = _ended_with(builder, call)
            if best[0] < 0:
                builder.graph.facts.unresolved_syncs += 1
            else:
                waits[call] = (call, best[1], best[2], best[0])
    return [waits[call] for call in calls.tolist() if call in waits]


def _last_ended(
    builder: GraphBuilder, call: int, records: np.ndarray, lanes: np.ndarray, ended: np.ndarray
) -> tuple[int, int, int]:
    """Return (record, lane, end) of the event that ended last before a call returned, or -1s."""
    ended = np.where(ended <= builder.end_ns[call] + CLOCK_SKEW_NS, ended, -1)
    last = int(np.argmax(ended)) if len(ended) else -1
    if last < 0 or ended[last] < 0:
        return -1, -1, -1
    return int(records[last]), int(lanes[last]), int(ended[last])


def _ranks(builder: GraphBuilder, calls: np.ndarray) -> np.ndarray:
    """Return the rank that each call is of."""
    ranks = np.array([lane.rank for lane in builder.graph.lanes], np.int64)
    return ranks[builder.graph.columns["lane"][calls]]


def _rows(*columns: np.ndarray) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


def _ended_with(builder: GraphBuilder, call: int) -> tuple[int, int, int]:
    """Return (task, lane, end) of device work that ended just before a long call returned, or -1s.

    An event of the time before the window has no record in it, but the work it stands
    for ends in it. Events are of the call's own rank.
    """
    order, lanes = builder.graph.columns["order"], builder.graph.lanes
    start, end = int(builder.start_ns[call]), int(builder.end_ns[call])
    rank = lanes[builder.graph.columns["lane"][call]].rank
    first = max(start + 1, end - min(NEAR_NS, (end - start) // 4))
    best = (-1, -1, -1)
    for lane, each in enumerate(lanes):
        work = builder.tasks.on(lane)
        if each.rank != rank or not each.on_device or not len(work):
            continue
        work = work[: np.searchsorted(order[work], order[call])]
        ended = builder.end_ns[work]
        for task in work[(ended >= first) & (ended <= end + CLOCK_SKEW_NS)].tolist():
            found = int(builder.end_ns[task])
            if found > best[2] or (found == best[2] and task < best[0]):
                best = (task, lane, found)
    return best


def _allocations(builder: GraphBuilder, streams: Streams) -> Waits:
    """Allocation calls that lasted until the device was idle, and longer than they do otherwise.

    Where no such call met an idle device, most of each call must lie before the device was done.
    """
    calls = _calls(builder, MAY_SYNC)
    ended = _all_ended(builder, streams, calls)
    names = builder.graph.columns["name"][calls]
    start, end = builder.start_ns[calls], builder.end_ns[calls]
    busy = ended > start
    cost = usual_costs(builder, calls[~busy], -1)[names]
    after = end - ended
    as_usual = (after <= 2 * cost) & (end - start > 2 * cost)
    mostly = 2 * (ended - start) > end - start
    waited = busy & (after >= -CLOCK_SKEW_NS) & np.where(cost >= 0, as_usual, mostly)
    for name in unique(names[busy & (cost < 0)]).tolist():
        mates = busy & (names == name)
        waited[mates] &= bool(waited[mates].all())
    # Where every call that met a busy device waited for it, those that met an idle one would have, too.
    for name in unique(names[waited]).tolist():
        mates = names == name
        waited |= mates & bool(waited[mates & busy].all() and waited[mates].sum() >= LEAST_WAITED)
    return [
        (c, ALL_LANES, e, -1) for c, e in zip(calls[waited].tolist(), ended[waited].tolist(), strict=True)
    ]


def blocking_copies(builder: GraphBuilder, _streams: Streams | None = None) -> Waits:
    """Return the calls that last as long as the copy they ask for."""
    graph = builder.graph
    columns = graph.columns
    copies = builder.tasks.launched()
    copies = copies[columns["kind"][copies] == MEMCPY]
    calls = columns["launch"][copies]
    blocking = builder.named(BLOCKING_COPY.search, copies) | builder.named(BLOCKING_COPY_CALL.search, calls)
    returned, begun, ended = builder.end_ns[calls], builder.start_ns[copies], builder.end_ns[copies]
    lasted = (returned > begun) & (2 * (returned - begun) >= ended - begun)
    chosen = blocking & lasted
    return [
        (call, lane, end, -1)
        for call, lane, end in zip(
            calls[chosen].tolist(), columns["lane"][copies[chosen]].tolist(),
            builder.end_ns[copies[chosen]].tolist(),
            strict=True,
        )
    ]  # fmt: skip


def _split(
    builder: GraphBuilder, calls: np.ndarray, lanes: np.ndarray, done: np.ndarray, point: np.ndarray
) -> None:
    """Divide each call that stood blocked into its call and its return; the return waits."""
    graph = builder.graph
    columns = graph.columns
    start, end = builder.start_ns[calls], builder.end_ns[calls]
    launching = np.zeros(graph.size, bool)
    launching[columns["launch"][builder.tasks.launched()]] = True
    copying = launching[calls]
    late = (done > end + CLOCK_SKEW_NS) & ~copying
    if late.any():
        graph.note(
            f"{counted(int(late.sum()), 'synchronizing call')} returned before the work they seem to "
            "wait for; kept as plain calls."
        )
    blocked = ~late & ((done > start) | copying)
    free = ~late & ~blocked
    if free.any():
        graph.syncs.add(
            task=calls[free], lane=lanes[free], point=np.where(point >= 0, point, calls)[free], latency_ns=0
        )
    unblocked = calls[free & (done > 0)]  # with no work before it in the window, nothing is known
    calls, lanes, done, point = calls[blocked], lanes[blocked], done[blocked], point[blocked]
    if not len(calls):
        return
    start, end = builder.start_ns[calls], builder.end_ns[calls]
    # Of synchronizing calls only those known to have found the device done: others may have waited unseen.
    others = np.zeros(graph.size, bool)
    others[builder.calls_named(lambda name: not is_sync(name))] = True
    others &= ~builder.waited
    others[calls], others[unblocked] = False, True
    usual = usual_costs(builder, np.flatnonzero(others), -1)[columns["name"][calls]]
    plain = np.flatnonzero(launching & others & ~builder.waited)
    plain = plain[~builder.named(lambda name: "GraphLaunch" in name, plain)]
    overall = int(np.median(columns["duration_ns"][plain])) if len(plain) else 0
    entry = np.where(usual >= 0, usual, np.where(launching[calls], overall, SYNC_ENTRY_NS))
    entry = np.clip(entry, 0, np.maximum(done - start, 0))
    own = np.maximum(end - np.maximum(done, start), 0)
    gap = columns["gap_ns"][calls].copy()
    columns["duration_ns"][calls] = np.minimum(entry, end - start)
    columns["gap_ns"][calls] = 0
    builder.waited[calls] = True
    kept = ("lane", "name", "op", "layer", "phase", "step", "row")
    returns = graph.add(
        len(calls), kind=0, duration_ns=own, gap_ns=gap, order=columns["order"][calls] + RETURN_PLACE,
        measured_start_ns=np.maximum(np.minimum(done, end), start),
        **{name: columns[name][calls] for name in kept},
    )  # fmt: skip
    builder.extend(end, waited=True)
    builder.end_ns[calls] = start + columns["duration_ns"][calls]
    # A thread that hands over when such a call ends does so when it returns.
    moved = np.arange(graph.size)
    moved[calls] = returns
    links = graph.links.columns
    links["src"] = np.where(links["from_start"] != 0, links["src"], moved[links["src"]])
    early = np.minimum(end - done, 0)
    graph.syncs.add(task=returns, lane=lanes, point=np.where(point >= 0, point, returns), latency_ns=early)


RECORD = regex(r"^(cuda|cu|hip)EventRecord")


def is_sync(name: str) -> bool:
    """Tell whether a call of this name waits for the device by what it is."""
    return any(pattern.search(name) for pattern in (DEVICE_SYNC, STREAM_SYNC, EVENT_SYNC))


def _calls(builder: GraphBuilder, pattern: re.Pattern[str]) -> np.ndarray:
    """Return the runtime calls with such a name, in program order."""
    return builder.tasks.in_order(builder.calls_named(pattern.search))


def _all_ended(builder: GraphBuilder, streams: Streams, calls: np.ndarray) -> np.ndarray:
    """Return when all the device work launched before each call, on its rank, had ended."""
    lanes, mine = builder.graph.lanes, _ranks(builder, calls)
    order = builder.graph.columns["order"][calls]
    ended = np.zeros(len(calls), np.int64)
    for lane in streams.lanes if len(calls) else ():
        ended = np.where(mine == lanes[lane].rank, np.maximum(ended, streams.ended(lane, order)), ended)
    return ended


def _recorded_lanes(builder: GraphBuilder, calls: np.ndarray) -> np.ndarray:
    """Return the lane that the device's own record names for each stream synchronize, or -1."""
    rows = builder.sync_rows("Stream Sync")
    lanes = [
        builder.lane_of(call, rows[correlation][0]) if correlation in rows else -1
        for call, correlation in zip(calls.tolist(), builder.correlation(calls).tolist(), strict=True)
    ]
    return np.array(lanes, np.int64)


def _lane_launched_last(builder: GraphBuilder, calls: np.ndarray) -> np.ndarray:
    """Return, for each call, the stream its thread last launched work on, or -1."""
    columns = builder.graph.columns
    result = np.full(len(calls), -1, np.int64)
    for thread in unique(columns["lane"][calls]).tolist():
        mine = builder.tasks.launched_by(thread)
        here = columns["lane"][calls] == thread
        place = np.searchsorted(columns["order"][mine], columns["order"][calls[here]]) - 1
        if len(mine):
            result[here] = np.where(place >= 0, columns["lane"][mine[np.maximum(place, 0)]], -1)
    return result
