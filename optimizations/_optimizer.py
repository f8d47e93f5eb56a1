"""The update: fused or foreach kernels, gradients that are not zeroed, and the scaler of float16."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from daydream import Graph, GraphError
from daydream.costs import floor_ns, say_evidence
from daydream.memory import unchanged
from daydream.model import (
    FUSED_UPDATE_KERNEL,
    FUSED_UPDATE_OP,
    SCALER_CALL_NS,
    SCALER_TENSOR_NS,
    UPDATE_RULES,
    fused_update_ns,
    main_dtype,
    need_setting,
    unscale_ns,
    update_calls,
    update_of,
)
from daydream.transforms import optimizer_settings, stages

if TYPE_CHECKING:
    from daydream.memory import Allocations

STAGE = stages.FUSION

Kind = Literal["auto", "sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop", "lamb"]
Model = Literal["bytes", "sum"]


def fused_optimizer(
    graph: Graph, *, kind: Kind = "auto", model: Model = "bytes", memory_speedup: float = 1.0
) -> None:
    """Predict an optimizer step that is one kernel.

    The update of a step becomes one launch that reads and writes each value once: 12 B for
    a float32 parameter of plain SGD, 20 B with momentum, Adagrad or RMSprop, 28 B of Adam and
    AdamW, 52 B of LAMB, at the bandwidth that the trace's own streaming work reaches. How many
    parameters there are the run tells, else shapes, gradients that are reduced, or the grids of the update's
    kernels. Where nothing does, and with `model` sum, it takes as long as the separate kernels together
    (Daydream, section 5.1). The CPU time between the optimizer's first
    and last operator goes, but for a launch and Python over the parameters (of Adam 21 us and 4 us a tensor;
    measured, see daydream/model/optimizers.py). On a CPU-only trace the operators become one.

    `kind` is that of the trace; another one predicts the change of optimizer as well.
    `memory_speedup` divides the update's time. Not modelled: another course of training.

    Memory: what the separate operators make on their way goes. A `kind` with other states than the trace's
    keeps these. Of Adam on a GPU each parameter brings a count of steps there (torch/optim/adam.py).

    Args:
        kind: Optimizer to fuse to; auto: the recorded one.
        model: Time by bytes, or the sum of the kernels.
        memory_speedup: Further speed-up of the update.
    """
    if memory_speedup <= 0:
        raise GraphError(f"memory_speedup must be above 0, not {memory_speedup:g}")
    on_gpu = len(graph.select(on="gpu")) > 0
    cpu = update_calls(graph)
    updates = graph.select(kind="kernel", phase="optimizer") if on_gpu else cpu
    updates.need("optimizer work: no `Optimizer.step` range holds any")
    if len(updates.where(op=FUSED_UPDATE_OP) | updates.where(name=FUSED_UPDATE_KERNEL)):
        graph.does_not_apply("the optimizer runs a fused kernel already")
    if kind == "auto":
        need_setting(graph, "fused")
    if (updates.group_by("step").sizes == 1).all():
        graph.does_not_apply("the optimizer runs one kernel per step: it is fused already")
    update = update_of(graph)
    chosen = update.kind if kind == "auto" else kind
    steps = updates.group_by("step")
    time, said = fused_update_ns(graph, steps, update, kind=chosen, by_bytes=model == "bytes")

    if on_gpu:
        say_evidence(graph, updates)
    behind = steps.last().gap_ns
    fused = steps.fuse("fused optimizer", duration_ns=time / memory_speedup)
    if on_gpu:
        keep = graph.select(on="gpu", phase="optimizer").launches()
        (cpu - keep).remove()
    else:
        fused.set(gap_ns=behind)
    walk = fused.launches() if on_gpu else fused
    if update.python_ns(chosen) and len(walk):
        graph.insert_before(walk, "parameters in Python", duration_ns=update.python_ns(chosen))
    graph.note(said)
    if chosen in UPDATE_RULES and chosen != update.kind:
        graph.note(f"The trace's own optimizer is {update.kind or 'unknown'}, the predicted one {chosen}.")


def fused_adam(graph: Graph, *, model: Model = "bytes", memory_speedup: float = 1.0) -> None:
    """Predict FusedAdam: one launch a step instead of hundreds.

    `fused-optimizer` for the optimizer of the trace. Of Adam a fused step reads p, g, m, v and
    writes p, m, v: 28 B a float32 parameter, at the bandwidth of the trace's own streaming
    work; with `model` sum, and where nothing tells how many parameters there are, it takes as long as
    the kernels it replaces together (Daydream, section 5.1). torch 2's default, foreach, has
    few launches already, so its gain is traffic. `memory_speedup` divides the update's time. Memory: what the
    operators make on their way goes.

    Args:
        model: Time by bytes, or the sum of the kernels.
        memory_speedup: Further speed-up of the update.
    """
    kind = update_of(graph).kind
    fused_optimizer(graph, model=model, memory_speedup=memory_speedup)
    if kind not in ("adam", "adamw"):
        graph.note(f"The trace's optimizer is {kind or 'unknown'}, not Adam; its own update is fused.")


def _memory_fused_optimizer(held: Allocations, *, kind: Kind = "auto", **options: Any) -> None:
    """Take away what the update makes on its way, and let it keep the states of its kind."""
    held.remove(held.where(phase="optimizer", kind="temporary"))
    old = update_of(held.graph).kind
    new = old if kind == "auto" else kind
    if new in ("adam", "adamw"):
        held.add(held.where(kind="parameter", on="gpu"), bytes=4, kind="optimizer_state")
    if new == old or new not in UPDATE_RULES:
        return
    states = held.where(kind="optimizer_state")
    more = UPDATE_RULES[new].states
    if states.any() and old in UPDATE_RULES and UPDATE_RULES[old].states:
        held.scale(states, more / UPDATE_RULES[old].states)
    else:
        held.remove(states)
        for _ in range(more):
            held.add(held.where(kind="parameter"), kind="optimizer_state")


def _apply_fused_optimizer(
    model: Any = None, optimizer: Any = None, **options: Any
) -> AbstractContextManager[None]:
    """Make the change for real: the optimizer's parameter groups ask for the fused kernel."""
    return optimizer_settings(optimizer, fused=True, foreach=False)


MULTI_TENSOR = r"_foreach_|^_fused_|aten::_fused_"
MULTI_TENSOR_KERNEL = r"multi_tensor_apply"
AT_ONCE = {"sgd": 0, "momentum": 0, "adam": 1, "adamw": 1, "rmsprop": 1, "adagrad": 2}
ADDED_DECAY = r"^aten::add$"  # `grad = grad.add(param, alpha=weight_decay)`


def foreach_optimizer(graph: Graph, *, tensors_per_kernel: int = 64) -> None:
    """Predict `foreach=True`: each operator of the update runs once on all parameters.

    The kernels of one operator become one for every `tensors_per_kernel` parameters: torch's
    argument space holds 110 tensors of one list, 64 of two, 48 of three (MultiTensorApply.cuh;
    seven times that from CUDA 13 on). They move the same bytes; what goes is the fixed cost of
    small kernels, all but one launch and operator call for each new kernel, and Python between
    them; what stays is Python's walk over the parameters (measured, daydream/model/optimizers.py).
    On a CPU torch runs the same operators one by one, so only Python's time goes. Not
    modelled: cache misses of whole-model intermediates on a CPU.

    Memory: an operator that makes a new tensor makes it for all parameters at once. How many of these there
    are is read in torch/optim (2.13): one of Adam, AdamW and RMSprop, two of Adagrad, none of SGD, and one
    more for decay that is added to the gradients. Of other kinds it is one, up to two.

    Args:
        tensors_per_kernel: Parameters that one kernel updates.
    """
    if tensors_per_kernel < 1:
        raise GraphError(f"tensors_per_kernel must be 1 or more, not {tensors_per_kernel}")
    updates = graph.select(phase="optimizer", kind="kernel") | update_calls(graph)
    updates.need("optimizer work: no `Optimizer.step` range holds any")
    by_name = updates.where(name=(MULTI_TENSOR_KERNEL, FUSED_UPDATE_KERNEL))
    if len(updates.where(op=(MULTI_TENSOR, FUSED_UPDATE_OP)) | by_name):
        graph.does_not_apply("the optimizer runs multi-tensor operators already")
    need_setting(graph, "foreach")
    walk_ns = update_of(graph).python_ns()
    operators = updates.where(lambda tasks: tasks.op != None).need("operators in the update")  # noqa: E711
    kernels = operators.where(kind="kernel")
    if len(kernels):
        groups = kernels.group_by("step", "op")
        parts = -(-groups.sizes // tensors_per_kernel)
        together = groups.total("duration_ns")
        fixed = (floor_ns(graph) * (groups.sizes - parts)).clip(max=0.9 * together)
        kept = groups.first().operators()
        fused = groups.fuse("multi_tensor_apply", duration_ns=together - fixed)
        kept = kept | graph.select(on="gpu", phase="optimizer").launches()
        for count in sorted({*parts.tolist()} - {1}):
            fused[parts == count].split(count, launched=True)
        gone = (updates - kept).where(kind="cpu")
    else:
        kept = operators
        inner = kept - kept.group_by("step").last()
        inner.set(gap_ns=0)
        gone = updates - kept
    if walk_ns:
        graph.insert_before(kept.group_by("step").first(), "parameters in Python", duration_ns=walk_ns)
    if len(gone):
        gone.where(lambda tasks: graph.alive[tasks.ids]).remove()


def _memory_foreach_optimizer(held: Allocations, **options: Any) -> None:
    """Let the update make what it makes on its way for all parameters at once."""
    from daydream.memory import parts_of, place_before

    steps = parts_of(held, held.where(phase="optimizer"), held["step"])
    temporary = held.where(phase="optimizer", kind="temporary")
    decays = bool((temporary & held.where(op=ADDED_DECAY)).any())
    kind = update_of(held.graph).kind
    known = AT_ONCE.get(kind or "")
    count = held.among(0, 1, 2) if known is None else known + (decays and kind != "adagrad")
    held.remove(temporary)
    gradient = held.where(kind="gradient")
    ends = place_before(steps.until)
    begin = held["begin"]
    end = held["end"]
    rank = held["rank"]
    for key, first, until in zip(steps.keys.tolist(), steps.first, ends, strict=True):
        there = (gradient & (rank == key[0]) & (begin < first) & (end > first)).nonzero()[0]
        for _ in range(count):
            held.add(there, begin=first, end=until, kind="temporary", phase="optimizer")


def _apply_foreach_optimizer(
    model: Any = None, optimizer: Any = None, **options: Any
) -> AbstractContextManager[None]:
    """Make the change for real: the optimizer's parameter groups ask for foreach operators."""
    return optimizer_settings(optimizer, foreach=True, fused=False)


ZERO_GRAD = r"(?i)zero_?grad"
FILL = r"aten::(_foreach_)?(zero_|fill_)$"
ACCUMULATE = r"AccumulateGrad$"
ADD = r"aten::add_?$"


def zero_grad_none(graph: Graph) -> None:
    """Predict `zero_grad(set_to_none=True)`, torch's default since 2.0.

    The fills of the zero_grad range go with their operators, and so does what Python does there
    for each parameter but for one assignment. In the first backward pass after it
    `AccumulateGrad` takes the incoming gradient over, so its addition goes too; with
    gradient accumulation the additions of later passes stay: of each step as many go as
    tensors were zeroed. Where one fill covers many tensors (foreach), all of the step go.

    Not modelled: gradients that are views of buckets (DistributedDataParallel with
    `gradient_as_bucket_view`), which are copied instead.

    Memory: gradients are held from the backward pass that makes them to zero_grad, not all the time.
    """
    on = "gpu" if len(graph.select(on="gpu")) else "cpu"
    fills = graph.select(on=on, within=ZERO_GRAD, op=FILL)
    if not len(fills):
        graph.does_not_apply("no zero_grad range fills gradients with zeros: they may be set to None already")
    additions = graph.select(on=on, phase="backward", within=ACCUMULATE, op=ADD)
    gone = fills.operators() | fills
    if len(additions):
        each = additions.group_by("step", "call").first()
        if not len(fills.where(op="_foreach_")):
            zeroed = fills.group_by("step", "call").first().group_by("step").sizes
            tensors = int(median(zeroed.tolist()))
            each = graph.tasks(task for step in each.group_by("step") for task in step.ids[:tensors])
        first = additions.where(call=each.call.tolist())
        gone = gone | first.operators() | first
    gone.remove()


def _memory_zero_grad_none(held: Allocations) -> None:
    """Let a backward pass make the gradients, and zero_grad free them."""
    from daydream.memory import AFTER  # asked only where memory was recorded

    lasting = held.where(kind="gradient") & held.lasting
    made = held.where(kind="temporary", phase="backward", end_op=ACCUMULATE)
    zeroed = held.where(phase=("forward", "data"))
    begins: dict[int, list[int]] = {}
    for rank, begin in sorted(zip(held["rank"][zeroed], held["begin"][zeroed], strict=True)):
        begins.setdefault(rank, []).append(begin)
    for row in made.nonzero()[0].tolist():
        behind = [*begins.get(held["rank"][row], []), AFTER]
        held["end"][row] = behind[bisect_left(behind, held["begin"][row])]
    held.become(made, "gradient")
    held.remove(lasting)


@contextmanager
def _apply_zero_grad_none(model: Any = None, optimizer: Any = None, **options: Any) -> Iterator[None]:
    """Make the change for real: every zero_grad of the optimizer sets gradients to None."""
    before = optimizer.zero_grad
    optimizer.zero_grad = lambda set_to_none=True: before(set_to_none=True)  # noqa: ARG005 - whatever was asked
    try:
        yield
    finally:
        del optimizer.zero_grad  # the class's own is found again


SCALER = r"_amp_(foreach_non_finite_check_and_unscale|update_scale)|amp_update_scale"
SCALER_KERNEL = r"(?i)non_?finite_?check|amp_update_scale|unscale"


def grad_scaler(graph: Graph, *, sync: bool = True) -> None:
    """Predict the cost of `torch.amp.GradScaler`, as float16 training needs it: `amp+grad-scaler`.

    Before the update every gradient is read, checked for infinities, multiplied by 1/scale and written
    back, in as many launches as torch's foreach kernels need (torch/amp/grad_scaler.py). Then `.item()`
    copies the flag to the CPU and waits for it, so the CPU cannot launch the update before the backward
    pass is done. Behind the update a tiny kernel adjusts the scale. The loss is multiplied once, a tiny
    kernel forward and one backward. A fused optimizer reads the flag on the device: there is no wait then,
    nor without `sync` (`--no-sync`, as for `fused-optimizer+grad-scaler`). Python takes 30 us and 0.7 us a
    tensor (measured; see daydream/model/precision.py).

    Not modelled: steps that are skipped, the time from the end of the copy to the return of the call.
    bfloat16 has the range of float32 and needs no scaler.

    Args:
        sync: Wait for the check of gradients in each step.
    """
    update = graph.select(kind="kernel", phase="optimizer")
    update.need("optimizer kernels to unscale gradients for", lacks="device")
    if len(graph.select(op=SCALER)) or len(update.where(name=SCALER_KERNEL)):
        graph.does_not_apply("a gradient scaler runs already")
    if main_dtype(graph, graph.select(kind="kernel", phase=("forward", "backward")))[0] == "bfloat16":
        graph.does_not_apply("it runs in bfloat16, which has the range of float32 and needs no scaler")
    fused = len(update.where(op=FUSED_UPDATE_OP) | update.where(name=FUSED_UPDATE_KERNEL)) > 0
    calls = graph.select(kind="cpu", phase="optimizer").group_by("rank", "step")
    updates = update.group_by("rank", "step").match(calls.keys)
    if not len(updates):
        graph.does_not_apply("no step has CPU work of its optimizer, so where the scaler runs is not known")
    begins = calls.match(updates.keys).first()
    known = update_of(graph)
    time, launches, said = unscale_ns(graph, updates, known)
    tiny = floor_ns(graph)
    stream = re.sub(r"^rank \d+ ", "", str(update.lane[0]))
    losses = graph.select(kind="kernel", phase="backward").group_by("rank", "step").first()

    if len(losses):
        for name in ("scale loss", "gradient of scale"):
            graph.insert_before(losses, name, duration_ns=tiny)
    graph.insert_after(updates.last(), "update scale", phase="other", duration_ns=tiny)
    parts = [time - (launches - 1) * tiny] + [0 * time + tiny] * (launches - 1)
    python = SCALER_CALL_NS + SCALER_TENSOR_NS * max(known.tensors, 0)
    graph.insert_before(begins, "scaler in Python", phase="other", duration_ns=python)
    for part in parts:
        graph.insert_before(begins, "unscale", kind="kernel", lane=stream, phase="other", duration_ns=part)
    if sync and not fused:
        flag = {"lane": stream, "phase": "other", "op": "aten::item"}
        graph.insert_before(begins, "Memcpy DtoH of found_inf", kind="memcpy", duration_ns=tiny, **flag)
        cost = graph.facts.launch_cost_ns
        waits = graph.insert_before(begins, "synchronize", duration_ns=cost, phase="other", op="aten::item")
        waits.wait_for(stream)
    graph.note(said)
    graph.note("This is the scaler's cost alone; amp or autocast predict what 16 bits gain.")


COMMANDS = {
    "fused-optimizer": {
        "EXCLUDES": {"fused-adam", "foreach-optimizer", "offload-optimizer"},
        "CODE": "torch.optim.AdamW(parameters, fused=True)  # or Adam, SGD, Adagrad",
        "memory": _memory_fused_optimizer,
        "apply": _apply_fused_optimizer,
    },
    "fused-adam": {
        "EXCLUDES": {"foreach-optimizer", "offload-optimizer"},
        "CODE": "torch.optim.AdamW(parameters, fused=True)",
        "memory": _memory_fused_optimizer,
        "apply": _apply_fused_optimizer,
        "OPTIMIZERS": {"Adam", "AdamW"},
    },
    "foreach-optimizer": {
        "EXCLUDES": {"offload-optimizer"},
        # On a CPU the same operators run one by one: measured five times, it gained nothing.
        "NEEDS_GPU": True,
        "CODE": "torch.optim.AdamW(parameters, foreach=True)  # or your optimizer",
        "memory": _memory_foreach_optimizer,
        "apply": _apply_foreach_optimizer,
    },
    "zero-grad-none": {
        "CODE": "optimizer.zero_grad(set_to_none=True)",
        "memory": _memory_zero_grad_none,
        "apply": _apply_zero_grad_none,
    },
    "grad-scaler": {
        "STAGE": stages.PRECISION,
        "CODE": "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
        "memory": unchanged,
    },
}
