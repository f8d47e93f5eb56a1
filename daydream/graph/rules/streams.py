"""Rules 2, 3 and 10: device work, its order on a stream, and the call that launched it.

A device task starts no earlier than the call that launched it began, plus a
latency; the two share a correlation id. Time order cannot be used: the CPU runs
ahead, and the kernel in flight is rarely the one launched last. The call's end
cannot be used either: kernels often start before the call returns.

Work whose launch is not in the trace is counted. Where it comes before all launched work of its
stream, the CPU had run ahead before the recording began: it was in the queue already, and what it waited
for is the work before it on the stream; only the first is held to its recorded start. Further
behind, a call was not recorded: when it came is not known, and the start is held. Where no call
was recorded at all, each task follows the one before it on its stream, or what the device had finished
when it began (rule `pauses`), and the pause between them stays.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.builder import GraphBuilder, distinct_rows, runs_of
from daydream.graph.graph import DEVICE_KINDS, KINDS, ORDER_STEP, Lane
from daydream.graph.rules.device_graphs import DeviceWork, fill_holes
from daydream.graph.tables import KERNEL, UNTRACED_NODES
from daydream.text import counted

DEVICE_PLACE = 4  # program-order distance from a call to the device work it launched
BEFORE_ALL = -(2**62)


def order_streams(builder: GraphBuilder, *, holes: bool = True) -> None:
    """Add the device tasks, a lane for each stream, in launch order; `holes` of graphs as untraced work."""
    trace, graph = builder.trace, builder.graph
    rows = np.flatnonzero(trace.is_kind(*DEVICE_KINDS))
    if not len(rows):
        return
    lane, streams = distinct_rows([np.asarray(trace[name][rows]) for name in ("rank", "device", "stream")])
    first_lane = len(graph.lanes)
    ranks = {max(rank, 0) for rank, _, _ in streams}
    several_ranks = len(ranks) > 1
    several_devices = len({(rank, device) for rank, device, _ in streams}) > len(ranks)
    for recorded_rank, device, stream in streams:
        rank = max(recorded_rank, 0)
        name = f"stream {stream}"
        if several_devices:
            name = f"device {device} {name}"
        if several_ranks:
            name = f"rank {rank} {name}"
        graph.add_lane(Lane(name, rank, on_device=True, device=device))

    start = np.asarray(trace["start_ns"][rows], np.int64)
    parent = np.asarray(trace["parent"][rows], np.int64)
    launch = (
        np.where(parent >= 0, builder.task_of_row[parent], -1) if len(builder.task_of_row) else parent * 0 - 1
    )
    order = _program_order(graph.columns["order"], lane, start, launch)
    sequence = np.lexsort((start, order, lane))
    rows = rows[sequence]
    work = DeviceWork(
        rows, rows, lane[sequence], start[sequence], np.asarray(trace["duration_ns"][rows], np.int64),
        launch[sequence], order[sequence], builder.unit(rows),
    )  # fmt: skip
    if holes:
        work = fill_holes(work)
    held = _held(work, distinct_rows([np.array(streams)[:, 0], np.array(streams)[:, 1]])[0])
    kind_of = np.array([KINDS.index(kind) if kind in KINDS else -1 for kind in trace.text("kind")] + [-1])
    kind = kind_of[trace["kind"][work.like]]
    texts = builder.texts_of(work.like)
    untraced = work.row < 0
    texts["name"] = np.where(
        untraced, graph.code("name", UNTRACED_NODES) if untraced.any() else 0, texts["name"]
    )
    graph.add(
        len(work.row),
        lane=work.lane + first_lane,
        kind=np.where(untraced, KERNEL, kind),
        row=work.row,
        duration_ns=work.duration,
        launch=work.launch,
        order=work.order,
        release_ns=np.where(held, work.start, 0),
        measured_start_ns=work.start,
        **texts,
    )
    builder.extend(work.start + work.duration)
    builder.unit_of_task = np.concatenate([np.full(graph.size - len(work.row), -1), work.unit])
    launch = work.launch
    orphan = launch < 0
    graph.facts.orphans = int(orphan.sum())
    graph.facts.unlaunched_kernels = int((orphan & (kind == KERNEL)).sum())
    if orphan.any():
        graph.note(
            f"{int(orphan.sum()):,} of {counted(len(launch), 'device task')} were launched before the "
            f"window, or by calls that were not recorded; {int(held.sum()):,} of them are fixed at "
            "their recorded start, the others follow the work before them."
        )


def _held(work: DeviceWork, device_of_lane: np.ndarray) -> np.ndarray:
    """Return which tasks are held to their recorded start: without a launch, and not queued behind others.

    Tasks ahead of all launched ones of their stream are queued from the begin of the window on. Where
    nothing was launched that holds for those that began before their device had finished anything.
    """
    held = work.launch < 0
    if held.all():
        device = device_of_lane[work.lane]
        first_end = np.full(int(device.max(initial=0)) + 1, 2**62)
        np.minimum.at(first_end, device, work.start + work.duration)
        first_of_lane = np.append(True, work.lane[1:] != work.lane[:-1])
        return np.asarray(first_of_lane & (work.start < first_end[device]))
    for begin, end in runs_of(work.lane):
        launched = np.flatnonzero(work.launch[begin:end] >= 0)
        held[begin + 1 : begin + (int(launched[0]) if len(launched) else 0)] = False
    return held


def _program_order(
    task_order: np.ndarray, lane: np.ndarray, start: np.ndarray, launch: np.ndarray
) -> np.ndarray:
    """Return program-order keys: right behind the launch, without one behind the stream's previous task."""
    launched = launch >= 0
    order = np.where(launched, task_order[launch] + DEVICE_PLACE if len(task_order) else 0, BEFORE_ALL)
    if launched.all():
        return order
    by_time = np.lexsort((start, lane))
    lanes, keys = lane[by_time], order[by_time]
    # Running maximum per lane; lanes are kept apart by resetting where they begin.
    for begin, end in runs_of(lanes):
        keys[begin:end] = np.where(
            launched[by_time[begin:end]], keys[begin:end], np.maximum.accumulate(keys[begin:end])
        )
    head = keys == BEFORE_ALL
    keys[head] = BEFORE_ALL + start[by_time[head]] * ORDER_STEP
    order[by_time] = keys
    return order
