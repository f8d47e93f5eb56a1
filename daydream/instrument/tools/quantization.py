"""Numbers rounded to a few bits and back: what quantization does to the loss, without its kernels."""

from __future__ import annotations

from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import Tool
from daydream.instrument.tools.mapping import Mapping


def rounded(tensor: Any, bits: int, scale: Any = None) -> Any:
    """Return a tensor rounded to signed integers of some bits times a scale; its own if None."""
    top = 2 ** (bits - 1) - 1
    if scale is None:
        scale = tensor.abs().max() / top
    safe = scale if float(scale) else 1.0
    return (tensor / safe).round().clamp(-top - 1, top) * safe


class FakeQuantization(Tool):
    """Rounds inputs and weights of matrix products and convolutions.

    Args:
        bits: of the integers.
        training: gradients go straight through (QAT). Otherwise (PTQ) the scale of an input is that of
            its first call, the calibration, and stays.
        activations: round inputs too; weights alone otherwise.
        mapping: gives the places of inputs and weights in operators of your own.
    """

    def __init__(
        self,
        bits: int = 8,
        *,
        training: bool = True,
        activations: bool = True,
        mapping: Mapping | None = None,
    ) -> None:
        self.bits, self.training, self.activations = bits, training, activations
        self.depends_on(mapping or Mapping())
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["operation"] not in {"linear", "convolution"}:
            return
        top = 2 ** (self.bits - 1) - 1
        places = [op["input_place"]] if self.activations else []
        for place in [*places, op["weight_place"]]:
            if place is not None:
                scale = None if self.training else op.get_inputs()[place].abs().max() / top
                op.insert_before_op(rounded, inputs=[place], bits=self.bits, scale=scale)
