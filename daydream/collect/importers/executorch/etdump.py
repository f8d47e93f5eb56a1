"""ETDump (`.etdp`): what ExecuTorch's runtime logged, a FlatBuffers file of schema ED00.

Tables of a FlatBuffers file that need no generated code: fields by their number, every place checked.

ETRecord: a ZIP file of what was compiled. Its maps and its graph are JSON; the weights are not read.

What is read of an exported program: its calls of operators, where they came from, and their bytes.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.executorch.inspector import (
    KERNEL,
    STAGES,
    Row,
    is_kernel,
    kernel_of,
    of_kernel,
    recording_of,
)
from daydream.collect.importers.formats import ETDUMP_MAGIC, Options, is_etdump
from daydream.collect.importers.row_builder import plain_text
from daydream.errors import TraceError
from daydream.files.input_files import check_regular, most_unpacked, reading
from daydream.handles.builder import layer_path, operator_name, source_line
from daydream.text import counted
from daydream.trace.handle_map import LONGEST_TEXT, Handle
from daydream.trace.valid import LARGEST_AMOUNT

ITEM_BYTES = (None, 1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 2, 2, 1, 1)
"""Of an element, by the number that torch.export gives its type: unknown, byte, char, short, int, ..."""


class _Named(msgspec.Struct):
    name: str = ""


class _Argument(msgspec.Struct):
    """What a node reads or writes, as far as it is tensors."""

    as_tensor: _Named | None = None
    as_tensors: list[_Named] | None = None

    @property
    def names(self) -> list[str]:
        return [
            one.name
            for one in [*(self.as_tensors or []), *([self.as_tensor] if self.as_tensor else [])]
        ]


class _Input(msgspec.Struct):
    arg: _Argument


class Node(msgspec.Struct):
    """A call of an operator, and what was noted of it."""

    target: str
    noted: dict[str, str] = msgspec.field(name="metadata", default_factory=dict)
    inputs: list[_Input] = []
    outputs: list[_Argument] = []


class _Size(msgspec.Struct):
    as_int: int | None = None


class _Tensor(msgspec.Struct):
    dtype: int
    sizes: list[_Size]

    @property
    def bytes(self) -> int | None:
        """How many bytes it has, None where a size or the type is not known."""
        sizes = [one.as_int for one in self.sizes]
        known = [size for size in sizes if size is not None and size >= 0]
        item = ITEM_BYTES[self.dtype] if 0 <= self.dtype < len(ITEM_BYTES) else None
        if item is None or len(known) < len(sizes):
            return None
        nbytes = math.prod(known) * item
        return nbytes if nbytes <= LARGEST_AMOUNT else None


class Graph(msgspec.Struct):
    """The calls in their order, and the sizes of the tensors between them."""

    nodes: list[Node]
    tensor_values: dict[str, _Tensor] = {}

    def moved_bytes(self, node: Node) -> int:
        """Return the bytes of what a node reads and writes, 0 where those of one tensor are not known."""
        arguments = [*(each.arg for each in node.inputs), *node.outputs]
        names = dict.fromkeys(name for each in arguments for name in each.names)
        tensors = [self.tensor_values.get(name) for name in names]
        found = [None if each is None else each.bytes for each in tensors]
        return 0 if None in found else sum(each for each in found if each is not None)


class _Module(msgspec.Struct):
    graph: Graph


class Program(msgspec.Struct):
    """A program as torch.export writes it; fields that are not named here are passed over."""

    graph_module: _Module


IDENTIFIER = "ETRECORD_V0"
GRAPH = "edge_dialect_exported_program"
FORWARD = "forward"
OPERATOR = "executorch.exir.dialects.edge.ops."
Found = TypeVar("Found")


class _Delegate(msgspec.Struct):
    name: str = ""
    delegate_map: dict[str, int | list[int]] | None = None


@dataclass(frozen=True)
class ETRecord:
    """Debug handles by instruction, and by what a delegate calls its parts; the operators of each handle."""

    instructions: Mapping[str, int | list[int]]
    delegates: Mapping[str, _Delegate]
    operators: Mapping[int, list[Handle]]

    def handles(self, instruction: int, delegate: int | str, name: str) -> list[Handle]:
        """Return the operators that an event is the work of; none where the record does not tell."""
        key = str(instruction)
        found = (
            self.instructions.get(key) if delegate in (-1, "") else self._delegated(key, delegate)
        )
        numbers = [found] if isinstance(found, int) else found or []
        several = [
            one for number in dict.fromkeys(numbers) for one in self.operators.get(number, [])
        ]
        return of_kernel(several, name)

    def _delegated(self, key: str, delegate: int | str) -> int | list[int] | None:
        if key not in self.delegates:
            return self.instructions.get(key)
        known = self.delegates[key].delegate_map or {}
        text = str(delegate)
        # Delegates add to what they were given, as a number of the call: the longest that is part of it.
        within = max((one for one in known if one and one in text), key=len, default="")
        return known.get(text, known.get(within))


def read_etrecord(path: Path, *, max_unpacked: int | None = None) -> ETRecord:
    """Return the maps of an ETRecord. Raises `TraceError` if the file is none, or damaged."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as record:
            files = _Files(record, path, max_unpacked)
            if IDENTIFIER not in files.names:
                raise TraceError(
                    f"{path} is no ETRecord: it lacks the mark {IDENTIFIER}. Give what save() wrote."
                )
            instructions = files.method("debug_handle_map", dict[str, dict[str, int | list[int]]])
            delegates = files.method("delegate_map", dict[str, dict[str, _Delegate]])
            name = f"{GRAPH}/{FORWARD}"
            program = files.decoded(name if name in files.names else GRAPH, Program)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (
        OSError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        raise TraceError(
            f"{path} is no readable ETRecord ({str(error)[:100] or 'damaged'})."
        ) from None
    operators: dict[int, list[Handle]] = {}
    graph = Graph([]) if program is None else program.graph_module.graph
    for node in graph.nodes:
        number = node.noted.get("debug_handle", "")
        if number.isascii() and number.isdigit() and len(number) < 19:
            operators.setdefault(int(number), []).append(_handle(node, graph.moved_bytes(node)))
    return ETRecord(instructions, delegates, operators)


class _Files:
    """The JSON files of a record."""

    def __init__(self, record: zipfile.ZipFile, path: Path, max_unpacked: int | None) -> None:
        self.names = set(record.namelist())
        self._record = record
        self._path = path
        self._most = most_unpacked(path, max_unpacked)

    def decoded(self, name: str, kind: type[Found]) -> Found | None:
        """Return a file of the record, None if it has none of that name."""
        if name not in self.names:
            return None
        with self._record.open(name) as file:
            content = file.read(self._most + 1)
        if len(content) > self._most:
            raise TraceError(
                f"{self._path}: {name} unpacks to more than {self._most:,} bytes; see --max-unpacked."
            )
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise TraceError(
                f"{self._path}: {name} is not as ExecuTorch writes it ({error})."
            ) from None

    def method(self, name: str, kind: type[dict[str, dict[str, Any]]]) -> dict[str, Any]:
        """Return the map of the method `forward`, or of the only one; ETDump does not name methods."""
        of_methods = self.decoded(name, kind) or {}
        if FORWARD in of_methods:
            return of_methods[FORWARD]
        if len(of_methods) > 1:
            raise TraceError(
                f"{self._path} is of {len(of_methods)} methods, none of them {FORWARD!r}; an ETDump does not "
                "say which one ran. Export the method alone."
            )
        return next(iter(of_methods.values()), {})


def _handle(node: Node, moved_bytes: int) -> Handle:
    target = node.target.removeprefix(OPERATOR)
    return Handle(
        operator_name(target) or "unknown",
        layer=layer_path(innermost(node.noted.get("nn_module_stack", "")))[:LONGEST_TEXT],
        source=source_line(node.noted.get("stack_trace", "")),
        weight=moved_bytes,
    )


def innermost(stack: str) -> str:
    """Return the path of the last module of a stack as torch.export has it: `key,path,type;key,path,type`."""
    parts = [""]
    depth = 0
    for letter in stack.rpartition(";")[2]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts[1] if len(parts) > 1 else ""


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


@dataclass(frozen=True)
class ProfileEvent:
    """An interval as the runtime logged it; what is unset is -1 or empty."""

    name: str = ""
    instruction: int = -1
    number: int = -1  # what a delegate calls its part, or
    text: str = ""
    start: int = 0
    end: int = 0

    @property
    def delegate(self) -> int | str:
        """What the delegate that logged it calls its part."""
        return self.number if self.number != -1 else self.text

    @property
    def delegated(self) -> bool:
        """Whether a delegate logged it."""
        return self.delegate not in (-1, "")


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
    notes = [NANOSECONDS]
    entries: dict[str, list[Handle]] = {}
    etrecord = options.etrecord
    if etrecord is None:
        notes.append(NO_RECORD)
    else:
        record = read_etrecord(etrecord, max_unpacked=options.max_unpacked)
        # `OPERATOR_CALL` and the kernel within share an instruction; the kernel's name tells more.
        for event in sorted(events, key=lambda event: not event.name.startswith(KERNEL)):
            identifier = _identifier(event)
            if identifier and identifier not in entries:
                handles = record.handles(event.instruction, event.delegate, event.name)
                if handles:
                    entries[identifier] = handles
        notes += _doubts(events, entries, etrecord)
    rows = [
        Row(_name(event), event.start, event.end, event.delegated, _identifier(event))
        for event in events
    ]
    return [recording_of(rows, entries, path, notes, rule="bytes")]


def _doubts(
    events: Sequence[ProfileEvent], entries: Mapping[str, list[Handle]], etrecord: Path
) -> list[str]:
    """Say it if most kernels are none of the record's operators, as where it is another program's."""
    kernels = {
        _identifier(event): kernel_of(event.name)
        for event in events
        if event.name.startswith(KERNEL)
    }
    right = sum(
        any(is_kernel(handle, kernel) for handle in entries.get(identifier, ()))
        for identifier, kernel in kernels.items()
    )
    if entries and 2 * right >= len(kernels):
        return []
    are = "is" if len(kernels) == 1 else "are"
    said = f"Only {right} of {counted(len(kernels), 'kernel')} {are} among the operators of their debug handles"
    return [f"{said} in {plain_text(etrecord.name)}: give the ETRecord of this program."]


def _identifier(event: ProfileEvent) -> str:
    """Return what the map knows an event by: its instruction, and what the delegate calls its part."""
    if event.instruction < 0 or event.name.startswith(
        STAGES
    ):  # which are logged with any instruction
        return ""
    return f"{event.instruction}:{event.delegate}" if event.delegated else str(event.instruction)


def _name(event: ProfileEvent) -> str:
    """Return the name of a row: what the delegate says, as Inspector does; else the event's."""
    return str(event.delegate) if event.delegated else event.name or "unnamed"
