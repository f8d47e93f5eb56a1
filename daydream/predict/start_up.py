"""Start-up inside the only step: calls in which the driver makes its context and loads modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daydream.collect.derive.first_iterations import LOADS, LOADS_NS, WAITS, WORTH_SAYING
from daydream.costs.device.roofline import names_fit
from daydream.graph.tables import CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def start_up_calls(graph: Graph) -> np.ndarray:
    """Return the calls into the driver that stand far longer than the others of the only step.

    A call that prepares something for the first time reads files, waits for the device's firmware or for
    other processes: nothing tells what a faster CPU makes of it. With other steps beside it such a
    step is left out. Empty where they are a small part of the step.

    Args:
        graph: the graph of the trace, before the change.

    Returns:
        ids of the calls, int64.
    """
    steps = [step for step in graph.steps if step.get("covered")]
    none = np.zeros(0, np.int64)
    if graph.trace is None or len(steps) != 1 or len(graph.steps) != 1:
        return none
    rows = graph.columns["row"]
    calls = np.flatnonzero((graph.columns["kind"] == CPU) & graph.alive & (rows >= 0))
    calls = calls[graph.trace.is_kind("runtime")[rows[calls]]]
    if not len(calls):
        return none
    tasks = graph.tasks(calls)
    took = tasks.duration_ns
    long = took >= max(LOADS_NS, LOADS * float(np.median(took)))
    long &= ~names_fit(tasks, WAITS.search)
    whole = steps[0].get("measured_ns") or 0
    return calls[long] if took[long].sum() >= WORTH_SAYING * whole else none
