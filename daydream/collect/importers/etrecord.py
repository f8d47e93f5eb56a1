"""ETRecord: what ExecuTorch compiled, a ZIP file. Its maps and its graph are JSON; the weights are not read."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from daydream.collect.importers.row_builder import parts_of
from daydream.errors import TraceError
from daydream.files.input_files import check_regular, most_unpacked
from daydream.handles.builder import layer_path, operator_name, source_line
from daydream.trace.handle_map import LONGEST_TEXT, Handle
from daydream.trace.schema import LARGEST_AMOUNT

KERNEL = "native_call_"  # stands before the kernel's name


def is_kernel(handle: Handle, name: str) -> bool:
    """Return whether a handle is of the operator in a kernel's name: `addmm` of `native_call_addmm.out`."""
    kernel = name.removeprefix(KERNEL).partition(".")[0]
    return handle.operator.rpartition("::")[2] == kernel


def of_kernel(handles: Sequence[Handle], name: str) -> list[Handle]:
    """Return of an event's operators the one whose kernel it is, all if it is none of theirs.

    An instruction stands for all operators of its debug handles, as Inspector says; a linear layer becomes a
    transposition and a product, of one debug handle.
    """
    return [one for one in handles if is_kernel(one, name)] or list(handles)


ITEM_BYTES = (None, 1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 2, 2, 1, 1)
"""Of an element, by the number that torch.export gives its type: unknown, byte, char, short, int, ..."""


class _Named(msgspec.Struct):
    name: str = ""


class _Argument(msgspec.Struct):
    """What a node reads or writes, as far as it is tensors."""

    as_tensor: _Named | None = None
    as_tensors: list[_Named] | None = None


class _Input(msgspec.Struct):
    arg: _Argument


class _Node(msgspec.Struct):
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


class _Graph(msgspec.Struct):
    """The calls in their order, and the sizes of the tensors between them."""

    nodes: list[_Node]
    tensor_values: dict[str, _Tensor] = {}

    def moved_bytes(self, node: _Node) -> int:
        """Return the bytes of what a node reads and writes, 0 where those of one tensor are not known."""
        arguments = [*(each.arg for each in node.inputs), *node.outputs]
        tensors = [
            [*(each.as_tensors or []), *filter(None, [each.as_tensor])] for each in arguments
        ]
        total = 0
        for name in {one.name for several in tensors for one in several}:
            tensor = self.tensor_values.get(name, _Tensor(0, []))
            sizes = [one.as_int for one in tensor.sizes]
            item = ITEM_BYTES[tensor.dtype] if 0 <= tensor.dtype < len(ITEM_BYTES) else None
            if item is None or any(size is None or size < 0 for size in sizes):
                return 0
            total += math.prod(filter(None, sizes)) * item if 0 not in sizes else 0
            if total > LARGEST_AMOUNT:
                return 0
        return total


class _Module(msgspec.Struct):
    graph: _Graph


class _Program(msgspec.Struct):
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


class ETRecord(NamedTuple):
    """Debug handles by instruction, and by what a delegate calls its parts; the operators of each handle."""

    instructions: Mapping[str, int | list[int]]
    delegates: Mapping[str, _Delegate]
    operators: Mapping[int, list[Handle]]

    def handles(self, instruction: int, delegate: int | str, name: str) -> list[Handle]:
        """Return the operators that an event is the work of; none where the record does not tell."""
        key = str(instruction)
        found = self.instructions.get(key)
        if delegate not in (-1, "") and key in self.delegates:
            known = self.delegates[key].delegate_map or {}
            text = str(delegate)
            # Delegates add to what they were given, as a number of the call: the longest that is part of it.
            within = max((one for one in known if one and one in text), key=len, default="")
            found = known.get(text, known.get(within))
        numbers = [found] if isinstance(found, int) else found or []
        several = [one for each in dict.fromkeys(numbers) for one in self.operators.get(each, [])]
        return of_kernel(several, name)


def read_etrecord(path: Path, *, max_unpacked: int | None = None) -> ETRecord:
    """Return the maps of an ETRecord. Raises `TraceError` if the file is none, or damaged."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as record:
            names = record.namelist()
            if IDENTIFIER not in names:
                raise TraceError(
                    f"{path} is no ETRecord: it lacks the mark {IDENTIFIER}. Give what save() wrote."
                )
            read = partial(_member, record, path, most_unpacked(path, max_unpacked))
            maps = (
                read("debug_handle_map", dict[str, dict[str, int | list[int]]]) or {},
                read("delegate_map", dict[str, dict[str, _Delegate]]) or {},
            )
            name = f"{GRAPH}/{FORWARD}"
            program = read(name if name in names else GRAPH, _Program)
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
    graph = _Graph([]) if program is None else program.graph_module.graph
    for node in graph.nodes:
        number = node.noted.get("debug_handle", "")
        if number.isascii() and number.isdigit() and len(number) < 19:
            handle = Handle(
                operator_name(node.target.removeprefix(OPERATOR)) or "unknown",
                layer=layer_path(innermost(node.noted.get("nn_module_stack", "")))[:LONGEST_TEXT],
                source=source_line(node.noted.get("stack_trace", "")),
                weight=graph.moved_bytes(node),
            )
            operators.setdefault(int(number), []).append(handle)
    instructions, delegates = (_of_method(each, path) for each in maps)
    return ETRecord(instructions, delegates, operators)


def _member(
    record: zipfile.ZipFile, path: Path, most: int, name: str, kind: type[Found]
) -> Found | None:
    """Return a JSON file of a record, None if it has none of that name."""
    if name not in record.namelist():
        return None
    with record.open(name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TraceError(f"{path}: {name} unpacks to more than {most:,} bytes; see --max-unpacked.")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TraceError(f"{path}: {name} is not as ExecuTorch writes it ({error}).") from None


def _of_method(methods: Mapping[str, dict[str, Any]], path: Path) -> dict[str, Any]:
    """Return the map of the method `forward`, or of the only one; ETDump does not name methods."""
    if FORWARD not in methods and len(methods) > 1:
        raise TraceError(
            f"{path} is of {len(methods)} methods, none of them {FORWARD!r}; an ETDump does not "
            "say which one ran. Export the method alone."
        )
    return methods.get(FORWARD, next(iter(methods.values()), {}))


def innermost(stack: str) -> str:
    """Return the path of the last module of a stack as torch.export has it: `key,path,type;key,path,type`."""
    return [*parts_of(stack.rpartition(";")[2], ","), ""][1]
