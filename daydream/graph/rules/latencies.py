"""Launch latency and the start-up between back-to-back tasks; and long calls, whose time is no latency.

A device task starts when all of its causes allow: its launch plus a latency, the
task before it on its stream plus a start-up cost, the events it waits for. The
recording shows only the cause that came last, so only that one's cost is measured
there; the others take the trace's median. Whatever a recorded start lies later
than its known causes by more than such a cost can be is a wait for something the
trace does not show: counted, kept, and said. Where other streams work all through
the delay, it may be a wait for them: it has two readings, as pauses of threads have
(see `readings`).
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import first_of, unique
from daydream.graph.calls import Coverage, device_work
from daydream.graph.draft import NEVER, Draft
from daydream.graph.rules.thresholds import (
    COVERED_SHARE,
    LARGEST_LATENCY_NS,
    LARGEST_QUEUED_NS,
    LARGEST_STARTUP_NS,
    LEAST_SAMPLES,
    LONG_CALL_NS,
    LONG_CALL_TIMES,
    STAGED_LATENCY_NS,
    STREAM_CLOCK_NS,
    USUAL_LATENCY_NS,
    USUAL_STARTUP_NS,
)
from daydream.graph.tables import LONGEST_NS, covered_steps


def _calls_of_devices(draft: Draft) -> tuple[np.ndarray, np.ndarray]:
    """Return the calls that launched work of a device, ascending, and the first task of each."""
    work = draft.launched()
    work = work[device_work(draft)[work]]
    first = first_of(draft.launch[work], draft.size)
    calls = np.flatnonzero(first >= 0)
    return calls, work[first[calls]]


def cut_long_calls(draft: Draft) -> None:
    """Cut the time before submission off calls that lasted long and whose work started at their end.

    The first launch of a kernel may load its module, a copy may pin its staging buffer:
    the call lasts milliseconds and the device starts at its end, not at its start plus a
    latency. That time is CPU work, so it is cut off in front of the call; kept as launch
    latency it would outlive a faster CPU.
    """
    calls, first = _calls_of_devices(draft)
    start = draft.start_ns[calls]
    begun = draft.start_ns[first]
    cost = draft.usual_costs(calls)[draft.name[calls]]
    duration = draft.duration_ns[calls]
    waited = draft.waited[calls]
    long = (duration > np.maximum(LONG_CALL_NS, LONG_CALL_TIMES * cost)) & ~waited
    long &= begun >= start + duration - 2 * cost - LONG_CALL_NS // 5
    # A copy from pageable memory is staged by the CPU before its first piece leaves.
    staged = waited & (begun - start > LONG_CALL_NS + STAGED_LATENCY_NS)
    staged &= draft.ended_before(first) <= start
    before = np.where(staged, begun - start - STAGED_LATENCY_NS, duration - cost)
    cut = long | staged
    calls = calls[cut]
    before = before[cut]
    waited = waited[cut]
    draft.add_cpu_tasks(
        calls,
        draft.start_ns[calls],
        draft.order[calls] - 1,
        duration_ns=before,
        row=draft.row[calls],
        release_ns=draft.release_ns[calls],
    )
    draft.duration_ns[calls] -= np.where(waited, 0, before)
    draft.start_ns[calls] += before
    draft.release_ns[calls] = 0


def typical_latencies(draft: Draft) -> None:
    """Learn the trace's typical launch latency and start-up cost, and give them to all device tasks.

    That is what is known of a launch that was not recorded, and its replay error shows what the causes alone
    explain.
    """
    tasks = draft.on_streams()
    start, launched, before, held = causes(draft, tasks)
    known = launched > NEVER
    ready = np.maximum(launched, held)
    idle = known & (launched >= before) & (held <= launched)
    queued = known & (ready + LARGEST_QUEUED_NS <= before)
    vendor = draft.trace.metadata.get("vendor", "")
    facts = draft.facts
    facts.launch_latency_ns = _typical(
        (start - launched)[idle], LARGEST_LATENCY_NS, USUAL_LATENCY_NS
    )
    usual = USUAL_STARTUP_NS.get(vendor, 0)
    facts.startup_ns = _typical((start - before)[queued], LARGEST_STARTUP_NS, usual)
    calls, _ = _calls_of_devices(draft)
    facts.launch_cost_ns = int(np.median(draft.duration_ns[calls])) if len(calls) else 0
    draft.latency_ns[tasks] = np.where(known, facts.launch_latency_ns, 0)
    _start_up(draft, tasks, np.full(len(tasks), facts.startup_ns))
    if not len(draft.launched()):  # each pause of the device has a cause that was not recorded
        # How long the device did nothing, where no stream had work, before tasks of covered steps.
        tasks = tasks[np.argsort(draft.start_ns[tasks], kind="stable")]
        latest = np.maximum.accumulate(draft.end_ns[tasks])
        pause = draft.start_ns[tasks[1:]] - latest[:-1]
        pause = pause[covered_steps(draft)[draft.step[tasks[1:]]]]
        _count_unexplained(draft, pause[pause > LARGEST_STARTUP_NS])


def _count_unexplained(draft: Draft, late_ns: np.ndarray) -> None:
    draft.facts.unexplained = len(late_ns)
    draft.facts.unexplained_ns = int(late_ns.sum())


def causes(draft: Draft, tasks: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return when device tasks started, were launched, had their stream free, and all else behind.

    In ns; `NEVER` for what there is none of.
    """
    launched = np.where(draft.launch[tasks] >= 0, draft.start_ns[draft.launch[tasks]], NEVER)
    return draft.start_ns[tasks], launched, draft.ended_before(tasks), draft.held_until()[tasks]


def ready(draft: Draft, tasks: np.ndarray) -> np.ndarray:
    """Return when all that is known to hold device tasks back was over, in ns."""
    _, *known = causes(draft, tasks)
    return np.maximum.reduce(known)


def _start_up(draft: Draft, tasks: np.ndarray, startup: np.ndarray) -> None:
    """Let each device task start so much later than the one before it on its stream ends."""
    follows = draft.lane[tasks[1:]] == draft.lane[tasks[:-1]]
    draft.gap_ns[tasks[:-1][follows]] = startup[1:][follows]


def _typical(values: np.ndarray, largest: int, otherwise: int) -> int:
    values = values[(values >= 0) & (values <= largest)]
    return int(np.median(values)) if len(values) >= LEAST_SAMPLES else otherwise


def measure_latencies(draft: Draft) -> None:
    """Give each device task the costs that its recorded start allows, and count what is unexplained.

    What other streams explain is doubtful instead.
    """
    usual_latency = draft.facts.launch_latency_ns
    usual_startup = draft.facts.startup_ns
    nothing_launched = not len(draft.launched())
    tasks = draft.on_streams()
    of_event = np.zeros(draft.size, np.int64)
    start, launched, before, held = causes(draft, tasks)
    has_launch = launched > NEVER
    # Of a call that was not recorded, what its thread did until an idle device began is part of the latency.
    recorded = np.append(draft.trace["parent"] >= 0, True)[draft.row[tasks]]
    lost = ~recorded & (start - np.maximum(before, held) > LARGEST_STARTUP_NS)
    latency = np.clip(start - launched, 0, np.where(lost, LONGEST_NS, usual_latency))
    startup = np.clip(start - before, 0, usual_startup)
    by_launch = launched + latency
    by_stream = before + startup
    rest = start - np.maximum(np.maximum(by_launch, by_stream), held)
    last_is_launch = has_launch & (by_launch >= np.maximum(by_stream, held))
    last_is_event = (by_stream < held) & ~last_is_launch & (has_launch | nothing_launched)
    over = np.maximum(rest, 0)
    draft.latency_ns[tasks] = np.where(has_launch, latency + over * last_is_launch, 0)
    _start_up(draft, tasks, startup + over * ~(last_is_launch | last_is_event))
    of_event[tasks] = over * last_is_event
    if not nothing_launched:
        limit = np.where(last_is_launch, LARGEST_LATENCY_NS, LARGEST_STARTUP_NS)
        late = (rest > limit) & has_launch
        beside = late & ~last_is_event
        rank = draft.ranks[draft.lane[tasks]]
        for each in unique(rank[beside]).tolist():
            worked = Coverage(start[rank == each], draft.end_ns[tasks[rank == each]])
            beside &= (rank != each) | (worked.within(start - rest, start) >= COVERED_SHARE * rest)
        source = ended_beside(draft, tasks)
        beside &= source >= 0
        draft.doubtful.add(src=source[beside], dst=tasks[beside])
        lost = (
            (rest > limit) & ~has_launch & (before > NEVER) & (draft.release_ns[tasks] > 0)
        )  # the call
        _count_unexplained(draft, rest[(late & ~beside) | lost])
        by_stream = np.flatnonzero(beside & ~last_is_launch)
        ahead = tasks[by_stream - 1]
        draft.gap_doubt[ahead] = rest[by_stream] / draft.gap_ns[ahead]
    later, _, rows = draft.held_by()
    of_waits = rows >= 0
    draft.waits["latency_ns"][rows[of_waits]] = of_event[later[of_waits]]


def ended_beside(draft: Draft, tasks: np.ndarray) -> np.ndarray:
    """Return the work of other streams of the device that ended last before each task, -1 for none.

    It was launched before, too.
    """
    source, ended = np.full((2, len(tasks)), -1)
    for lane, work in draft.streams():
        over = np.maximum.accumulate(draft.end_ns[work])
        last = np.searchsorted(over, draft.start_ns[tasks] + STREAM_CLOCK_NS, side="right")
        last = np.minimum(last, np.searchsorted(draft.order[work], draft.order[tasks])) - 1
        later = draft.beside(lane)[draft.lane[tasks]] & (last >= 0) & (over[last] > ended)
        source[later], ended[later] = work[last[later]], over[last[later]]
    return source
