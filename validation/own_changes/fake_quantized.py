"""Linear layers in training for int8: weights and inputs rounded to 256 steps, still floats."""

from typing import Any

from daydream import Graph
from daydream.costs import replace_cost
from daydream.instrument import OpContext, Tool


def fake_quantized(graph: Graph) -> None:
    """Predict linear layers of rounded operands, as measured in place."""
    replace_cost(graph, graph.select(within=r"^aten::linear$"))


class FakeQuantized(Tool):
    """Rounds input and weight before each product; gradients pass straight through."""

    def __init__(self) -> None:
        self.add_inst_for_op(self.change)

    def change(self, context: OpContext) -> None:
        """Order the rounding of one layer's operands."""
        if context["type"] == "linear":
            context.insert_before_op(rounded, inputs=[0, 1])


def rounded(*operands: Any) -> tuple[Any, ...]:
    """Return the operands, each rounded to steps of its largest value over 127."""
    import torch

    scales = [max(float(each.abs().max()) / 127, 1e-12) for each in operands]
    return tuple(
        torch.fake_quantize_per_tensor_affine(each, scale, 0, -128, 127)
        for each, scale in zip(operands, scales, strict=True)
    )


tool = FakeQuantized
