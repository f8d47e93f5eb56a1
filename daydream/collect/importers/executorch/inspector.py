"""Tables of ExecuTorch's Inspector (`to_dataframe`), saved as parquet or JSON, as a `Recording`.

A row of such a table is an event of the program, with its time in each run (`raw`, in the unit that other
columns have in their names) and when it began in each (`start_time`, in ns).

Rows of an ExecuTorch recording, whichever file they come from, as a `Recording`.

Rows overlap: `Method::execute` holds `OPERATOR_CALL` and `DELEGATE_CALL`, these hold what the kernel or the
delegate logged. They stand in one another as rows of a thread do, so that each keeps the time that
no row within it has, and all together last as long as `Method::execute`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.importers.formats import COLUMN, Options
from daydream.collect.importers.row_builder import plain_text
from daydream.errors import TraceError
from daydream.files.input_files import check_regular, most_unpacked, opened, too_large
from daydream.handles.builder import layer_path, operator_name, source_line
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.handle_map import LONGEST_TEXT, DebugHandleMap, Handle, Identifier
from daydream.trace.schema import UNKNOWN
from daydream.trace.valid import LONGEST_NS

CALLS = ("OPERATOR_CALL", "DELEGATE_CALL")
STAGES = ("Method::", "Program::")
"""What the runtime names its own stages by; no kernel has two colons in its name."""
KERNEL = "native_call_"  # stands before the kernel's name


@dataclass(frozen=True)
class Row:
    """One interval: what ran, and what the map of debug handles knows it by (empty: nothing)."""

    name: str
    start_ns: int
    end_ns: int
    delegated: bool = False
    identifier: str = ""


def kernel_of(name: str) -> str:
    """Return the operator in a kernel's name, without its overload: `addmm` of `native_call_addmm.out`."""
    return name.removeprefix(KERNEL).partition(".")[0]


def is_kernel(handle: Handle, kernel: str) -> bool:
    """Return whether a handle is of the operator that a kernel's name tells."""
    return handle.operator.rpartition("::")[2] == kernel


def of_kernel(handles: Sequence[Handle], name: str) -> list[Handle]:
    """Return of an event's operators the one whose kernel it is, all if it is none of theirs.

    An instruction stands for all operators of its debug handles, as Inspector says; a linear layer becomes a
    transposition and a product, of one debug handle.
    """
    return [one for one in handles if is_kernel(one, kernel_of(name))] or list(handles)


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
    names: dict[str, int] = {}
    columns = {
        "start_ns": np.array([row.start_ns - origin for row in rows], np.int64),
        "duration_ns": narrow(np.array([row.end_ns - row.start_ns for row in rows], np.int64)),
        "name": np.array([names.setdefault(row.name, len(names)) for row in rows], np.int32),
        "kind": np.array([not row.name.startswith(STAGES) for row in rows], np.int8),
        "pid": np.zeros(len(rows), np.int64),
        "tid": np.zeros(len(rows), np.int64),
    }
    metadata: dict[str, Any] = {
        "source": plain_text(path.name),
        "vendor": "cpu",
        "origin_ns": min(origin, 2**62),
        "notes": notes,
    }
    recording = Recording(
        columns, {"name": list(names), "kind": ["annotation", "operator"]}, metadata
    )
    _add_handles(recording, rows, entries, rule)
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


def _add_handles(
    recording: Recording, rows: Sequence[Row], entries: Mapping[str, Sequence[Handle]], rule: str
) -> None:
    """Set the map of debug handles and each row's place in it, and note the rows of delegates without.

    A `DELEGATE_CALL` of several operators whose delegate says what it ran, but not of which operators, has no
    handles: its operators would be taken for those of each row in it.
    """
    unknown = [row for row in rows if row.delegated and row.identifier not in entries]
    starts = np.array([row.start_ns for row in unknown], dtype=object)
    used: dict[Identifier, Sequence[Handle]] = {}
    places: dict[str, int] = {}
    column = np.full(len(rows), UNKNOWN, np.int32)
    for index, row in enumerate(rows):
        if row.identifier not in entries:
            continue
        inside = np.searchsorted(starts, [row.start_ns, row.end_ns])
        if row.name in CALLS and inside[0] < inside[1]:
            continue
        column[index] = places.setdefault(row.identifier, len(places))
        used[row.identifier] = entries[row.identifier]
    if used:
        recording.columns["handle"] = column
        recording.handles = DebugHandleMap(used, rule=rule)
    if unknown:
        names = len({row.name for row in unknown})
        recording.note(
            f"{counted(len(unknown), 'row')} of delegates ({counted(names, 'name')}) without debug handles: "
            "their operators have the delegate's names, and their layers are unknown."
        )


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
