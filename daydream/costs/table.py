"""Kernel and operator times that a user measured: a CSV or parquet file.

Either `kernel,duration_ns` (a kernel's exact name), or `op,shapes,dtype,duration_ns`
(an operator call as a trace names it: its kernels' time together). A file that holds
an operator at the old and at the new element type gives their ratio, so that what the
measurement has in common cancels.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

from daydream.costs.work import bare_name
from daydream.errors import TraceError

COLUMNS = ("kernel", "op", "shapes", "dtype", "duration_ns")


class KernelTable:
    """Measured times: `kernel(name)` and `call(op, shapes, dtype)` return ns, or None."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._kernels: dict[str, float] = {}
        self._calls: dict[tuple[str, str, str], float] = {}
        for row in rows:
            time = float(row["duration_ns"])
            if row.get("kernel"):
                self._kernels[str(row["kernel"])] = time
            else:
                key = (bare_name(str(row["op"])), _plain(str(row["shapes"])), str(row.get("dtype") or ""))
                self._calls[key] = time

    def __len__(self) -> int:
        return len(self._kernels) + len(self._calls)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KernelTable:
        """Read a table. Raises `TraceError` if the file is missing or has other columns."""
        try:
            rows = _read_parquet(path) if Path(path).suffix == ".parquet" else _read_csv(path)
        except FileNotFoundError:
            raise TraceError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"{path} cannot be read as a table of times ({error})") from None
        for number, row in enumerate(rows, 2):
            named = row.get("kernel") or (row.get("op") and row.get("shapes"))
            if not named or not _is_time(row.get("duration_ns")):
                raise TraceError(
                    f"{path}, row {number}: a time needs `kernel,duration_ns` or "
                    "`op,shapes,dtype,duration_ns`, with ns of 0 or more"
                )
        if not rows:
            raise TraceError(f"{path} holds no times; its columns should be among {', '.join(COLUMNS)}")
        return cls(rows)

    def kernel(self, name: str) -> float | None:
        """Return the measured ns of a kernel."""
        return self._kernels.get(name)

    def call(self, op: str, shapes: str, dtype: str | None) -> float | None:
        """Return the measured ns of an operator call's kernels together."""
        return self._calls.get((bare_name(op), _plain(shapes), dtype or ""))


def _plain(shapes: str) -> str:
    try:
        return json.dumps(json.loads(shapes), separators=(",", ":"))
    except ValueError:
        return shapes


def _is_time(value: Any) -> bool:
    try:
        return float(value) >= 0
    except (TypeError, ValueError):
        return False


def _read_csv(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _read_parquet(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    try:
        return list(read_table(path).to_pylist())
    except ArrowException as error:
        raise TraceError(f"{path} is not a readable parquet file ({error})") from None
