"""Kineto files with `[memory]` rows, written by hand: times in microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def memory_row(at: Any, nbytes: Any, address: Any, total: Any = None, **more: Any) -> dict[str, Any]:
    """Return an allocation of device 0, or a free (bytes below 0); `more` replaces arguments."""
    args = {"Bytes": nbytes, "Addr": address, "Device Id": 0, "Device Type": 1}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 1 << 21}
    given = {name.replace("_", " "): value for name, value in more.items()}
    return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": {**args, **given}}


def operator(name: str, at: float, duration: float) -> dict[str, Any]:
    """Return an operator on the thread of the memory rows."""
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": duration}


def written(folder: Path, rows: list[dict[str, Any]], **document: Any) -> Path:
    """Write an operator from 0 to 100 us and these rows."""
    path = folder / "t.json"
    path.write_text(json.dumps({"traceEvents": [operator("aten::mm", 0, 100), *rows], **document}))
    return path
