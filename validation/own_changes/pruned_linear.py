"""Linear layers whose smallest weights are zeros: a mask of each, made once, before each product."""

from typing import Any

from daydream import Graph
from daydream.costs import replace_cost
from daydream.instrument import OpContext, Tool


def pruned_linear(graph: Graph) -> None:
    """Predict linear layers with masked weights, as measured in place."""
    replace_cost(graph, graph.select(within=r"^aten::linear$"))


class Pruned(Tool):
    """Multiplies weights by masks that keep the larger half of them."""

    def __init__(self) -> None:
        self.add_inst_for_op(self.change)

    def change(self, context: OpContext) -> None:
        """Make the mask of one layer, and order its use."""
        if context["type"] == "linear":
            weight = context.get_inputs()[1]
            mask = (weight.abs() >= weight.abs().median()).to(weight.dtype)
            context.insert_before_op(masked, inputs=[1], mask=mask)


def masked(weight: Any, *, mask: Any) -> Any:
    """Return the weight with zeros."""
    return weight * mask


tool = Pruned
