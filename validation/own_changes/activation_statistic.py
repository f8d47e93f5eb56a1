"""Mean, spread and largest value of every activation, kept as it trains."""

from typing import Any

from daydream import Graph
from daydream.costs import replace_cost
from daydream.instrument import OpContext, Tool


def activation_statistic(graph: Graph) -> None:
    """Predict a statistic behind each GELU, as measured in place."""
    replace_cost(graph, graph.select(op=r"^aten::gelu$"))


class Statistic(Tool):
    """Looks at what each GELU gives; the model computes what it did."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[Any, ...]] = {}
        self.add_inst_for_op(self.change)

    def change(self, context: OpContext) -> None:
        """Order the look at one operator's result."""
        if context["type"] == "gelu":
            context.insert_after_op(self.look, op_id=context["op_id"])

    def look(self, output: Any, *, op_id: str) -> None:
        """Keep the statistic."""
        self.found[op_id] = (output.mean(), output.std(), output.abs().max())


tool = Statistic
