"""Compiled code on a CPU: what goes when the calls of a model's forward and backward pass are compiled.

A compiler keeps the calls of matrix libraries and makes one loop of what lies between two of
them. Operator dispatch, views, autograd's nodes (with its walks over them) and the module's Python
go; what comes is fixed costs of compiled code, which small models feel.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from daydream.arrays import distinct_rows
from daydream.collect.live.recording_cost import TYPICAL
from daydream.costs.device.call_scaling import cpu_overheads
from daydream.costs.device.fusion import bytes_left
from daydream.costs.kernels import work
from daydream.costs.operators import MATRIX_FAMILIES, operator
from daydream.costs.workload.calls import calls_of
from daydream.costs.workload.operator import itemsize
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.profiler_overhead import overhead_scale
from daydream.graph.selection import Selection
from daydream.model.captured import DISPATCH_NS
from daydream.model.compiled_kernels import (
    DOUBT,
    channels_last_factors,
    draws,
    masks_ns,
    random_numbers_ns,
)
from daydream.model.optimizers import ACCUMULATE
from daydream.model.parameters import NODE, compiled_parts, graph_walks


@dataclass(frozen=True)
class FixedCosts:
    """Time of compiled code beside its calculation, ns: a call of it, a parameter it uses, a graph break.

    A call checks the guards, passes through the wrappers of the ahead-of-time compiler and is one autograd
    node; each parameter has guards, and its gradient a buffer of its own. Behind a graph break the rest of
    the frame is a compiled function with guards, wrappers and a node of its own, but no module to enter.
    """

    call_ns: int
    parameter_ns: int
    break_ns: int

    def of(self, parameters: int, breaks: int = 0) -> int:
        """Return the fixed costs of a call with so many parameters and graph breaks in it, ns."""
        return self.call_ns + self.break_ns * breaks + self.parameter_ns * parameters


# Calls and breaks: 1 to 4 modules of one parameter of 8 elements, products of 8 x 8, and chains with 1 to
# 4 graph breaks, each against the same uncompiled, by phase (benchmarks/compiled_costs.py). Parameters: from
# the same with up to 32 of them. torch 2.13.0 on x86 server CPUs at one thread: means of two hosts, which are
# 5 % apart in a call forward (69.5 and 73 us), 24 % backward (43.5 and 55) and by a factor of 1.5 to 2.2 in
# a parameter (2.0 and 4.5, 1.2 and 2.4) and a break (34 and 50, 24.5 and 48). None of these is a model of the
# ledger.
FORWARD = FixedCosts(71_000, 3_000, 41_000)
BACKWARD = FixedCosts(49_000, 1_700, 35_000)
PASSES = (("forward", FORWARD), ("backward", BACKWARD))
# Times these costs: the heads of operators in our recordings are 0.6 to 2.4 times as long as usual.
FASTEST, SLOWEST = 0.5, 2.5
LIBRARY_CALL_NS = (
    1_700  # more than the operator itself: called from Python, its output allocated there
)
FUSED_LOOP_NS = 1_000
# Of autograd's walks over its graph, a node: before a backward pass and after it (parameters.py).
WALK_NS = (150, 250)
RECURRENT = r"^aten::(lstm|gru|rnn_tanh|rnn_relu)$"


def compile_cpu_calls(
    graph: Graph, *, layers: str | None = None, breaks: int = 0, product_speedup: float = 1.0
) -> str:
    """Compile the forward and backward calls of a CPU trace, as Inductor does; return a sentence on it.

    Args:
        graph: the graph of the trace.
        layers: a shell pattern: each outermost module that matches is compiled by itself. None: all as one.
        breaks: graph breaks in each compiled forward call.
        product_speedup: how many times as fast calls of matrix libraries become.

    Raises:
        NotApplicableError: nothing is left to compile.

    """
    cpu = graph.select(kind="cpu")
    compiled, accumulate = _compilable(graph)
    parts = compiled_parts(graph, compiled, layers)
    compiled = reduce(or_, (part.tasks for part in parts))
    pattern = _library_calls(graph)
    library = (
        compiled.where(within=pattern) if pattern else compiled.of(compiled.ids[:0], compiled.words)
    )
    _shorten_walks(graph, compiled)
    before, loops = len(compiled.group_by("call")), 0
    added = np.zeros(len(graph.alive))
    slower = slowness(graph)
    for part in parts:
        added += random_numbers_ns(part.tasks, library & part.tasks)
        added += masks_ns(part.tasks, library & part.tasks, breaks)
    if product_speedup != 1 and len(library):
        library.scale(1 / product_speedup)
    if len(library):
        laid_out = channels_last_factors(library)
        changed = library.of(library.ids[laid_out != 1], library.words)
        if len(changed):
            changed.scale(laid_out[laid_out != 1]).doubt(DOUBT)
    for part in parts:
        others = cpu - part.tasks - accumulate
        for phase, fixed in PASSES:
            region = part.tasks.where(phase=phase)
            if len(region):
                fixed_ns = round(slower[phase] * fixed.of(part.parameters, breaks))
                loops += _compile(
                    region,
                    library & region,
                    pattern,
                    others,
                    added,
                    fixed_ns,
                    once=layers is not None,
                )
    calls = len(library.group_by(within=pattern)) if pattern else 0
    steps = max(len(cpu.group_by("step")), 1)
    parameters = sum(part.parameters for part in parts)
    each_us = sum(slower[phase] * fixed.parameter_ns / 1e3 for phase, fixed in PASSES)
    many = f"each of {len(parts)} compiled modules" if layers is not None else "a compiled call"
    return (
        f"{before / steps:,.0f} operator calls per step become {calls / steps:,.0f} calls of matrix "
        f"libraries and {loops / steps:,.0f} fused loops; {many} has fixed costs of "
        f"{slower['forward'] * FORWARD.call_ns / 1e3:.0f} us forward and "
        f"{slower['backward'] * BACKWARD.call_ns / 1e3:.0f} us backward, and of {each_us:.1f} us for each of "
        f"{parameters} parameters (measured with torch 2.13 on x86 server CPUs, and scaled by how long the "
        "heads of operators are here). Of a step with a profiler more goes, as fewer calls are recorded: go "
        "by the unprofiled one."
    )


def slowness(graph: Graph) -> dict[str, float]:
    """Return by phase how many times as long a compiled call's fixed costs are in this program.

    A real script's caches are colder than those of the small programs that the costs were measured with, and
    the machine is another: the heads of operators tell both, as they do of the cost of recording.
    """
    if not len(graph.recorded):
        return {phase: 1.0 for phase, _ in PASSES}
    found = overhead_scale(graph.recorded, TYPICAL)
    return {phase: min(max(found[phase], FASTEST), SLOWEST) for phase, _ in PASSES}


def fused_loops(graph: Graph) -> Groups:
    """Return the work that would become a loop of its own each, if all that can be is compiled in one call.

    Only groups with a calculation of their own: views and dispatch alone make no loop.

    Raises:
        NotApplicableError: nothing is left to compile.

    """
    compiled, accumulate = _compilable(graph)
    pattern = _library_calls(graph)
    library = (
        compiled.where(within=pattern) if pattern else compiled.of(compiled.ids[:0], compiled.words)
    )
    others = graph.select(kind="cpu") - compiled - accumulate
    loops = (compiled - library).stretches(others | library, on_lane=True)
    return loops.where(fused_bodies_ns(graph, loops) > 0)


def _compilable(graph: Graph) -> tuple[Selection, Selection]:
    """Return what a compiler takes of forward and backward, and the nodes that accumulate gradients."""
    cpu = graph.select(kind="cpu")
    tasks = cpu.where(phase=("forward", "backward"))
    tasks.need("operators in the forward or backward pass")
    accumulate = tasks.where(within=ACCUMULATE)  # runs behind the compiled backward pass, as before
    compiled = tasks - accumulate - tasks.where(layer="loss") - _left_alone(graph, tasks)
    compiled = compiled - _beside_recurrent(compiled)
    if not len(compiled):
        graph.does_not_apply(
            "Dynamo does not trace torch's recurrent layers (LSTM, GRU, RNN): a forward call that calls one "
            "runs uncompiled, and here no other is left"
        )
    return compiled, accumulate


def _left_alone(graph: Graph, tasks: Selection) -> Selection:
    """Return what no compiler takes away: waits, long calls of unknown work, and what pauses follow.

    Dispatch and Python between two operators take microseconds; what takes over a millisecond calculates,
    waits or reads a file, and compiled code does so, too. Calls that ask for collectives, and that wait for
    them, do so behind compiled code as before.
    """
    unknown = work(graph, tasks).family == None  # noqa: E711 - an array
    long = (tasks.duration_ns > DISPATCH_NS) & unknown
    alone = tasks.of(tasks.ids[long | (tasks.gap_ns > DISPATCH_NS)], tasks.words) | tasks.waiting()
    collectives = graph.select(kind="collective")
    held = graph.links["dst"][np.isin(graph.links["src"], collectives.ids)]
    asked = collectives.launch[collectives.launch >= 0]
    return alone | tasks.of(np.intersect1d(tasks.ids, np.concatenate([held, asked])), tasks.words)


def _compile(
    region: Selection,
    library: Selection,
    pattern: str,
    others: Selection,
    added: np.ndarray,
    fixed_ns: int,
    *,
    once: bool,
) -> int:
    """Put library calls and fused loops in the place of a pass, with its fixed costs; return the loops.

    With `once` a pass that others' work interrupts has its fixed costs once a step: sums of gradients
    run between the nodes of a module, and a module that is compiled by itself is called once all the same.
    """
    graph = region.graph
    runs = region.stretches(others, on_lane=True)
    ends = runs.last().gap_ns
    fixed = np.full(len(runs), fixed_ns)
    if once:
        in_order = np.argsort(graph.order[runs.first().ids], kind="stable")
        _, in_steps = np.unique(runs.first().step[in_order], return_index=True)
        fixed[np.setdiff1d(np.arange(len(runs)), in_order[in_steps])] = 0
    loops = (region - library).stretches(others | library, on_lane=True)
    number = np.repeat(np.arange(len(loops)), loops.sizes)
    bodies = fused_bodies_ns(graph, loops) + np.bincount(
        number, added[loops.by_group.ids], len(loops)
    )
    works = bodies > 0
    kept, gone = loops.where(works), loops.where(~works)
    graph.insert_before(runs.first(), "guards and wrappers", duration_ns=fixed // 2)
    graph.insert_after(runs.last(), "wrappers", duration_ns=fixed - fixed // 2, gap_ns=ends)
    if len(library):
        library.set(gap_ns=0)
        begins = library.group_by(within=pattern).first()
        begins.set(duration_ns=begins.duration_ns + LIBRARY_CALL_NS)
    if len(kept):
        first = kept.first()
        rest = kept.tasks - first
        first.set(name="fused loop", duration_ns=FUSED_LOOP_NS + bodies[works], gap_ns=0)
        if len(rest):
            rest.remove()
    if len(gone):
        gone.tasks.remove()
    return len(kept)


def _shorten_walks(graph: Graph, compiled: Selection) -> None:
    """Take the compiled nodes out of autograd's walks; the one in their place is in the fixed costs."""
    walks = graph_walks(graph)
    nodes = compiled.where(name=NODE)
    if len(walks) and len(nodes):
        behind = walks.phase == "backward"
        a_pass = len(nodes.group_by("call")) / behind.sum()
        walk_ns = a_pass * np.where(behind, WALK_NS[1], WALK_NS[0])
        walks.set(gap_ns=np.maximum(walks.gap_ns - walk_ns, 0))


def fused_bodies_ns(graph: Graph, loops: Groups) -> np.ndarray:
    """Return the time of each group's work as one loop, without overheads and traffic between its calls."""
    tasks = loops.by_group
    number = np.repeat(np.arange(len(loops)), loops.sizes)
    amounts = work(graph, tasks)
    overhead, _ = cpu_overheads(graph, tasks)
    body = np.where(amounts.family != None, tasks.duration_ns - overhead, 0.0)  # noqa: E711 - an array
    body[draws(tasks)] = 0.0  # compiled code draws by itself
    known = np.flatnonzero((amounts.call >= 0) & (amounts.nbytes > 0))
    first, which = distinct_rows(
        [number[known], amounts.call[known]]
    )  # a call may be cut into pieces
    nbytes = np.bincount(which, amounts.nbytes[known], len(first))
    at = known[first]
    widths = np.array([itemsize(dtype) or 0 for dtype in tasks.dtype[at].tolist()], np.int64)
    left = bytes_left(number[at], nbytes, tasks.input_elements[at] * widths, len(loops))
    # The gradient of a normalization needs sums over all that comes in before it writes anything.
    twice = (amounts.family == "normalization") & (tasks.phase == "backward")
    return np.bincount(number, np.maximum(body, 0) * np.where(twice, 1.0, left[number]), len(loops))


def _library_calls(graph: Graph) -> str:
    """Return a pattern of the operators of this trace that stay calls of a matrix library, "" for none."""
    trace = graph.recorded
    calls = calls_of(trace)
    matrix = np.isin(calls.families[calls.which].astype(str), MATRIX_FAMILIES)
    names = {trace.text("name")[code] for code in np.unique(trace["name"][matrix]).tolist()}
    # What calls others, a compiler takes apart: what does the work is within.
    stay = sorted(name for name in names if "composite" not in operator(name).traits)
    return "^(" + "|".join(stay) + ")$" if stay else ""


def _beside_recurrent(tasks: Selection) -> Selection:
    """Return the tasks of modules that call a recurrent layer themselves: Dynamo leaves these calls alone.

    With the layer goes what the module does itself and its other children. Everything where
    no layers are recorded.
    """
    recurrent = tasks.where(within=RECURRENT)
    if not len(recurrent):
        return recurrent
    callers = {_caller(layer) for layer in recurrent.layer.tolist()}
    if None in callers:
        return tasks
    layers, which = np.unique(tasks.layer.astype(str), return_inverse=True)
    beside = np.array(
        [_caller(layer) in callers or layer in callers for layer in layers.tolist()], bool
    )
    return tasks.of(tasks.ids[beside[which]], tasks.words)


def _caller(layer: str | None) -> str | None:
    """Return the module that holds a layer, "" for the model itself; None where no layer is known."""
    return None if layer is None else layer.rpartition(".")[0]
