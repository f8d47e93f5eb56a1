"""ExecuTorch: ETDump files with their ETRecord, and tables of its Inspector, without torch or executorch.

A row of a table (`to_dataframe`, saved as parquet or JSON) is an event of the program, with its time in each
run (`raw`, in the unit that other columns have in their names) and when it began in each (`start_time`, ns).
An ETDump (`.etdp`) is what the runtime logged, a FlatBuffers file of schema ED00, read by the numbers of its
fields, every place checked. An ETRecord (`etrecord.py`) says what it was compiled from.

Rows overlap: `Method::execute` holds `OPERATOR_CALL` and `DELEGATE_CALL`, these hold what the kernel or the
delegate logged. They stand in one another as rows of a thread do, so that each keeps the time that
no row within it has, and all together last as long as `Method::execute`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.etrecord import KERNEL, is_kernel, of_kernel, read_etrecord
from daydream.collect.importers.formats import COLUMN, ETDUMP_MAGIC, Options, is_etdump
from daydream.collect.importers.row_builder import RowBuilder, plain_text
from daydream.errors import TraceError
from daydream.files.input_files import check_regular, most_unpacked, opened, reading, too_large
from daydream.handles.builder import layer_path, operator_name, source_line
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.handle_map import LONGEST_TEXT, DebugHandleMap, Handle, Identifier
from daydream.trace.schema import LONGEST_NS, UNKNOWN

CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")
STAGES = ("Method::", "Program::")
"""What the runtime names its own stages by; no kernel has two colons in its name."""


class Row(NamedTuple):
    """One interval: what ran, and what the map of debug handles knows it by (empty: nothing)."""

    name: str
    start_ns: int
    end_ns: int
    delegated: bool = False
    identifier: str = ""


def recording_of(
    rows: Sequence[Row],
    entries: Mapping[str, Sequence[Handle]],
    path: Path,
    notes: list[str],
    *,
    rule: str = "equal",
) -> Recording:
    """Return a recording of the rows, on one thread, with the handles of those that have an entry.

    `rule` is how the time of a row is shared over its handles; `notes` gets sentences.

    Raises `TraceError` if there are none, or their times make no sense.
    """
    for row in rows:
        if row.end_ns < row.start_ns:
            raise TraceError(
                f"{path}: {row.name[:60]!r} ends before it starts ({row.end_ns:,} after {row.start_ns:,}); "
                "its clock wrapped around, or the file is damaged. Record it again."
            )
    rows = _on_one_clock(rows, notes)
    if not rows:
        raise TraceError(
            f"{path} holds no profiling event; run the program with enable_etdump=True."
        )
    rows = sorted(rows, key=lambda row: (row.start_ns, -row.end_ns, _depth(row)))
    origin = rows[0].start_ns
    if max(row.end_ns for row in rows) - origin > LONGEST_NS:
        raise TraceError(
            f"{path}: its times lie more than 13 days apart; they are not nanoseconds of one clock."
        )
    builder = RowBuilder()
    kinds = ["annotation" if row.name.startswith(STAGES) else "operator" for row in rows]
    nowhere = np.zeros(len(rows), np.int64)
    unknown = [row for row in rows if row.delegated and row.identifier not in entries]
    used = _handles_of(rows, entries, unknown)
    places = {
        identifier: place for place, identifier in enumerate(dict.fromkeys(filter(None, used)))
    }
    builder.add(
        builder.coded("kind", kinds),
        np.array([row.start_ns - origin for row in rows], np.int64),
        np.array([row.end_ns - origin for row in rows], np.int64),
        name=builder.coded("name", [row.name for row in rows]),
        pid=nowhere,
        tid=nowhere,
        handle=np.array([places.get(identifier, UNKNOWN) for identifier in used]),
    )
    recording = builder.recording(path, "", vendor="cpu", origin_ns=min(origin, 2**62), notes=notes)
    if places:
        kept: dict[Identifier, Sequence[Handle]] = {each: entries[each] for each in places}
        recording.handles = DebugHandleMap(kept, rule=rule)
    if unknown:
        names = len({row.name for row in unknown})
        recording.note(
            f"{counted(len(unknown), 'row')} of delegates ({counted(names, 'name')}) without debug handles: "
            "their operators have the delegate's names, and their layers are unknown."
        )
    return recording


def _on_one_clock(rows: Sequence[Row], notes: list[str]) -> Sequence[Row]:
    """Return the rows without those of a delegate whose clock is another than the runtime's."""
    calls = sorted((row.start_ns, row.end_ns) for row in rows if row.name == "DELEGATE_CALL")
    if not calls:
        return rows
    starts, ends = np.array(calls, dtype=object).T  # up to 64 bits, as the file has them
    kept = []
    for row in rows:
        at = int(np.searchsorted(starts, row.start_ns, side="right")) - 1
        if not row.delegated or (at >= 0 and row.start_ns <= ends[at]):
            kept.append(row)
    if left_out := len(rows) - len(kept):
        notes.append(
            f"{counted(left_out, 'row')} of delegates outside every DELEGATE_CALL, as where a delegate "
            "counts cycles of its own: left out, and their time stays with the call."
        )
    return kept


def _handles_of(
    rows: Sequence[Row], entries: Mapping[str, Sequence[Handle]], unknown: Sequence[Row]
) -> list[str]:
    """Return what each row is known by in the map, empty where it has no handles.

    A `DELEGATE_CALL` of several operators whose delegate says what it ran, but not of which operators, has no
    handles: its operators would be taken for those of each row in it.
    """
    starts = np.array([row.start_ns for row in unknown], dtype=object)
    found = []
    for row in rows:
        first, last = np.searchsorted(starts, [row.start_ns, row.end_ns])
        hidden = row.name in CALLS and first < last
        found.append(row.identifier if row.identifier in entries and not hidden else "")
    return found


def _depth(row: Row) -> int:
    """Return how deep a row stands among those that begin and end with it."""
    return 0 if row.name.startswith(STAGES) else 1 if row.name in CALLS else 2


NEEDED = ("event_name", "raw", "start_time")
KNOWN = (
    COLUMN,
    *NEEDED,
    "op_types",
    "stack_traces",
    "module_hierarchy",
    "is_delegated_op",
)
UNIT = regex(r"avg \((.*)\)")
NS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
LARGEST = 2**63
NODE = regex(r"(_\d+)?_*")
"""What stands behind the operator in a node's name: `aten_relu_default_1_`."""


def read_inspector(path: Path, options: Options) -> list[Recording]:
    """Return the recording in a table of Inspector. Raises `TraceError` if it is none."""
    check_regular(path)
    with path.open("rb") as file:
        parquet = file.read(4) == b"PAR1"
    records = (_of_parquet if parquet else _of_json)(
        path, most_unpacked(path, options.max_unpacked)
    )
    if not records:
        raise TraceError(
            f"{path} is a table of Inspector without a row; run the program with enable_etdump=True."
        )
    missing = [name for name in NEEDED if any(name not in record for record in records)]
    if missing:
        raise TraceError(
            f"{path} is a table of Inspector without the column {missing[0]!r}; save all of to_dataframe(), "
            "of an ExecuTorch that has it."
        )
    unit_ns = _unit_ns(records[0], path)
    rows: list[Row] = []
    entries: dict[str, list[Handle]] = {}
    for number, record in enumerate(records):
        name = plain_text(record["event_name"] if isinstance(record["event_name"], str) else "")
        identifier = ""
        if not name.startswith(STAGES) and (handles := _handles(record, name)):
            identifier = str(number)
            entries[identifier] = handles
        delegated = record.get("is_delegated_op") is True
        for start, duration in _times(record, number, path):
            end = start + round(duration * unit_ns)
            rows.append(Row(name[:LONGEST_TEXT] or "unnamed", start, end, delegated, identifier))
    return [recording_of(rows, entries, path, [])]


def _unit_ns(record: Mapping[str, Any], path: Path) -> int:
    found = [match.group(1) for match in map(UNIT.fullmatch, record) if match]
    if not found:
        raise TraceError(
            f"{path} does not say the unit of its times; save to_dataframe(include_units=True)."
        )
    if found[0] not in NS:
        raise TraceError(
            f"{path}: its times are in {found[0][:20]!r}; {', '.join(NS)} were needed. Cycles are no time "
            "without the frequency of their clock: give Inspector source_time_scale and target_time_scale."
        )
    return NS[found[0]]


def _times(record: Mapping[str, Any], number: int, path: Path) -> Iterator[tuple[int, float]]:
    """Yield when an event began, in ns, and how long it took, in each run; `TraceError` if they are odd."""
    raw = record["raw"]
    start = record["start_time"]
    if raw is None and start is None:  # no event of time: a tensor that was kept
        return
    both = isinstance(raw, list) and isinstance(start, list) and len(raw) == len(start)
    if not both:
        raise TraceError(f"{path}: row {number} does not have one start_time for each time in raw.")
    for begin, duration in zip(start, raw, strict=True):
        right = _is_number(begin) and _is_number(duration)
        if not right or begin < 0 or duration < 0 or begin != int(begin):
            raise TraceError(
                f"{path}: row {number} has the time {str(duration)[:30]} from {str(begin)[:30]}; numbers of "
                "0 or more were needed."
            )
        yield int(begin), duration


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST < value < LARGEST


def _handles(record: Mapping[str, Any], name: str) -> list[Handle]:
    """Return the operators of an event: one a node, and the kernel's own where the event's name tells it."""
    modules = _known(record.get("module_hierarchy"))
    stacks = _known(record.get("stack_traces"))
    types = record.get("op_types")
    types = [each for each in types if isinstance(each, str)] if isinstance(types, list) else []
    handles = [
        Handle(
            _operator(node, types),
            layer=_layer(modules.get(node)),
            source=source_line(str(stacks.get(node, ""))),
        )
        for node in dict.fromkeys([*modules, *stacks])
        if node
    ]
    return of_kernel(handles, name)


def _known(value: Any) -> dict[str, Any]:
    """Return a struct without the fields that only other rows have."""
    return (
        {key: each for key, each in value.items() if each is not None}
        if isinstance(value, dict)
        else {}
    )


def _operator(node: str, types: Sequence[str]) -> str:
    """Return a node's operator: that of the row's types which its name begins with, else its name."""
    for each in types:
        stem = each.replace(".", "_")
        if node.startswith(stem) and NODE.fullmatch(node[len(stem) :]):
            return operator_name(each)[:LONGEST_TEXT]
    return node.strip("_")[:LONGEST_TEXT] or "unknown"


def _layer(modules: Any) -> str:
    """Return the path of the innermost module: the last of `{key: [path, type]}`."""
    last = list(_known(modules).values())[-1:]
    path = last[0][0] if last and isinstance(last[0], list) and last[0] else ""
    return layer_path(path)[:LONGEST_TEXT] if isinstance(path, str) else ""


def _of_json(path: Path, most: int) -> list[dict[str, Any]]:
    """Return the records of a JSON table, which pandas writes as a list, one a line, or a column each."""
    with opened(path, most) as (file, _, _):
        text = file.read()
    try:
        lines = text.splitlines()
        one_a_line = (
            len(lines) > 1 and lines[0].startswith(b"{") and lines[0].rstrip().endswith(b"}")
        )
        found = (
            [json.loads(line) for line in lines if line.strip()] if one_a_line else json.loads(text)
        )
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path} is no readable JSON ({str(error)[:100]}); save the table again."
        ) from None
    if isinstance(found, dict) and isinstance(found.get(COLUMN), dict):
        rows = list(found[COLUMN])
        columns = {name: each for name, each in found.items() if isinstance(each, dict)}
        found = [{name: each.get(row) for name, each in columns.items()} for row in rows]
    elif isinstance(found, dict) and COLUMN in found:
        found = [found]
    if not isinstance(found, list) or not all(
        isinstance(each, dict) and COLUMN in each for each in found
    ):
        raise TraceError(
            f"{path} is a table of Inspector in an unknown order; save it with orient='records'."
        )
    return found


def _of_parquet(path: Path, most: int) -> list[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            groups = [
                file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)
            ]
            size = sum(group.total_byte_size for group in groups)
            if size > most:
                raise TraceError(too_large(path, f"{size:,}", most))
            wanted = [
                name for name in file.schema_arrow.names if name in KNOWN or UNIT.fullmatch(name)
            ]
            records: list[dict[str, Any]] = file.read(wanted, use_threads=False).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TraceError(
            f"{path} is not a readable parquet file ({str(error).splitlines()[0][:100]})."
        ) from None
    return records


LONGEST_NAME = 4_096


TEXT = ""
PROFILED = {
    0: ("name", TEXT),
    2: ("instruction", "i"),
    3: ("number", "i"),
    4: ("text", TEXT),
    6: ("start", "Q"),
    7: ("end", "Q"),
}
RUN = {3: ("events", [{0: ("profiled", PROFILED)}])}
DUMP = {1: ("runs", [RUN])}
"""Tables of `etdump_schema_flatcc.fbs`: what each field is, by its number: a number of a `struct` code, a
text, a table (a dictionary) or tables (a list of one)."""


class _Buffer:
    """The bytes of a FlatBuffers file; what is read beyond their end raises `TraceError`."""

    def __init__(self, data: bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.tables = 0
        self._texts: dict[int, str] = {}

    def number(self, code: str, at: int) -> int:
        """Return the little-endian number that lies at a place."""
        if not 0 <= at <= len(self.data) - struct.calcsize("<" + code):
            raise self.damaged()
        found: int = struct.unpack_from("<" + code, self.data, at)[0]
        return found

    def text(self, at: int) -> str:
        """Return the text whose length lies at a place, cut where it is longer than any name."""
        if at not in self._texts:  # names are shared by the events that have them
            size = self.number("I", at)
            if at + 4 + size > len(self.data):
                raise self.damaged()
            part = self.data[at + 4 : at + 4 + min(size, LONGEST_NAME)]
            self._texts[at] = part.decode(errors="replace")
        return self._texts[at]

    def table(self, at: int, schema: Mapping[int, tuple[str, Any]]) -> dict[str, Any]:
        """Return the fields of a table that it has, by their names."""
        slots = at - self.number("i", at)
        size = self.number("H", slots)
        found: dict[str, Any] = {}
        for field, (name, kind) in schema.items():
            slot = 4 + 2 * field
            offset = self.number("H", slots + slot) if slot + 2 <= size else 0
            if not offset:
                continue
            place = at + offset
            if isinstance(kind, str) and kind:
                found[name] = self.number(kind, place)
                continue
            place += self.number("I", place)
            if isinstance(kind, list):
                count = self.number("I", place)
                self.tables += count
                if place + 4 + 4 * count > len(self.data) or self.tables * SMALLEST > len(
                    self.data
                ):
                    raise self.damaged()  # or vectors overlap
                places = range(place + 4, place + 4 + 4 * count, 4)
                found[name] = [self.table(one + self.number("I", one), kind[0]) for one in places]
            else:
                found[name] = self.table(place, kind) if kind else self.text(place)
        return found

    def damaged(self) -> TraceError:
        """Return the error of a file whose places do not lead where they should."""
        return TraceError(
            f"{self.path} is cut off or damaged: it points beyond its end. Record it again."
        )


SMALLEST = 8  # bytes of a run or an event


class ProfileEvent(NamedTuple):
    """An interval as the runtime logged it; what is unset is -1 or empty."""

    name: str = ""
    instruction: int = -1
    number: int = -1  # what a delegate calls its part, or
    text: str = ""
    start: int = 0
    end: int = 0

    @property
    def delegate(self) -> int | str:
        """What the delegate that logged it calls its part; -1 or empty where none logged it."""
        return self.number if self.number != -1 else self.text

    @property
    def row(self) -> Row:
        """The row of a trace: named by what the delegate says, as Inspector does, else by the event's name."""
        delegated = self.delegate not in (-1, "")
        identifier = "" if self.instruction < 0 else str(self.instruction)
        if self.name.startswith(STAGES):  # which are logged with any instruction
            identifier = ""
        elif delegated and identifier:
            identifier += f":{self.delegate}"
        name = str(self.delegate) if delegated else self.name or "unnamed"
        return Row(name, self.start, self.end, delegated, identifier)


def read_events(path: Path) -> list[ProfileEvent]:
    """Return the profiling events of an ETDump, run by run. Raises `TraceError` if it is none, or damaged."""
    with reading(path):
        data = path.read_bytes()
    if not is_etdump(data[:12]):
        raise TraceError(
            f"{path} is no ETDump: it has no mark of the schema ED00. Give what write_etdump wrote."
        )
    if data[8:12] == ETDUMP_MAGIC:
        size = int.from_bytes(data[:4], "little")
        if size > len(data) - 4:
            raise TraceError(
                f"{path} is cut off: it has {len(data) - 4:,} of {size:,} bytes. Copy or record it again."
            )
        data = data[4 : 4 + size]
    buffer = _Buffer(data, path)
    runs = buffer.table(buffer.number("I", 0), DUMP).get("runs", ())
    events = [event for run in runs for event in run.get("events", ())]
    return [ProfileEvent(**event["profiled"]) for event in events if "profiled" in event]


NO_RECORD = (
    "No ETRecord was given: operators have the runtime's names, and layers are unknown. Give the program's "
    "with --etrecord."
)
NANOSECONDS = (
    "The times of an ETDump have no unit; they were taken for nanoseconds, which is what ExecuTorch's clock "
    "on Linux, macOS and Android counts."
)


def read_executorch(path: Path, options: Options) -> list[Recording]:
    """Return the recording of an ETDump. Raises `TraceError` if one of the two files is not usable."""
    events = read_events(path)
    rows = [event.row for event in events]
    notes = [NANOSECONDS]
    entries: dict[str, list[Handle]] = {}
    if options.etrecord is None:
        notes.append(NO_RECORD)
    else:
        record = read_etrecord(options.etrecord, max_unpacked=options.max_unpacked)
        kernels = {}
        # `OPERATOR_CALL` and the kernel within share an instruction; the kernel's name tells more.
        pairs = zip(events, rows, strict=True)
        for event, row in sorted(pairs, key=lambda pair: not pair[0].name.startswith(KERNEL)):
            if event.name.startswith(KERNEL):
                kernels[row.identifier] = event.name
            if row.identifier and row.identifier not in entries:
                handles = record.handles(event.instruction, event.delegate, event.name)
                if handles:
                    entries[row.identifier] = handles
        right = sum(
            any(is_kernel(handle, kernel) for handle in entries.get(identifier, ()))
            for identifier, kernel in kernels.items()
        )
        if not entries or 2 * right < len(kernels):  # as where it is another program's
            are = "is" if len(kernels) == 1 else "are"
            notes.append(
                f"Only {right} of {counted(len(kernels), 'kernel')} {are} among the operators of their debug "
                f"handles in {plain_text(options.etrecord.name)}: give the ETRecord of this program."
            )
    return [recording_of(rows, entries, path, notes, rule="bytes")]
