"""Instrumentation tools that ship: small classes, each made of the same actions that anybody's tool has.

Those that look: one name for one operation, effective paths, sparsity, statistics, each operator once.
Those that change operators: prune, quantize, compute again, replace; and which operators they choose.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Names
from fnmatch import fnmatchcase
from typing import Any

from daydream.instrument.actions import tensors_in
from daydream.instrument.places import kind_of
from daydream.instrument.tool import InstrumentError, OpContext, Tool

Where = Callable[[OpContext], bool]

# Tools that look -----------------------------------------------------------------------------------

# The places of the input and the weight in the schemas of torch's own libraries.
OPERATIONS = (
    ("linear", "linear", 0, 1),
    ("convolution", "conv1d conv2d conv3d", 0, 1),
    ("activation", "gelu relu silu", 0, None),
    ("normalization", "layer_norm rms_norm", 0, 2),
    ("normalization", "batch_norm", 0, 1),
    ("embedding", "embedding", 1, 0),
)
KNOWN: dict[str, tuple[str, int | None, int | None]] = {
    f"aten::{name}": (operation, *places)
    for operation, names, *places in OPERATIONS
    for name in names.split()
}


class Mapping(Tool):
    """Adds `operation`, `input_place` and `weight_place` to each context; tools that depend on it use those.

    Args:
        names: `namespace::operator` of your own libraries to the operation, or to (operation, place of the
            input, place of the weight). `conv2d` of `aten` is a `convolution` with its weight at place 1.
    """

    def __init__(
        self, names: Names[str, str | tuple[str, int | None, int | None]] | None = None
    ) -> None:
        self.names: dict[str, tuple[str, int | None, int | None]] = dict(KNOWN)
        for name, given in (names or {}).items():
            self.names[name] = (given, 0, None) if isinstance(given, str) else given
        for backward in (False, True):
            self.add_inst_for_op(self._map, backward=backward)

    def _map(self, op: OpContext) -> None:
        found: tuple[Any, ...] = self.names.get(
            f"{op['namespace']}::{op['type']}", (None, None, None)
        )
        op["operation"], op["input_place"], op["weight_place"] = found


class EffectivePath(Tool):
    """Finds, for each linear layer, the inputs that carry a share of the sum of its positive contributions.

    Walks from the last layer to the first; an output matters if the layer after it chose it as an input.
    Layers follow each other in the order in which they ran, and are joined where their widths are equal.
    Concept: effective path (Qiu et al., CVPR 2019), for the first sample of a batch.

    Args:
        share: of the positive contributions, 0 to 1.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 < share <= 1:
            raise InstrumentError(f"share is {share!r}; it must be above 0, 1 at most")
        self.share = share
        self.calls: dict[str, tuple[Any, Any]] = {}
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["type"] == "linear" and op["phase"] == "forward":
            op.insert_before_op(self._keep, inputs=[0, 1], op_id=op["op_id"])

    def _keep(self, x: Any, weight: Any, op_id: str) -> None:
        self.calls[op_id] = (x.reshape(-1, x.shape[-1])[0].clone(), weight.clone())

    def path(self, output: int) -> dict[str, list[int]]:
        """Return the places of the inputs that matter, by the id of the layer, for one output of the last."""
        import torch

        wanted = [output]
        found = {}
        for op_id, (x, weight) in reversed(list(self.calls.items())):
            rows = weight[[one for one in wanted if one < weight.shape[0]]]
            parts = (rows * x).clamp(min=0).sum(0)
            order = parts.argsort(descending=True, stable=True)
            reached = torch.cumsum(parts[order], 0)
            count = int((reached < self.share * parts.sum()).sum()) + 1
            wanted = sorted(int(one) for one in order[:count])
            found[op_id] = wanted
        return found


class Sparsity(Tool):
    """Counts zeros in each call: `zeros` and `elements` by (id of the operator, `weight` or `output`)."""

    def __init__(self, mapping: Mapping | None = None) -> None:
        self.zeros = Counter[tuple[str, str]]()
        self.elements = Counter[tuple[str, str]]()
        self.depends_on(mapping or Mapping())
        self.add_inst_for_op(self._choose)

    @property
    def shares(self) -> dict[tuple[str, str], float]:
        """The share of zeros over all calls so far, 0 to 1."""
        return {key: self.zeros[key] / count for key, count in self.elements.items() if count}

    def _choose(self, op: OpContext) -> None:
        if op["phase"] != "forward" or op["operation"] is None:
            return
        if op["weight_place"] is not None:
            op.insert_before_op(
                self._count, inputs=[op["weight_place"]], key=(op["op_id"], "weight")
            )
        op.insert_after_op(self._count, outputs=[0], key=(op["op_id"], "output"))

    def _count(self, tensor: Any, key: tuple[str, str]) -> None:
        if tensor is not None:
            self.zeros[key] += tensor.numel() - int(tensor.count_nonzero())
            self.elements[key] += tensor.numel()


class ActivationStatistics(Tool):
    """Keeps, by operator id, `calls`, `mean`, `max_abs` and whether all values were finite (`finite`).

    Args:
        types: of the operators that are looked at.
    """

    def __init__(self, *types: str) -> None:
        self.types = types or ("linear", "conv2d", "gelu", "relu", "layer_norm")
        self.values: dict[str, dict[str, Any]] = {}
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["type"] in self.types and op["phase"] == "forward":
            op.insert_after_op(self._note, outputs=[0], op_id=op["op_id"])

    def _note(self, output: Any, op_id: str) -> None:
        largest = float(output.abs().max())
        mean = float(output.mean())
        row = self.values.setdefault(
            op_id, {"calls": 0, "mean": 0.0, "max_abs": 0.0, "finite": True}
        )
        row["calls"] += 1
        row["mean"] += (mean - row["mean"]) / row["calls"]
        row["max_abs"] = max(row["max_abs"], largest)
        row["finite"] = row["finite"] and largest < float("inf")


class Tracing(Tool):
    """Notes each operator once: `rows`, a list of mappings in the order in which they ran.

    `flop` is None where torch has no formula for the operator, `bytes` the size of all tensors in and out.
    Operators made of others are left out, as what they call is there.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        for backward in (False, True):
            self.add_inst_for_op(self._note, backward=backward, require_outputs=True)

    def _note(self, op: OpContext) -> None:
        if op["composite"] or op["namespace"] == "autograd":
            return
        from torch.utils.flop_counter import flop_registry

        inputs = op.get_inputs()
        outputs = op.get_outputs()
        count: Any = flop_registry.get(op["op"].overloadpacket)
        made = outputs[0] if len(outputs) == 1 else outputs
        args, kwargs = kind_of(op["op"]).split(list(inputs))
        flop = None if count is None else int(count(*args, **kwargs, out_val=made))
        tensors = [*tensors_in(inputs), *tensors_in(outputs)]
        self.rows.append(
            {
                **{name: op[name] for name in ("op_id", "type", "layer", "phase")},
                "flop": flop,
                "bytes": sum(each.numel() * each.element_size() for each in tensors),
                "shapes": [tuple(each.shape) for each in tensors_in(inputs)],
            }
        )


# Tools that change ---------------------------------------------------------------------------------


def chosen(op: str = "", layer: str | None = None) -> Where:
    """Return what tells whether an operator of the forward pass is one of those that are meant.

    Args:
        op: regular expression on `namespace::operator`, such as `^aten::gelu$`.
        layer: shell pattern on the layer, such as `blocks.*.act`; None for all.
    """
    search = re.compile(op).search

    def where(context: OpContext) -> bool:
        if context["phase"] != "forward" or not search(
            f"{context['namespace']}::{context['type']}"
        ):
            return False
        return layer is None or fnmatchcase(context["layer"], layer)

    return where


def _is_product(op: OpContext, where: Where | None) -> bool:
    return op["operation"] in {"linear", "convolution"} and (where is None or where(op))


TWO_OF_FOUR = "2:4"


def mask_of(weight: Any, sparsity: float | str) -> Any:
    """Return which elements stay: the largest by magnitude, in all or (`2:4`) two of each four in a row.

    Args:
        weight: a tensor; for `2:4`, four divides the number of elements after the first dimension.
        sparsity: the share to prune, 0 to 1, or `2:4`.

    Returns:
        A tensor of bool of the same shape. Of equal magnitudes the later go first.
    """
    import torch

    if sparsity == TWO_OF_FOUR:
        inputs = weight[0].numel()
        if inputs % 4:
            raise InstrumentError(f"2:4 needs a multiple of 4 inputs; a weight has {inputs}")
        rows = weight.abs().reshape(-1, 4)
        kept = 2
    else:
        rows = weight.abs().reshape(1, -1)
        kept = rows.numel() - int(rows.numel() * float(sparsity))
    order = rows.argsort(dim=1, descending=True, stable=True)
    mask = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, :kept], value=True)
    return mask.reshape(weight.shape)


class Pruning(Tool):
    """Masks the weights of matrix products and convolutions; the weights themselves keep all gradients.

    Args:
        sparsity: the share to prune, or `2:4`, the pattern that GPUs have kernels for. Masked weights in a
            dense kernel are no faster: this shows what pruning does to the loss. Weights with another
            number of inputs than a multiple of four stay dense (`dense`, their ids).
        dynamic: mask anew in each call, by the weight as it is then, instead of once.
        where: further condition on the context, such as its layer.
        mapping: gives the places of weights in operators of your own.
    """

    def __init__(
        self,
        sparsity: float | str = 0.5,
        *,
        dynamic: bool = False,
        where: Where | None = None,
        mapping: Mapping | None = None,
    ) -> None:
        if sparsity != TWO_OF_FOUR and not (
            isinstance(sparsity, (int, float)) and 0 <= sparsity < 1
        ):
            raise InstrumentError(
                f"sparsity is {sparsity!r}; it must be a share from 0 to below 1, or 2:4"
            )
        self.sparsity = sparsity
        self.dynamic = dynamic
        self.where = where
        self.dense: list[str] = []
        self.depends_on(mapping or Mapping())
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        place = op["weight_place"]
        if place is None or not _is_product(op, self.where):
            return
        weight = op.get_inputs()[place]
        if self.sparsity == TWO_OF_FOUR and weight[0].numel() % 4:
            self.dense.append(op["op_id"])
            return
        mask = None if self.dynamic else mask_of(weight, self.sparsity)
        op.insert_before_op(self._pruned, inputs=[place], mask=mask)

    def _pruned(self, weight: Any, mask: Any) -> Any:
        return weight * (mask_of(weight, self.sparsity) if mask is None else mask)


SMALLEST = 1e-12  # a scale: of a tensor of zeros


def scale_of(tensor: Any, bits: int) -> Any:
    """Return the step between the numbers that signed integers of some bits stand for, shape ()."""
    return (tensor.detach().abs().max().float() / (2 ** (bits - 1) - 1)).clamp(min=SMALLEST)


def rounded(tensor: Any, bits: int, scale: Any = None) -> Any:
    """Return a tensor rounded to signed integers of some bits times a scale; its own if None.

    The gradient goes straight through, but for what lies beyond the largest integer: there it is 0.
    """
    import torch

    scale = scale_of(tensor, bits) if scale is None else scale
    zero = torch.zeros_like(scale, dtype=torch.int32)
    top = 2 ** (bits - 1) - 1
    return torch.fake_quantize_per_tensor_affine(tensor, scale, zero, -top - 1, top)


class FakeQuantization(Tool):
    """Rounds inputs and weights of matrix products and convolutions.

    Args:
        bits: of the integers.
        training: scales are those of each call (QAT). Otherwise (PTQ) they are those of the first call, the
            calibration, and stay.
        activations: round inputs too; weights alone otherwise.
        where: further condition on the context, such as its layer.
        mapping: gives the places of inputs and weights in operators of your own.
    """

    def __init__(
        self,
        bits: int = 8,
        *,
        training: bool = True,
        activations: bool = True,
        where: Where | None = None,
        mapping: Mapping | None = None,
    ) -> None:
        self.bits = bits
        self.training = training
        self.activations = activations
        self.where = where
        self.depends_on(mapping or Mapping())
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if not _is_product(op, self.where):
            return
        for place in [op["input_place"]] * self.activations + [op["weight_place"]]:
            if place is not None:
                scale = None if self.training else scale_of(op.get_inputs()[place], self.bits)
                op.insert_before_op(rounded, inputs=[place], grad=True, bits=self.bits, scale=scale)


class Rematerialization(Tool):
    """Checkpoints operators: their inputs stay, what they would save besides is computed again.

    The idea of DTR (ICLR 2021), with the choice made before and not while memory runs out.

    Args:
        *types: of the operators, such as `gelu`; all that `where` chooses if left out.
        where: further condition on the context, such as its layer.

    Raises:
        InstrumentError: neither is given.
    """

    def __init__(self, *types: str, where: Where | None = None) -> None:
        if not types and where is None:
            raise InstrumentError(
                "say which operators are computed again: types such as gelu, or where=..."
            )
        self.types = types
        self.where = where
        self.recomputed = 0  # calls so far, forward and again
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["phase"] != "forward" or (self.types and op["type"] not in self.types):
            return
        if self.where is None or self.where(op):
            op.replace_op(self._again, grad=True, op=op["op"])

    def _again(self, *inputs: Any, op: Any) -> Any:
        from torch.utils.checkpoint import checkpoint

        def run(*values: Any) -> Any:
            self.recomputed += 1
            args, kwargs = kind_of(op).split(list(values))
            return op(*args, **kwargs)

        return checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=True)


class Replacing(Tool):
    """Computes a function, and its gradient, where operators of a type ran.

    Args:
        which: a type of operators, such as `gelu` or `layer_norm`, or a condition on the context.
        func: given the inputs at `inputs`.
        inputs: places in the operator's schema.
    """

    def __init__(
        self, which: str | Where, func: Callable[..., Any], inputs: Sequence[int] = (0,)
    ) -> None:
        self.which = which
        self.func = func
        self.inputs = tuple(inputs)
        self.replaced: list[str] = []  # ids
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        meant = op["type"] == self.which if isinstance(self.which, str) else self.which(op)
        if meant and op["phase"] == "forward":
            self.replaced.append(op["op_id"])
            op.replace_op(self.func, inputs=self.inputs, grad=True)
