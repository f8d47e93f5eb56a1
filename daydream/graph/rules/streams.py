"""Streams: device work, its order on a stream, and the call that launched it.

A device task starts no earlier than the call that launched it began, plus a
latency; the two share a correlation id. Time order cannot be used: the CPU runs
ahead, and the kernel in flight is rarely the one launched last. The call's end
cannot be used either: kernels often start before the call returns.

Work whose launch is not in the trace is counted. Where it comes before all launched work of its
stream, the CPU had run ahead before the recording began: it was in the queue already, and what it waited
for is the work before it on the stream; only the first is held to its recorded start. Further
behind, a call was not recorded, and its time is that of the operator that made it; where none is found, the
start is held. Where no call
was recorded at all, each task follows the one before it on its stream, or what the device had finished
when it began (`follow_the_device`), and the pause between them stays.

The nodes of a CUDA or HIP graph launch share its correlation id and run in order. Profilers record only some
of them at times: a hole between two recorded nodes is device work that was not traced, and takes part
in a what-if as such. Treated as idle time, it would be missing from the step. So is the time ahead of the
first task of a stream, if nothing in the trace explains it.

A device task starts when all of its causes allow: its launch plus a latency, the
task before it on its stream plus a start-up cost, the events it waits for. The
recording shows only the cause that came last, so only that one's cost is measured
there; the others take the trace's median. Whatever a recorded start lies later
than its known causes by more than such a cost can be is a wait for something the
trace does not show: counted, kept, and said. Where other streams work all through
the delay, it may be a wait for them: it has two readings, as pauses of threads have
(see `readings`).

A kernel of compiled code does the work of several layers: each operator and layer that owns a part of it has a
task of its own. These parts follow each other on its lane, share its launch, and together take its time exactly;
so selecting a layer selects that layer's part, whatever is done with it is bounded by the share, and tables by
layer, phase or operator add up. The kernel's name stays.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy import ndarray

from daydream.arrays import combinations, distinct_rows, first_of, take, unique
from daydream.graph.calls import Coverage, device_work
from daydream.graph.draft import NEVER, DeviceWork, Draft, runs_of
from daydream.graph.insert import place_next_to
from daydream.graph.lower import follow_instead
from daydream.graph.plan import Cause, around
from daydream.graph.rules import (
    BACK_TO_BACK_NS,
    COVERED_SHARE,
    GRAPH_HOLE_NS,
    HEAD_NS,
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
from daydream.graph.tables import (
    CPU,
    DEVICE_KINDS,
    KERNEL,
    KINDS,
    LONGEST_NS,
    ORDER_STEP,
    UNTRACED_HEAD,
    UNTRACED_NODES,
    Lane,
    covered_steps,
    phase_code,
)
from daydream.lazy import regex
from daydream.text import counted

DEVICE_PLACE = 4  # program-order distance from a call to the device work it launched
BEFORE_ALL = -(2**62)
BEGIN_CAPTURE = regex(r"StreamBeginCapture")
GRAPH_WORDS = {"cuda": "CUDA graph", "rocm": "HIP graph"}


def find_device_work(draft: Draft) -> None:
    """Note the device rows in launch order, and add a lane for each stream."""
    trace = draft.trace
    rows = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    if not len(rows):
        return
    lane, streams = combinations([trace[name][rows] for name in ("rank", "device", "stream")])
    first_lane = len(draft.lanes)
    ranks = {max(rank, 0) for rank, _, _ in streams}
    several_devices = len({(rank, device) for rank, device, _ in streams}) > len(ranks)
    for number, device, stream in streams:
        rank = max(number, 0)
        of_rank = f"rank {rank} " if len(ranks) > 1 else ""
        of_device = f"device {device} " if several_devices else ""
        name = f"{of_rank}{of_device}stream {stream}"
        draft.add_lane(Lane(name, rank, on_device=True, device=device))
    start = trace["start_ns"][rows]
    launch = take(draft.task_of_row, trace["parent"][rows])
    by_time = np.lexsort((start, lane))
    _find_callers(draft, launch, start, lane, by_time)
    # In program order right behind the launch; without one behind the stream's previous task.
    order = take(draft.order + DEVICE_PLACE, launch, BEFORE_ALL)
    for begin, end in runs_of(lane[by_time]):
        work = by_time[begin:end]
        latest = np.maximum.accumulate(order[work])
        order[work] = np.where(launch[work] < 0, latest, order[work])
    head = order == BEFORE_ALL
    order[head] += start[head] * ORDER_STEP
    sequence = np.lexsort((start, order, lane))
    rows = rows[sequence]
    draft.device_work = DeviceWork(
        row=rows,
        like=rows,
        lane=lane[sequence] + first_lane,
        start=start[sequence],
        duration=trace["duration_ns"][rows],
        launch=launch[sequence],
        order=order[sequence],
        unit=draft.units(rows),
    )


def _find_callers(
    draft: Draft, launch: ndarray, start: ndarray, lane: ndarray, by_time: ndarray
) -> None:
    """Find what launched work of no known call, between the calls of what is before and behind on its stream.

    A call that seems to have launched nothing, or an operator whose call was not recorded: what began last
    before the work did; else the call before.

        thread   |call|  operator: its call is part of it  |call|
        stream   |kernel|        |no launch|    |kernel|
    """
    known, lost = (np.flatnonzero((launch[by_time] >= 0) == is_known) for is_known in (True, False))
    place = np.searchsorted(known, lost)
    between = (place > 0) & (place < len(known))
    ahead, lost, behind = by_time[[known[place[between] - 1], lost[between], known[place[between]]]]
    first = launch[ahead]
    last = launch[behind]
    order = np.minimum(start[lost] * ORDER_STEP, draft.order[last] - 1)
    have_work = launch[launch >= 0]
    makes = np.isin(draft.name, draft.name[have_work]) | ~draft.of_rows("runtime")
    makes[have_work] = False
    of_thread = {on: draft.on(on)[makes[draft.on(on)]] for on in draft.threads()}
    both = [
        around(of_thread.__getitem__, draft.order, draft.lane[call], order)[0]
        for call in (first, last)
    ]
    callers = np.array([first, *both])
    found = np.choose(take(draft.order, callers, BEFORE_ALL).argmax(axis=0), callers)
    launch[lost] = np.where(lane[ahead] == lane[behind], found, -1)


def fill_holes(draft: Draft) -> None:
    """Put untraced work into the holes between nodes of a graph launch that runs on one stream."""
    named = GRAPH_WORDS.get(draft.trace.metadata.get("vendor", "cuda"), "device graph")
    captured = draft.named(BEGIN_CAPTURE.search)[draft.kind == CPU].sum()
    if captured:
        draft.note(
            f"{counted(captured, f'{named} is', f'{named}s are')} captured here: calls between begin and "
            "end of a capture run nothing; their work runs when the graph is replayed."
        )
    work = draft.device_work
    if work is None or (work.launch < 0).all():  # nothing tells a graph's hole from a pause
        return
    end = work.start + work.duration
    same = (
        (work.unit[1:] == work.unit[:-1]) & (work.lane[1:] == work.lane[:-1]) & (work.unit[1:] >= 0)
    )
    same &= work.start[1:] - end[:-1] > GRAPH_HOLE_NS
    units = work.unit[
        distinct_rows([work.unit, work.lane])[0]
    ]  # again for each further stream of a unit
    hole = np.flatnonzero(same & ~np.isin(work.unit[1:], units[1:][units[1:] == units[:-1]]))
    after = hole + 1
    whole = {name: np.insert(values, after, values[after]) for name, values in vars(work).items()}
    new = after + np.arange(len(after))
    whole["row"][new] = -1
    whole["start"][new] = end[hole]
    whole["duration"][new] = work.start[after] - end[hole]
    draft.device_work = DeviceWork(**whole)
    if len(hole):
        _count_untraced(
            draft,
            whole["duration"][new],
            f"{counted(len(hole), 'hole')} between recorded nodes of {named}s",
        )


def order_streams(draft: Draft) -> None:
    """Add the device tasks, and count those without a launch.

    Those are held to their recorded start, but for what was queued behind others from the begin of the window
    on: the tasks ahead of all launched ones of their stream. Where nothing was launched, the first is.
    """
    work = draft.device_work
    if work is None:
        return
    orphan = draft.trace["parent"][work.like] < 0
    held = work.launch < 0
    for begin, end in runs_of(work.lane):
        # Up to the first that was launched, if any was on the stream.
        until = end if orphan.all() else begin + np.argmax(~held[begin:end])
        held[begin + 1 : until] = False
    kind_of = np.array(
        [KINDS.index(kind) if kind in KINDS else -1 for kind in draft.trace.text("kind")]
    )
    kind = kind_of[draft.trace["kind"][work.like]]
    untraced = work.row < 0
    texts = draft.texts_of(work.like)
    if untraced.any():
        texts["name"] = np.where(untraced, draft.code("name", UNTRACED_NODES), texts["name"])
    draft.add(
        len(work.row),
        lane=work.lane,
        kind=np.where(untraced, KERNEL, kind),
        row=work.row,
        duration_ns=work.duration,
        launch=work.launch,
        order=work.order,
        release_ns=np.where(held, work.start, 0),
        start_ns=work.start,
        unit=work.unit,
        **texts,
    )
    draft.facts.orphans = int(orphan.sum())
    draft.facts.unlaunched_kernels = int((orphan & (kind == KERNEL)).sum())
    if orphan.any():
        draft.note(
            f"{draft.facts.orphans:,} of {counted(len(orphan), 'device task')} were launched before the "
            "window, or by calls that were not recorded; each follows the work before it, or starts when it "
            "was recorded to."
        )


def follow_the_device(draft: Draft) -> None:
    """Let work behind a pause of its stream follow what ended last on its device, if nothing was launched.

    Without calls nothing tells why work began when it did: its stream had come free, an event of another
    stream had come, or the CPU had launched it. What is certain is that it began behind all that the device
    had finished by then. So after a pause of its stream it follows what ended last on the device, and only
    the rest stays as a pause:

        stream 1   |product                 |            |product
        stream 2                             |all-reduce |

    Kept as a pause of its stream, the work of the others would stand still inside it: a stream that
    has little to do would hold the step as long as it was, whatever the device does.
    Back-to-back work goes on behind its own stream alone.
    """
    if len(draft.launched()):
        return
    tasks = draft.on_streams()
    start = draft.start_ns
    end = draft.end_ns
    before = draft.ended_before(tasks)
    source = ended_beside(draft, tasks)
    late = (start[tasks] - before > BACK_TO_BACK_NS) & (source >= 0) & (end[source] > before)
    late &= start[source] < start[tasks]  # as in the recording: nothing waits for itself
    tasks = tasks[late]
    source = source[late]
    draft.release_ns[tasks] = 0
    draft.link(source, tasks, latency_ns=start[tasks] - end[source], cause=Cause.EVENT)


def fill_heads(draft: Draft) -> None:
    """Put untraced work in front of a stream's first task that started long after all that could hold it.

    It was launched before the window, most often by a graph's launch.
    """
    firsts = np.array([tasks[0] for _, tasks in draft.streams()], np.int64)
    firsts = firsts[draft.launch[firsts] >= 0]
    firsts = firsts[draft.start_ns[firsts] - ready(draft, firsts) > HEAD_NS]
    if not len(firsts):
        return
    begun = ready(draft, firsts)
    duration = draft.start_ns[firsts] - begun
    draft.add(
        len(firsts),
        lane=draft.lane[firsts],
        kind=KERNEL,
        phase=draft.phase[firsts],
        name=draft.code("name", UNTRACED_HEAD),
        order=draft.order[draft.launch[firsts]] - 1,
        start_ns=begun,
        duration_ns=duration,
        release_ns=begun,
    )
    streams = counted(len(firsts), "stream")
    _count_untraced(
        draft,
        duration,
        f"{streams} began with work launched before the window that was not recorded",
    )


def _count_untraced(draft: Draft, duration_ns: ndarray, what: str) -> None:
    draft.facts.untraced_ns += int(duration_ns.sum())
    draft.note(
        f"{what}, {duration_ns.sum() / 1e6:,.2f} ms in total, counted as untraced device work."
    )


def _calls_of_devices(draft: Draft) -> tuple[ndarray, ndarray]:
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


def _count_unexplained(draft: Draft, late_ns: ndarray) -> None:
    draft.facts.unexplained = len(late_ns)
    draft.facts.unexplained_ns = int(late_ns.sum())


def causes(draft: Draft, tasks: ndarray) -> tuple[ndarray, ...]:
    """Return when device tasks started, were launched, had their stream free, and all else behind.

    In ns; `NEVER` for what there is none of.
    """
    launched = np.where(draft.launch[tasks] >= 0, draft.start_ns[draft.launch[tasks]], NEVER)
    return draft.start_ns[tasks], launched, draft.ended_before(tasks), draft.held_until()[tasks]


def ready(draft: Draft, tasks: ndarray) -> ndarray:
    """Return when all that is known to hold device tasks back was over, in ns."""
    _, *known = causes(draft, tasks)
    return np.maximum.reduce(known)


def _start_up(draft: Draft, tasks: ndarray, startup: ndarray) -> None:
    """Let each device task start so much later than the one before it on its stream ends."""
    follows = draft.lane[tasks[1:]] == draft.lane[tasks[:-1]]
    draft.gap_ns[tasks[:-1][follows]] = startup[1:][follows]


def _typical(values: ndarray, largest: int, otherwise: int) -> int:
    values = values[(values >= 0) & (values <= largest)]
    return int(np.median(values)) if len(values) >= LEAST_SAMPLES else otherwise


def measure_latencies(draft: Draft) -> None:
    """Give each device task the costs that its recorded start allows, and count what is unexplained.

    What other streams explain is doubtful instead.
    """
    facts = draft.facts
    nothing_launched = not len(draft.launched())
    tasks = draft.on_streams()
    of_event = np.zeros(draft.size, np.int64)
    start, launched, before, held = causes(draft, tasks)
    has_launch = launched > NEVER
    # Of a call that was not recorded, what its thread did until an idle device began is part of the latency.
    recorded = take(draft.trace["parent"] >= 0, draft.row[tasks], True)
    lost = ~recorded & (start - np.maximum(before, held) > LARGEST_STARTUP_NS)
    latency = np.clip(start - launched, 0, np.where(lost, LONGEST_NS, facts.launch_latency_ns))
    startup = np.clip(start - before, 0, facts.startup_ns)
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
        rank = draft.rank[tasks]
        for each in unique(rank[beside]):
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


def ended_beside(draft: Draft, tasks: ndarray) -> ndarray:
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


def part_fused(draft: Draft) -> None:
    """Divide the tasks whose rows have debug handles over the operators and layers that own them."""
    trace = draft.trace
    handles = trace.handles
    if handles is None:
        return
    code = np.where(draft.row >= 0, trace["handle"][draft.row], -1)
    # The CPU time of launching belongs to the call, not to what it launched; a copy or a collective is one.
    code[(draft.kind != KERNEL) & ~draft.of_rows("operator", "annotation")] = -1
    for place, identifier in enumerate(handles):
        tasks = np.flatnonzero(code == place)
        if len(tasks):
            parts = defaultdict[tuple[str, str, str], float](float)
            for handle, share in zip(
                handles[identifier], handles.shares(identifier).tolist(), strict=True
            ):
                parts[handle.operator, handle.layer, handle.phase] += share
            _part(draft, tasks, parts)


def _part(draft: Draft, tasks: ndarray, parts: dict[tuple[str, str, str], float]) -> None:
    """Divide some tasks; the first part keeps the task's id, and what followed it follows the last."""
    whole = draft.duration_ns[tasks]
    ends = np.floor(np.cumsum(list(parts.values()))[:, None] * whole + 0.5).astype(np.int64)
    ends[-1] = whole
    durations = np.diff(ends, axis=0, prepend=0)
    keys = place_next_to(draft, np.tile(tasks, len(parts) - 1), behind=True)
    same = draft.values(tasks)
    ids = tasks
    for number, (operator, layer, phase) in enumerate(parts):
        if number:
            start = np.where(same["start_ns"] >= 0, same["start_ns"] + ends[number - 1], -1)
            order = keys.reshape(-1, len(tasks))[number - 1]
            new = {"order": order, "start_ns": start, "release_ns": 0}
            ids = draft.add(len(tasks), **(same | new))
        draft.duration_ns[ids] = durations[number]
        draft.gap_ns[ids] = 0
        draft.op[ids] = draft.code("op", operator)
        if layer or len(parts) > 1:  # the layer of the largest share is another's
            draft.layer[ids] = draft.code("layer", layer or None)
        if phase:
            draft.phase[ids] = phase_code(phase)
    draft.gap_ns[ids] = same["gap_ns"]
    follow_instead(draft, tasks, ids)
