"""The few inputs that make most of each output: which parts of a model an answer comes from."""

from __future__ import annotations

from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import InstrumentError, Tool


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
