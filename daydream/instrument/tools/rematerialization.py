"""Chosen operators computed again in the backward pass instead of keeping what they saved."""

from __future__ import annotations

from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.kinds import kind_of
from daydream.instrument.tool import InstrumentError, Tool
from daydream.instrument.tools.choice import Where


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
        self.types, self.where = types, where
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
