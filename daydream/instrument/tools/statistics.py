"""The range and the spread of what operators compute."""

from __future__ import annotations

from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import Tool


class ActivationStatistics(Tool):
    """Keeps, by operator id, `calls`, `mean`, `max_abs` and whether all values were finite (`finite`).

    Args:
        types: of the operators that are looked at.
    """

    def __init__(self, *types: str) -> None:
        self.types = types or ("linear", "conv2d", "gelu", "relu", "layer_norm")
        self.values: dict[str, dict[str, Any]] = {}
        self.add_inst_for_op(self._choose)

    def _choose(self, op: OpContext) -> None:
        if op["type"] in self.types and op["phase"] == "forward":
            op.insert_after_op(self._note, outputs=[0], op_id=op["op_id"])

    def _note(self, output: Any, op_id: str) -> None:
        largest, mean = float(output.abs().max()), float(output.mean())
        row = self.values.setdefault(
            op_id, {"calls": 0, "mean": 0.0, "max_abs": 0.0, "finite": True}
        )
        row["calls"] += 1
        row["mean"] += (mean - row["mean"]) / row["calls"]
        row["max_abs"] = max(row["max_abs"], largest)
        row["finite"] = row["finite"] and largest < float("inf")
