"""Nsight Systems SQLite exports as recordings, one a process on a GPU: CUDA calls, device work, NVTX ranges.

Each table is a query: which columns of a recording it has, each an expression of SQL over the columns of the
table. Tables and columns differ between versions (schemas 3.11 to 3.25) and with what was recorded: a table
that is not there has no rows, a column that is not there is NULL, rows come in any order. What no query names
(environment, samples, call chains) stays in the file.

Nsight packs machine, process and thread into one number, `globalTid`: the thread in the low 24 bits, the
process in the next 24; `globalPid` is the same with thread 0. Correlation ids count per process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daydream import arrays
from daydream.collect.derive.recording import SAID, Recording, narrow
from daydream.collect.importers.databases import Database, Named, open_database
from daydream.collect.importers.formats import Options
from daydream.collect.importers.nsys_waits import (
    SYNC_COLUMNS,
    add_blocked,
    calls_of,
    name_syncs,
    place_syncs,
    resolve_waits,
)
from daydream.collect.importers.row_builder import (
    CODED,
    RowBuilder,
    device_of,
    note_left_out,
    plain_text,
    pop_column,
)
from daydream.errors import TraceError
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.memory_events import MemoryEvents, events_of
from daydream.trace.schema import (
    DEVICE_KINDS,
    LARGEST_AMOUNT,
    NO_ID,
    UNKNOWN,
    Columns,
    Document,
    is_amount,
)


class Query(NamedTuple):
    """The rows of a table: their kind, and an expression for each column; texts are made by `text`.

    `owner` is the column with the process, and the thread where it is `globalTid`.
    """

    table: str
    kind: str
    columns: Mapping[str, str | Named]
    owner: str = "globalPid"
    where: str = "1"
    text: Callable[[str], str] = str


def word_of(words: str, ids: str) -> str:
    """Return the expression of the word that an id stands for in a table that `_name_ids` made."""
    return f"IFNULL((SELECT word FROM {words} WHERE id = {ids}), 'Unknown')"  # noqa: S608


def extents_of(what: str) -> str:
    """Return the expression of `x,y,z`; NULL where an extent is missing or above CUDA's limits."""
    x, y, z = (what + axis for axis in "XYZ")
    known = f"{x} BETWEEN 0 AND 2147483647 AND {y} BETWEEN 0 AND 65535 AND {z} BETWEEN 0 AND 65535"
    return f"CASE WHEN {known} THEN printf('%d,%d,%d', {x}, {y}, {z}) END"


def unsigned(ids: str) -> str:
    """Return the expression of an id whose 32-bit "none" is unknown."""
    return f"CASE WHEN {ids} >= 0 AND {ids} <> 4294967295 THEN {ids} END"


ON_DEVICE = {
    "device": "deviceId",
    "context": "contextId",
    "stream": unsigned("streamId"),
    "correlation": "correlationId",
}
# cudaLaunchKernel_v7000; the _v2 of cuMemFree_v2 is part of the name
API_VERSION = regex(r"_v\d{4,}$")
NODE = {"graph_node": "CASE WHEN graphNodeId > 0 THEN graphNodeId END"}
GRAPH = {"graph_id": "CASE WHEN graphId > 0 THEN graphId END"}
MEMORY = [word_of("memory_kinds", ids) for ids in ("srcKind", "dstKind", "memKind")]
TEXT = "IFNULL(NULLIF((SELECT value FROM StringIds WHERE id = textId), ''), 'unnamed range')"
QUERIES = (
    Query(
        "CUPTI_ACTIVITY_KIND_KERNEL",
        "kernel",
        {
            "name": Named(
                "StringIds", "COALESCE(demangledName, shortName, mangledName)", "unnamed kernel"
            ),
            "grid": extents_of("grid"),
            "block": extents_of("block"),
            **GRAPH,
            **NODE,
            **ON_DEVICE,
        },
    ),
    Query(
        "CUPTI_ACTIVITY_KIND_MEMCPY",
        "memcpy",
        {
            "name": f"'Memcpy ' || {word_of('copy_kinds', 'copyKind')} || "
            f"' (' || {MEMORY[0]} || ' -> ' || {MEMORY[1]} || ')'",
            "bytes": "bytes",
            **NODE,
            **ON_DEVICE,
        },
    ),
    Query(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        "memset",
        {
            "name": f"'Memset (' || {MEMORY[2]} || ')'",
            "bytes": "bytes",
            **NODE,
            **ON_DEVICE,
        },
    ),
    Query(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "kernel", {"name": "'CUDA graph'", **GRAPH, **ON_DEVICE}
    ),
    Query(
        "CUPTI_ACTIVITY_KIND_RUNTIME",
        "runtime",
        {
            "name": Named("StringIds", "nameId", "unnamed call"),
            "correlation": "correlationId",
        },
        owner="globalTid",
        text=lambda recorded: API_VERSION.sub("", recorded),
    ),
    # Push and pop, start and end, and the two that NVTXT imports; marks and domains are no ranges.
    Query(
        "NVTX_EVENTS",
        "annotation",
        {
            "name": f"CASE typeof(text) WHEN 'text' THEN text ELSE {TEXT} END",
        },
        owner="globalTid",
        where="eventType IN (59, 60, 70, 71)",
    ),
    Query(
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
        "sync",
        {
            "name": "(SELECT word FROM sync_types WHERE id = syncType)",
            "eventId": unsigned("eventId"),
            "eventSyncId": "eventSyncId",
            "deprecatedSyncType": "deprecatedSyncType",
            **ON_DEVICE,
        },
    ),
)
EXTRA = ("process", "context", *SYNC_COLUMNS)
EVENTS = ("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUDA_EVENT")
RECORDS = {  # of events: calls, tied to rows of calls by their ids
    "process": "globalPid",
    "stream": "streamId",
    "correlation": "correlationId",
    "eventId": "eventId",
    "eventSyncId": "eventSyncId",
}
ALLOCATIONS = "CUDA_GPU_MEMORY_USAGE_EVENTS"
ALLOCATED = {
    "process": "globalPid",
    "correlation": "correlationId",
    "time_ns": "start",
    "device": "deviceId",
    "address": "address",
    "bytes": "bytes",
    "kind": "memKind",
    "operation": "memoryOperationType",
}
ON_GPU = (2, 5)  # kinds of memory (ENUM_CUDA_MEM_KIND): device, device static
ALLOCATION, FREE = 0, 1  # ENUM_CUDA_DEV_MEM_EVENT_OPER

# The enum tables give these words where they are there; these are the ids of all versions seen.
COPY_KINDS = [
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
    "Unknown",
]
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
TYPES = {
    "EVENT_SYNCHRONIZE": "Event Sync",
    "STREAM_WAIT_EVENT": "Stream Wait Event",
    "STREAM_SYNCHRONIZE": "Stream Sync",
    "CONTEXT_SYNCHRONIZE": "Context Sync",
}  # as Kineto calls them
SYNC_TYPES = ("", *TYPES.values())
COPY_KIND = regex(r"([A-Z])TO([A-Z])$")  # CUDA_MEMCPY_KIND_HTOD

# What torch.autograd.profiler.emit_nvtx writes: the operator's name, then `, seq = 12`, `, op_id = 345`,
# `, sizes = [[2, 3]]` and `, input_op_ids = ...`, each only where it applies.
SUFFIX = regex(r", (?:seq|op_id|sizes|input_op_ids) = ")
SEQUENCE = regex(r", seq = (\d{1,18})(?:,|$)")
SIZES = regex(r", sizes = (\[.*?\])(?:, input_op_ids = |$)")


def parse_range(label: str) -> tuple[str, str, int, str | None]:
    """Return kind, name, sequence number (-1 for none) and input shapes (JSON) of an NVTX range.

    A range of emit_nvtx is an operator if it has a namespace (`aten::add`) or a sequence
    number; one of `record_function` has neither and is an annotation, as is any other.
    """
    suffix = SUFFIX.search(label)
    if suffix is None:
        return "annotation", label, UNKNOWN, None
    name, rest = label[: suffix.start()], label[suffix.start() :]
    sequence = SEQUENCE.match(rest)
    if sequence is None and "::" not in name:
        return "annotation", name, UNKNOWN, None
    return "operator", name, int(sequence[1]) if sequence else UNKNOWN, _compact(SIZES.search(rest))


def _compact(sizes: re.Match[str] | None) -> str | None:
    try:
        return json.dumps(json.loads(sizes[1]), separators=(",", ":")) if sizes else None
    except (ValueError, RecursionError):
        return None


def read_database(path: Path, options: Options) -> list[Recording]:
    """Return the recordings in an SQLite file: of Nsight Systems, one a rank, or of rocprofv3, one a process.

    Raises `TraceError` if it is neither, or cannot be read.
    """
    from daydream.collect.importers.rocprof import is_rocpd, read_rocpd

    with open_database(path, options.max_unpacked) as database:
        if is_rocpd(database):
            return read_rocpd(database)
        return split_ranks(read_export(database))


def read_export(database: Database) -> Recording:
    """Return the recording in an export of Nsight Systems; with several processes on GPUs, each is a rank.

    Raises `TraceError` if it is none, or has no CUDA activity.
    """
    path = database.path
    if "StringIds" not in database.tables:
        raise TraceError(
            f"{path} is an SQLite database, but not an Nsight Systems export: it has no table StringIds."
        )
    rows = database.records("DIAGNOSTIC_EVENT")  # but for what is no warning
    said = dict.fromkeys(row.get("text") for row in rows if row.get("severity") not in (1, 4))
    diagnostics = [text for text in said if isinstance(text, str)]
    if not any(query.table in database.tables for query in QUERIES[:5]):
        raise TraceError(
            f"{path} is an Nsight Systems export without CUDA activity; record again with "
            "`nsys profile --trace=cuda,nvtx` and export with `nsys export --type sqlite`. "
            + " ".join(diagnostics)
        )
    _keep_words(database)
    builder = RowBuilder()
    added = {query.table: _add(database, builder, query) for query in QUERIES}
    add_blocked(database, builder)
    read = {*added, *EVENTS}
    for table in database.tables:
        if table.startswith("CUPTI_ACTIVITY_KIND_") and table not in read:
            builder.left_out[f"were of the table {table}"] += database.count(table)
    recording = builder.recording(
        Path(path.name), "is an Nsight Systems export without a finished CUDA or NVTX row."
    )
    if graphs := added["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"]:
        launches = counted(graphs, "CUDA graph launch", "CUDA graph launches")
        recording.note(
            f"{launches} traced as a whole: the kernels inside are not itemised. "
            "`nsys profile --cuda-graph-trace=node` records them."
        )
    extra = {name: pop_column(recording, name) for name in EXTRA}
    processes = _Processes(recording, extra["process"])
    recording.memory = _memory(database, recording, processes)
    if "sync" in recording.text("kind"):
        place_syncs(recording, extra["process"], extra["context"])
        name_syncs(recording, extra)
        records = _gathered(database, EVENTS, RECORDS)
        process = process_of(records["process"])
        records["correlation"] = processes.correlation(records["correlation"], process)
        resolve_waits(recording, extra, records)
    _describe(database, recording)
    recording.metadata[SAID] = diagnostics
    return recording


def _keep_words(database: Database) -> None:
    """Make tables of the words that ids stand for: those of all versions seen, then the file's own."""
    for name, words, enum, column in (
        ("memory_kinds", MEMORY_KINDS, "ENUM_CUDA_MEM_KIND", "label"),
        ("copy_kinds", COPY_KINDS, "ENUM_CUDA_MEMCPY_OPER", "name"),
        ("sync_types", SYNC_TYPES, "ENUM_CUPTI_SYNC_TYPE", "name"),
    ):
        known = dict(enumerate(words))
        for row in database.records(enum):
            number, word = row.get("id"), row.get(column)
            if isinstance(number, int) and isinstance(word, str):
                if ends := COPY_KIND.search(word):
                    word = f"{ends[1]}to{ends[2]}"
                elif name != "memory_kinds":
                    word = next(
                        (ours for ending, ours in TYPES.items() if word.endswith(ending)), None
                    )
                known[number] = word or known.get(number, "")
        database.connection.execute(f"CREATE TEMP TABLE {name} (id INTEGER PRIMARY KEY, word)")
        insert = f"INSERT INTO {name} VALUES (?, NULLIF(?, ''))"  # noqa: S608
        database.connection.executemany(insert, known.items())


def _add(database: Database, builder: RowBuilder, query: Query) -> int:
    """Add the rows of a query, and return how many have a time."""
    before = len(builder)
    columns = {"start": "start", "end": "[end]", "owner": query.owner, **query.columns}
    texts = [name for name in columns if name in CODED]
    for rows in database.blocks(query.table, columns, texts=texts, where=query.where):
        start, end, owner = (rows.pop(name) for name in ("start", "end", "owner"))
        kind: str | np.ndarray = query.kind
        if query.kind == "annotation":
            kind, rows["name"], rows["sequence"], rows["shapes"] = _ranges(builder, rows["name"])
        else:
            rows |= {
                name: builder.codes(name, lambda raw: query.text(plain_text(raw))).of(rows[name])
                for name in texts
            }
        if query.owner == "globalTid":
            rows["pid"], rows["tid"] = pid_and_tid(owner)
        builder.add(kind, start, end, process=process_of(owner), **rows)
    return len(builder) - before


def _ranges(builder: RowBuilder, labels: list[bytes]) -> tuple[np.ndarray, ...]:
    """Return codes of kinds and names, sequence numbers and codes of shapes of NVTX ranges."""
    told = {label: parse_range(plain_text(label)) for label in dict.fromkeys(labels)}
    kind, name, sequence, shapes = zip(*(told[label] for label in labels), strict=True)
    coded = [builder.coded(*each) for each in (("kind", kind), ("name", name), ("shapes", shapes))]
    return coded[0], coded[1], np.array(sequence), coded[2]


def process_of(packed: np.ndarray) -> np.ndarray:
    """Return machine and process in one number, unknown where the owner is."""
    return np.where(packed >= 0, packed >> 24, UNKNOWN)


def pid_and_tid(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return process and thread ids as the operating system numbers them."""
    return tuple(np.where(packed >= 0, one & 0xFFFFFF, NO_ID) for one in (packed >> 24, packed))  # type: ignore[return-value]


class _Processes:
    """The processes of one export in the order of their ranks, those without device work last.

    Ranks are numbered by their lowest device. Correlation ids get the process above their 32 bits.
    """

    def __init__(self, recording: Recording, process: np.ndarray) -> None:
        at_work = np.flatnonzero(recording.is_kind(*DEVICE_KINDS) & (process >= 0))
        at_work = at_work[np.lexsort((process[at_work], recording["device"][at_work]))]
        ranked = list(dict.fromkeys(process[at_work].tolist()))
        others = np.setdiff1d(process, [UNKNOWN, *ranked]).tolist()
        self.ranks = max(len(ranked), 1)
        self.order = np.array([*ranked, *others] or [UNKNOWN], np.int64)
        if self.ranks > 1:
            recording.columns["rank"] = self.rank(process)
            recording.note(
                f"{self.ranks} processes did device work; they are ranks, by their lowest device."
            )
        recording.columns["correlation"] = narrow(
            self.correlation(recording["correlation"], process)
        )

    def rank(self, process: np.ndarray) -> np.ndarray:
        """Return each row's rank, unknown without device work; old rows that name no process are the first's."""
        index = np.maximum(arrays.lookup(self.order, process), 0)
        return np.where(index < self.ranks, index, UNKNOWN)

    def correlation(self, ids: np.ndarray, process: np.ndarray) -> np.ndarray:
        """Return correlation ids that are unique in the file."""
        index = np.maximum(arrays.lookup(self.order, process), 0)
        return np.where(ids >= 0, ids | index << 32, UNKNOWN)


def split_ranks(recording: Recording) -> list[Recording]:
    """Return a recording per rank; notes on the file go with the first.

    Rows of processes without device work are left out and counted.
    """
    ranks = np.asarray(recording["rank"])
    present = np.unique(ranks[ranks >= 0]).tolist()
    if len(present) <= 1:
        return [recording]
    parts: list[Recording] = []
    for rank in present:
        columns = {name: column[ranks == rank] for name, column in recording.columns.items()}
        del columns["rank"]
        texts = {name: list(words) for name, words in recording.texts.items()}
        notes = [] if parts else list(recording.metadata["notes"])
        metadata = {**recording.metadata, "rank": rank, "notes": notes}
        memory = recording.memory
        if memory is not None:
            memory = memory.take(memory["rank"] == rank)
        parts.append(Recording(columns, texts, metadata, memory))
    if outside := int((ranks < 0).sum()):
        parts[0].note(
            f"{counted(outside, 'row', 'rows')} of processes without device work left out."
        )
    return parts


def _gathered(database: Database, tables: Sequence[str], columns: Mapping[str, str]) -> Columns:
    """Return columns of some tables, one after the other: int64, shape (rows,)."""
    found = [block for table in tables for block in database.blocks(table, columns)]
    return {
        name: np.concatenate([np.empty(0, np.int64), *(block[name] for block in found)])
        for name in columns
    }


def _memory(database: Database, recording: Recording, processes: _Processes) -> MemoryEvents | None:
    """Return what the program took of the driver and gave back, in order of time; None if nothing.

    `nsys profile --cuda-memory-usage=true` records it; with PyTorch's allocator it is segments, not tensors.
    Memory of the host (pinned, managed) is left out, as are rows without a time, a device or a size; notes
    of the recording count them.
    """
    rows = _gathered(database, [ALLOCATIONS], ALLOCATED)
    if not len(rows["time_ns"]):
        return None
    process = process_of(rows.pop("process"))
    rows["rank"] = processes.rank(process)
    rows["correlation"] = processes.correlation(rows["correlation"], process)
    kept = np.isin(rows.pop("kind"), ON_GPU) & (rows["rank"] >= 0)
    if elsewhere := int((~kept).sum()):
        why = "of memory of the host or of processes without device work"
        note_left_out(recording, elsewhere, why)
    rows = {name: column[kept] for name, column in rows.items()}
    operation, nbytes = rows.pop("operation"), rows["bytes"]
    bad = (np.abs(rows["time_ns"] // 2) > 2**61) | ~np.isin(operation, (ALLOCATION, FREE))
    bad |= (nbytes < 0) | (nbytes > LARGEST_AMOUNT) | (rows["device"] < 0)
    call = calls_of(recording, rows.pop("correlation"))
    for name in ("pid", "tid"):
        rows[name] = np.append(recording[name].astype(np.int64), NO_ID)[call]
    rows["time_ns"] = np.where(bad, 0, rows["time_ns"] - recording.metadata["origin_ns"])
    rows["bytes"] = np.where(bad, 0, np.where(operation == FREE, -nbytes, nbytes))
    events = events_of(rows, bad, recording.metadata["notes"])
    if events is not None:
        recording.metadata["memory_from"] = "driver"
    return events


def _describe(database: Database, recording: Recording) -> None:
    """Add what the export says of itself and of its devices, or their bare numbers where it says nothing."""
    about = {
        row.get("name"): str(row.get("value"))
        for row in reversed(database.records("META_DATA_EXPORT"))
    }
    metadata = recording.metadata
    named = ("nsys", about.get("EXPORT_SCHEMA_VERSION"), metadata["source"])
    metadata["source"] = " ".join(filter(None, named))
    metadata["vendor"] = "cuda"
    if product := about.get("EXPORT_PRODUCT_VERSION"):
        metadata["versions"] = {"nsys": product}
    started = [row.get("utcEpochNs") for row in database.records("TARGET_INFO_SESSION_START_TIME")]
    metadata["origin_ns"] += next((time for time in started if isinstance(time, int)), 0)
    gpus = database.records("TARGET_INFO_GPU")
    found: dict[Any, Document] = {}  # CUDA numbers the devices that a process sees
    for seen in database.records("TARGET_INFO_CUDA_DEVICE"):
        for row in gpus:
            if row.get("id") == seen.get("gpuId") is not None:
                found.setdefault(seen.get("cudaId"), row)
    if not found:  # not those of other vendors
        for row in [row for row in gpus if row.get("smCount") != 0] or gpus:
            numbers = (row.get("cuDevice"), row.get("id"))
            found.setdefault(next(filter(is_amount, numbers), None), row)
    used = recording["device"]
    metadata["devices"] = [device_of(row, id=number) for number, row in found.items()] or [
        {"id": device} for device in np.unique(used[used >= 0]).tolist()
    ]
