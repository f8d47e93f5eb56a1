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
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import combinations, distinct_rows
from daydream.graph.draft import DeviceWork, Draft, runs_of
from daydream.graph.plan import Cause, around
from daydream.graph.rules.latencies import ended_beside, ready
from daydream.graph.rules.thresholds import BACK_TO_BACK_NS, GRAPH_HOLE_NS, HEAD_NS
from daydream.graph.tables import (
    CPU,
    DEVICE_KINDS,
    KERNEL,
    KINDS,
    ORDER_STEP,
    UNTRACED_HEAD,
    UNTRACED_NODES,
    Lane,
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
    start = np.asarray(trace["start_ns"][rows], np.int64)
    parent = np.asarray(trace["parent"][rows], np.int64)
    launch = np.where(parent >= 0, draft.task_of_row[parent], -1)
    by_time = np.lexsort((start, lane))
    _find_callers(draft, launch, start, lane, by_time)
    # In program order right behind the launch; without one behind the stream's previous task.
    launched = launch >= 0
    order = np.full(len(lane), BEFORE_ALL)
    order[launched] = draft.order[launch[launched]] + DEVICE_PLACE
    if not launched.all():
        for begin, end in runs_of(lane[by_time]):
            work = by_time[begin:end]
            latest = np.maximum.accumulate(order[work])
            order[work] = np.where(launched[work], order[work], latest)
        head = order == BEFORE_ALL
        order[head] += start[head] * ORDER_STEP
    sequence = np.lexsort((start, order, lane))
    rows = rows[sequence]
    draft.device_work = DeviceWork(
        row=rows,
        like=rows,
        lane=lane[sequence] + first_lane,
        start=start[sequence],
        duration=np.asarray(trace["duration_ns"][rows], np.int64),
        launch=launch[sequence],
        order=order[sequence],
        unit=draft.units(rows),
    )


def _find_callers(
    draft: Draft, launch: np.ndarray, start: np.ndarray, lane: np.ndarray, by_time: np.ndarray
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
    first, last = launch[ahead], launch[behind]
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
    found = np.choose(np.append(draft.order, BEFORE_ALL)[callers].argmax(axis=0), callers)
    launch[lost] = np.where(lane[ahead] == lane[behind], found, -1)


def fill_holes(draft: Draft) -> None:
    """Put untraced work into the holes between nodes of a graph launch that runs on one stream."""
    named = GRAPH_WORDS.get(draft.trace.metadata.get("vendor", "cuda"), "device graph")
    captured = int(draft.named(BEGIN_CAPTURE.search)[draft.kind == CPU].sum())
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
            f"{int(orphan.sum()):,} of {counted(len(orphan), 'device task')} were launched before the "
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
    start, end, before = draft.start_ns, draft.end_ns, draft.ended_before(tasks)
    source = ended_beside(draft, tasks)
    late = (start[tasks] - before > BACK_TO_BACK_NS) & (source >= 0) & (end[source] > before)
    late &= start[source] < start[tasks]  # as in the recording: nothing waits for itself
    tasks, source = tasks[late], source[late]
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


def _count_untraced(draft: Draft, duration_ns: np.ndarray, what: str) -> None:
    draft.facts.untraced_ns += int(duration_ns.sum())
    draft.note(
        f"{what}, {duration_ns.sum() / 1e6:,.2f} ms in total, counted as untraced device work."
    )
