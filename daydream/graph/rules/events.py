"""Rule 6, event waits: work on one stream waits for an event recorded on another.

`cudaStreamWaitEvent` rows say neither the event nor the streams, unless the
profiler recorded the device's own rows. So the source is found, in this order:

1. *recorded*: the device's sync row names the stream and the record call, or at least the
   stream that waits (`event_targets`);
2. *program order*: a wait right before a collective's launch holds the collective
   until the work launched before it on the current stream is done; a later wait on
   the current stream is for collectives not waited for yet, oldest first; a wait
   between launches on two streams orders the second behind the first, one between
   launches on one stream joins the other stream whose work it has not waited for;
3. *coincidence*: work that starts late, again and again, just as work of the same
   name on another stream ends, waited for it.

A wait right behind a collective's launch, where nearly every collective has one, is
the communication library's own and orders nothing in the trace. An edge that the
recorded times contradict is not drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from daydream.arrays import unique
from daydream.graph.builder import GraphBuilder
from daydream.graph.rules.event_targets import wait_on_known_streams
from daydream.graph.tables import COLLECTIVE, CPU
from daydream.lazy import regex

WAIT = regex(r"^(cuda|cu|hip)StreamWaitEvent")
RECORD = regex(r"^(cuda|cu|hip)EventRecord")
CLOCK_NS = 3_000  # device times of two streams against each other; recordings in whole us are 1 us off
NEAR_NS = 20_000  # work that an event held back starts this soon after it
LATE_NS = 30_000  # a start this much later than its known causes asks for another cause
OFTEN = 0.9
LEAST_SEEN = 2
NEAREST = 64  # tasks that are looked at before all are


@dataclass
class Wait:
    """A stream-wait call between two launches of its thread (tasks, -1 for none)."""

    call: int
    before: int  # device task launched last on this thread
    after: int  # device task launched next
    turn: int  # how many waits came since the last launch
    ahead: int  # how many tasks its thread launched before


def wait_for_events(builder: GraphBuilder) -> None:
    """Add the event waits of every thread, and count how each was found."""
    counts = builder.graph.facts.event_waits
    if not (builder.graph.columns["kind"] != CPU).any():
        return
    waits = list(_waits(builder))
    left = _recorded(builder, waits)
    counts["recorded"] = len(waits) - len(left)
    found = wait_on_known_streams(builder, left, _allowed)
    found |= _by_program_order(builder, [wait for wait in left if wait.call not in found])
    builder.settle_events()
    found |= _by_coincidence(builder, [wait for wait in left if wait.call not in found])
    counts["inferred"] = len(found)
    counts["unresolved"] = len(left) - len(found)


def _waits(builder: GraphBuilder) -> Iterator[Wait]:
    columns = builder.graph.columns
    order = columns["order"]
    calls = builder.calls_named(WAIT.search)
    for thread in unique(columns["lane"][calls]).tolist():
        mine = builder.tasks.in_order(calls[columns["lane"][calls] == thread])
        launched = builder.tasks.launched_by(thread)
        place = np.searchsorted(order[launched], order[mine])
        last, turn = -1, 0
        for call, at in zip(mine.tolist(), place.tolist(), strict=True):
            turn = turn + 1 if at == last else 0
            last = at
            yield Wait(
                call,
                int(launched[at - 1]) if at else -1,
                int(launched[at]) if at < len(launched) else -1,
                turn,
                at,
            )


def _recorded(builder: GraphBuilder, waits: list[Wait]) -> list[Wait]:
    """Draw the waits that the device recorded; return the others."""
    rows = builder.sync_rows("Stream Wait Event")
    if not rows:
        return waits
    records = builder.calls_named(RECORD.search)
    record_of = dict(zip(builder.correlation(records).tolist(), records.tolist(), strict=True))
    targets = builder.sync_streams("Stream Wait Event")
    left = []
    correlations = builder.correlation(np.array([wait.call for wait in waits], np.int64)).tolist()
    for wait, correlation in zip(waits, correlations, strict=True):
        stream, recorded = rows.get(correlation, (-1, -1))
        source = builder.lane_of(wait.call, stream) if stream >= 0 else -1
        target = builder.lane_of(wait.call, targets.get(correlation, -1))
        if source < 0 or target < 0 or recorded not in record_of:
            left.append(wait)
            continue
        builder.add_wait(record_of[recorded], source, wait.call, target)
    return left


def _by_program_order(builder: GraphBuilder, waits: list[Wait]) -> set[int]:
    columns = builder.graph.columns
    kind, lane = columns["kind"], columns["lane"]
    own = _library_waits(builder, waits)
    found = set(own)
    consumed: dict[int, int] = defaultdict(lambda: -(2**62))  # communication lane -> order waited up to
    joined: dict[tuple[int, int], int] = {}  # (stream, stream that waited for it) -> order waited up to
    classes: dict[tuple[str, int, int], list[tuple[Wait, bool]]] = defaultdict(list)
    for wait in sorted(waits, key=lambda w: int(columns["order"][w.call])):
        if wait.call in own or wait.after < 0:
            continue
        if kind[wait.after] == COLLECTIVE:
            source = _last_elsewhere(builder, wait)
            if source >= 0 and _allowed(builder, source, wait.after):
                builder.add_wait(wait.call, int(lane[source]), wait.call, int(lane[wait.after]))
                found.add(wait.call)
            continue
        source = _open_collective(builder, wait, consumed)
        if source >= 0:
            consumed[int(lane[source])] = int(columns["order"][source])
            builder.add_wait(source, int(lane[source]), wait.call, int(lane[wait.after]))
            found.add(wait.call)
            continue
        target = int(lane[wait.after])
        switched = wait.before >= 0 and lane[wait.before] != target and kind[wait.before] != COLLECTIVE
        source = wait.before if switched else _open_side_work(builder, wait, joined)
        if source >= 0:
            joined[int(lane[source]), target] = int(columns["order"][source])
            pattern = ("switch" if switched else "join", int(lane[source]), target)
            classes[pattern].append((wait, _allowed(builder, source, wait.after)))
    for (_, source, target), seen in classes.items():
        if sum(allowed for _, allowed in seen) >= OFTEN * len(seen):
            for wait, allowed in seen:
                if allowed:
                    builder.add_wait(wait.call, source, wait.call, target)
                    found.add(wait.call)
    return found | _forks(builder, [wait for wait in waits if wait.call not in found])


def _forks(builder: GraphBuilder, waits: list[Wait]) -> set[int]:
    """Draw the waits of a stream that gets its next work later: the one other stream with more to come."""
    columns, lanes = builder.graph.columns, builder.graph.lanes
    order, lane = columns["order"], columns["lane"]
    classes: dict[tuple[int, int], list[tuple[Wait, bool]]] = defaultdict(list)
    for wait in waits:
        if wait.before < 0 or wait.after < 0 or lane[wait.before] != lane[wait.after]:
            continue
        source = int(lane[wait.before])
        nexts = []
        for other, tasks in builder.side_work.items():
            place = int(np.searchsorted(order[tasks], order[wait.call], side="right"))
            mine = other != source and lanes[other].rank == lanes[source].rank
            if mine and place < len(tasks):
                nexts.append(int(tasks[place]))
        if len(nexts) == 1:
            pair = (source, int(lane[nexts[0]]))
            classes[pair].append((wait, _allowed(builder, wait.before, nexts[0])))
    found: set[int] = set()
    for (source, target), seen in classes.items():
        if len(seen) >= LEAST_SEEN and sum(allowed for _, allowed in seen) >= OFTEN * len(seen):
            for wait, allowed in seen:
                if allowed:
                    builder.add_wait(wait.call, source, wait.call, target)
                    found.add(wait.call)
    return found


def _open_side_work(builder: GraphBuilder, wait: Wait, joined: dict[tuple[int, int], int]) -> int:
    """Return the last task launched on the one other stream with work not waited for yet, or -1.

    Of several such streams, the one whose work ended just before the waiting work started.
    """
    columns = builder.graph.columns
    order, target = columns["order"], int(columns["lane"][wait.after])
    rank = builder.graph.lanes[target].rank
    start = builder.start_ns[wait.after]
    candidates = []
    for lane, tasks in builder.side_work.items():
        if lane == target or builder.graph.lanes[lane].rank != rank:
            continue
        place = int(np.searchsorted(order[tasks], order[wait.call])) - 1
        if place >= 0 and order[tasks[place]] > joined.get((lane, target), -(2**62)):
            candidates.append(int(tasks[place]))
    if len(candidates) == 1:
        return candidates[0]
    near = [task for task in candidates if -CLOCK_NS <= start - builder.end_ns[task] <= NEAR_NS]
    return near[0] if len(near) == 1 else -1


def _library_waits(builder: GraphBuilder, waits: list[Wait]) -> set[int]:
    """Return the waits right behind a collective's launch, if nearly every collective has one.

    Not if the next work, on another stream, mostly started just as the collective ended:
    then the program itself waits for it at once.
    """
    columns = builder.graph.columns
    behind = {
        wait.before: wait
        for wait in waits
        if wait.before >= 0 and wait.turn == 0 and columns["kind"][wait.before] == COLLECTIVE
    }
    held = sum(
        -CLOCK_NS <= builder.start_ns[wait.after] - builder.end_ns[collective] <= NEAR_NS
        for collective, wait in behind.items()
        if wait.after >= 0 and columns["lane"][wait.after] != columns["lane"][collective]
    )
    launched = sum(len(tasks) for tasks in builder.collectives.values())
    if not launched or len(behind) < OFTEN * launched or 2 * held > len(behind):
        return set()
    return {wait.call for wait in behind.values()}


def _last_elsewhere(builder: GraphBuilder, wait: Wait) -> int:
    """Return the last task launched before a wait on another stream than the one that waits, or -1."""
    columns = builder.graph.columns
    lane = columns["lane"]
    if wait.before >= 0 and lane[wait.before] != lane[wait.after]:
        return wait.before
    mine = builder.tasks.launched_by(int(lane[wait.call]))
    for nearest in (NEAREST, wait.ahead):
        ahead = mine[max(wait.ahead - nearest, 0) : wait.ahead]
        elsewhere = np.flatnonzero(lane[ahead] != lane[wait.after])
        if len(elsewhere):
            return int(ahead[elsewhere[-1]])
    return -1


def _open_collective(builder: GraphBuilder, wait: Wait, consumed: dict[int, int]) -> int:
    """Return the collective that a compute stream's wait is for, or -1.

    Of those that its rank launched and has not waited for yet: the one that ended just before the
    waiting work started, else the oldest that had ended by then.
    """
    columns, lanes = builder.graph.columns, builder.graph.lanes
    order, target = columns["order"], int(columns["lane"][wait.after])
    start = builder.start_ns[wait.after]
    best, oldest = -1, -1
    for lane, tasks in builder.collectives.items():
        if lane == target or lanes[lane].rank != lanes[target].rank:
            continue
        begin = int(np.searchsorted(order[tasks], consumed[lane], side="right"))
        end = int(np.searchsorted(order[tasks], order[wait.call]))
        for task in tasks[begin:end].tolist():
            after = start - builder.end_ns[task]
            if after < -CLOCK_NS:
                break
            if after <= NEAR_NS and (best < 0 or builder.end_ns[task] > builder.end_ns[best]):
                best = task
            if oldest < 0 or order[task] < order[oldest]:
                oldest = task
    return best if best >= 0 else oldest


def _allowed(builder: GraphBuilder, source: int, target: int) -> bool:
    return bool(builder.start_ns[target] >= builder.end_ns[source] - CLOCK_NS)


def _by_coincidence(builder: GraphBuilder, waits: list[Wait]) -> set[int]:
    """Draw the waits whose work started late, each time as work of one name ended on another stream."""
    columns = builder.graph.columns
    late = builder.late_starts()
    runs = dict(builder.tasks.streams())
    ends = {lane: builder.end_ns[tasks] for lane, tasks in runs.items()}
    seen: dict[tuple[int, int, int, int], list[tuple[Wait, int]]] = defaultdict(list)
    tried: dict[tuple[int, int], int] = defaultdict(int)
    for wait in waits:
        if wait.after < 0 or late[wait.after] < LATE_NS:
            continue
        start, lane = builder.start_ns[wait.after], int(columns["lane"][wait.after])
        place = (int(columns["name"][wait.after]), lane)
        tried[place] += 1
        for other, tasks in runs.items():
            if other == lane or builder.graph.lanes[other].rank != builder.graph.lanes[lane].rank:
                continue
            at = int(np.searchsorted(ends[other], start + CLOCK_NS, side="right")) - 1
            if at < 0 or start - ends[other][at] > NEAR_NS:
                continue
            source = int(tasks[at])
            if columns["order"][source] < columns["order"][wait.call]:
                key = (*place, other, int(columns["name"][source]))
                seen[key].append((wait, source))
    found: set[int] = set()
    for (name, lane, other, _), pairs in sorted(seen.items(), key=lambda item: -len(item[1])):
        if len(pairs) >= LEAST_SEEN and 2 * len(pairs) > tried[(name, lane)]:
            for wait, source in pairs:
                if wait.call not in found:
                    builder.add_wait(source, other, wait.call, lane)
                    found.add(wait.call)
    return found
