"""rocprofv3 as recordings, one a process: its JSON, its database (rocpd), its CSV tables.

What is read: dispatches of kernels, copies, calls into HIP, HSA and RCCL, ROCTX ranges, the devices. The
environment, the command and the paths that such files hold are never decoded. Grids are in work-items, and
agents (of HSA) are numbered as devices.

A run of tables writes one for each sort of rows; which one a file is, its columns tell. Every table of a
database is `rocpd_NAME` and a suffix that stands for one process. Its rows say by `event_id` which event
they are of; which of an event's two ids ties work to calls, the file tells: the one under which more of the
work finds a call. Written from the schema (`rocpd_tables.sql`, versions 3.0.0 to 4.1.0): no public database
was at hand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daydream.arrays import lookup
from daydream.collect.derive.recording import Recording
from daydream.collect.importers.databases import Database, quoted
from daydream.collect.importers.formats import (
    AGENTS,
    CALLS,
    COPIES,
    COUNTERS,
    KERNELS,
    OTHER,
    Options,
    columns_of,
    table_of,
)
from daydream.collect.importers.row_builder import (
    LARGEST,
    NO_TIME,
    RowBuilder,
    device_of,
    pop_column,
    small_ids,
    whole,
)
from daydream.errors import TraceError
from daydream.files.input_files import opened
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS, NO_ID, UNKNOWN, Columns, Document

TABLE, JSON, DATABASE = range(3)
STRING = "(SELECT string FROM {string} WHERE id = name_id)"
TYPE = "(SELECT CASE type WHEN 'GPU' THEN 'DEVICE' WHEN 'CPU' THEN 'HOST' END FROM {info_agent} WHERE id = %s)"
SOURCE, TARGET = (TYPE % end for end in ("src_agent_id", "dst_agent_id"))
ROWS = {  # of each sort: what stands where in a table, in the JSON (by attributes) and in the database (in SQL)
    KERNELS: {
        "name": (
            "kernel_name",
            "dispatch_info.kernel_id",
            "(SELECT IFNULL(NULLIF(display_name, ''), kernel_name) FROM {info_kernel_symbol} WHERE id = kernel_id)",
        ),
        "agent": ("agent_id", "dispatch_info.agent_id.handle", "agent_id"),
        "stream": ("stream_id", "stream_id.handle", "stream_id"),
        "queue": ("queue_id", "dispatch_info.queue_id.handle", "queue_id"),
        **{
            f"{what}_{axis}": (
                f"{what}_size_{axis}",
                f"dispatch_info.{what}_size.{axis}",
                f"{what}_size_{axis}",
            )
            for what in ("grid", "workgroup")
            for axis in "xyz"
        },
    },
    COPIES: {
        "name": (
            "direction",
            "operation",
            f"IFNULL({STRING}, '') || ' ' || IFNULL({SOURCE} || '_TO_' || {TARGET}, '')",
        ),
        "kind": ("", "kind", ""),
        "agent": ("destination_agent_id", "dst_agent_id.handle", "dst_agent_id"),
        "source": ("source_agent_id", "src_agent_id.handle", "src_agent_id"),
        "stream": ("stream_id", "stream_id.handle", "stream_id"),
        "queue": ("", "", "queue_id"),
        "bytes": ("bytes", "bytes", "size"),
    },
    CALLS: {
        "name": ("function", "operation", STRING),
        "kind": (
            "domain",
            "kind",
            "(SELECT string FROM {string} WHERE id = (SELECT category_id FROM {event} WHERE id = event_id))",
        ),
        "pid": ("process_id", "", "(SELECT pid FROM {info_process} WHERE id = row.pid)"),
        "tid": (
            "thread_id",
            "thread_id",
            "IFNULL((SELECT tid FROM {info_thread} WHERE id = row.tid), row.tid)",
        ),
    },
}
for _columns in ROWS.values():
    _columns |= {
        "start": ("start_timestamp", "start_timestamp", "start"),
        "end": ("end_timestamp", "end_timestamp", "[end]"),
        "correlation": (
            "correlation_id",
            "correlation_id.internal",
            "(SELECT {id} FROM {event} WHERE id = event_id)",
        ),
    }
CLONE = regex(
    r"( \[clone \.kd\]|\.kd)$"
)  # of the kernel's descriptor, which is no part of its name
DIRECTION = regex(r"(HOST|DEVICE)_TO_(HOST|DEVICE)")
DIRECTIONS = ("HOST_TO_DEVICE", "DEVICE_TO_HOST", "DEVICE_TO_DEVICE", "HOST_TO_HOST")
TO_HOST = 1
COPY_NAMES = (
    "Memcpy HtoD (Host -> Device)",
    "Memcpy DtoH (Device -> Host)",
    "Memcpy DtoD (Device -> Device)",
    "Memcpy HtoH (Host -> Host)",
    "Memcpy",
)
FIRST_COPY_LANE = 1_000_000  # above the numbers of streams and queues
AGENT = regex(r"(\d{1,18})$")  # `Agent 4`, or the number alone
GPU = ("2", "GPU")  # ROCPROFILER_AGENT_TYPE_GPU
TABLE_IN_NAME = regex(
    r"_?(kernel|hip_api|hip_runtime|hip_runtime_api|hip_compiler_api|hsa_api|rccl_api|marker_api|memory_copy|"
    r"memory_allocation|scratch_memory|agent_info)(_trace)?\.csv(\.gz)?$"
)
NOTHING = (
    "holds no kernel, copy, call or range with a readable time. Record with rocprofv3 --kernel-trace "
    "--hip-trace --memory-copy-trace."
)
NO_LAUNCHES = (
    "No call into HIP or HSA was recorded: kernels have no launches, and what the CPU does is unknown. "
    "rocprofv3 --hip-trace records the calls."
)
UNLINKED = "{} of {} rows of the device have no call with their correlation id; they stay where they were recorded."
EXTENTS = [f"{what}_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
COPY_LANES = "Copies have no stream in this file: they stand on a lane for each direction."
COUNTED = (
    "{} was recorded while counters were read, which makes kernels longer: its times are not used. "
    "Record without --pmc{}."
)
EMPTY = msgspec.Raw(b"[]")


class _Rows:
    """The rows of one process, whichever file they come from, and the agents that it names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.builder = builder = RowBuilder()
        self.notes: dict[str, None] = {}
        self.agents: dict[int, Document | None] = {}  # None for those that are no GPUs
        self._names = {
            KERNELS: builder.codes("name", lambda text: CLONE.sub("", text) or "unnamed kernel"),
            COPIES: builder.codes("name", lambda text: COPY_NAMES[_way(text)]),
            CALLS: builder.codes("name", lambda text: text or "unnamed call"),
        }
        self._grids = builder.codes("grid", lambda both: _extents(both, of_grid=True))
        self._blocks = builder.codes("block", lambda both: _extents(both, of_grid=False))

    def add(self, sort: str, rows: Mapping[str, Sequence[Any]]) -> None:
        """Add rows of a sort: lists of texts or numbers by the names in `ROWS`, all equally long."""
        size = len(rows["start"])

        def numbers(name: str, null: int = UNKNOWN) -> np.ndarray:
            found = whole(rows[name]) if name in rows else np.full(size, UNKNOWN)
            return np.where(found < 0, null, found)

        correlation = numbers("correlation")
        columns = {"correlation": np.where(correlation == 0, UNKNOWN, correlation)}  # 6.2 writes 0
        start, end = numbers("start", NO_TIME), numbers("end", NO_TIME)
        names = [text or "" for text in rows["name"]]
        if sort == CALLS:
            columns |= {name: numbers(name, NO_ID) for name in ("pid", "tid")}
            self._calls(start, end, names, [text or "" for text in rows["kind"]], columns)
            return
        stream = numbers("stream")
        stream = np.where(stream < 0, numbers("queue"), stream)
        columns["agent"] = numbers("agent")
        if sort == KERNELS:
            both = list(zip(*(numbers(extent).tolist() for extent in EXTENTS), strict=True))
            columns["grid"], columns["block"] = self._grids.of(both), self._blocks.of(both)
        else:
            way = np.array([_way(text) for text in names], np.int64)
            if (stream < 0).any():
                self.notes[COPY_LANES] = None
            stream = np.where(stream < 0, FIRST_COPY_LANE + way, stream)
            columns["bytes"] = numbers("bytes")
            ends = columns["agent"], numbers("source")
            columns["agent"], columns["other_agent"] = np.where(way == TO_HOST, ends[::-1], ends)
        kind = "kernel" if sort == KERNELS else "memcpy"
        name = self._names[sort].of(names)
        self.builder.add(kind, start, end, name=name, stream=stream, **columns)

    def _calls(
        self,
        start: np.ndarray,
        end: np.ndarray,
        names: list[str],
        domains: list[str],
        columns: Columns,
    ) -> None:
        """Add calls of an interface: into HIP and HSA as they are, of RCCL and of markers as ranges.

        A call of RCCL stands around the launch of its kernel, and tells its operation. A marker that lasts no
        time is no range.
        """
        marker, rccl = (
            np.array([word in text.upper() for text in domains], bool)
            for word in ("MARKER", "RCCL")
        )
        texts = [
            f"rccl:{name}" if of else name for name, of in zip(names, rccl.tolist(), strict=True)
        ]
        columns["name"] = self._names[CALLS].of(texts)
        ranges = marker | rccl
        columns["correlation"] = np.where(ranges, UNKNOWN, columns["correlation"])
        kept = ~(marker & (start == end))
        kinds = np.where(ranges, *self.builder.coded("kind", ["annotation", "runtime"]))
        columns = {name: column[kept] for name, column in columns.items()}
        self.builder.add(kinds[kept], start[kept], end[kept], **columns)

    def recording(self) -> Recording:
        """Return the recording of all rows. Raises `TraceError` if there is none."""
        recording = self.builder.recording(
            self.path, NOTHING, vendor="rocm", profiler="rocprofv3", grids_in_blocks=True
        )
        agent, other = (pop_column(recording, name) for name in ("agent", "other_agent"))
        hosts = [key for key, described in self.agents.items() if described is None]
        agent = np.where(np.isin(agent, hosts) | (agent < 0), other, agent)
        agent = np.where(np.isin(agent, hosts), UNKNOWN, agent)
        used = np.unique(agent[agent >= 0]).tolist()
        gpus = [key for key, described in self.agents.items() if described is not None]
        keys = np.array(list(dict.fromkeys([*gpus, *used])), np.int64)
        recording.set_numbers("device", np.arange(len(agent)), lookup(keys, agent))
        recording.metadata["devices"] = [
            {**(self.agents.get(key) or {}), "id": number}
            for number, key in enumerate(keys.tolist())
            if key in used
        ]
        if "stream" in recording.columns:
            recording.columns["stream"] = small_ids(recording["stream"].astype(np.int64), 2**31)
        for note in self.notes:
            recording.note(note)
        device = recording.is_kind(*DEVICE_KINDS)
        calls = recording.is_kind("runtime")
        if device.any() and not calls.any():
            recording.note(NO_LAUNCHES)
        elif device.any():
            ids = np.asarray(recording["correlation"])
            known = np.isin(ids[device], ids[calls]) & (ids[device] != UNKNOWN)
            if not known.all():
                recording.note(UNLINKED.format(f"{int((~known).sum()):,}", f"{len(known):,}"))
        return recording

    def describe(self, key: Any, sort: Any, given: Mapping[str, Any]) -> None:
        """Keep what a file says of an agent."""
        if isinstance(key, int) and 0 <= key <= LARGEST:
            clock = given.get("max_engine_clk_fcompute")  # MHz
            known = device_of(given)
            if type(clock) is int and 0 < clock < 10**6:
                known["clock_hz"] = clock * 10**6
            if "name" in known:
                known["name"] = known["name"][:200]
            self.agents[key] = known if str(sort).strip().upper() in GPU else None


def _extents(both: Sequence[int], *, of_grid: bool) -> str:
    """Return a grid in blocks, or a block in threads, of a grid in work-items and a block in threads."""
    items = both[:3]
    threads = both[3:]
    if not all(0 < one < 2**32 for one in items) or not all(0 < one < 2**16 for one in threads):
        return ""
    grid = [-(-one // size) for one, size in zip(items, threads, strict=True)]
    return ",".join(map(str, grid if of_grid else threads))


@cache
def _way(text: str) -> int:
    """Return which direction a text names first: `MEMORY_COPY_HOST_TO_DEVICE`."""
    found = DIRECTION.search(text.upper())
    return DIRECTIONS.index(found[0]) if found else len(DIRECTIONS)


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, gc=False):
    key: int = -1
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _Metadata(msgspec.Struct):
    pid: int = 0


class _Process(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[Document] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    callback_records: dict[str, msgspec.Raw] = {}
    buffer_records: dict[str, msgspec.Raw] = {}


class _Document(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


BUFFERS = {
    "kernel_dispatch": KERNELS,
    "memory_copy": COPIES,
    "hip_api": CALLS,
    "hsa_api": CALLS,
    "rccl_api": CALLS,
    "marker_api": CALLS,
}


def read_json(path: Path, options: Options) -> list[Recording]:
    """Return the recordings in a JSON or JSON.gz file of rocprofv3: one for each process that is in it.

    Raises `TraceError` if the file is damaged, holds counters or no row.
    """
    try:
        with opened(path, options.max_unpacked) as (file, _, _):
            text = file.read()
        document = msgspec.json.decode(text, type=_Document)
        recordings = []
        for number, process in enumerate(document.processes):
            recordings.append(_of_json(path, process))
            options.read((number + 1) / len(document.processes))
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise TraceError(f"{path} is not as rocprofv3 writes it ({str(error)[:200]}).") from None
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{path}: the JSON is cut off or damaged ({str(error)[:100]}). Copy it again, or record again."
        ) from None
    if not recordings:
        raise TraceError(f"{path} {NOTHING}")
    return recordings


def _of_json(path: Path, process: _Process) -> Recording:
    counted = process.callback_records.get("counter_collection", EMPTY)
    if bytes(counted).strip(b"[] \r\n\t"):
        raise TraceError(COUNTED.format(path, ", and give this file with --counters"))
    found = _Rows(path)
    for agent in process.agents:
        handle = agent.get("id")
        found.describe(
            handle.get("handle") if isinstance(handle, dict) else None, agent.get("type"), agent
        )
    symbols = {
        each.kernel_id: each.formatted_kernel_name or each.demangled_kernel_name or each.kernel_name
        for each in process.kernel_symbols
    }
    texts = {each.key: each.value for each in process.strings.marker_api}
    kinds = dict(enumerate(process.strings.buffer_records))
    for buffer, sort in BUFFERS.items():
        places = {name: place[JSON] for name, place in ROWS[sort].items() if place[JSON]}
        array = process.buffer_records.get(buffer, EMPTY)
        elements = msgspec.json.decode(array, type=list[_struct_of(list(places.values()))])  # type: ignore[misc]
        if not elements:
            continue
        rows: dict[str, list[Any]] = {
            name: list(map(attrgetter(place), elements)) for name, place in places.items()
        }
        if sort == KERNELS:
            rows["name"] = [symbols.get(key) for key in rows["name"]]
        else:
            of = [kinds.get(kind, _Kind()) for kind in rows["kind"]]
            rows["kind"] = [kind.kind for kind in of]
            operations = zip(of, rows["name"], strict=True)
            rows["name"] = [
                kind.operations[at] if at is not None and 0 <= at < len(kind.operations) else ""
                for kind, at in operations
            ]
        if sort == CALLS:
            rows["pid"] = [process.metadata.pid] * len(elements)
            said = zip(rows["correlation"], rows["kind"], rows["name"], strict=True)
            rows["name"] = [
                texts.get(key, name) if "MARKER" in kind else name for key, kind, name in said
            ]
        found.add(sort, rows)
    return found.recording()


def _struct_of(places: Sequence[str]) -> type[Any]:
    """Return the type of an element in which whole numbers stand at some places: `agent_id.handle`."""
    inner: dict[str, list[str]] = {}
    for place in places:
        head, _, rest = place.partition(".")
        inner.setdefault(head, []).append(rest)
    fields: list[Any] = []
    for head, rests in inner.items():
        if rests == [""]:
            fields.append((head, int | None, None))
        else:
            kind = _struct_of(rests)
            fields.append((head, kind, kind()))
    return msgspec.defstruct("Element", fields, frozen=True, gc=False)


TABLES = {KERNELS: "kernel_dispatch", COPIES: "memory_copy", CALLS: "region"}
PREFIX = "rocpd_"
IDS = ("stack_id", "correlation_id")  # of events: one of them ties work to calls
TIED = """{id} > 0
    AND id IN (SELECT event_id FROM {kernel_dispatch} UNION ALL SELECT event_id FROM {memory_copy})
    AND {id} IN (SELECT {id} FROM {event} WHERE id IN (SELECT event_id FROM {region}))"""


def is_rocpd(database: Database) -> bool:
    """Return whether an SQLite file is one of rocprofv3."""
    return bool(_suffixes(database))


def _suffixes(database: Database) -> list[str]:
    begin = f"{PREFIX}string"
    return [name[len(begin) :] for name in database.tables if name.startswith(begin)]


def read_rocpd(database: Database) -> list[Recording]:
    """Return the recordings in a database of rocprofv3, one for each process that is in it.

    Raises `TraceError` if it was recorded while counters were read, or holds no row.
    """
    found = [
        _of_database(database, suffix)
        for suffix in _suffixes(database)
        if any(_count(database, suffix, table) for table in TABLES.values())
    ]
    if not found:
        raise TraceError(f"{database.path} {NOTHING}")
    return found


def _of_database(database: Database, suffix: str) -> Recording:
    if _count(database, suffix, "pmc_event"):
        raise TraceError(COUNTED.format(database.path, ""))
    found = _Rows(database.path)
    agents = database.records(f"{PREFIX}info_agent{suffix}")
    for agent in sorted(agents, key=lambda agent: str(agent.get("id")).zfill(20)):
        found.describe(agent.get("id"), agent.get("type"), agent)
    tied = [_count(database, suffix, "event", TIED, of) for of in IDS]
    names = _Names(suffix, IDS[tied[1] > tied[0]])
    for sort, table in TABLES.items():
        columns = {
            name: place[DATABASE].format_map(names)
            for name, place in ROWS[sort].items()
            if place[DATABASE]
        }
        texts = {"name", "kind"} & columns.keys()
        for rows in database.blocks(f"{PREFIX}{table}{suffix}", columns, texts=texts):
            for name in texts:
                rows[name] = [(text or b"").decode("utf-8", "replace") for text in rows[name]]
            found.add(sort, rows)
    return found.recording()


def _count(database: Database, suffix: str, table: str, where: str = "1", of: str = "") -> int:
    """Return how many rows of a table of a process there are."""
    return database.count(f"{PREFIX}{table}{suffix}", where.format_map(_Names(suffix, of)))


class _Names(dict[str, str]):
    """The names of the tables of a process, and the id by which events are tied, for SQL."""

    def __init__(self, suffix: str, of: str) -> None:
        super().__init__(id=of)
        self._suffix = suffix

    def __missing__(self, table: str) -> str:
        return quoted(f"{PREFIX}{table}{self._suffix}")


def runs_of_tables(paths: Sequence[Path]) -> list[list[Path]]:
    """Return the files of each run: of one, or by what stands before the table in their names.

    Two tables of kernels, or two of the calls of one interface, are of two runs.
    """
    named: dict[tuple[Path, str], list[Path]] = {}
    sorts = set()
    for path in paths:
        found = TABLE_IN_NAME.search(path.name)
        sorts.add(found.group(1) if found else path.name)
        named.setdefault((path.parent, TABLE_IN_NAME.sub("", path.name)), []).append(path)
    return [list(paths)] if len(sorts) == len(paths) else list(named.values())


def read_tables(first: Path, options: Options) -> list[Recording]:
    """Return the recording of one run, of its CSV or CSV.gz tables.

    Raises `TraceError` if a table is damaged, is of counters, or none has a row.
    """
    found = _Rows(first)
    others = []
    paths = [first, *options.beside]
    for number, path in enumerate(paths):
        with opened(path, options.max_unpacked) as (file, _, _):
            text = file.read().decode("utf-8", "replace").replace("\0", "\ufffd")
        header, _, body = text.lstrip().partition("\n")
        names = columns_of(header)
        sort = table_of(names)
        if sort == COUNTERS:
            raise TraceError(
                f"{path} is a table of counters, whose run they made longer: give it with --counters, next "
                "to a trace that was recorded without."
            )
        if sort is None:
            raise TraceError(
                f"{path} is none of rocprofv3's tables: its columns are {header[:100]!r}."
            )
        if sort == OTHER:
            others.append(path.name)
            continue
        for columns in _of_table(path, body, names, found.builder.left_out):
            _add_table(found, sort, columns)
        options.read((number + 1) / len(paths))
    found.agents = dict(sorted(found.agents.items()))
    if others:
        told = f"Left out, as it holds no rows of a trace: {', '.join(sorted(others))}."
        found.notes[told] = None
    recording = found.recording()
    if len(paths) > 1:
        recording.metadata["source"] += f" and {len(paths) - 1} more"
    return [recording]


def _add_table(found: _Rows, sort: str, columns: dict[str, list[str]]) -> None:
    """Add the rows of a table, or keep what it says of agents."""
    if sort == AGENTS:
        for row in zip(*columns.values(), strict=True):
            given = dict(zip(columns, row, strict=True))
            units = whole([given.get("cu_count", "")]).tolist()[0]
            known = {
                "product_name": given.get("product_name", "").strip() or None,
                "cu_count": units or None,
            }
            found.describe(whole([given["node_id"]]).tolist()[0], given["agent_type"], known)
        return
    rows: dict[str, Any] = {
        name: columns[place[TABLE]] for name, place in ROWS[sort].items() if place[TABLE] in columns
    }
    if sort == KERNELS:
        for what in ("grid", "workgroup"):  # some tables give the product alone
            rows.setdefault(f"{what}_x", columns.get(f"{what}_size", [""] * len(rows["start"])))
            for axis in "yz":
                rows.setdefault(f"{what}_{axis}", ["1"] * len(rows["start"]))
    for name in {"agent", "source"} & rows.keys():
        numbers = [AGENT.search(text.strip()) for text in rows[name]]
        rows[name] = [match.group(1) if match else "" for match in numbers]
    found.add(sort, rows)


def _of_table(
    path: Path, body: str, names: list[str], left_out: Counter[str]
) -> Iterator[dict[str, list[str]]]:
    """Yield the columns of a table as texts, some rows at a time; rows that are cut are counted."""
    import pyarrow as pa
    from pyarrow import csv

    def skip(_row: object) -> str:
        left_out["had more or fewer fields than the header"] += 1
        return "skip"

    places = [str(place) for place in range(len(names))]  # a name may be there twice
    if not body.strip():
        return
    try:
        table = csv.open_csv(
            pa.BufferReader(body.encode()),
            csv.ReadOptions(
                use_threads=False, column_names=places
            ),  # threads abort at the process's end
            csv.ParseOptions(invalid_row_handler=skip, newlines_in_values=True),
            csv.ConvertOptions(
                column_types=dict.fromkeys(places, pa.string()), strings_can_be_null=False
            ),
        )
        for batch in table:
            yield dict(zip(names, (column.to_pylist() for column in batch.columns), strict=True))
    except pa.ArrowException as error:
        raise TraceError(
            f"{path} is not a readable CSV table ({str(error).splitlines()[0][:100]})."
        ) from None
