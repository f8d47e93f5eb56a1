"""Counter tables in CSV: Nsight Compute's three layouts, and rocprofv3's, each found by its header.

Nsight Compute prints lines of its own (`==PROF==`) before the header, numbers with thousands separators,
scaled units (`Mbyte`), `n/a`, and rows with fewer fields than the header has. Its wide layout has a row of
units below the header. A launch has a row for each metric in the long layout and in rocprofv3's.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from math import isfinite, prod

from daydream.costs.counters.amounts import CountedKernel
from daydream.errors import FileError
from daydream.lazy import regex

PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
UNIT = regex(r"^([KMGTkmgt]?)(bytes?|inst|cycles?|sector|request|warp)$")
NUMBER = regex(r"^-?\d{1,3}(,\d{3})+(\.\d+)?$")  # with thousands separators
KB = 1024  # AMD counts fetched and written memory in units of this
AMD_KIB = ("FETCH_SIZE", "FetchSize", "WRITE_SIZE", "WriteSize")
LONG, WIDE = {"ID", "Kernel Name", "Metric Name", "Metric Value"}, {"ID", "Kernel Name"}
SUMMARY = {"Kernel Name", "Metric Name", "Invocations", "Average"}
ROCPROF_V1, ROCPROF_V2 = (
    {"KernelName", "grd", "wgr"},
    {"Kernel_Name", "LDS_Per_Workgroup", "Workgroup_Size"},
)
ROCPROF = {"Kernel_Name", "Counter_Name", "Counter_Value"}
DEVICES = ("Device", "Agent_Id", "GPU_ID", "gpu-id")  # columns that name a launch's device
MOST = 2.0**63
# Of rocprof's columns: what the hardware counted, and not who launched it and when.
COUNTER = regex(
    r"(SQ|GRBM|TC[ACP]|TA|TD|CP[CF]|SPI)_|FetchSize$|WriteSize$|LDSBankConflict$|OccupancyPercent$"
)
ROCPROF_TABLE = "rocprofv3's table"


def kernels_of_table(text: str, file: str) -> list[CountedKernel] | None:
    """Return the launches of a table in order; None if the text is no table of counters.

    Raises `FileError` where a row cannot be meant: what was found, and in which line.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    for place, line in enumerate(lines):
        header = next(csv.reader([line]), [])
        names = {name.strip() for name in header}
        if _is_header({name.strip().strip('"') for name in line.split(";")}):
            raise FileError(
                f"{file}, line {place + 1}: fields are parted by semicolons; export with LC_ALL=C"
            )
        rows = _rows(lines, place, header, file)
        if names >= ROCPROF:
            return _of_rocprof(rows)
        if names >= ROCPROF_V1 or names >= ROCPROF_V2:
            return _of_old_rocprof(rows, file)
        if names >= SUMMARY:
            return _of_summary(rows, file)
        if names >= LONG:
            return _of_long(rows, file)
        if names >= WIDE and len(lines) > place + 1:
            return _of_wide(rows, header, file)
        if place > MOST_BEFORE:
            break
    return None


MOST_BEFORE = 1_000  # lines of output before the header


def _rows(
    lines: list[str], place: int, header: list[str], file: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, fields by name) behind the header."""
    known = [name.strip() for name in header]
    for number, fields in enumerate(csv.reader(lines[place + 1 :]), place + 2):
        if not fields or fields[0].startswith("=="):
            continue
        if _is_header({name.strip() for name in fields}):
            raise FileError(
                f"{file}, line {number}: another table begins here; give each in a file of its own"
            )
        if len(fields) > len(known):
            raise FileError(
                f"{file}, line {number}: {len(fields)} fields under {len(known)} names; a table that a "
                "spreadsheet saved without quotes splits its numbers. Export it again"
            )
        yield number, dict(zip(known, [*fields, *[""] * (len(known) - len(fields))], strict=True))


def _is_header(names: set[str]) -> bool:
    """Return whether these are the names of the columns of some table of counters."""
    return any(names >= each for each in (LONG, SUMMARY, ROCPROF, ROCPROF_V1, ROCPROF_V2))


def _of_long(rows: Iterator[tuple[int, dict[str, str]]], file: str) -> list[CountedKernel]:
    found: dict[tuple[str, str], CountedKernel] = {}
    for number, row in rows:
        if not row["Metric Name"]:
            continue  # a rule's advice
        launch = found.setdefault(
            (row.get("Process ID", ""), row["ID"]),
            CountedKernel(
                row["Kernel Name"], _blocks(row.get("Grid Size", "")), device=_device(row)
            ),
        )
        if launch.name != row["Kernel Name"]:
            raise FileError(
                f"{file}, line {number}: launch {row['ID']} has two kernels; several reports are mixed"
            )
        _add(
            launch,
            row["Metric Name"],
            row["Metric Value"],
            row.get("Metric Unit", ""),
            file,
            number,
        )
        if row["Metric Name"] == "Grid Size" and launch.blocks is None:
            launch.blocks = round(launch.metrics["Grid Size"])
    return list(found.values())


def _of_summary(rows: Iterator[tuple[int, dict[str, str]]], file: str) -> list[CountedKernel]:
    """Return means of all launches of a kernel, each with how many there were."""
    found: dict[str, CountedKernel] = {}
    for number, row in rows:
        launches = int(_value(row["Invocations"], file, number) or 1)
        kernel = found.setdefault(
            row["Kernel Name"],
            CountedKernel(row["Kernel Name"], _blocks(row.get("Grid Size", "")), launches=launches),
        )
        _add(kernel, row["Metric Name"], row["Average"], row.get("Metric Unit", ""), file, number)
    return list(found.values())


def _of_wide(
    rows: Iterator[tuple[int, dict[str, str]]], header: Sequence[str], file: str
) -> list[CountedKernel] | None:
    metrics = [name for name in header if "__" in name]
    if not metrics:
        return None
    units: dict[str, str] = {}
    found = []
    for number, row in rows:
        if not row["ID"]:
            units = row
            continue
        grid = row.get("launch__grid_size") or row.get("Grid Size") or ""
        launch = CountedKernel(row["Kernel Name"], _blocks(grid), device=_device(row))
        for name in metrics:
            _add(launch, name, row[name], units.get(name, ""), file, number)
        found.append(launch)
    return found


def _of_rocprof(rows: Iterator[tuple[int, dict[str, str]]]) -> list[CountedKernel]:
    """Return the launches of rocprofv3: grids in work-items, memory in KiB where the name says no unit."""
    found: dict[tuple[str, str], CountedKernel] = {}
    for number, row in rows:
        items = _value(row.get("Grid_Size", ""), ROCPROF_TABLE, number)
        group = _value(row.get("Workgroup_Size", ""), ROCPROF_TABLE, number)
        blocks = round(items / group) if items and group else None
        key = (row.get("Process_Id", ""), row.get("Dispatch_Id") or row.get("Correlation_Id", ""))
        launch = found.setdefault(
            key, CountedKernel(row["Kernel_Name"], blocks, device=_device(row))
        )
        value = _value(row["Counter_Value"], ROCPROF_TABLE, number)
        if value is not None:
            name = row["Counter_Name"]
            # A counter has a row for each of the device's parts in some versions: they add up.
            launch.metrics[name] = launch.metrics.get(name, 0.0) + value * (
                KB if name in AMD_KIB else 1
            )
    return list(found.values())


def _of_old_rocprof(rows: Iterator[tuple[int, dict[str, str]]], file: str) -> list[CountedKernel]:
    """Return the launches of rocprof's first two versions: a row each, its counters as columns."""
    found = []
    for number, row in rows:
        sizes = [
            row.get(new) or row.get(old, "")
            for new, old in (("Grid_Size", "grd"), ("Workgroup_Size", "wgr"))
        ]
        items, group = (_value(size, file, number) for size in sizes)
        launch = CountedKernel(
            row.get("Kernel_Name") or row.get("KernelName", ""),
            round(items / group) if items and group else None,
            device=_device(row),
        )
        for name, text in row.items():
            value = _value(text, file, number) if COUNTER.match(name) else None
            if value is not None:
                launch.metrics[name] = value * (KB if name in AMD_KIB else 1)
        found.append(launch)
    return found


def _device(row: dict[str, str]) -> str:
    return next((row[name] for name in DEVICES if row.get(name)), "")


def _add(launch: CountedKernel, name: str, value: str, unit: str, file: str, line: int) -> None:
    number = _value(value, file, line)
    if number is not None:
        scaled = UNIT.match(unit)
        launch.metrics[name] = number * (PREFIXES[scaled.group(1).lower()] if scaled else 1.0)


def _value(text: str, file: str, line: int) -> float | None:
    """Return a number, its thousands separators left out; None for `n/a`, a text and nothing."""
    text = text.strip()
    if NUMBER.match(text):
        text = text.replace(",", "")
    elif "," in text and re.match(r"^-?[\d.]+,\d+$", text):
        raise FileError(
            f"{file}, line {line}: {text!r:.40} has a decimal comma; export with LC_ALL=C"
        )
    try:
        value = float(text)
    except ValueError:
        return None
    if not isfinite(value):
        return None
    if not 0 <= value < MOST:
        raise FileError(f"{file}, line {line}: {text!r:.40} is no count")
    return value


def _blocks(text: str) -> int | None:
    """Return the blocks of `(224, 1, 1)`, `224,1,1` or `224`; None of anything else."""
    numbers = [int(one) for one in re.findall(r"\d+", text.replace(".0", ""))]
    return prod(numbers) if numbers else None
