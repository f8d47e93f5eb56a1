"""One operator in the place of another: an activation, a norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import Tool


class Replacing(Tool):
    """Computes a function, and its gradient, where operators of a type ran.

    Args:
        type_: of the operators, such as `gelu` or `layer_norm`.
        func: given the inputs at `inputs`.
        inputs: places in the operator's schema.
    """

    def __init__(self, type_: str, func: Callable[..., Any], inputs: Sequence[int] = (0,)) -> None:
        self.type, self.func, self.inputs = type_, func, tuple(inputs)
        self.replaced: list[str] = []  # ids
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["type"] == self.type and op["phase"] == "forward":
            self.replaced.append(op["op_id"])
            op.replace_op(self.func, inputs=self.inputs, grad=True)
