"""Weights pruned by magnitude while the model runs as it is."""

from __future__ import annotations

from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import InstrumentError, Tool
from daydream.instrument.tools.choice import Where
from daydream.instrument.tools.mapping import Mapping

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
        rows = weight.reshape(weight.shape[0], -1)
        if rows.shape[1] % 4:
            raise InstrumentError(f"2:4 needs a multiple of 4 inputs; a weight has {rows.shape[1]}")
        order = rows.abs().reshape(-1, 4).argsort(dim=1, descending=True, stable=True)
        mask = torch.zeros_like(order, dtype=torch.bool).scatter_(1, order[:, :2], value=True)
        return mask.reshape(weight.shape)
    flat = weight.abs().flatten()
    kept = flat.numel() - int(flat.numel() * float(sparsity))
    order = flat.argsort(descending=True, stable=True)
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter_(0, order[:kept], value=True)
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
        self.sparsity, self.dynamic, self.where = sparsity, dynamic, where
        self.dense: list[str] = []
        self.depends_on(mapping or Mapping())
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["operation"] not in {"linear", "convolution"} or op["weight_place"] is None:
            return
        if self.where is not None and not self.where(op):
            return
        place = op["weight_place"]
        weight = op.get_inputs()[place]
        if self.sparsity == TWO_OF_FOUR and weight[0].numel() % 4:
            self.dense.append(op["op_id"])
            return
        mask = None if self.dynamic else mask_of(weight, self.sparsity)
        op.insert_before_op(self._pruned, inputs=[place], mask=mask)

    def _pruned(self, weight: Any, mask: Any) -> Any:
        return weight * (mask_of(weight, self.sparsity) if mask is None else mask)
