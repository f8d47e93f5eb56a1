"""Compiled code on a CPU: what goes when the calls of a model's forward and backward pass are compiled.

A compiler keeps the calls of matrix libraries and makes one loop of what lies between two of
them. Operator dispatch, views, autograd's nodes (with its walks over them) and the module's Python
go; what comes is fixed costs of compiled code, which small models feel.

Masks that compiled code on a CPU stores for its backward pass: which, and what they cost.

The gradient of a ReLU needs to know where it cut. Where a product or a normalization of the same compiled
graph keeps the ReLU's output anyway, the compiler looks there; else it stores a mask of a byte an element,
and the loop that stores or reads one converts it element by element. So it is behind a graph break: a graph
that ends with a ReLU does not know who keeps its output.

Random numbers in compiled code on a CPU: each element is drawn by itself, where torch draws them in a row.

Inductor makes the numbers of a dropout with Philox, a counter an element, in a loop without vectors, and
stores a mask of a byte an element in it. What uses the mask reads it again in each of its passes. The seeds
of all draws of a compiled call are drawn by torch, once.

Convolutions in compiled code on a CPU: their tensors lie channels last, whatever the program does.

Inductor changes the layout of all convolutions of a graph (`layout_optimization`). oneDNN then pads no
channels to whole blocks, and what it wrote in blocks needs no reordering.

Compiled code on a device: what goes on the CPU, beside the launches that fusion saves.

One call of generated Python runs the forward pass, and one autograd node the backward pass. Modules'
Python, views, calls that only call others and autograd's nodes go. A kernel that stays is launched by the
operator that did it before, called from generated code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

import numpy as np

from daydream.arrays import distinct_rows, places, take, unique
from daydream.collect.derive.quality import TYPICAL
from daydream.costs.device.call_scaling import cpu_overheads
from daydream.costs.kernels import work
from daydream.costs.operators import MATRIX_FAMILIES, operator, operators_that
from daydream.costs.workload.calls import calls_of, forward_rows, of_rows
from daydream.costs.workload.formulas import parse_shapes
from daydream.costs.workload.operator import itemsize
from daydream.graph.calls import call_rows
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.profiler_overhead import overhead_scale
from daydream.graph.select import of_tasks
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.model.captured import DISPATCH_NS, captures, no_dispatch, pauses_that_stay, regions
from daydream.model.gradients import NODE, CompiledPart, compiled_parts, graph_walks
from daydream.model.optimizers import ACCUMULATE


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
# 4 graph breaks, each against the same uncompiled, by phase (benchmarks/compiled_costs.py of b281a3aa). Parameters:
# from the same with up to 32 of them. torch 2.13.0 on x86 server CPUs at one thread: means of two hosts, which are
# 5% apart in a call forward (69.5 and 73 us), 24% backward (43.5 and 55) and by a factor of 1.5 to 2.2 in
# a parameter (2.0 and 4.5, 1.2 and 2.4) and a break (34 and 50, 24.5 and 48). None of these is a model of the
# ledger.
FORWARD = FixedCosts(71_000, 3_000, 41_000)
BACKWARD = FixedCosts(49_000, 1_700, 35_000)
PASSES = (("forward", FORWARD), ("backward", BACKWARD))
# Times these costs: the heads of operators in our recordings are 0.6 to 2.4 times as long as usual.
FASTEST = 0.5
SLOWEST = 2.5
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
    library = compiled.where(within=pattern)
    _shorten_walks(graph, compiled)
    before = len(compiled.group_by("call"))
    loops = 0
    added = np.zeros(len(graph.alive))
    slower = slowness(graph)
    for part in parts:
        added += random_numbers_ns(part.tasks, library & part.tasks)
        added += masks_ns(part.tasks, library & part.tasks, breaks)
    if product_speedup != 1 and len(library):
        library.scale(1 / product_speedup)
    laid_out = channels_last_factors(library)
    changed = library.where(lambda _: laid_out != 1)
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
    calls = len(library.group_by(within=pattern))
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
        "heads of operators are here). The profiled step shrinks more because fewer calls are recorded; use "
        "the unprofiled number."
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
    alone = tasks.where(lambda _: long | (tasks.gap_ns > DISPATCH_NS)) | tasks.waiting()
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
    kept = loops.where(works)
    gone = loops.where(~works)
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
    from daydream.costs.device.fusion import bytes_left

    left = bytes_left(number[at], nbytes, tasks.input_elements[at] * widths, len(loops))
    # The gradient of a normalization needs sums over all that comes in before it writes anything.
    twice = (amounts.family == "normalization") & (tasks.phase == "backward")
    return np.bincount(number, np.maximum(body, 0) * np.where(twice, 1.0, left[number]), len(loops))


def _library_calls(graph: Graph) -> str:
    """Return a pattern of the operators of this trace that stay calls of a matrix library."""
    trace = graph.recorded
    calls = calls_of(trace)
    matrix = np.isin(calls.families[calls.which].astype(str), MATRIX_FAMILIES)
    names = {trace.text("name")[code] for code in unique(trace["name"][matrix]).tolist()}
    # What calls others, a compiler takes apart: what does the work is within.
    stay = sorted(name for name in names if "composite" not in operator(name).traits)
    return "^(" + "|".join(stay) + ")$" if stay else "(?!)"


def _beside_recurrent(tasks: Selection) -> Selection:
    """Return the tasks of modules that call a recurrent layer themselves: Dynamo leaves these calls alone.

    With the layer goes what the module does itself and its other children. Everything where
    no layers are recorded.
    """
    recurrent = tasks.where(within=RECURRENT)
    if not len(recurrent):
        return recurrent
    if None in recurrent.layer.tolist():
        return tasks
    callers = {
        layer.rpartition(".")[0] for layer in recurrent.layer.tolist()
    }  # "": the model itself

    def beside(layer: str | None) -> bool:
        return layer is not None and not callers.isdisjoint((layer, layer.rpartition(".")[0]))

    return tasks.where(lambda _: of_tasks(tasks, "layer", beside, bool))


# An element, ns: fitted to ReLUs of 65 k to 590 k elements whose output nothing keeps, less the same ReLU
# ahead of a product; torch 2.13.0 on an x86 server CPU with AVX-512.
STORE_NS = 10.4
READ_NS = 4.0
RELU = r"^aten::relu_?$"
SUMS_OF_GRADIENTS = ("aten::add", "aten::add_")


def masks_ns(compiled: Selection, library: Selection, breaks: int = 0) -> np.ndarray:
    """Return the time that masks add to each task, by id.

    Where graphs break is not known, only how often. A break stands between two statements of a program, and a
    product is called in one with its activation. So each place in front of a product is as likely as the
    next, and what a break would add behind a ReLU counts with the share of these places that have one.

    Args:
        compiled: what one compiled call takes the place of.
        library: calls of it that stay as they are.
        breaks: graph breaks in each forward call.

    """
    graph = compiled.graph
    trace = compiled.graph.recorded
    added = np.zeros(len(graph.alive))
    family = work(graph, compiled).family.astype(str)
    stays = compiled.is_in(library)
    keeps = stays | (family == "normalization")
    works = np.flatnonzero(keeps | (family != "None"))
    relu = call_rows(graph, compiled.ids[works], RELU)
    last = np.flatnonzero((relu >= 0) & np.append(relu[1:] != relu[:-1], True))
    forward = library.where(phase="forward")
    share_broken = 0.0
    if breaks and len(forward):
        products = len(unique(call_rows(graph, forward.ids))) / len(forward.group_by("step"))
        share_broken = min(1.0, breaks / max(products - 1, 1))
    # By the next call of the pass that does work.
    passes = np.stack([compiled.step[works], places(compiled.phase[works])[1]])
    goes_on = np.append((passes[:, 1:] == passes[:, :-1]).all(axis=0), False)
    kept = take(keeps[works], last + 1, False) & goes_on[last]
    broken = take(stays[works], last + 1, False) * share_broken
    part = np.where(kept, broken, 1.0)
    elements = np.maximum(compiled.input_elements, 0)
    added[compiled.ids[works[last]]] = STORE_NS * part * elements[works[last]]

    cuts = np.flatnonzero(compiled.op == "aten::threshold_backward")
    maker = forward_rows(trace, graph.row[compiled.ids[cuts]])
    of_row = np.zeros(len(trace) + 1)
    of_row[relu[last]] = part
    share = np.where(maker >= 0, np.maximum(of_row[maker], of_row[trace["parent"][maker]]), 0.0)
    reads = share * _reads(compiled, stays, family, cuts)
    added[compiled.ids[cuts]] = READ_NS * reads * elements[cuts] / 2  # the gradient comes in, too
    return added


def _reads(
    compiled: Selection, stays: np.ndarray, family: np.ndarray, cuts: np.ndarray
) -> np.ndarray:
    """Return how often the mask of each cut gradient is read.

    A loop with the gradient of a normalization goes over it twice: once for its sums, once to write. Where a
    path around layers brings the gradient to a sum with another, it is not stored but cut once more.
    """
    backward = compiled.phase == "backward"
    loop = np.cumsum(np.append(False, stays[1:] != stays[:-1]))
    passes = 1 + np.isin(loop, loop[(family == "normalization") & backward])
    sums = np.flatnonzero(np.isin(compiled.op.astype(str), SUMS_OF_GRADIENTS) & backward)
    following = take(sums, np.searchsorted(sums, cuts), len(passes))
    there = take(compiled.step, following) == compiled.step[cuts]
    alike = take(compiled.input_elements, following) == compiled.input_elements[cuts]
    again = take(passes, following, 0) * (there & alike)
    return passes[cuts] + again


# ns; torch 2.13.0 on an x86 server CPU with AVX-512, at one thread (benchmarks/compiled_costs.py of b281a3aa).
# An element drawn and its mask stored: the compiled forward pass of a dropout of 16 k and 65 k elements, less
# its fixed costs: the mean of two hosts (19.2 and 21.4 on one, 16 and 15 on the other).
DRAW_NS = 17.0
# An element of a mask read in one pass: 4 blocks of 512 x 64 with dropout, of norm (6.3 forward, in three
# passes; 2.2 backward), ReLU (4.0; 0.9) and softmax (3.5; 4.5, in two passes).
READ_DRAWN_NS = 2.1
NORM_PASSES = 3  # a normalization takes its mean, its variance, and writes
SOFTMAX_PASSES = 2  # the gradient of a softmax takes a sum, and writes
# A call's seeds: blocks of 8 x 8 with dropout less those without, the first one (16 to 29 us).
SEEDS_NS = 20_000
DROPOUT = regex(r"^aten::((feature_|alpha_)?dropout_?|native_dropout)$")


def draws(tasks: Selection) -> np.ndarray:
    """Return which tasks draw random numbers for a tensor: bool, shape (tasks,)."""
    return call_rows(tasks.graph, tasks.ids, _fills()) >= 0


def _fills() -> str:
    return operators_that(lambda op: op.formula == "write" and "random" in op.traits)


def random_numbers_ns(compiled: Selection, library: Selection) -> np.ndarray:
    """Return the time that random numbers take in one compiled call, by id of the task that it is added to.

    Args:
        compiled: what the compiled call takes the place of.
        library: calls of it that stay as they are.

    """
    graph = compiled.graph
    added = np.zeros(len(graph.alive))
    call = call_rows(graph, compiled.ids, _fills())
    drawn = np.flatnonzero((call >= 0) & np.append(call[1:] != call[:-1], True))
    if not len(drawn):
        return added
    family = work(graph, compiled).family.astype(str)
    phase = compiled.phase.astype(str)
    loop = _loops(compiled, library)
    elements = np.maximum(compiled.input_elements, 0)
    norms = _last_in(loop, (family == "normalization") & (phase == "forward"))
    passes = np.where(norms[loop[drawn]] > drawn, NORM_PASSES, 1)
    added[compiled.ids[drawn]] = (DRAW_NS + READ_DRAWN_NS * passes) * elements[drawn]
    _, first = np.unique(compiled.step[drawn], return_index=True)
    added[compiled.ids[drawn[first]]] += SEEDS_NS

    masked = _multiplies_by_mask(compiled)
    softmaxes = _last_in(loop, (family == "softmax") & (phase == "backward"))
    passes = np.where(softmaxes[loop[masked]] > masked, SOFTMAX_PASSES, 1)
    added[compiled.ids[masked]] += (
        READ_DRAWN_NS * passes * elements[masked] / 2
    )  # the gradient comes in, too
    return added


def _loops(compiled: Selection, library: Selection) -> np.ndarray:
    """Return the number of the loop that each task would be in: between two library calls of a pass."""
    stays = compiled.is_in(library)
    passes = np.stack([stays, compiled.step, places(compiled.phase)[1]])
    return np.cumsum(np.append(False, (passes[:, 1:] != passes[:, :-1]).any(axis=0)))


def _last_in(loop: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return by loop the place of its last task of those, -1 for none."""
    last = np.full(loop[-1] + 1, -1)
    at = np.flatnonzero(which)
    last[loop[at]] = at  # in order: the last one stays
    return last


def _multiplies_by_mask(compiled: Selection) -> np.ndarray:
    """Return the places of the tasks that compute the gradient of a dropout."""
    graph = compiled.graph
    trace = compiled.graph.recorded
    products = np.flatnonzero((compiled.op == "aten::mul") & (compiled.phase == "backward"))
    forward = forward_rows(trace, graph.row[compiled.ids[products]])
    around = np.where(forward >= 0, trace["parent"][forward], -1)
    products = products[around >= 0]
    around = around[around >= 0]
    return products[of_rows(trace, "name", lambda name: bool(DROPOUT.search(name)))[around]]


CONVOLUTION = r"^aten::(convolution|convolution_backward)$"
WEIGHT = {"forward": 1, "backward": 2}  # place among the arguments
# Channels of a block, and the time channels last of what it was: of whole blocks, and at the least. Measured
# with images of 4 x 12 to 28 squared, of 8 to 64 channels; torch 2.13.0 on an x86 server CPU with AVX-512.
BLOCK = 16
WHOLE = {"forward": 0.87, "backward": 0.92}
LEAST = 0.65
DOUBT = 0.12  # what the measured ones were off by, nine in ten


def channels_last_factors(library: Selection) -> np.ndarray:
    """Return the part of each task's time that is left: (tasks,); 1 if it is no convolution of images."""
    graph = library.graph
    trace = library.graph.recorded
    factors = np.ones(len(library))
    rows = call_rows(graph, library.ids, CONVOLUTION)
    shapes = np.where(rows >= 0, trace["shapes"][rows], -1)
    for code in unique(shapes[shapes >= 0]).tolist():
        arguments = parse_shapes(trace.text("shapes")[code]) or []
        for phase, place in WEIGHT.items():
            weight = arguments[place] if len(arguments) > place else None
            if isinstance(weight, tuple) and len(weight) == 4:
                filled = max(many / (-(-many // BLOCK) * BLOCK) for many in weight[:2])
                mine = (shapes == code) & (library.phase == phase)
                factors[mine] = np.clip(filled, LEAST, WHOLE[phase])
    return factors


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
    tasks = tasks.where(lambda _: region[tasks.ids] >= 0)
    if not len(tasks):
        return 0
    beside = tasks.where(within=BESIDE)
    calls = _callers(tasks, graph.select(on="gpu")) - beside
    kept = beside | calls | no_dispatch(tasks) | (waits & tasks)
    stays = pauses_that_stay(graph, region, tasks.ids) | tasks.is_in(beside)
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
            gone.where(lambda _: ~paused).remove()
    return before


def _callers(tasks: Selection, device: Selection) -> Selection:
    """Return the tasks of the innermost operators that launch device work, and the launches."""
    graph = tasks.graph
    launches = device.launches()
    made = call_rows(graph, launches.ids, inner=True)
    own = call_rows(graph, tasks.ids, inner=True)
    chosen = (np.isin(own, made) & (own >= 0)) | tasks.is_in(launches)
    return tasks.where(lambda _: chosen)
