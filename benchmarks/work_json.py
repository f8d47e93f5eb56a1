"""Worker: `json.load` alone, in a process that imports nothing else."""

from __future__ import annotations

import gzip
import json
from typing import Any

from workers import peak_bytes, seconds_of, serve


def load(path: str) -> dict[str, Any]:
    """Load a .json or .json.gz and keep all of it."""
    kept: list[Any] = []

    def work() -> None:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            kept.append(json.load(file))

    seconds = seconds_of(work)
    return {"seconds": seconds, "peak": peak_bytes(), "events": len(kept[0]["traceEvents"])}


if __name__ == "__main__":
    serve({"load": load})
