"""Compiled code on a device: what goes on the CPU, beside the launches that fusion saves.

One call of generated Python runs the forward pass, and one autograd node the backward pass. Modules'
Python, views, calls that only call others and autograd's nodes go. A kernel that stays is launched by the
operator that did it before, called from generated code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from daydream.graph.calls import call_rows
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.model.captured import captures, no_dispatch, pauses_that_stay, regions
from daydream.model.compiled_calls import BACKWARD, FORWARD, LIBRARY_CALL_NS
from daydream.model.optimizers import ACCUMULATE
from daydream.model.parameters import CompiledPart, compiled_parts

GUARDS = r"^(guards and )?wrappers$"  # tasks that compiled calls put in: their fixed costs
# Communication, hooks and gradients of parameters: what runs beside the compiled passes.
BESIDE = rf"{ACCUMULATE}|^c10d::|nccl:|record_param_comms|DistributedDataParallel|FSDP|_FullyShard|^Optimizer"


def remove_dispatch(
    graph: Graph, device: Selection | Sequence[CompiledPart], breaks: int = 0
) -> int:
    """Take away what no compiled pass calls around this device work; return the CPU time that goes, ns.

    That is module Python, views and the dispatch of operators. Nothing goes where the trace has no operators:
    there the dispatch of a kernel that stays is not told from its module's Python.

    Args:
        graph: the graph of the trace.
        device: the device work of one compiled call, or that of several (`compiled_parts`).
        breaks: graph breaks in each compiled forward call.

    """
    if not graph.recorded.is_kind("operator").any():
        return 0
    gone = 0
    parts = compiled_parts(graph, device, None) if isinstance(device, Selection) else device
    for part in parts:
        alive = part.tasks.of(part.tasks.ids[graph.alive[part.tasks.ids]], part.tasks.words)
        for phase, fixed in (("forward", FORWARD), ("backward", BACKWARD)):
            work = alive.where(phase=phase).where(lambda tasks: tasks.launch >= 0)
            work = work - work.where(within=BESIDE)
            if len(work):
                gone += _take(graph, work, phase, fixed.of(part.parameters, breaks))
    return gone


def _take(graph: Graph, work: Selection, phase: str, fixed_ns: int) -> int:
    """Leave of each pass the calls that launch its work, and put the fixed costs of compiled code in."""
    cpu = graph.select(kind="cpu")
    waits = cpu.on_lanes_of(work.launches()).waiting()
    parts = work.stretches(waits | captures(graph))
    region = regions(graph, parts)
    tasks = cpu.where(phase=phase)
    tasks = tasks.of(tasks.ids[region[tasks.ids] >= 0], "compiled passes")
    if not len(tasks):
        return 0
    beside = tasks.where(within=BESIDE)
    calls = _callers(tasks, graph.select(on="gpu")) - beside
    kept = beside | calls | no_dispatch(tasks) | (waits & tasks)
    stays = pauses_that_stay(graph, region, tasks.ids) | np.isin(tasks.ids, beside.ids)
    gaps = np.where(stays, tasks.gap_ns, 0)
    gone = tasks - kept
    before = tasks.total("gap_ns") - int(gaps.sum()) + gone.total("duration_ns")
    tasks.set(gap_ns=gaps)
    begins = calls.group_by("call").first()
    if len(begins):
        begins.set(duration_ns=begins.duration_ns + LIBRARY_CALL_NS)
    graph.insert_before(
        parts.first().launches(), "guards and wrappers", kind="cpu", duration_ns=fixed_ns
    )
    if len(gone):
        gone.set(duration_ns=0)
        paused = np.isin(gone.ids, tasks.ids[gaps > 0])
        if not paused.all():
            gone.of(gone.ids[~paused], gone.words).remove()
    return before


def _callers(tasks: Selection, device: Selection) -> Selection:
    """Return the tasks of the innermost operators that launch device work, and the launches."""
    graph = tasks.graph
    launches = device.launches()
    made = call_rows(graph, launches.ids, inner=True)
    own = call_rows(graph, tasks.ids, inner=True)
    chosen = (np.isin(own, made) & (own >= 0)) | np.isin(tasks.ids, launches.ids)
    return tasks.of(tasks.ids[chosen], "calls that launch work")
