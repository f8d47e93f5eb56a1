"""Tools that look: one name for one operation, effective paths, sparsity, statistics, each operator once."""

from __future__ import annotations

from collections.abc import Mapping as Names
from typing import Any

from daydream.instrument.actions import tensors_in
from daydream.instrument.context import OpContext
from daydream.instrument.kinds import kind_of
from daydream.instrument.tool import InstrumentError, Tool

# The places of the input and the weight in the schemas of torch's own libraries.
KNOWN: dict[str, tuple[str, int | None, int | None]] = {
    "aten::linear": ("linear", 0, 1),
    "aten::conv1d": ("convolution", 0, 1),
    "aten::conv2d": ("convolution", 0, 1),
    "aten::conv3d": ("convolution", 0, 1),
    "aten::gelu": ("activation", 0, None),
    "aten::relu": ("activation", 0, None),
    "aten::silu": ("activation", 0, None),
    "aten::layer_norm": ("normalization", 0, 2),
    "aten::rms_norm": ("normalization", 0, 2),
    "aten::batch_norm": ("normalization", 0, 1),
    "aten::embedding": ("embedding", 1, 0),
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

        wanted, found = [output], {}
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
        self.zeros: dict[tuple[str, str], int] = {}
        self.elements: dict[tuple[str, str], int] = {}
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
            self.zeros[key] = self.zeros.get(key, 0) + tensor.numel() - int(tensor.count_nonzero())
            self.elements[key] = self.elements.get(key, 0) + tensor.numel()


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
        largest, mean = float(output.abs().max()), float(output.mean())
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

        inputs, outputs = op.get_inputs(), op.get_outputs()
        count: Any = flop_registry.get(op["op"].overloadpacket)
        made = outputs[0] if len(outputs) == 1 else outputs
        args, kwargs = kind_of(op["op"]).split(list(inputs))
        flop = None if count is None else int(count(*args, **kwargs, out_val=made))
        tensors = [*tensors_in(inputs), *tensors_in(outputs)]
        self.rows.append(
            {
                "op_id": op["op_id"],
                "type": op["type"],
                "layer": op["layer"],
                "phase": op["phase"],
                "flop": flop,
                "bytes": sum(each.numel() * each.element_size() for each in tensors),
                "shapes": [tuple(each.shape) for each in tensors_in(inputs)],
            }
        )
