"""One operator in the place of another: an activation, a norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import Tool
from daydream.instrument.tools.choice import Where


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
        self.which, self.func, self.inputs = which, func, tuple(inputs)
        self.replaced: list[str] = []  # ids
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        meant = op["type"] == self.which if isinstance(self.which, str) else self.which(op)
        if meant and op["phase"] == "forward":
            self.replaced.append(op["op_id"])
            op.replace_op(self.func, inputs=self.inputs, grad=True)
