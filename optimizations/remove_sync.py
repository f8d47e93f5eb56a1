"""Removed synchronization: `.item()`, `.cpu()`, `nonzero`, synchronize wait for the device no more."""

from __future__ import annotations

from collections import Counter

from daydream import Graph
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.LAUNCH
CODE = "losses.append(loss.detach())  # .item() when the loop is over"
memory = unchanged

ALLOCATION = r"(?i)malloc|free"  # waits that no line of the program asked for


def remove_sync(graph: Graph, *, which: str | None = None) -> None:
    """Predict a step whose blocking calls do not wait for the device.

    `which` is a regular expression on the operator or the call that waits: `item|local_scalar`,
    `nonzero`, `DeviceSynchronize`, `aten::copy_`. Without it every wait of the steps goes: an
    upper bound. Waits of memory allocation go only where `which` matches the call's own name.
    The copies themselves and what the calls cost by themselves stay. Only times change: a value
    that the program reads (a loss that is printed, a size that shapes the next operator) has to
    come later, or from the CPU.
    A copy from pageable memory waits because the driver stages it; see pinned-memory.

    Args:
        which (REGEX): Waiting calls to remove; by default all.
    """
    waits = graph.select(kind="cpu").waiting()
    allocation = graph.select(kind="cpu", name=ALLOCATION)
    last_launch = int(graph.select(on="gpu").need("device work to wait for", lacks="device").order.max())
    # The profiler's own wait ends the window, and watchdogs wait on threads that nothing waits for.
    background = [lane.name for lane in graph.lanes if lane.background]
    waits = waits.where(lambda tasks: tasks.order < last_launch) - waits.where(lane=background)
    waits.need("calls that wait for the device, but at the end of the window")
    if which is None:
        waits = (waits - allocation).need("calls that wait for the device, but for memory allocation")
    else:
        waits = (waits - allocation).where(op=which) | waits.where(name=which)
        waits.need(f"waiting call whose name or operator matches {which!r}")
    waits.stop_waiting()
    steps = max(len(waits.group_by("step")), 1)
    calls = waits.group_by("row").first() if (waits.row >= 0).all() else waits
    common = Counter(op or name for op, name in zip(calls.op.tolist(), calls.name.tolist(), strict=True))
    listed = ", ".join(f"{name} {count / steps:.3g}" for name, count in common.most_common(4))
    graph.note(f"Waits removed per step: {listed}.")
