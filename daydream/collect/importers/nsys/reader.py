"""Nsight Systems SQLite exports as a `Recording`: any framework's CUDA calls, device work and NVTX ranges.

This and the other `nsys_` files are the only ones that know the export's names. Tables
and columns differ between schema versions (3.16 to 3.25 were seen) and with what was
traced, so they are looked up first; a column that is not there is unknown. What is not
named here (environment, samples, call chains) stays in the file.

Names of an Nsight Systems export in the words of the other importers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.recording import SAID, Recording, narrow
from daydream.collect.importers.nsys.export import (
    Export,
    Processes,
    pid_and_tid,
    process_of,
    read_memory,
)
from daydream.collect.importers.nsys.waits import (
    BLOCKED,
    WAITS,
    WAKES,
    define_blocked,
    name_syncs,
    place_syncs,
    resolve_waits,
    wakers,
)
from daydream.errors import TraceError
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.schema import DEVICE_KINDS, FIELDS, UNKNOWN, Columns, Document
from daydream.trace.valid import is_amount

GRAPH = "CUDA graph"
API_VERSION = regex(
    r"_v\d{4,}$"
)  # cudaLaunchKernel_v7000; the _v2 of cuMemFree_v2 is part of the name

# The enum tables give these words where they are there; these are the ids of all versions seen.
COPY_KINDS = (
    "Unknown",
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
    "HtoD",
    "DtoH",
    "DtoD",
)
MEMORY_KINDS = (
    "Pageable",
    "Pinned",
    "Device",
    "Array",
    "Managed",
    "Device Static",
    "Managed Static",
    "Unknown",
)
COPY_KIND = regex(r"([A-Z])TO([A-Z])$")  # CUDA_MEMCPY_KIND_HTOD

# What torch.autograd.profiler.emit_nvtx writes: the operator's name, then `, seq = 12`, `, op_id = 345`,
# `, sizes = [[2, 3]]` and `, input_op_ids = ...`, each only where it applies.
SUFFIX = regex(r", (?:seq|op_id|sizes|input_op_ids) = ")
SEQUENCE = regex(r", seq = (\d{1,18})(?:,|$)")
SIZES = regex(r", sizes = (\[.*?\])(?:, input_op_ids = |$)")


class CopyNames:
    """Names of copies and memsets as Kineto writes them, from the ids of one export's enum tables."""

    def __init__(self, operations: Mapping[int, str], memories: Mapping[int, str]) -> None:
        self.kinds = dict(enumerate(COPY_KINDS))
        for code, word in operations.items():
            ends = COPY_KIND.search(word)
            if ends:
                self.kinds[code] = f"{ends[1]}to{ends[2]}"
        self.memories = dict(enumerate(MEMORY_KINDS)) | dict(memories)

    def copy(self, kind: int, source: int, target: int) -> str:
        """Return `Memcpy HtoD (Pageable -> Device)` and the like."""
        return f"Memcpy {self.kinds.get(kind, 'Unknown')} ({self._memory(source)} -> {self._memory(target)})"

    def memset(self, memory: int) -> str:
        """Return `Memset (Device)` and the like."""
        return f"Memset ({self._memory(memory)})"

    def _memory(self, code: int) -> str:
        return self.memories.get(code, "Unknown")


def call_name(recorded: str) -> str:
    """Return the name of a runtime or driver call without the API version that Nsight appends."""
    return API_VERSION.sub("", recorded)


def parse_range(label: str) -> tuple[str, str, int | None, str | None]:
    """Return kind, name, sequence number and input shapes (JSON) of an NVTX range.

    A range of emit_nvtx is an operator if it has a namespace (`aten::add`) or a sequence
    number; one of `record_function` has neither and is an annotation, as is any other.
    """
    suffix = SUFFIX.search(label)
    if suffix is None:
        return "annotation", label, None, None
    name = label[: suffix.start()]
    rest = label[suffix.start() :]
    sequence = SEQUENCE.match(rest)
    if sequence is None and "::" not in name:
        return "annotation", name, None, None
    return "operator", name, int(sequence[1]) if sequence else None, _compact(SIZES.search(rest))


def _compact(sizes: re.Match[str] | None) -> str | None:
    try:
        return json.dumps(json.loads(sizes[1]), separators=(",", ":")) if sizes else None
    except (ValueError, RecursionError):
        return None


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = ("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUDA_EVENT")
RANGES = "NVTX_EVENTS"
PLACE = ("streamId", "deviceId", "contextId", "correlationId")
EXTENTS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
SYNC_FIELDS = ("syncType", "deprecatedSyncType", "eventId", "eventSyncId")
CUDA_TABLES = (KERNELS, COPIES, MEMSETS, GRAPHS, CALLS)

# NVTX event types (ENUM_NSYS_EVENT_TYPE): push/pop and start/end, the latter two from NVTXT imports.
RANGE_TYPES = (59, 60, 70, 71)

LONGEST_NS = 2**62  # a missing time is below minus this; differences of the others fit 64 bits

DEVICE_FIELDS = {
    "name": "name",
    "totalMemory": "memory_bytes",
    "computeMajor": "compute_major",
    "computeMinor": "compute_minor",
    "smCount": "multiprocessors",
    "threadsPerWarp": "warp_size",
    "maxThreadsPerBlock": "threads_per_block",
    "maxRegistersPerBlock": "registers_per_block",
    "maxRegistersPerSm": "registers_per_multiprocessor",
    "maxShmemPerBlock": "shared_bytes_per_block",
    "maxShmemPerBlockOptin": "shared_bytes_per_block_optin",
    "maxShmemPerSm": "shared_bytes_per_multiprocessor",
    "memoryBandwidth": "memory_bytes_per_second",
    "clockRate": "clock_hz",
    "l2CacheSize": "l2_bytes",
}


def read_export(export: Export) -> Recording:
    """Return the recording in an Nsight Systems export that is open.

    With several processes on GPUs, each is a rank, numbered by its lowest device (see
    `nsys.processes.split_ranks`), and correlation ids, which count per process, are made unique.
    Raises `TraceError` if the export has no CUDA activity.
    """
    if not any(table in export for table in CUDA_TABLES):
        raise TraceError(
            f"{export.path} is an Nsight Systems export without CUDA activity; record again with "
            "`nsys profile --trace=cuda,nvtx` and export with `nsys export --type sqlite`. "
            + " ".join(export.diagnostics())
        )
    return _Importer(export).recording(Path(export.path).name)


class _Importer:
    """The columns of one export, table by table."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.parts: list[Columns] = []
        self.codes: dict[str, dict[str, int]] = {
            name: {} for name in ("kind", "name", "grid", "block", "shapes")
        }
        self.notes: list[str] = []
        self.unfinished = 0
        self.copy_names = CopyNames(
            export.enum("ENUM_CUDA_MEMCPY_OPER", "name"), export.enum("ENUM_CUDA_MEM_KIND", "label")
        )

    def recording(self, file_name: str) -> Recording:
        """Read every table and return the rows in order of start."""
        self._kernels()
        self._copies()
        self._memsets()
        self._graphs()
        self._calls()
        self._ranges()
        self._syncs()
        self._blocked()
        columns = self._columns()
        rows = len(columns["start_ns"])
        if not rows:
            raise TraceError(
                f"{file_name} is an Nsight Systems export without a finished CUDA or NVTX row."
            )
        processes = columns.pop("process")
        contexts = columns.pop("context")
        origin = int(columns["start_ns"].min())
        columns["start_ns"] -= origin
        self._number_processes(columns, processes)
        texts = {name: list(self.codes[name]) for name in self.codes if name in columns}
        metadata = {
            "source": f"nsys {self.export.about('EXPORT_SCHEMA_VERSION')} {file_name}".replace(
                "  ", " "
            ),
            "vendor": "cuda",
            "origin_ns": origin + self.export.session_start_ns(),
            "devices": self._devices(columns["device"]),
            "notes": self.notes,
            SAID: self.export.diagnostics(),
        }
        product = self.export.about("EXPORT_PRODUCT_VERSION")
        if product:
            metadata["versions"] = {"nsys": product}
        recording = Recording(columns, texts, metadata)
        recording.memory = read_memory(self.export, recording, self.processes, origin)
        if "syncType" in columns:
            place_syncs(recording, processes, contexts)
            self._waits(recording)
        if self.unfinished:
            unfinished = counted(self.unfinished, "row", "rows")
            recording.note(f"{unfinished} without an end, or with one before the start, left out.")
        return _without_unknown(recording)

    def _kernels(self) -> None:
        fields = (
            "demangledName",
            "shortName",
            "mangledName",
            "graphId",
            "graphNodeId",
            *EXTENTS,
            *PLACE,
        )
        for rows in self._blocks(KERNELS, fields):
            name = np.where(rows["demangledName"] >= 0, rows["demangledName"], rows["shortName"])
            name = self._strings(np.where(name >= 0, name, rows["mangledName"]), "unnamed kernel")
            grid, block = (self._triples(rows, field) for field in ("grid", "block"))
            self._add("kernel", rows, name=name, grid=grid, block=block, **_on_device(rows))

    def _copies(self) -> None:
        fields = ("bytes", "copyKind", "srcKind", "dstKind", "graphNodeId", *PLACE)
        for rows in self._blocks(COPIES, fields):
            kinds = np.stack([rows["copyKind"], rows["srcKind"], rows["dstKind"]], axis=1)
            used, which = np.unique(kinds, axis=0, return_inverse=True)
            names = [self.copy_names.copy(*ids) for ids in used.tolist()]
            codes = self._code("name", names)[which.reshape(-1)]
            self._add("memcpy", rows, name=codes, bytes=rows["bytes"], **_on_device(rows))

    def _memsets(self) -> None:
        for rows in self._blocks(MEMSETS, ("bytes", "memKind", "graphNodeId", *PLACE)):
            used, which = np.unique(rows["memKind"], return_inverse=True)
            name = self._code("name", [self.copy_names.memset(kind) for kind in used.tolist()])[
                which
            ]
            self._add("memset", rows, name=name, bytes=rows["bytes"], **_on_device(rows))

    def _graphs(self) -> None:
        """Add each graph launch that was traced as a whole as one kernel of the graph's span."""
        count = 0
        for rows in self._blocks(GRAPHS, ("graphId", *PLACE)):
            name = np.repeat(self._code("name", [GRAPH]), len(rows["start"]))
            self._add("kernel", rows, name=name, **_on_device(rows))
            count += len(rows["start"])
        if count:
            launches = counted(count, "CUDA graph launch", "CUDA graph launches")
            self.notes.append(
                f"{launches} traced as a whole: the kernels inside are not itemised. "
                "`nsys profile --cuda-graph-trace=node` records them."
            )

    def _calls(self) -> None:
        for rows in self._blocks(CALLS, ("correlationId", "nameId")):
            used, which = np.unique(rows["nameId"], return_inverse=True)
            names = [
                call_name(self.export.string(name) or "unnamed call") for name in used.tolist()
            ]
            name = self._code("name", names)[which]
            self._add("runtime", rows, name=name, correlation=rows["correlationId"])

    def _ranges(self) -> None:
        """Add NVTX ranges on the thread that began them: operators of emit_nvtx, and annotations."""
        coded: dict[str, tuple[int, int, int, int]] = {}
        for rows in self._blocks(RANGES, ("eventType", "textId"), text="text"):
            labels = rows.pop("text")
            for row in [
                row for row, label in enumerate(labels.tolist()) if not isinstance(label, str)
            ]:
                labels[row] = self.export.string(int(rows["textId"][row])) or "unnamed range"
            for label in sorted(set(labels.tolist()) - coded.keys()):
                coded[label] = self._coded_range(label)
            codes = np.array([coded[label] for label in labels.tolist()], np.int64).T
            columns = dict(zip(("kind", "name", "sequence", "shapes"), codes, strict=True))
            self._add(None, rows, **columns)

    def _coded_range(self, label: str) -> tuple[int, int, int, int]:
        kind, name, sequence, shapes = parse_range(label)
        return (
            int(self._code("kind", [kind])[0]),
            int(self._code("name", [name])[0]),
            UNKNOWN if sequence is None else sequence,
            UNKNOWN if shapes is None else int(self._code("shapes", [shapes])[0]),
        )

    def _syncs(self) -> None:
        """Add the device's records of waits; their names are settled when the calls are there."""
        for rows in self._blocks(SYNCS, (*SYNC_FIELDS, *PLACE)):
            extra = {name: rows[name] for name in SYNC_FIELDS}
            extra["eventId"] = _unsigned(extra["eventId"])
            name = np.full(len(rows["start"]), UNKNOWN)
            self._add("sync", rows, name=name, **_on_device(rows), **extra)

    def _blocked(self) -> None:
        """Add when the threads of the other rows were blocked, while these lasted."""
        if not self.parts:
            return
        threads = [part["process"] << 24 | part["tid"] for part in self.parts if "tid" in part]
        recorded = np.unique(np.concatenate([[0], *threads]))
        define_blocked(self.export, np.unique(recorded >> 24).tolist())
        blocks = [*self._blocks(BLOCKED, (), text="name")]
        names = [str(text) for block in blocks for text in block.pop("name").tolist()]
        waits = np.flatnonzero([bool(WAITS.search(text)) for text in names])
        if not len(waits):
            return
        rows = {
            name: np.concatenate([block[name] for block in blocks])[waits] for name in blocks[0]
        }
        woke = [np.stack([block["start"], block["globalTid"]]) for block in self._blocks(WAKES, ())]
        calls, caller = np.concatenate([np.empty((2, 0), np.int64), *woke], axis=1)
        order = np.argsort(calls, kind="stable")
        waker = wakers(rows["start"], rows["end"], rows["globalTid"], calls[order], caller[order])
        first = min(int(part["start_ns"].min()) for part in self.parts)
        last = max(int((part["start_ns"] + part["duration_ns"]).max()) for part in self.parts)
        rows["start"] = np.maximum(rows["start"], first)
        rows["end"] = np.minimum(rows["end"], last)
        kept = (rows["start"] < rows["end"]) & np.isin(rows["globalTid"], recorded)
        name = self._code("name", [names[place] for place in waits[kept].tolist()])
        rows = {name: column[kept] for name, column in rows.items()}
        self._add("blocked", rows, name=name, waker=waker[kept])

    def _waits(self, recording: Recording) -> None:
        """Name the sync rows, and find the record call behind each wait for an event."""
        columns = recording.columns
        rows = np.flatnonzero(recording.is_kind("sync"))
        sync = {name: columns.pop(name)[rows] for name in SYNC_FIELDS}
        names = name_syncs(recording, rows, sync, self.export.enum("ENUM_CUPTI_SYNC_TYPE", "name"))
        columns["name"][rows] = self._code("name", names)
        recording.texts["name"] = list(self.codes["name"])
        records: list[Columns] = []
        for table in EVENTS:
            if table in self.export:
                fields = ("streamId", "correlationId", "eventId", "eventSyncId")
                records += self.export.blocks(table, (*fields, "globalPid"))
        for block in records:
            owner = process_of(block["globalPid"])
            block["correlationId"] = self.processes.correlation(block["correlationId"], owner)
        resolve_waits(recording, rows, sync, records)

    def _blocks(
        self, table: str, fields: tuple[str, ...], *, text: str | None = None
    ) -> Iterator[Columns]:
        """Yield the finished rows of a table in blocks, with the owner in `globalPid` or `globalTid`."""
        if table not in self.export:
            return
        owner = "globalTid" if table in (CALLS, RANGES, BLOCKED, WAKES) else "globalPid"
        for rows in self.export.blocks(table, ("start", "end", owner, *fields), text=text):
            good = (
                (rows["start"] > -LONGEST_NS)
                & (rows["end"] < LONGEST_NS)
                & (rows["end"] >= rows["start"])
            )
            # marks and domains are no ranges and have no end
            wanted = (
                np.isin(rows["eventType"], RANGE_TYPES)
                if table == RANGES
                else np.ones(len(good), bool)
            )
            self.unfinished += int((wanted & ~good).sum())
            good &= wanted
            if good.any():
                yield rows if good.all() else {name: column[good] for name, column in rows.items()}

    def _add(
        self, of_kind: str | None, rows: Mapping[str, np.ndarray], **columns: np.ndarray
    ) -> None:
        if of_kind is not None:
            columns["kind"] = np.repeat(self._code("kind", [of_kind]), len(rows["start"]))
        columns["start_ns"] = rows["start"]
        columns["duration_ns"] = rows["end"] - rows["start"]
        if "globalTid" in rows:
            columns["pid"], columns["tid"] = pid_and_tid(rows["globalTid"])
        columns["process"] = process_of(rows["globalTid" if "globalTid" in rows else "globalPid"])
        self.parts.append(columns)

    def _columns(self) -> Columns:
        """Return whole columns in order of start, enclosing rows first."""
        sizes = [len(part["start_ns"]) for part in self.parts]
        names = {"start_ns", "duration_ns", "process", "context", "device", "correlation"}.union(
            *self.parts
        )
        columns = {}
        for name in sorted(names):
            null = FIELDS[name].null if name in FIELDS else UNKNOWN
            pieces = [
                part.pop(name) if name in part else np.full(size, null)
                for part, size in zip(self.parts, sizes, strict=True)
            ]
            columns[name] = np.concatenate(pieces) if pieces else np.empty(0, np.int64)
        order = np.lexsort((-columns["duration_ns"], columns["start_ns"]))
        return {
            name: column[order].astype(np.int64, copy=False) for name, column in columns.items()
        }

    def _number_processes(self, columns: Columns, processes: np.ndarray) -> None:
        """Give ranks to the processes with device work, and make correlation ids unique across processes."""
        on_device = np.isin(
            columns["kind"], [self.codes["kind"].get(kind, -2) for kind in DEVICE_KINDS]
        )
        self.processes = Processes(processes, on_device, columns["device"])
        columns["correlation"] = self.processes.correlation(columns["correlation"], processes)
        if self.processes.ranks > 1:
            columns["rank"] = self.processes.rank(processes)
            self.notes.append(
                f"{self.processes.ranks} processes did device work; they are ranks, by their lowest device."
            )

    def _devices(self, used: np.ndarray) -> list[Document]:
        """Return the properties of the devices, or their bare ids where the file does not describe them."""
        gpus = self.export.records("TARGET_INFO_GPU")
        pairs: dict[Any, Document] = {}  # CUDA numbers the devices that a process sees
        for seen in self.export.records("TARGET_INFO_CUDA_DEVICE"):
            for row in gpus:
                if row.get("id") == seen.get("gpuId") is not None:
                    pairs.setdefault(seen.get("cudaId"), row)
        if not pairs:
            cuda = [
                row for row in gpus if row.get("smCount") != 0
            ] or gpus  # not those of other vendors
            for row in cuda:
                numbers = (row.get("cuDevice"), row.get("id"))
                pairs.setdefault(next(filter(is_amount, numbers), None), row)
        devices = []
        for number, row in pairs.items():
            device: Document = {"id": number}
            for theirs, ours in DEVICE_FIELDS.items():
                value = row.get(theirs)
                if isinstance(value, str) if ours == "name" else is_amount(value):
                    device[ours] = value
            devices.append(device)
        return devices or [{"id": device} for device in np.unique(used[used >= 0]).tolist()]

    def _code(self, column: str, texts: list[str]) -> np.ndarray:
        codes = self.codes[column]
        return np.array([codes.setdefault(text, len(codes)) for text in texts], np.int64)

    def _strings(self, ids: np.ndarray, unnamed: str) -> np.ndarray:
        used, which = np.unique(ids, return_inverse=True)
        return self._code("name", [self.export.string(code) or unnamed for code in used.tolist()])[
            which
        ]

    def _triples(self, rows: Mapping[str, np.ndarray], field: str) -> np.ndarray:
        """Return codes of `x,y,z` texts; unknown where an extent is missing."""
        x, y, z = (rows[field + axis] for axis in "XYZ")
        known = (np.minimum(np.minimum(x, y), z) >= 0) & (x < 2**31) & (np.maximum(y, z) < 2**16)
        packed = np.where(
            known, x | y << 31 | z << 47, UNKNOWN
        )  # CUDA's limits: 2^31 - 1, 65535, 65535
        used, which = np.unique(packed, return_inverse=True)
        texts = [f"{p & 0x7FFFFFFF},{p >> 31 & 0xFFFF},{p >> 47}" for p in used.tolist() if p >= 0]
        codes = self._code(field, texts)
        return (np.concatenate(([UNKNOWN], codes)) if len(used) > len(texts) else codes)[which]


def _on_device(rows: Mapping[str, np.ndarray]) -> Columns:
    columns = {
        "device": rows["deviceId"],
        "context": rows["contextId"],
        "stream": _unsigned(rows["streamId"]),
        "correlation": rows["correlationId"],
    }
    for field, name in (("graphId", "graph_id"), ("graphNodeId", "graph_node")):
        if field in rows:  # 0 is no graph
            columns[name] = np.where(rows[field] > 0, rows[field], UNKNOWN)
    return columns


def _unsigned(ids: np.ndarray) -> np.ndarray:
    """Return ids with the 32-bit "none" as unknown."""
    return np.where((ids < 0) | (ids == 0xFFFFFFFF), UNKNOWN, ids)


def _without_unknown(recording: Recording) -> Recording:
    """Drop columns that are unknown throughout, and keep the others in as few bits as they need."""
    for name in list(recording.columns):
        column = recording.columns[name]
        if name in ("start_ns", "duration_ns"):
            continue
        if name not in ("name", "kind") and (column == FIELDS[name].null).all():
            del recording.columns[name]
            recording.texts.pop(name, None)
        else:
            recording.columns[name] = narrow(column)
    return recording
