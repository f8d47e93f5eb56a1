"""Optimizer updates: which kind a trace runs, of how many parameters, and what a fused update costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from daydream.costs.device.call_scaling import memory_bandwidth, tiny_call_ns
from daydream.costs.kernels import grid_blocks, updated_by_grids, work
from daydream.costs.operators import kernels_are, operators_that
from daydream.costs.workload.calls import of_rows
from daydream.costs.workload.operator import itemsize
from daydream.graph.calls import shapes_in
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.trace.trace import Trace


class UpdateRule(Struct, frozen=True):
    """An update rule: what one fused pass moves for each parameter, and Python's time.

    Values have the parameter's width: 7 of Adam are 28 B of a float32 parameter.

    Attributes:
        reads: values read a parameter.
        writes: values written a parameter.
        call_ns: ns that Python takes a step more than an unfused step takes before its first operator.
        tensor_ns: likewise a tensor, ns.
        why: which values these are.
        states: values kept a parameter, of its width.
    """

    reads: int
    writes: int
    call_ns: int
    tensor_ns: int
    why: str
    states: int

    @property
    def values(self) -> int:
        """Values moved a parameter."""
        return self.reads + self.writes


# A fused step groups its tensors and counts their steps in Python before its one operator: the time of
# `step()` with `fused=True` less that of a `step()` that ends where an unfused one calls its first operator
# (that part is in the trace). Fitted to 4 to 200 tensors of 1 to 2,000 elements behind a backward pass that
# made their gradients anew, torch 2.13.0 on an x86 server CPU at one thread; the fit is within 18%.
# Kinds not measured have that of the kind that keeps the same state.
UPDATE_RULES = {
    "sgd": UpdateRule(2, 1, 10_700, 800, "reads p, g; writes p", 0),
    "momentum": UpdateRule(
        3, 2, 12_400, 1_200, "reads p, g and its momentum; writes p and the momentum", 1
    ),
    "adagrad": UpdateRule(
        3, 2, 18_100, 3_400, "reads p, g and a sum of squares; writes p and the sum", 1
    ),
    "rmsprop": UpdateRule(
        3, 2, 18_100, 3_400, "reads p, g and a mean of squares; writes p and the mean", 1
    ),
    "adam": UpdateRule(4, 3, 21_000, 4_000, "reads p, g and two moments; writes p and both", 2),
    "adamw": UpdateRule(4, 3, 20_600, 4_200, "as Adam: the decay of weights needs p only", 2),
    # NVIDIA apex, csrc/multi_tensor_lamb.cu: the gradients' norm (1 read), moments and update (4 reads, 3
    # writes), norms of parameter and update (2 reads), the step (2 reads, 1 write).
    "lamb": UpdateRule(
        9,
        4,
        21_000,
        4_000,
        "three passes: norms need the whole update of a tensor before its step",
        2,
    ),
}
BY_CLASS = {
    "SGD": "sgd",
    "Adam": "adam",
    "AdamW": "adamw",
    "NAdam": "adam",
    "RAdam": "adam",
    "Adagrad": "adagrad",
    "RMSprop": "rmsprop",
    "FusedAdam": "adam",
    "FusedLAMB": "lamb",
    "Lamb": "lamb",
    "LAMB": "lamb",
    "FusedSGD": "momentum",
}
# torch.optim of 2.13: the implementations that a class can be asked for. Another keyword is a TypeError, and
# LBFGS, which asks for gradients within its step, has none.
TAKES = {
    **dict.fromkeys(("Adam", "AdamW", "SGD", "Adagrad"), ("foreach", "fused")),
    **dict.fromkeys(
        ("ASGD", "Adadelta", "Adafactor", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"),
        ("foreach",),
    ),
    **dict.fromkeys(("LBFGS", "Muon", "SparseAdam"), ()),
}
CLASS_IN_RANGE = regex(r"Optimizer\.step#(\w+)\.step")
SCALES = regex(r"aten::(_foreach_)?mul_$")
FUSED_UPDATE_OP = r"_fused_(adam|sgd|adagrad|lamb)"
FUSED_UPDATE_KERNEL = (
    r"(?i)fused_?(adam|sgd|adagrad|lamb|optimizer)|"
    r"multi_tensor_apply.*(Adam|LAMBStage\w*|SGD|Adagrad)Functor"
)
ACCUMULATE = r"AccumulateGrad$"
PASSES = ("element-wise", "optimizer")  # families of operators that read and write all values


class Update(Struct, frozen=True):
    """The optimizer of a trace.

    Attributes:
        kind: a key of `UPDATE_RULES`, None for unknown.
        tensors: parameters as tensors, -1 for unknown.
        elements: parameters one by one, -1 for unknown.
        width: bytes of one.
        where: from what their number is known.
    """

    kind: str | None
    tensors: int
    elements: int
    width: int
    where: str

    def bytes_moved(self, kind: str | None = None) -> int | None:
        """Return the bytes that one fused update moves, None if the parameters or the kind are unknown."""
        rule = UPDATE_RULES.get(kind or self.kind or "")
        return (
            None if rule is None or self.elements < 0 else rule.values * self.width * self.elements
        )

    def python_ns(self, kind: str | None = None) -> int:
        """Return what Python takes for walking over the parameters, ns; 0 if their number is unknown."""
        rule = UPDATE_RULES.get(kind or self.kind or "")
        if rule is None or self.tensors <= 0:
            return 0
        return rule.call_ns + rule.tensor_ns * self.tensors


def update_of(graph: Graph) -> Update:
    """Return what the trace tells of its optimizer."""

    def update() -> Update:
        tensors, elements, where = _parameters(graph)
        return Update(_kind(graph), tensors, elements, _width(graph), where)

    return graph.derived("update", update)


def states_of(trace: Trace) -> int | None:
    """Return how many values the optimizers of a trace keep of each parameter, None if that is not known.

    All of them must be of one known kind.
    """
    kinds = {BY_CLASS.get(name) for name in _classes(trace)}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind == "sgd" and _scales_state(trace):
        kind = "momentum"
    return UPDATE_RULES[kind].states if kind else None


def torch_optimizers(graph: Graph) -> set[str]:
    """Return the classes of `torch.optim` that updated the parameters, as far as the trace tells them."""
    return _classes(graph.recorded) & TAKES.keys()


def need_setting(graph: Graph, setting: str) -> None:
    """Refuse a setting that a class of the trace's optimizers does not take.

    Args:
        graph: the graph of the trace.
        setting: `fused` or `foreach`.

    Raises:
        NotApplicableError: one of them takes no such setting, or its update is not element by element.
    """
    classes = _classes(graph.recorded)
    for name in sorted(classes):
        if setting not in TAKES.get(name, (setting,)):
            graph.does_not_apply(f"torch.optim.{name} takes no `{setting}`")
    if _multiplies_matrices(graph, classes):
        names = ", ".join(sorted(classes - BY_CLASS.keys())) or "its class is not recorded"
        graph.does_not_apply(
            f"the optimizer multiplies matrices ({names}): `{setting}` is not for such updates"
        )


def update_calls(graph: Graph) -> Selection:
    """Return the CPU tasks of optimizer steps from the first operator or call to the last one.

    Python that comes before and behind them is the same with any implementation of the update.
    All CPU tasks of the steps where no operators are recorded.
    """
    tasks = graph.select(kind="cpu", phase="optimizer")
    calls = tasks.where(lambda cpu: cpu.op != None)  # noqa: E711 - an array, compared one by one
    calls = calls | graph.select(on="gpu", phase="optimizer").launches()
    return tasks.group_by("step").span(calls).tasks if len(calls) else tasks


def fused_update_ns(
    graph: Graph, steps: Groups, update: Update, *, kind: str | None, by_bytes: bool
) -> tuple[np.ndarray, str]:
    """Return the time of a fused update in place of each step's tasks, and a sentence on where it is from.

    Bytes at the bandwidth that the trace reaches, no more than the tasks that compute take together;
    that sum where bytes or bandwidth are unknown.

    Args:
        graph: the graph of the trace.
        steps: tasks of the update, a group a step.
        update: what the trace tells of its optimizer.
        kind: a key of `UPDATE_RULES`; by default the update's own.
        by_bytes: by bytes; else as long as the parts together.

    Returns:
        ns, shape (steps,), float64; and the sentence.
    """
    on = "cpu" if (steps.tasks.kind == "cpu").all() else "gpu"
    together = (
        _computing_ns(graph, steps)
        if on == "cpu"
        else steps.total("duration_ns").astype(np.float64)
    )
    nbytes = update.bytes_moved(kind)
    rate = memory_bandwidth(graph, on)
    if not by_bytes:
        return together, "The fused update takes as long as its parts together, as in the paper."
    rule = UPDATE_RULES.get(kind or update.kind or "")
    if rule is None or nbytes is None or rate is None:
        return (
            together,
            "The fused update takes as long as its parts together: its bytes are not known.",
        )
    per = rule.values * update.width
    said = (
        f"The fused update moves {per} B for each of {update.elements:,} parameters ({update.where}) at "
        f"{rate:,.0f} GB/s, as the trace's own streaming work does."
    )
    return np.minimum(together, nbytes / rate), said


def _computing_ns(graph: Graph, steps: Groups) -> np.ndarray:
    """Return how long the operators of each group pass over values on the CPU, without the cost of a call.

    All of the tasks where no operator is known for what it does.
    """
    tasks = steps.by_group
    computes = np.isin(work(graph, tasks).family, PASSES)
    if not computes.any():
        return steps.total("duration_ns").astype(np.float64)
    own = np.where(computes, np.maximum(tasks.duration_ns - tiny_call_ns(graph), 0), 0)
    return np.add.reduceat(own, np.cumsum(steps.sizes) - steps.sizes)


def _multiplies_matrices(graph: Graph, classes: set[str]) -> bool:
    """Return whether the update, of a class that is not known, holds products, as Shampoo's and Muon's do.

    Steps of a known class hold some where they call the passes, for a closure.
    """
    if classes and classes <= BY_CLASS.keys() | TAKES.keys():
        return False
    updates = graph.select(phase="optimizer")
    products = updates.where(op=operators_that(lambda op: op.family == "matmul"))
    named = updates.where(kind="kernel").where(lambda kernels: kernels_are(kernels, "product"))
    return bool(len(products | named))


def _kind(graph: Graph) -> str | None:
    trace = graph.recorded
    classes = _classes(trace)
    if _multiplies_matrices(graph, classes):
        return None
    named: list[tuple[str | None, bool | None]] = [
        (
            one.get("name"),
            any(group.get("settings", {}).get("momentum") for group in one.get("groups", [])),
        )
        for one in trace.metadata.get("optimizers") or []
    ] or [(name, None) for name in sorted(classes)]
    kinds = {BY_CLASS.get(name or ""): momentum for name, momentum in named}
    kinds.pop(None, None)
    if len(kinds) != 1:
        return None if kinds else _kind_by_operators(graph)
    kind, momentum = kinds.popitem()
    if kind == "sgd" and (_scales_state(trace) if momentum is None else momentum):
        return "momentum"
    return kind


def _classes(trace: Trace) -> set[str]:
    """Return the names of the classes of the optimizers that ran, as far as the trace tells them."""
    if described := trace.metadata.get("optimizers"):
        return {str(one["name"]) for one in described if one.get("name")}
    ranges = map(CLASS_IN_RANGE.search, trace.text("name"))
    return {found[1] for found in ranges if found}


def _scales_state(trace: Trace) -> bool:
    """SGD multiplies nothing but its momentum, and its first step copies it."""
    scales = of_rows(trace, "op", lambda text: bool(SCALES.search(text)), none=False)
    return bool((scales & (trace["phase"] == trace.code("phase", "optimizer"))).any())


def _kind_by_operators(graph: Graph) -> str | None:
    """Return the kind that the operators spell: quotients of moments are Adam's, of sums Adagrad's."""
    updates = graph.select(phase="optimizer")
    if not len(updates):
        return None
    for kind in ("adamw", "adam", "adagrad", "sgd"):
        if len(updates.where(op=rf"_fused_{kind}_?$")):
            return "momentum" if kind == "sgd" and _scales_state(graph.recorded) else kind
    if len(updates.where(op=r"aten::(_foreach_)?addcdiv_$")):
        moments = updates.where(op=r"aten::(_foreach_)?(lerp_|mul_)$")
        return "adam" if len(moments) else "adagrad"
    return "momentum" if _scales_state(graph.recorded) else None


def _parameters(graph: Graph) -> tuple[int, int, str]:
    """Return the number of tensors and of parameters that one step updates, and from what it is known."""
    metadata = graph.recorded.metadata
    groups = [group for one in metadata.get("optimizers") or [] for group in one.get("groups", [])]
    if groups and all("elements" in group for group in groups):
        tensors, elements = (
            sum(group[name] for group in groups) for name in ("tensors", "elements")
        )
        return tensors, elements, "by the run's optimizers"
    trained = [one for one in metadata.get("parameters") or [] if one.get("requires_grad", True)]
    if trained:
        return len(trained), sum(prod(one["shape"]) for one in trained), "by the run's parameters"
    grads = graph.select(kind="cpu", phase="backward").group_by(within=ACCUMULATE).first()
    counts = grads.group_by("step").sizes  # one a tensor and backward pass
    nodes = int(np.median(counts)) if len(counts) else -1
    tensors, elements = _updated(graph, nodes)
    if elements >= 0:
        return tensors, elements, "by the shapes of the update's operators"
    reduced = graph.select(kind="collective", phase="backward", collective="all_reduce")
    if len(reduced) and (reduced.elements > 0).all():
        steps = [int(reduction.elements.sum()) for reduction in reduced.group_by("step")]
        if steps:
            return nodes, int(np.median(steps)), "by the gradients that are reduced"
    update = graph.select(kind="kernel", phase="optimizer")
    # AMD's blocks have other sizes by card and version of ROCm.
    if len(update) and metadata.get("vendor", "cuda") == "cuda":
        tensors, elements = updated_by_grids(update, grid_blocks(graph, update))
        if elements >= 0:
            return tensors, elements, "by the grids of the update's kernels"
    return nodes, -1, ""


def _updated(graph: Graph, nodes: int) -> tuple[int, int]:
    """Return tensors and elements that one step updates, from the recorded shapes of its operators.

    An operator may run several times a tensor: taken is one that runs once for each of the
    `nodes` gradients, else the one that sees fewest tensors.
    """
    on = "gpu" if len(graph.select(on="gpu")) else "cpu"  # counters of steps stay on the CPU
    steps = graph.select(
        on=on, phase="optimizer", op=r"aten::(_foreach_|_fused_)?[a-z]+_$"
    ).group_by("step")
    if not len(steps):
        return -1, -1
    found = []
    for calls in steps[steps.keys[len(steps) // 2]].group_by("op"):
        texts = calls.group_by("call").first().shapes.tolist()
        lists = [_first_list(text) for text in texts if text]
        elements = sum(prod(shape) for shapes in lists for shape in shapes)
        if len(lists) == len(texts) and elements:
            found.append((sum(map(len, lists)), elements))
    exact = [pair for pair in found if pair[0] == nodes]
    return max(exact, default=min(found, default=(-1, -1)))


@lru_cache(maxsize=1 << 14)  # every optimization of the update reads the same calls
def _first_list(text: str) -> list[list[int]]:
    """Return the shapes of the first argument: of a tensor, or of the tensors of a list."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return []
    first = arguments[0] if isinstance(arguments, list) and arguments else []
    return shapes_in(json.dumps([first]))


def _width(graph: Graph) -> int:
    """Return the bytes of a parameter: as the run says, else by most of the update's time, else 4."""
    types = [one.get("dtype") for one in graph.recorded.metadata.get("parameters") or []]
    if not types:
        groups = graph.select(phase="optimizer").group_by("dtype")
        types = [groups.keys[int(np.argmax(groups.total("duration_ns")))]] if len(groups) else []
    return max((itemsize(dtype) or 0 for dtype in types), default=0) or 4


@contextmanager
def optimizer_settings(optimizer: Any, **settings: Any) -> Iterator[None]:
    """Give every parameter group of a torch optimizer these settings; put back what it had on leaving.

    with optimizer_settings(optimizer, fused=True):
        train()
    """
    before = [
        {name: group[name] for name in settings if name in group}
        for group in optimizer.param_groups
    ]
    for group in optimizer.param_groups:
        group.update(settings)
    _place_step_counts(optimizer)
    try:
        yield
    finally:
        for group, had in zip(optimizer.param_groups, before, strict=True):
            for name in settings:
                group.pop(name, None)
            group.update(had)
        _place_step_counts(optimizer)


def _place_step_counts(optimizer: Any) -> None:
    """Move counts of steps to where torch makes them: beside the parameters of fused and capturable groups.

    The loop and the foreach kernels take them from the CPU; a fused one refuses them there.
    """
    for group in optimizer.param_groups:
        beside = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if hasattr(state.get("step"), "to"):  # a number in some optimizers
                state["step"] = state["step"].to(parameter.device if beside else "cpu")
