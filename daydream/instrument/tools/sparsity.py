"""The share of zeros in weights and in what operators compute."""

from __future__ import annotations

from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import Tool
from daydream.instrument.tools.mapping import Mapping


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
