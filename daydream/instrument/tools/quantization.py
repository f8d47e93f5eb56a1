"""Numbers rounded to a few bits and back: what quantization does to the loss, without its kernels."""

from __future__ import annotations

from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import Tool
from daydream.instrument.tools.choice import Where
from daydream.instrument.tools.mapping import Mapping

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
        self.bits, self.training, self.activations, self.where = (
            bits,
            training,
            activations,
            where,
        )
        self.depends_on(mapping or Mapping())
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["operation"] not in {"linear", "convolution"} or not (
            self.where is None or self.where(op)
        ):
            return
        for place in (
            [op["input_place"], op["weight_place"]] if self.activations else [op["weight_place"]]
        ):
            if place is not None:
                scale = None if self.training else scale_of(op.get_inputs()[place], self.bits)
                op.insert_before_op(rounded, inputs=[place], grad=True, bits=self.bits, scale=scale)
