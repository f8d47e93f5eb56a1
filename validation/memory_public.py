"""Public recordings with memory, before and after a change on a GPU: the peak of each, by a reader that is not daydream's."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPU = 0  # the device type of a row
DEVELOPED, JUDGED = "development", "judgement"  # looked at while models were made, or not
T4, MOE, HOPPER = "pairs/t4_mlp_amp", "pairs/a100_switch_moe", "pairs/hopper_tf32"
PARTICLES = "kineto/a100_particle_transformer_forward_batch"


@dataclass(frozen=True)
class Pair:
    """Two recordings, what was changed between them, and the question that a person would ask."""

    before: str
    after: str
    optimization: str
    options: dict[str, Any]
    role: str

    @property
    def title(self) -> str:
        """Both recordings, short."""
        names = [Path(path).name.removesuffix(".json.gz") for path in (self.before, self.after)]
        return f"{Path(self.before).parent.name} {names[0]} → {names[1]}"

    @property
    def asked(self) -> str:
        """The question as it is typed."""
        return " ".join([self.optimization, *(f"--{name} {value:g}" for name, value in self.options.items())])


def pairs() -> Iterator[Pair]:
    """Yield every pair and direction."""
    for name in ("autocast+grad-scaler", "amp"):
        yield Pair(f"{T4}/fp32.json.gz", f"{T4}/amp.json.gz", name, {}, DEVELOPED)
    small, large, long = (f"{MOE}/{name}.json.gz" for name in ("b4_s128", "b8_s128", "b8_s1024"))
    yield Pair(small, large, "batch-size", {"factor": 2.0}, DEVELOPED)
    yield Pair(large, small, "batch-size", {"factor": 0.5}, DEVELOPED)
    yield Pair(large, long, "sequence-length", {"length": 1024}, JUDGED)
    yield Pair(long, large, "sequence-length", {"length": 128}, JUDGED)
    yield Pair(small, long, "sequence-length+batch-size", {"factor": 2.0, "length": 1024}, JUDGED)
    # Events are padded to the longest of the batch: 43 particles among 8 events, 128 among 128.
    few, many = (f"{PARTICLES}{batch}.json.gz" for batch in (8, 128))
    both = "sequence-length+batch-size"
    yield Pair(few, many, both, {"factor": 16.0, "length": 128}, DEVELOPED)
    yield Pair(many, few, both, {"factor": 1 / 16, "length": 43}, DEVELOPED)
    yield Pair(f"{HOPPER}/gh200_fp32.json.gz", f"{HOPPER}/h100_tf32_1.json.gz", "tf32", {}, JUDGED)


def peak_bytes(path: Path) -> int:
    """Return the most of what a recording says is allocated on a GPU at once."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = json.load(file)["traceEvents"]
    rows = [row["args"] for row in found if row.get("name") == "[memory]"]
    return int(max(row["Total Allocated"] for row in rows if row["Device Type"] != CPU))
