"""Files of counters, each format told by what it holds: launches that were counted, or sums over many.

| format | source |
|---|---|
| Nsight Compute's CSV: long, wide (`--page raw`) and summary | lines of `==PROF==`, scaled units, `n/a` |
| rocprofv3's counter_collection.csv, rocprof's of versions 1 and 2 | grids in work-items, memory in KiB |
| rocprofv3's JSON | ROCm/rocprofiler-sdk, source/docs/rocprofv3-schema.json |
| Kineto's ranges | JSON, category `cuda_profiler_range` |
| NVBit's instr_count and opcode_hist | NVlabs/NVBit, README and tools |
| Luthier's InstrCount, OpcodeHistogram, LDSBankConflict | sums alone |
| AccelProf's app_metric, roofline_flops and roofline_size | AccelProf/sanalyzer, src/tools |

Counting makes launches run one by one, and again: what such a run says of time is never used.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import DecodeError, Struct, field
from msgspec.json import decode

from daydream.costs.counters.quantities import WARP, CountedKernel, amounts_of_amd, amounts_of_sass
from daydream.errors import FileError
from daydream.lazy import regex

MOST_BYTES = 1 << 30
HEAD = 1 << 16  # bytes of a JSON file in which rocprofv3 names itself
MOST = 2.0**63
TOOL = "rocprofiler-sdk-tool"
FORMATS = (
    "Nsight Compute's CSV (long, raw, summary), rocprofv3's counter_collection.csv and JSON, NVBit's "
    "instr_count and opcode_hist, Luthier's and AccelProf's text and Kineto's ranges are"
)


@dataclass(frozen=True)
class Totals:
    """Sums over kernels: amounts by the names of `quantities.tsv`, and who counted them.

    They belong to the kernels that ran meanwhile as a whole; nobody knows what each has of them.
    """

    source: str
    amounts: dict[str, float]


def read_counted(path: Path) -> list[CountedKernel] | Totals:
    """Return a file's launches, in order, or its sums. Raises `FileError` if it has neither."""
    raw = _unpacked(path)
    file = str(path)
    if raw.lstrip()[:1] in (b"{", b"["):
        return _of_rocprof_json(raw, file) if TOOL.encode() in raw[:HEAD] else _of_kineto(raw, file)
    text = raw.decode("utf-8", "replace")
    luthier = _of_luthier(text, file)
    if NVBIT in text or re.match(r"\s+[A-Z0-9.]+ = \d+\n", text):
        if luthier is not None:
            raise FileError(f"{path} is output of NVBit and of Luthier, mixed; give one file a run")
        return _of_nvbit(text, file)
    found = luthier or _of_accelprof(text, file)
    if found is None:
        found = kernels_of_table(text, path.name)
    if not found:
        what = "no launches" if found is not None else "no counters that are known"
        raise FileError(f"{path} holds {what}; {FORMATS} read")
    return found


def _unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked, which is not more than a file of counters can be."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as whole:
            raw = bytes(whole.read(MOST_BYTES + 1))
    except (OSError, EOFError, zlib.error) as error:
        said = getattr(error, "strerror", None) or error
        raise FileError(f"{path} cannot be read: {said}") from None
    if len(raw) > MOST_BYTES:
        raise FileError(f"{path} unpacks to more than 1 GiB; counters of a few steps are enough")
    return raw


def _count(text: str, where: str) -> float | None:
    """Return a count, its thousands separators left out; None for `n/a`, a text and nothing."""
    text = text.strip()
    if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    elif re.fullmatch(r"-?[\d.]+,\d+", text):
        raise FileError(f"{where}: {text!r:.40} has a decimal comma; export with LC_ALL=C")
    try:
        value = float(text)
    except ValueError:
        return None
    if not isfinite(value):
        return None
    if not 0 <= value < MOST:
        raise FileError(f"{where}: {text!r:.40} is no count")
    return value


# Tables in CSV: a layout is found by its header -----------------------------------------------------


class Layout(NamedTuple):
    """The columns of a table: a launch has the rows of one `key`; without a key it has one row."""

    header: set[str]
    kernel: str
    key: tuple[str, ...] = ()
    metric: tuple[str, str] = ("", "")  # name and value; else columns are metrics
    metrics: re.Pattern[str] = regex("(?!)")  # names of those columns
    grid: tuple[str, ...] = ("Grid Size",)  # in blocks
    items: tuple[str, str] | None = None  # grid and workgroup in work-items: AMD's tables


# Of rocprof's columns: what the hardware counted, and not who launched it and when.
COUNTER = regex(
    r"(SQ|GRBM|TC[ACP]|TA|TD|CP[CF]|SPI)_|FetchSize$|WriteSize$|LDSBankConflict$|OccupancyPercent$"
)
LONG_METRIC = ("Metric Name", "Metric Value")
ITEMS = ("Grid_Size", "Workgroup_Size")
LAYOUTS = (
    Layout(
        {"Kernel_Name", "Counter_Name", "Counter_Value"},
        "Kernel_Name",
        ("Process_Id", "Dispatch_Id", "Correlation_Id"),
        ("Counter_Name", "Counter_Value"),
        items=ITEMS,
    ),
    Layout({"KernelName", "grd", "wgr"}, "KernelName", metrics=COUNTER, items=("grd", "wgr")),
    Layout(
        {"Kernel_Name", "LDS_Per_Workgroup", "Workgroup_Size"},
        "Kernel_Name",
        metrics=COUNTER,
        items=ITEMS,
    ),
    Layout(
        {"Kernel Name", "Metric Name", "Invocations", "Average"},
        "Kernel Name",
        ("Kernel Name",),
        ("Metric Name", "Average"),
    ),
    Layout({"ID", "Kernel Name", *LONG_METRIC}, "Kernel Name", ("Process ID", "ID"), LONG_METRIC),
    Layout(
        {"ID", "Kernel Name"},
        "Kernel Name",
        metrics=regex(r".*__"),
        grid=("launch__grid_size", "Grid Size"),
    ),
)
WIDE = LAYOUTS[-1]
UNIT = regex(r"^([KMGTkmgt]?)(bytes?|inst|cycles?|sector|request|warp)$")
PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
AMD_KIB = ("FETCH_SIZE", "FetchSize", "WRITE_SIZE", "WriteSize")  # in units of 1,024 bytes
DEVICES = ("Device", "Agent_Id", "GPU_ID", "gpu-id")  # columns that name a launch's device
MOST_BEFORE = 1_000  # lines of output before the header


def kernels_of_table(text: str, file: str) -> list[CountedKernel] | None:
    """Return the launches of a table in order; None if the text is no table of counters.

    Raises `FileError` where a row cannot be meant: what was found, and in which line.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    for place, line in enumerate(lines[: MOST_BEFORE + 2]):
        header = [name.strip() for name in next(csv.reader([line]), [])]
        if _is_header({name.strip().strip('"') for name in line.split(";")}):
            raise FileError(
                f"{file}, line {place + 1}: fields are parted by semicolons; export with LC_ALL=C"
            )
        layout = next((each for each in LAYOUTS if each.header <= set(header)), None)
        if layout is not None and (layout is not WIDE or len(lines) > place + 1):
            if layout is WIDE and not any("__" in name for name in header):
                return None
            return _launches(_rows(lines, place, header, file), layout, file)
    return None


def _rows(
    lines: list[str], place: int, header: list[str], file: str
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, fields by name) of what follows the header."""
    for number, fields in enumerate(csv.reader(lines[place + 1 :]), place + 2):
        if not fields or fields[0].startswith("=="):
            continue
        if _is_header({name.strip() for name in fields}):
            raise FileError(
                f"{file}, line {number}: another table begins here; give each in a file of its own"
            )
        if len(fields) > len(header):
            raise FileError(
                f"{file}, line {number}: {len(fields)} fields under {len(header)} names; a table that a "
                "spreadsheet saved without quotes splits its numbers. Export it again"
            )
        yield number, dict(zip(header, [*fields, *[""] * (len(header) - len(fields))], strict=True))


def _is_header(names: set[str]) -> bool:
    """Return whether these are the names of the columns of some table of counters."""
    return any(names >= each.header for each in LAYOUTS if each is not WIDE)


def _launches(
    rows: Iterator[tuple[int, dict[str, str]]], layout: Layout, file: str
) -> list[CountedKernel]:
    """Return the launches of a table, in order; of a summary, means and how many launches they are of."""
    found: dict[object, CountedKernel] = {}
    units: dict[str, str] = {}
    name_column, value_column = layout.metric
    for number, row in rows:
        where = f"{file}, line {number}"
        if layout is WIDE and not row["ID"]:
            units = row  # a row of units follows the header
        if not row[name_column or layout.kernel] or units is row:
            continue  # a rule's advice
        key = tuple(row.get(name, "") for name in layout.key) or number
        if key not in found:
            found[key] = _launch(row, layout, where)
        launch = found[key]
        if launch.name != row[layout.kernel] and layout.items is None:
            raise FileError(
                f"{where}: launch {row['ID']} has two kernels; several reports are mixed"
            )
        values = {name: text for name, text in row.items() if layout.metrics.match(name)}
        if name_column:
            values = {row[name_column]: row[value_column]}
            units = {row[name_column]: row.get("Metric Unit", "")}
        counts = {name: _count(text, where) for name, text in values.items()}
        for name, value in counts.items():
            if value is None:
                continue
            if layout.items is None:
                scaled = UNIT.match(units.get(name, ""))
                launch.metrics[name] = value * (PREFIXES[scaled[1].lower()] if scaled else 1)
            else:  # in some versions a counter has a row for each of the device's parts: they add up
                kib = 1024 if name in AMD_KIB else 1
                launch.metrics[name] = launch.metrics.get(name, 0.0) + kib * value
        if launch.blocks is None and "Grid Size" in launch.metrics:
            launch.blocks = round(launch.metrics["Grid Size"])
    return list(found.values())


def _launch(row: dict[str, str], layout: Layout, where: str) -> CountedKernel:
    """Return the launch of a row, without its counters."""
    if layout.items is None:
        grid = next((row[name] for name in layout.grid if row.get(name)), "")
        numbers = [int(one) for one in re.findall(r"\d+", grid.replace(".0", ""))]
        blocks = prod(numbers) if numbers else None
    else:
        items, group = (_count(row.get(name, ""), where) for name in layout.items)
        blocks = round(items / group) if items and group else None
    device = next((row[name] for name in DEVICES if row.get(name)), "")
    launches = int(_count(row.get("Invocations", ""), where) or 1)
    return CountedKernel(row[layout.kernel], blocks, {}, launches, device=device)


# JSON ----------------------------------------------------------------------------------------------


class _Callbacks(Struct):
    counter_collection: list[dict[str, Any]] = []


class _Tool(Struct):  # nothing else is read: the file holds every environment variable, too
    counters: list[dict[str, Any]] = []
    kernel_symbols: list[dict[str, Any]] = []
    callback_records: _Callbacks = field(default_factory=_Callbacks)


class _Document(Struct, rename={"tools": TOOL}):
    tools: list[_Tool]


def _of_rocprof_json(raw: bytes, file: str) -> list[CountedKernel]:
    """Return the dispatches that were counted, in order."""
    found: list[CountedKernel] = []
    try:
        for tool in decode(raw, type=_Document).tools:
            found += _dispatches(tool, file)
    except (DecodeError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileError(f"{file} is no JSON of rocprofv3 with counters: {error}") from None
    if not found:
        raise FileError(f"{file}: rocprofv3 counted nothing there; run it with --pmc")
    return found


def _dispatches(tool: _Tool, file: str) -> list[CountedKernel]:
    names = {each["id"]["handle"]: str(each["name"]) for each in tool.counters}
    kernels = {
        each["kernel_id"]: str(each.get("formatted_kernel_name") or each.get("kernel_name", ""))
        for each in tool.kernel_symbols
    }
    launches = [
        (each["dispatch_data"]["dispatch_info"], each.get("records", []))
        for each in tool.callback_records.counter_collection
    ]
    found = []
    for dispatch, records in sorted(launches, key=lambda each: int(each[0].get("dispatch_id", 0))):
        kernel = dispatch["kernel_id"]
        if kernel not in kernels:
            raise FileError(f"{file}: a dispatch is of kernel {kernel}, which has no name there")
        metrics: dict[str, float] = {}
        for record in records:  # one for each part of the device: they add up
            handle = record["counter_id"]["handle"]
            if handle not in names:
                raise FileError(f"{file}: counter {handle} has no name there")
            value = _count(str(record["value"]), file)
            if value is None:
                raise FileError(f"{file}: {record['value']!r:.40} is no count")
            unit = 1024 if names[handle] in AMD_KIB else 1
            metrics[names[handle]] = metrics.get(names[handle], 0.0) + unit * value
        items, group = (
            prod(int(dispatch.get(size, {}).get(side, 1)) for side in "xyz")
            for size in ("grid_size", "workgroup_size")
        )
        device = str(dispatch.get("agent_id", {}).get("handle", 0))
        blocks = round(items / group) if group else 0
        found.append(CountedKernel(kernels[kernel], blocks or None, metrics, device=device))
    return found


def _of_kineto(raw: bytes, file: str) -> list[CountedKernel]:
    """Return the launches under Kineto's range profiler, in order."""
    try:
        document = json.loads(raw)
        events = document["traceEvents"] if isinstance(document, dict) else document
    except (ValueError, KeyError, RecursionError) as error:
        raise FileError(f"{file} cannot be read as Kineto JSON: {error}") from None
    events = events if isinstance(events, list) else []
    ranges = [
        each
        for each in events
        if isinstance(each, dict) and each.get("cat") == "cuda_profiler_range"
    ]
    if not ranges:
        raise FileError(
            f"{file} holds no counters: no event has the category 'cuda_profiler_range'."
        )
    found = []
    try:
        for each in sorted(ranges, key=lambda event: float(event["ts"])):
            counts = {
                name: _count(str(value), file) for name, value in each.get("args", {}).items()
            }
            metrics = {name: value for name, value in counts.items() if value is not None}
            found.append(CountedKernel(str(each["name"]), None, metrics))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileError(
            f"{file} has a profiler range without name, time or counters: {error}"
        ) from None
    return found


# NVBit: a line for each launch, its opcodes below it, among the program's output ---------------------

NVBIT = "#thread-blocks "
LAUNCH = regex(
    r"kernel \d{1,18}\s?-\s(.*)-\s*#thread-blocks (\d{1,18}),\s{1,4}kernel instructions (\d{1,18}), "
    r"total instructions (\d{1,18})\s*"
)
OPCODE = regex(r"\s+([A-Z][A-Z0-9]*(?:\.[A-Za-z0-9_.]+)?) = (\d{1,18})\s*")
BY_THREADS = regex(r"COUNT_WARP_LEVEL = 0\b")
LONGEST_LINE = 1 << 16


def _of_nvbit(text: str, file: str) -> list[CountedKernel]:
    """Return the launches of NVBit's output, in order.

    By default instructions of warps are counted; `COUNT_WARP_LEVEL = 0` in the banner says of threads, of
    which 32 count here as one of a warp.
    """
    lanes = WARP if BY_THREADS.search(text) else 1
    launches: list[tuple[CountedKernel, int, dict[str, int]]] = []
    before = 0
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{file}, line {number}"
        if NVBIT in line and line.startswith("kernel "):
            found = LAUNCH.fullmatch(line)
            if found is None:
                raise FileError(
                    f"{where}: NVBit's launch is cut or of another version: {line!r:.80}"
                )
            blocks, whole, total = map(int, found.groups()[1:])
            if total < whole or total < before:
                raise FileError(
                    f"{where}: the total is less than its parts; several runs are mixed"
                )
            before = total
            kernel = CountedKernel(found[1].rstrip(), blocks, {"instructions": whole / lanes})
            launches.append((kernel, whole, {}))
        elif (opcode := OPCODE.fullmatch(line[:LONGEST_LINE])) is not None:
            if not launches:
                raise FileError(f"{where}: opcodes of no kernel; keep NVBit's kernel lines, too")
            counts = launches[-1][2]
            counts[opcode[1]] = counts.get(opcode[1], 0) + int(opcode[2])
    for place, (kernel, whole, counts) in enumerate(launches):
        if not counts:
            continue  # instr_count has none
        if sum(counts.values()) != whole:
            raise FileError(
                f"{file}: the opcodes of launch {place} are {sum(counts.values()):,} of {whole:,} "
                "instructions: it is cut, or its opcodes are edited"
            )
        amounts = amounts_of_sass({opcode: count / lanes for opcode, count in counts.items()})
        kernel.metrics.update(amounts)
    return [kernel for kernel, *_ in launches]


# Luthier's tools print sums at exit ------------------------------------------------------------------

LUTHIER = {
    "instructions": regex(r"^Total instructions executed: (\S+)\s*$", re.MULTILINE),
    "shared_instructions": regex(
        r"^Total number of LDS instructions: (\d{1,18})"
        r"(?: \(single-address: \d{1,18}, double-address: \d{1,18}\))?\s*$",
        re.MULTILINE,
    ),
    "shared_conflicts": regex(r"^Total number of bank conflicts detected: (\S+)\s*$", re.MULTILINE),
}
HISTOGRAM = regex(r"^Instruction Opcode Results:\s*$", re.MULTILINE)
HISTOGRAM_ROW = regex(r"^  (\w{1,200}) = (\d{1,18})\s*$", re.MULTILINE)
HISTOGRAM_END = regex(r"^Total number of instructions counted: (\d{1,18})\s*$", re.MULTILINE)
OF_LUTHIER = regex(
    r"^(Total instructions executed:|Total number of LDS instructions:|Instruction Opcode Results:"
    r"|Total number of bank conflicts)",
    re.MULTILINE,
)


def _of_luthier(text: str, file: str) -> Totals | None:
    """Return what Luthier's tools printed; None if they did not."""
    if OF_LUTHIER.search(text) is None:
        return None
    found: dict[str, float] = {}
    for name, pattern in LUTHIER.items():
        values = pattern.findall(text)
        if len(values) > 1:
            raise FileError(
                f"{file} has {len(values)} sums of one sort: several runs; give one file a run"
            )
        if values:
            value = _count(values[0], file)  # may be printed as 1.2e+06
            if value is None:
                raise FileError(f"{file}: {values[0]!r:.40} is no count")
            found[name] = value
    begins = HISTOGRAM.search(text)
    if begins is not None:
        found |= _histogram(text, begins.end(), file)
    elif "shared_instructions" in found and "shared_conflicts" not in found:
        raise FileError(f"{file} ends before Luthier's bank conflicts: it is cut")
    if not found:
        raise FileError(f"{file}: Luthier's sums are cut or of another version")
    return Totals("Luthier", found)


def _histogram(text: str, begin: int, file: str) -> dict[str, float]:
    ends = HISTOGRAM_END.search(text, begin)
    if ends is None:
        raise FileError(f"{file} ends before the total of Luthier's opcodes: it is cut")
    counts: dict[str, float] = {}
    for opcode in HISTOGRAM_ROW.finditer(text, begin, ends.start()):
        counts[opcode[1]] = counts.get(opcode[1], 0.0) + int(opcode[2])
    if sum(counts.values()) != int(ends[1]):
        raise FileError(
            f"{file}: Luthier's opcodes are {sum(counts.values()):,.0f} of {int(ends[1]):,} instructions"
        )
    return amounts_of_amd(counts)


# AccelProf (PASTA) -----------------------------------------------------------------------------------

TIMES = regex(r"\d{1,12}\.\d{6}\|")
SIZES = regex(r"(\d{1,18})\|(\d{1,18})\|([^|\s].*)")
FLOPS = regex(r"(\d{1,18})\|([^|\s].*)")
KERNEL = regex(
    r"Kernel (\d{1,18}) \(refs=(\d{1,18}), objs=(\d{1,18}), obj_size=(\d{1,18}),[^)]*\):\t(.+)"
)


def _of_accelprof(text: str, file: str) -> list[CountedKernel] | Totals | None:
    """Return the launches of a log, or its sums where it lists none; None if it is no log of AccelProf.

    The roofline tools write a line for each launch in no order (by where an object lies in memory): launches
    of a name cannot be told apart, and each has their mean. What they say of time is not read.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    first = lines[0] if lines else ""
    if lines and all(TIMES.match(line) for line in lines[:3]):
        raise FileError(
            f"{file} holds AccelProf's times of kernels, which it slowed down: nothing is taken"
        )
    if FLOPS.fullmatch(first):
        names = ("accesses", "accessed_bytes") if SIZES.fullmatch(first) else ("flop",)
        pattern = SIZES if SIZES.fullmatch(first) else FLOPS
        found = []
        for number, line in enumerate(text.splitlines(), 1):
            fields = pattern.fullmatch(line)
            if line.strip() and (fields is None or (pattern is FLOPS and SIZES.fullmatch(line))):
                raise FileError(
                    f"{file}, line {number}: {line!r:.60} is no line of AccelProf's; it is cut or mixed"
                )
            if fields is not None:
                *values, kernel = fields.groups()
                metrics = dict(zip(names, map(float, values), strict=True))
                found.append(CountedKernel(kernel, None, metrics, ordered=False))
        return found
    if "memory accesses per kernel:" not in text and "Kernel 0 (refs=" not in text:
        return None
    listed = [one for one in map(KERNEL.fullmatch, lines) if one is not None]
    if listed:
        said = re.search(r"^Number of kernels: (\d{1,18})\s*$", text, re.MULTILINE)
        if said is not None and int(said[1]) != len(listed):
            raise FileError(f"{file} lists {len(listed):,} of {int(said[1]):,} kernels; it is cut")
        return [
            CountedKernel(one[5], None, {"accesses": float(one[2]), "touched_bytes": float(one[4])})
            for one in sorted(listed, key=lambda one: int(one[1]))
        ]
    whole = re.search(r"^Total memory accesses: (\d{1,18}) ", text, re.MULTILINE)
    if whole is None:
        raise FileError(f"{file}: AccelProf's app_metric is cut before its kernels and its sums")
    return Totals("AccelProf", {"accesses": float(whole[1])})
