"""JAX's `xplane.pb` as a `Recording`. This file and its neighbours are the only ones that know its names.

Streams of `/device:GPU:n` are lanes, what runs on them kernels, copies and memsets; threads of `/host:CPU`
hold calls that launch (with the correlation id of what they launched), the operators of a compiled program,
and ranges. What XLA says of an operator (the path of JAX's transformations and scopes) gives layers and
phases, and the programs that the file holds give element types, shapes, FLOP and bytes (`hlo.py`).
Host names are not read.

Which lines of a profile's host are one thread.

On AMD's GPUs the calls that launch stand on lines of their own (`Host Threads/7`), while the ranges of the
same thread have a line with its name. A call into HIP is made for an operator, whose range is around
it: that range tells the thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.formats import Options
from daydream.collect.importers.hlo import (
    PROGRAMS,
    Told,
    kernel_of,
    layer_of,
    phase_of,
    programs_of,
    told_by,
)
from daydream.collect.importers.row_builder import RowBuilder, plain_text, whole
from daydream.collect.importers.xspace import (
    DamagedError,
    Line,
    Plane,
    Value,
    damaged,
    lines,
    planes,
    stats_of,
)
from daydream.errors import TraceError
from daydream.files.input_files import opened
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN, Document, is_amount

CALLS_LINE = "Host Threads/"
MOST = 0.9  # of the calls that lie in their operator's range on a line, for it to be their thread's


def calls_on_their_thread(threads: Sequence[tuple[Line, list[str]]]) -> list[int]:
    """Return for each line the line of its thread: itself, or that of the ranges around its calls.

    Args:
        threads: lines and the names of their events.

    """
    of = list(range(len(threads)))
    ranges = [
        place for place, (line, _) in enumerate(threads) if not line.name.startswith(CALLS_LINE)
    ]
    for place, (line, _) in enumerate(threads):
        if not line.name.startswith(CALLS_LINE):
            continue
        calls = [
            (row, str(stats["hlo_op"])) for row, stats in enumerate(line.stats) if "hlo_op" in stats
        ]
        if not calls:
            continue
        best = max(
            ((_inside(line, calls, *threads[other]), -other) for other in ranges), default=(0.0, 0)
        )
        if best[0] >= MOST:
            of[place] = -best[1]
    return of


def _inside(
    line: Line, calls: Sequence[tuple[int, str]], other: Line, names: Sequence[str]
) -> float:
    """Return what share of a line's calls begins inside a range of another that has their operator's name."""
    wanted = {name for _, name in calls}
    rows = np.array([row for row, name in enumerate(names) if name in wanted], np.int64)
    if not len(rows):
        return 0.0
    rows = rows[np.argsort(other.start_ns[rows], kind="stable")]
    start = other.start_ns[rows]
    before = np.searchsorted(start, line.start_ns[[row for row, _ in calls]], side="right") - 1
    hits = 0
    for (row, name), at in zip(calls, before.tolist(), strict=True):
        if at >= 0 and names[rows[at]] == name and line.start_ns[row] <= other.end_ns[rows[at]]:
            hits += 1
    return hits / len(calls)


HOST = "/host:CPU"
ENVIRONMENT = "Task Environment"
GPU = regex(r"^/device:GPU:(\d{1,6})")
TPU = regex(r"^/device:TPU:\d")
STREAM = regex(r"^Stream #(\d{1,9})")
EXTENTS = regex(r"grid:(\d{1,10},\d{1,10},\d{1,10}) block:(\d{1,10},\d{1,10},\d{1,10})")
SIZE = regex(r"\b(?:size|num_bytes):(\d{1,18})\b")
ENDS = regex(r"kind_src:(\w+) kind_dst:(\w+)")
DIRECTIONS = {
    "H2D": "HtoD",
    "HostToDevice": "HtoD",
    "D2H": "DtoH",
    "DeviceToHost": "DtoH",
    "D2D": "DtoD",
    "DeviceToDevice": "DtoD",
    "P2P": "PtoP",
}
GRAPH_NUMBER = regex(r" \(CudaGraph:\d+\)$")
DESCRIPTOR = regex(r"( \[clone \.kd\]|\.kd)$")  # ROCm's name of a kernel's descriptor
FRAME = regex(r"^\$\S* ?")  # of Python: `$api.py:3105 block_until_ready`
WAITS = (
    "block_until_ready",
    "_value",
)  # frames in which a thread stands until its arrays are computed
DETAILS = {  # stats, and what device work that has them is
    "memcpy_details": "memcpy",
    "memset_details": "memset",
    "Memset_details": "memset",
    "kernel_details": "kernel",
}
STATS = frozenset({*DETAILS, "correlation_id", "hlo_op", "name", "step_num", "hlo_module"})
DEVICE_STATS = {
    "clock_rate": ("clock_hz", 1_000),
    "core_count": ("multiprocessors", 1),
    "memory_size": ("memory_bytes", 1),
    "memory_bandwidth": ("memory_bytes_per_second", 1),
    "compute_cap_major": ("compute_major", 1),
    "compute_cap_minor": ("compute_minor", 1),
}
NAMES = ("gpu_device_name", "device_type_string")
# ROCm's planes do not name their GPU: boards by gfx version, units, clock and GiB (AMD's data sheets).
OF_CHIP = ("compute_cap_major", "compute_cap_minor", "core_count", "clock_rate")
AMD_BOARDS: dict[tuple[int, ...], str] = {
    (9, 4, 304, 2_100_000, 192): "AMD Instinct MI300X",
    (9, 4, 304, 2_100_000, 256): "AMD Instinct MI325X",
    (9, 5, 256, 2_200_000, 288): "AMD Instinct MI350X",
    (9, 5, 256, 2_400_000, 288): "AMD Instinct MI355X",
}
NOT_TOLD = Told(None)
EPOCH_NS = 10**18  # times above it are of the wall clock
NOTHING = "holds no work of a GPU and no operator or call of the host. Record a few steps with jax.profiler.trace."


def read_xplane(path: Path, options: Options) -> list[Recording]:
    """Return the recording in an `xplane.pb` or `xplane.pb.gz`.

    Raises `TraceError` if it is damaged, holds a TPU's work alone, or no row.
    """
    with opened(path, options.max_unpacked) as (file, _, _):
        data = file.read()
    if not data.strip():
        raise TraceError(f"{path} is empty; a profile of JAX (xplane.pb) was needed")
    try:
        return [_Reader(path, data, options).recording()]
    except DamagedError:
        raise damaged(path) from None


class _Reader:
    """The planes of one file, into one builder."""

    def __init__(self, path: Path, data: bytes, options: Options) -> None:
        self.path = path
        self.data = data
        self._options = options
        self.builder = RowBuilder()
        self.devices: list[Document] = []
        self.operators: dict[str, str] = {}  # of compiled programs, and the path of each
        self.told: dict[tuple[str, str], Told] = {}  # by program and operator
        self.known: dict[str, Told | None] = {}  # by operator alone; None where programs differ
        self.amounts: dict[tuple[str, str], Told | None] = {}  # by a row's name and shapes
        self.vendor = ""
        self.sums = 0
        self.begun_ns = 0

    def recording(self) -> Recording:
        found = list(planes(self.data))
        for program in (
            one
            for plane in found
            if plane.name == PROGRAMS
            for one in programs_of(self.data, plane)
        ):
            told = told_by(program)
            named = {kernel_of(name): one for name, one in told.items()} | told
            self.told |= {(program.name, name): one for name, one in named.items()}
        for number, plane in enumerate(found):
            if match := GPU.match(plane.name):
                self._device(int(match.group(1)), plane)
            elif plane.name == ENVIRONMENT:
                wanted = {
                    key: name
                    for key, name in plane.stat_names.items()
                    if name == "profile_start_time"
                }
                begun = stats_of(self.data, plane, plane.stats, wanted).get("profile_start_time")
                self.begun_ns = begun if isinstance(begun, int) and 0 < begun < 2**62 else 0
            self._options.read((number + 1) / (len(found) + 1))
        for plane in found:
            if plane.name == HOST:
                self._host(plane)
        if not len(self.builder) and any(TPU.match(plane.name) for plane in found):
            raise TraceError(
                f"{self.path} is of a TPU. Profiles of JAX on GPUs and CPUs are read; of a TPU's planes no "
                "public file could be checked."
            )
        recording = self.builder.recording(
            self.path, NOTHING, vendor=self.vendor or "cpu", profiler="jax", grids_in_blocks=True
        )
        origin = recording.metadata["origin_ns"]
        recording.metadata["origin_ns"] = origin if origin > EPOCH_NS else origin + self.begun_ns
        if self.devices:
            recording.metadata["devices"] = self.devices
        if operators := self._operators():
            recording.metadata["operators"] = operators
        if self.sums:
            recording.note(f"{self.sums:,} events are sums without a time, and were left out.")
        return recording

    def _device(self, number: int, plane: Plane) -> None:
        """Add the streams of a GPU."""
        wanted = dict(plane.stat_names)
        told = stats_of(self.data, plane, plane.stats, wanted)
        used = False
        for line, sums in lines(self.data, plane, STATS):
            stream = STREAM.match(line.name)
            if stream is None:  # what the profiler's viewer derived from the streams
                continue
            self.sums += sums
            used |= bool(len(line.which))
            self._stream(number, int(stream.group(1)), plane, line)
        if used:
            vendor = str(told.get("device_vendor", "")).lower()
            self.vendor = self.vendor or ("rocm" if vendor == "amd" else "cuda")
            device: Document = {"id": number}
            name = next((told[key] for key in NAMES if isinstance(told.get(key), str)), None)
            if name is None and all(is_amount(told.get(key)) for key in OF_CHIP):
                chip = tuple(int(told[key]) for key in OF_CHIP)
                name = AMD_BOARDS.get((*chip, round(int(told.get("memory_size", 0)) / 2**30)))
            if name is not None:
                device["name"] = str(name)
            for theirs, (ours, factor) in DEVICE_STATS.items():
                value = told.get(theirs)
                if is_amount(value):
                    device[ours] = int(value) * factor  # type: ignore[arg-type]
            self.devices.append(device)

    def _stream(self, device: int, stream: int, plane: Plane, line: Line) -> None:
        builder = self.builder
        stats = line.stats
        self.operators |= {
            str(one["hlo_op"]): str(one.get("name", "")) for one in stats if "hlo_op" in one
        }
        names = [plane.event_names.get(key, "") for key in line.which.tolist()]
        kinds = [_kind_on_device(one) for one in stats]
        shown = [_name_on_device(*one) for one in zip(names, kinds, stats, strict=True)]
        details = [_details(one) for one in stats]
        # An operator that is one kernel of its name says what the kernel does, also in a device graph.
        mine = [self._by_name(*one) for one in zip(stats, shown, strict=True)]
        known = [self._told(one) or own or NOT_TOLD for one, own in zip(stats, mine, strict=True)]
        extents = [EXTENTS.search(text) for text in details]
        sizes = [SIZE.search(text) for text in details]
        builder.add(
            builder.coded("kind", kinds),
            line.start_ns,
            line.end_ns,
            name=builder.coded("name", shown),
            device=np.full(len(names), device),
            stream=np.full(len(names), stream),
            correlation=_numbers(stats, "correlation_id"),
            grid=builder.coded("grid", [match and match.group(1) for match in extents]),
            block=builder.coded("block", [match and match.group(2) for match in extents]),
            bytes=whole([match.group(1) if match else "" for match in sizes]),
            dtype=builder.coded("dtype", [one.dtype for one in known]),
            elements=whole([UNKNOWN if one.elements is None else one.elements for one in known]),
            shapes=self._shapes(shown, mine),
        )

    def _told(self, stats: dict[str, Value]) -> Told | None:
        """Return what is told of a row's operator, and keep it for rows that name the operator alone."""
        operator = str(stats.get("hlo_op", ""))
        found = self._by_name(stats, operator)
        if found is not None and self.known.setdefault(operator, found) != found:
            self.known[operator] = None
        return found

    def _by_name(self, stats: dict[str, Value], name: str) -> Told | None:
        return self.told.get((str(stats.get("hlo_module", "")), name))

    def _shapes(self, names: Sequence[str], told: Sequence[Told | None]) -> np.ndarray:
        """Return the codes of rows' shapes, and keep what operators of a name and shapes do."""
        for name, one in zip(names, told, strict=True):
            if one is None or not one.shapes or (one.flop is None and one.nbytes is None):
                continue
            if self.amounts.setdefault((name, one.shapes), one) != one:
                self.amounts[name, one.shapes] = (
                    None  # two programs, which the rows do not tell apart
                )
        return self.builder.coded("shapes", [None if one is None else one.shapes for one in told])

    def _operators(self) -> list[Document]:
        return [
            {
                "name": plain_text(name),
                "shapes": shapes,
                "family": one.family,
                "flop": one.flop,
                "bytes": one.nbytes,
            }
            for (name, shapes), one in self.amounts.items()
            if one is not None
        ]

    def _host(self, plane: Plane) -> None:
        """Add the threads of the host."""
        threads = []
        for line, sums in lines(self.data, plane, STATS):
            self.sums += sums
            threads.append((line, [plane.event_names.get(key, "") for key in line.which.tolist()]))
        of = calls_on_their_thread(threads)
        for place, (line, names) in enumerate(threads):
            self._thread(threads[of[place]][0].id, line, names)

    def _thread(self, thread: int, line: Line, names: Sequence[str]) -> None:
        builder = self.builder
        correlation = _numbers(line.stats, "correlation_id")
        kept = []
        kinds = []
        shown = []
        told: list[Told | None] = []
        until = -(2**63)
        start = line.start_ns.tolist()
        end = line.end_ns.tolist()
        for row in np.lexsort((-line.end_ns, line.start_ns)).tolist():
            name = names[row]
            stats = line.stats[row]
            kind = "annotation"
            if name.startswith("$"):
                name = FRAME.sub("", name)
                if name not in WAITS or end[row] <= until:
                    continue
                kind, until = "runtime", end[row]  # the outermost one of a call
            elif correlation[row] >= 0:
                kind = "runtime"
                name = GRAPH_NUMBER.sub("", DESCRIPTOR.sub("", name))
            elif "hlo_op" in stats or name in self.operators:
                kind = "operator"
            elif end[row] <= start[row] or end[row] <= until:
                continue  # a mark, no range; or what a wait does while it lasts
            elif "step_num" in stats:
                name = f"{name} step {stats['step_num']}"
            kept.append(row)
            own = self._by_name(stats, str(stats.get("hlo_op", names[row]))) or self.known.get(
                names[row]
            )
            told.append(own if kind == "operator" else None)
            kinds.append(kind)
            shown.append(name or "unnamed")
        paths = [
            str(line.stats[row].get("name", "")) or self.operators.get(names[row], "")
            for row in kept
        ]
        rows = np.array(kept, np.int64)
        builder.add(
            builder.coded("kind", kinds),
            line.start_ns[rows],
            line.end_ns[rows],
            name=builder.coded("name", shown),
            correlation=correlation[rows],
            pid=np.zeros(len(rows), np.int64),
            tid=np.full(len(rows), thread),
            layer=builder.coded("layer", [layer_of(path) for path in paths]),
            phase=builder.coded("phase", [phase_of(path) for path in paths]),
            shapes=self._shapes(shown, told),
        )


def _kind_on_device(stats: dict[str, Value]) -> str:
    return next((kind for name, kind in DETAILS.items() if name in stats), "kernel")


def _details(stats: dict[str, Value]) -> str:
    return next((str(stats[name]) for name in reversed(DETAILS) if name in stats), "")


def _name_on_device(name: str, kind: str, stats: dict[str, Value]) -> str:
    """Return the name of device work as Kineto writes it."""
    if kind != "memcpy":
        return DESCRIPTOR.sub("", name) or f"unnamed {kind}"
    way = next((ours for theirs, ours in DIRECTIONS.items() if theirs in name), None)
    if way is None:
        return f"Memcpy ({name or 'unnamed'})"
    ends = ENDS.search(_details(stats))
    between = f" ({ends.group(1).capitalize()} -> {ends.group(2).capitalize()})" if ends else ""
    return f"Memcpy {way}{between}"


def _numbers(stats: Sequence[dict[str, Value]], name: str) -> np.ndarray:
    found = whole([one.get(name, "") for one in stats])
    return np.where(found == 0, UNKNOWN, found)
