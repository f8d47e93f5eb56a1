"""Communication: a collective transfers only when the last member has arrived.

What feeds a collective and what waits for it is found with the event waits, its
order on the channel is its stream's. With the traces of several ranks, the time a
member spent in the collective waiting for the others is a wait too: each member
gets an arrival, and the transfer begins with the last of them.

How long the transfer took is read off the members: where their ends agree, from the last
arrival to each one's end. Where they do not (hosts whose clocks drift apart in the
recording), the time from an arrival on one clock to an end on another means nothing; the least
duration of a member is then the transfer, as the last to arrive waits for nobody.

On threads of the CPU (gloo) members end when they get the processor, not together: there, on one
host's clock, each transfer lasts from the last arrival to the member's own end.

The members that were not recorded may have come later still; then both are upper bounds.

Collectives that a pool of CPU threads runs (gloo), and where the program waits for them.

A call queues the collective, the next free thread of the pool runs it, and whoever needs
the result waits. So each becomes a task of its own, launched by its call, on a lane that stands for a
thread of the pool; what it waits for on other ranks is found in `match_ranks`.

    caller   |call|backward ...........|wait, until it is done|copy back
    pool       `->|all-reduce: waiting, transferring  |--^

A pool thread notes the end of its run after it has woken who waits, on a busy machine much later. A
collective therefore ended no later than its waiter went on.

Where a thread waits for a collective is not recorded. The program is the same in every step and on every
rank, so the n-th collective of a step is waited for at one place: a task's name, and how often it came in its
step so far. Each time that a thread came by before the end is evidence: for the place, the longer it paused
while the collective was under way; against it, the further from the end it went on. The logarithm of the
ratio counts, so one time that contradicts does not outweigh several that agree. A pause can be a wait for two
collectives: it belongs to the one that it fits better, and the other has what comes after that one's end.

Collectives of a fake world become tasks, too, each on a lane of its group, launched by its call, as a
communicator runs its collectives one after the other; messages between two ranks have a lane for each peer and
direction. What the program waits for goes on when it is over.

    caller   |call|backward ...........|wait|copy back
    group      `->|all-reduce ---------------'

In the recording they took no time; how long they take is decided at the replay (`costs.network.networks`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from daydream.arrays import combinations, distinct, take, turns, unique
from daydream.collect.derive.collectives import (
    CLOCKS_AGREE_NS,
    ENDS_AGREE_NS,
    HANDED_ON,
    NEED_ALL,
    calls_of,
    host_collectives,
    match_collectives,
    operations,
)
from daydream.graph.calls import device_work
from daydream.graph.draft import Draft
from daydream.graph.plan import Cause, around
from daydream.graph.rules import GLOO_PAUSE_NS, GLOO_POOL, LEAST_PAUSES, WAKE_NS
from daydream.graph.rules.streams import DEVICE_PLACE
from daydream.graph.rules.threads import pauses_of
from daydream.graph.tables import COLLECTIVE, KERNEL, Lane
from daydream.text import counted

ARRIVAL = "arrival"
LAST_ARRIVAL = "last arrival"  # what joins the arrivals of a collective


def match_ranks(draft: Draft) -> None:
    """Match the collectives of several ranks and let each transfer begin with the last arrival."""
    tasks = np.flatnonzero(draft.kind == COLLECTIVE)
    if len(unique(draft.rank[tasks])) < 2 or "fake_world" in draft.trace.metadata:
        return
    matched = match_collectives(draft.trace)
    if not len(matched):
        draft.note("The ranks run different collectives; each rank is simulated by itself.")
        return
    apart = max((abs(offset) for offset in matched.offset_ns.values()), default=0)
    if apart > ENDS_AGREE_NS:
        draft.note(
            f"Collectives of different ranks end up to {apart / 1e3:,.0f} us apart: their clocks are not "
            "aligned, so each rank is simulated by itself."
        )
        return
    metadata = draft.trace.metadata
    ranks = len(matched.offset_ns)
    world_size = metadata.get("world_size", 0)
    if isinstance(world_size, int) and world_size > ranks:
        draft.note(
            f"{ranks} of {world_size} ranks took part in {counted(len(matched), 'collective')}; the last "
            "to arrive may be one that is not in the trace, so their transfers are upper bounds."
        )
    drifting = (matched.spread_ns > ENDS_AGREE_NS).sum()
    if drifting and not matched.on_host:
        draft.note(
            f"{counted(drifting, 'collective')} end up to {matched.residual_ns / 1e3:,.0f} us apart on "
            "different ranks; their transfer is assumed to be the shortest member's duration."
        )
    if matched.alone and "alignment" not in metadata:
        whose = ", ".join(
            f"{count:,} of rank {rank}" for rank, count in sorted(matched.alone.items())
        )
        draft.note(
            f"Collectives that match none of another rank and are kept as recorded: {whose}."
        )
    task_of = np.full(len(draft.trace), -1, np.int64)
    task_of[draft.row[tasks]] = tasks
    members = task_of[np.concatenate(matched.rows)]
    collective = np.repeat(np.arange(len(matched)), [len(rows) for rows in matched.rows])
    there = (members >= 0) & (
        np.bincount(collective[members >= 0], minlength=len(matched))[collective] > 1
    )
    if there.any():
        _wait_for_members(draft, members[there], distinct(collective[there])[1])


def _wait_for_members(draft: Draft, members: ndarray, collective: ndarray) -> None:
    """Split each member into its arrival and its transfer, which the last arrival begins."""
    starts = draft.start_ns[members]
    ends = draft.end_ns[members]
    first = np.flatnonzero(np.diff(collective, prepend=-1))
    last = np.maximum.reduceat(starts, first)
    least = np.minimum.reduceat(ends - starts, first)
    on_host = ~device_work(draft)[members]
    # A root that gives away its data does not wait for those that take it: NCCL's and RCCL's kernels hand a
    # small message on through buffers, and the root of a broadcast ends at once. Where each needs the data of
    # all no member can, so that there the clocks are apart.
    operation = np.array([*draft.trace.text("collective"), ""])[
        draft.trace["collective"][draft.row[members]]
    ]
    arrived = last[collective]
    gives_away = np.isin(operation, HANDED_ON) & (ends < arrived - ENDS_AGREE_NS)
    free = np.where(on_host, ends < arrived, gives_away)
    first_end = np.minimum.reduceat(np.where(free, 2**62, ends), first)
    last_end = np.maximum.reduceat(np.where(free, -(2**62), ends), first)
    agree = (last_end - first_end <= ENDS_AGREE_NS)[collective] | on_host
    transfer = np.where(agree, np.maximum(ends - arrived, 0), least[collective])
    begun = np.where(free, starts, arrived)
    same = ("lane", "launch", "step", "phase", "start_ns", "release_ns", "latency_ns")
    arrivals = draft.add(
        len(members), kind=COLLECTIVE, name=draft.code("name", ARRIVAL), order=draft.order[members] - 1,
        end_ns=begun,  # in the recording the kernel goes straight on to transfer: there is no start-up
        **draft.values(members, *same),
    )  # fmt: skip
    # Collectives that the same streams take part in follow each other there: what they wait for has one lane.
    # Those of other streams must not wait for them. The lane is of the rank whose order in the program the
    # hubs have, that of the first member.
    lanes = []
    hub_lane = {}
    for lanes_of_members in np.split(draft.lane[members], first[1:]):
        streams = tuple(lanes_of_members.tolist())
        if streams not in hub_lane:
            rank = draft.lanes[streams[0]].rank
            hub_lane[streams] = draft.add_lane(
                Lane("collectives of the ranks", rank, background=True)
            )
        lanes.append(hub_lane[streams])
    name = draft.code("name", LAST_ARRIVAL)
    hubs = draft.add(
        len(first), lane=lanes, name=name, order=draft.order[members[first]], start_ns=last
    )
    draft.release_ns[members] = 0
    draft.latency_ns[members] = 0
    draft.start_ns[members] = begun
    draft.duration_ns[members] = np.where(free, ends - starts, transfer)
    draft.link(arrivals, hubs[collective], cause=Cause.COMMUNICATION)
    draft.link(hubs[collective[~free]], members[~free], cause=Cause.COMMUNICATION)


@dataclass
class Runs:
    """Collectives in the order of their calls."""

    task: ndarray
    call: ndarray  # the task that asked for it, or -1
    rank: ndarray
    step: ndarray  # of the call, or -1; each rank has steps of its own
    begun: ndarray  # when the last member that it needs had begun


def run_on_threads(draft: Draft) -> None:
    """Make collectives on the CPU tasks of their own, which their calls launch and threads wait for."""
    trace = draft.trace
    rows = host_collectives(trace)
    pieces = np.bincount(draft.row.clip(0), minlength=len(trace))
    rows = rows[pieces[rows] == 1]  # not those with operators inside
    if not len(rows):
        return
    start = trace["start_ns"]
    call = calls_of(trace, rows)
    order = np.argsort(np.where(call >= 0, start[call], start[rows]), kind="stable")
    rows = rows[order]
    call = call[order]
    begun = start.copy()
    needs_all = np.zeros(len(trace), bool)
    needs_all[rows] = np.isin(operations(trace, rows), NEED_ALL)
    for members in match_collectives(trace).rows:
        begun[members[needs_all[members]]] = start[members].max()
    tasks = draft.task_of_row[rows]
    calls = np.where(call >= 0, draft.task_of_row[call], -1)
    for column in (draft.step, draft.phase, draft.layer):
        column[tasks] = np.where(calls >= 0, column[calls], -1)
    runs = Runs(tasks, calls, draft.rank[tasks], draft.step[tasks], begun[rows])
    known = np.flatnonzero((runs.call >= 0) & (runs.step >= 0))
    number, task, begin = _find_waits(draft, runs, known)
    tasks = runs.task[number]
    went_on = draft.start_ns[task]
    draft.end_ns[tasks] = np.minimum(draft.end_ns[tasks], np.maximum(went_on, runs.begun[number]))
    _move(draft, runs)
    # Pauses become waits for collectives, of which several may have one task.
    first, wait = np.unique(task, return_index=True, return_inverse=True)[1:]
    done = np.full(len(first), 0)
    np.maximum.at(done, wait, draft.end_ns[tasks])
    task = task[first]
    went_on = draft.start_ns[task]
    woken = np.clip(done, begin[first], went_on)
    begin = np.where(
        woken > begin[first], begin[first], went_on
    )  # it came there after the end: no wait
    before, _ = around(draft.on, draft.order, draft.lane[task], draft.order[task] - 1)
    inside = draft.gap_ns[before] == 0  # it paused in a named range
    resumes = draft.turn_into_wait(
        before, begin, np.maximum(woken, begin), went_on,
        order=draft.order[task] - 2, inside=inside, like=task, name="wait for collective",
    )  # fmt: skip
    draft.link(tasks, resumes[wait], cause=Cause.COMMUNICATION)
    missing = len(known) - len(number)
    if missing:
        draft.note(
            f"Where the program waits for {missing:,} of {counted(len(known), 'collective')} on the CPU "
            "could not be found; nothing waits for them."
        )


def _find_waits(draft: Draft, runs: Runs, known: ndarray) -> ndarray:
    """Return (collective, task that goes on behind it, when its pause began) of each wait."""
    came = []  # the tasks of threads that call, and when the pause before each began
    for lane in unique(draft.lane[runs.call[known]]).tolist():
        tasks = draft.on(lane)
        idle = pauses_of(draft, lane)
        paused = dict(zip(idle.end.tolist(), idle.begin.tolist(), strict=True))
        came.append(
            np.stack([tasks, [paused.get(at, at) for at in draft.start_ns[tasks].tolist()]])
        )
    task, begin = np.concatenate([np.empty((2, 0), np.int64), *came], axis=1)
    turn = turns(combinations([draft.lane[task], draft.name[task], draft.step[task]])[0])
    place, _ = combinations([draft.name[task], turn])
    often = np.bincount(place, draft.start_ns[task] - begin >= GLOO_PAUSE_NS) >= LEAST_PAUSES
    chosen = np.flatnonzero(often[place])
    chosen = chosen[np.argsort(draft.step[task[chosen]], kind="stable")]
    task = task[chosen]
    begin = begin[chosen]
    place = place[chosen]
    went_on = draft.start_ns[task]
    explained = begin.copy()  # pauses count from where no collective that fits better explains them
    turn = turns(runs.step)

    def best_place(one: int, since: ndarray) -> tuple[float, ndarray, ndarray]:
        """Return the evidence for the place that fits the collectives of a turn best, and what came there."""
        mine = known[turn[known] == one]
        low, high = (
            np.searchsorted(draft.step[task], runs.step[mine], side) for side in ("left", "right")
        )
        number = np.repeat(mine, high - low)
        visit = np.arange(len(number)) + np.repeat(high - np.cumsum(high - low), high - low)
        on = went_on[visit]
        done = draft.end_ns[runs.task[number]]
        asked = draft.start_ns[runs.call[number]]
        waited = np.minimum(on, done) - np.maximum(since[visit], asked)
        met = (on > asked) & (waited > 0)  # who comes later does not wait
        fits = np.where(met, np.log((waited.clip(0) + WAKE_NS) / (np.abs(on - done) + WAKE_NS)), 0)
        long = (fits > 0) & (on - begin[visit] >= GLOO_PAUSE_NS)
        score = np.bincount(place[visit], fits, len(often))
        score[np.bincount(place[visit], long, len(often)) < LEAST_PAUSES] = 0
        best = score.argmax()
        there = (place[visit] == best) & (on > asked) & (on + CLOCKS_AGREE_NS >= runs.begun[number])
        return score[best], number[there], visit[there]

    found = [np.empty((3, 0), np.int64)]
    alone = {one: best_place(one, begin) for one in unique(turn[known]).tolist()}
    for one in sorted(alone, key=lambda one: -alone[one][0]):
        left = best_place(one, explained)
        score, number, visit = left if left[0] > 0 else alone[one]
        if score > 0:
            explained[visit] = np.maximum(explained[visit], draft.end_ns[runs.task[number]])
            found.append(np.stack([number, task[visit], begin[visit]]))
    return np.concatenate(found, axis=1)


def _move(draft: Draft, runs: Runs) -> None:
    """Put the collectives on lanes of their own, launched by their calls, as a pool runs them."""
    start = draft.start_ns
    end = draft.end_ns
    draft.duration_ns[runs.task] = (end - start)[runs.task]
    draft.gap_ns[runs.task] = 0
    lane_of = draft.lane.copy()
    ranks = unique(runs.rank).tolist()
    for rank in ranks:
        mine = np.flatnonzero(runs.rank == rank)
        threads = max(GLOO_POOL, len(unique(draft.lane[runs.task[mine]])))
        prefix = f"rank {rank} " if len(ranks) > 1 else ""
        lanes = [
            draft.add_lane(Lane(f"{prefix}gloo {number}", rank, on_device=True, host=True))
            for number in range(threads)
        ]
        free = dict.fromkeys(lanes, 0)
        last = dict.fromkeys(lanes, -1)
        for task, call in zip(runs.task[mine].tolist(), runs.call[mine].tolist(), strict=True):
            lane_of[task] = lane = min(free, key=free.__getitem__)
            if call >= 0:  # what a thread takes to begin, from the call or from when it was free
                taken = max(start[task] - max(start[call], free[lane]), 0)
                draft.latency_ns[task] = taken
                draft.release_ns[task] = 0
                if free[lane] > start[call]:
                    draft.gap_ns[last[lane]] = taken
            free[lane] = end[task]
            last[lane] = task
    called = runs.call >= 0
    draft.kind[runs.task] = COLLECTIVE
    draft.launch[runs.task] = runs.call
    order = np.where(called, draft.order[runs.call] + DEVICE_PLACE, draft.order[runs.task])
    draft.move(runs.task, lane=lane_of[runs.task], order=order)


def transfer_in_fake_world(draft: Draft) -> None:
    """Add a task for each collective of a fake world, which its call launches and its wait waits for."""
    trace = draft.trace
    if "fake_world" not in trace.metadata:
        return
    rows = np.flatnonzero(trace.is_kind("annotation") & (trace["correlation"] >= 0))
    is_call = trace["collective"][rows] >= 0
    calls = rows[is_call]
    tasks = draft.task_of_row[calls]
    described = {group["name"]: group["description"] for group in trace.metadata.get("groups", ())}
    kernels = np.flatnonzero((draft.kind == KERNEL) & (draft.launch >= 0))
    lanes = dict[Lane, int]()
    lane, names = [], []
    asked = (trace.values(name, calls) for name in ("group", "collective", "peer"))
    for rank, group, operation, peer in zip(draft.rank[tasks], *asked, strict=True):
        where = described.get(group) or f"group {group}"
        name = f"{where} {operation} {peer}" if operation in ("send", "recv") else where
        made = Lane(name, int(rank), on_device=True, host=not len(kernels))
        if made not in lanes:
            lanes[made] = draft.add_lane(made)
        lane.append(lanes[made])
        names.append(draft.code("name", f"{operation} {where}"))
    transfers = draft.add(
        len(calls),
        kind=COLLECTIVE,
        lane=lane,
        name=names,
        row=calls,
        launch=tasks,
        order=draft.order[tasks] + DEVICE_PLACE,
        **draft.values(tasks, "op", "layer", "phase", "step", "start_ns"),
    )
    transfer_of = dict(zip(draft.units(calls).tolist(), transfers.tolist(), strict=True))
    waits = rows[~is_call]
    waits, waited = draft.task_of_row[waits], draft.units(waits).tolist()
    if len(kernels):  # of an emulated GPU: its stream waits, as NCCL lets it, and the CPU goes on
        before, waits = _launched(draft, kernels, tasks, -1), _launched(draft, kernels, waits, 0)
        draft.link(before[before >= 0], transfers[before >= 0], cause=Cause.COMMUNICATION)
    for wait, unit in zip(waits.tolist(), waited, strict=True):
        if wait >= 0 and unit in transfer_of:  # else it was asked for before the recording
            draft.link(transfer_of[unit], wait, cause=Cause.COMMUNICATION)


def _launched(draft: Draft, kernels: ndarray, tasks: ndarray, places: int) -> ndarray:
    """Return of each CPU task the kernel of its rank that is launched next, or `places` later; -1 for none."""
    ranks = draft.rank
    time = draft.start_ns - draft.start_ns.min()
    time += ranks * (time.max() + 1)  # one rank after the other
    launched = time[draft.launch[kernels]]
    order = np.argsort(launched, kind="stable")
    place = np.searchsorted(launched[order], time[tasks]) + places
    found = take(kernels[order], place.clip(-1, len(order)))
    return np.where(ranks[found] == ranks[tasks], found, -1)
