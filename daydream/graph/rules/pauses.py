"""Rule 10, pauses: device work of a recording that holds no launches, and what it began behind.

Without calls nothing tells why work began when it did: its stream had come free, an event of another
stream had come, or the CPU had launched it. What is certain is that it began behind all that the device
had finished by then. So after a pause of its stream it follows what ended last on the device, and only the
rest stays as a pause:

    stream 1   |product                 |            |product
    stream 2                             |all-reduce |

Kept as a pause of its stream, the work of the others would stand still inside it: a stream that
has little to do would hold the step as long as it was, whatever the device does.
Back-to-back work goes on behind its own stream alone.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.builder import GraphBuilder
from daydream.graph.plan import Cause

BACK_TO_BACK_NS = 10_000  # kernels follow each other by 1 to 2 us, copies and memsets by up to 10
CLOCK_NS = 3_000  # device times of two streams against each other


def follow_the_device(builder: GraphBuilder) -> None:
    """Let work behind a pause of its stream follow what ended last on its device, if nothing was launched."""
    columns, lanes = builder.graph.columns, builder.graph.lanes
    if (columns["launch"] >= 0).any():
        return
    devices: dict[tuple[int, int], list[np.ndarray]] = {}
    for lane, tasks in builder.tasks.streams():
        devices.setdefault((lanes[lane].rank, lanes[lane].device), []).append(tasks)
    for streams in devices.values():
        if len(streams) > 1:
            _follow(builder, streams)


def _follow(builder: GraphBuilder, streams: list[np.ndarray]) -> None:
    """Link the tasks of a device behind the last of another stream that had ended as they began."""
    start, end = builder.start_ns, builder.end_ns
    tasks = np.concatenate(streams)
    before = np.concatenate([np.append(-(2**62), end[mine[:-1]]) for mine in streams])
    late = start[tasks] - before > BACK_TO_BACK_NS
    tasks, before = tasks[late], before[late]
    every = np.concatenate(streams)
    every = every[np.lexsort((every, end[every]))]
    last = np.searchsorted(end[every], start[tasks] + CLOCK_NS, side="right") - 1
    source = every[np.maximum(last, 0)]
    lane = builder.graph.columns["lane"]
    found = (last >= 0) & (end[source] > before) & (lane[source] != lane[tasks])
    found &= start[source] < start[tasks]  # as in the recording: nothing waits for itself
    tasks, source = tasks[found], source[found]
    if len(tasks):
        builder.graph.link(source, tasks, latency_ns=start[tasks] - end[source], cause=Cause.EVENT)
        builder.matched += zip(tasks.tolist(), source.tolist(), strict=True)
