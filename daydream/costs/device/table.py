"""Kernel and operator times that a user measured: a CSV or parquet file.

Either `kernel,duration_ns` (a kernel's exact name), or `op,shapes,dtype,duration_ns`
(an operator call as a trace names it: its kernels' time together). A file that holds
an operator at the old and at the new element type gives their ratio, so that what the
measurement has in common cancels. `daydream calibrate` writes such a file, and in its metadata
the device that it measured on. With `before_ns` and `phase` a row is a call that was changed in place,
as `daydream calibrate --tool` times it: what it took before and, as `duration_ns`, with the change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import asdict

from daydream.costs.operators import bare_name
from daydream.costs.workload.shapes import Shape, parse_shapes
from daydream.errors import FileError
from daydream.files.atomic import write_whole
from daydream.files.input_files import check_regular

COLUMNS = ("kernel", "op", "shapes", "dtype", "duration_ns", "before_ns", "phase")
PHASES = ("forward", "backward")
UNKNOWN_PAIR = (float("nan"), float("nan"))
CPU = "cpu"  # the device of a table that was measured on a CPU
InPlaceKey: TypeAlias = tuple[str, tuple[Shape, ...], str]
NUMBERS = {
    "before_ns": "int64",
    "duration_ns": "int64",
    "repeats": "int32",
}  # the other columns are texts
SCHEMA = 1
METADATA = b"daydream"  # the key that holds one JSON document, as in a trace


class KernelTable:
    """Measured times: `kernel(name)` and `call(op, shapes, dtype)` return ns, or None.

    `device` is what they were measured on: a GPU's name, `cpu`, or None where the file does not
    say. `answers` counts the times that were found. `in_place` holds calls that a change was made to:
    key -> ((before, after) forward, (before, after) backward), ns, NaN where it was not measured.
    """

    def __init__(self, rows: list[dict[str, Any]], device: str | None = None) -> None:
        self.device = device
        self.answers = 0
        self._kernels: dict[str, float] = {}
        self._calls: dict[tuple[str, str, str], float] = {}
        self.in_place: dict[InPlaceKey, list[tuple[float, float]]] = {}
        for row in rows:
            time = float(row["duration_ns"])
            if _known(row.get("before_ns")):
                call = self.key_in_place(
                    *(str(row.get(name) or "") for name in ("op", "shapes", "dtype"))
                )
                pairs = self.in_place.setdefault(call, [UNKNOWN_PAIR, UNKNOWN_PAIR])
                pairs[PHASES.index(str(row["phase"]))] = (float(row["before_ns"]), time)
            elif row.get("kernel"):
                self._kernels[str(row["kernel"])] = time
            else:
                key = (
                    bare_name(str(row["op"])),
                    _plain(str(row["shapes"])),
                    str(row.get("dtype") or ""),
                )
                self._calls[key] = time

    def __len__(self) -> int:
        return len(self._kernels) + len(self._calls) + len(self.in_place)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> KernelTable:
        """Read a table. Raises `FileError` if the file is missing or has other columns."""
        try:
            rows, device = _read_parquet(path) if _is_parquet(path) else (_read_csv(path), None)
        except FileNotFoundError:
            raise FileError(f"{path}: no such file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise FileError(f"{path} cannot be read as a table of times ({error})") from None
        for number, row in enumerate(rows, 2):
            named = row.get("kernel") or (row.get("op") and row.get("shapes"))
            before = row.get("before_ns")
            changed = not _known(before) or (_is_time(before) and row.get("phase") in PHASES)
            if not named or not _is_time(row.get("duration_ns")) or not changed:
                raise FileError(
                    f"{path}, row {number}: a time needs `kernel,duration_ns` or "
                    "`op,shapes,dtype,duration_ns`, with ns of 0 or more; with `before_ns` also "
                    "`phase`, forward or backward"
                )
        if not rows:
            raise FileError(
                f"{path} holds no times; its columns should be among {', '.join(COLUMNS)}"
            )
        return cls(rows, device)

    def kernel(self, name: str) -> float | None:
        """Return the measured ns of a kernel."""
        return self._counted(self._kernels.get(name))

    def call(
        self,
        op: str,
        shapes: str,
        dtype: str | None,
        hint: Shape | None = None,  # noqa: ARG002
    ) -> float | None:
        """Return the measured ns of an operator call's kernels together; `hint` is for those who measure."""
        return self._counted(self._calls.get((bare_name(op), _plain(shapes), dtype or "")))

    @staticmethod
    def key_in_place(op: str, shapes: str, dtype: str) -> InPlaceKey:
        """Return the key of a call that a change is made to: name, shapes of its tensors, element type."""
        return bare_name(op), tuple(shape for shape in _tensors(shapes) if shape), dtype

    def _counted(self, time: float | None) -> float | None:
        self.answers += time is not None
        return time


def _tensors(shapes: str) -> list[Shape]:
    found: list[Shape] = []
    for part in parse_shapes(shapes) or []:
        found += (
            [one for one in part if isinstance(one, tuple)] if isinstance(part, list) else [part]
        )
    return found


def _known(value: Any) -> bool:
    return value is not None and value != ""


def _plain(shapes: str) -> str:
    try:
        return json.dumps(json.loads(shapes), separators=(",", ":"))
    except ValueError:
        return shapes


def _is_time(value: Any) -> bool:
    try:
        return 0 <= float(value) < float("inf")
    except (TypeError, ValueError):
        return False


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    check_regular(path)
    if Path(path).suffix == ".parquet":
        return True
    with open(path, "rb") as file:
        return file.read(4) == b"PAR1"


def _read_csv(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    import csv

    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _read_parquet(path: str | os.PathLike[str]) -> tuple[list[dict[str, Any]], str | None]:
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            said = (file.schema_arrow.metadata or {}).get(METADATA, b"{}")
            there = [name for name in COLUMNS if name in names]
            rows = (
                file.read(there).to_pylist()
                if "duration_ns" in there and "kind" not in names
                else None
            )
    except ArrowException as error:
        raise FileError(f"{path} is not a readable parquet file ({error})") from None
    if rows is None:  # a trace, most likely
        raise FileError(
            f"{path} is not a table of times: its columns are {', '.join(names[:4])}, ...\n"
            f"       They should be among {', '.join(COLUMNS)}; `daydream calibrate` writes such a file."
        )
    try:
        device = json.loads(said).get("device")
    except (ValueError, AttributeError):  # somebody else's
        device = None
    return rows, device if isinstance(device, str) else None


def save_times(
    path: str | os.PathLike[str],
    kind: Any,
    times: Sequence[Any],
    said: Mapping[str, Any],
    *,
    force: bool,
) -> None:
    """Write times of calls, each a record of this kind, as parquet; `KernelTable.load` reads it.

    Raises `OutputError` if the path cannot be written, or exists and `force` is not given.
    """
    import pyarrow as pa
    from pyarrow.parquet import write_table

    columns = [(name, NUMBERS.get(name, "string")) for name in kind.__struct_fields__]
    schema = pa.schema(columns, {METADATA: json.dumps({"schema_version": SCHEMA, **said})})
    rows = pa.Table.from_pylist([asdict(each) for each in times], schema)
    write_whole(
        path, lambda temporary: write_table(rows, temporary, compression="zstd"), force=force
    )
