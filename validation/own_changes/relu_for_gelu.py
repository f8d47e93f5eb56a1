"""ReLU in the place of GELU: what an activation costs."""

from daydream import Graph
from daydream.costs import replace_cost
from daydream.instrument import OpContext, Tool


def relu_for_gelu(graph: Graph) -> None:
    """Predict ReLU in the place of GELU, forward and backward, as measured in place."""
    replace_cost(graph, graph.select(op=r"^aten::gelu(_backward)?$"))


class ReluForGelu(Tool):
    """Replaces every GELU of the forward pass; autograd differentiates what stands there."""

    def __init__(self) -> None:
        self.add_inst_for_op(self.change)

    def change(self, context: OpContext) -> None:
        """Order the replacement of one operator."""
        if context["type"] == "gelu":
            import torch

            context.replace_op(torch.relu, inputs=[0], grad=True)


tool = ReluForGelu
