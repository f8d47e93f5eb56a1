"""Changes whose peak memory is measured: what predicts each, and how it is made for real."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DEVELOPED = ("CNN", "Encoder", "GPT", "LSTM", "MLP")  # causes of their misses were mended
JUDGES = ("GRU", "Mixer", "UNet")  # added after that, measured before they were predicted
MODELS = DEVELOPED + JUDGES
UNCHANGED = "unchanged"
BLOCKS, HALF = "blocks.*", "blocks.[01]*"  # of four
TWO = {"workers": 2, "bandwidth": 1.0}
UNITS = {**TWO, "layers": BLOCKS}


@dataclass(frozen=True)
class Change:
    """The optimization that predicts a change and its options; `made` is what the step is given to make it.

    `applied`: made by the `apply` of the optimization's own file.
    """

    optimization: str
    options: dict[str, Any] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)
    applied: bool = False

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return int(self.options.get("workers", 1))


CHANGES: dict[str, Change] = {
    "checkpoint every block": Change("checkpointing", {"layers": BLOCKS}, applied=True),
    "batch x 2": Change("batch-size", {"factor": 2.0}, {"batch": 2.0}),
    "batch x 4": Change("batch-size", {"factor": 4.0}, {"batch": 4.0}),
    "batch x 1/2": Change("batch-size", {"factor": 0.5}, {"batch": 0.5}),
    "accumulate 2 batches": Change("gradient-accumulation", {"batches": 2}, {"batches": 2}),
    "accumulate 4 batches": Change("gradient-accumulation", {"batches": 4}, {"batches": 4}),
    "Adam foreach=False to fused=True": Change("fused-adam", applied=True),
    "Adam foreach=False to True": Change("foreach-optimizer", applied=True),
    "freeze the first half": Change("freeze", {"layers": HALF}, {"frozen": 2}),
    "autocast to bfloat16": Change("autocast", {"dtype": "bfloat16"}, applied=True),
    "layers 4 to 8": Change("add-layers", {"layers": BLOCKS, "count": 4}, {"layers": 8}),
    "DDP, 2 ranks": Change("ddp", TWO),
    "fully_shard, 2 ranks": Change("fsdp", {"stage": 3, **UNITS}),
    "fully_shard, 2 ranks, not resharded": Change("fsdp", {"stage": 2, **UNITS}),
}
