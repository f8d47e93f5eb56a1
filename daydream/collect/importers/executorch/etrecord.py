"""ETRecord: a ZIP file of what was compiled. Its maps and its graph are JSON; the weights are not read."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from daydream.collect.importers.executorch.program import Graph, Node, Program
from daydream.collect.importers.executorch.rows import of_kernel
from daydream.errors import TraceError
from daydream.files.input_files import check_regular, most_unpacked
from daydream.handles.nodes import layer_path, operator_name, source_line
from daydream.trace.handle_map import LONGEST_TEXT, Handle

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
        found = self.instructions.get(key) if delegate in (-1, "") else self._delegated(key, delegate)
        numbers = [found] if isinstance(found, int) else found or []
        several = [one for number in dict.fromkeys(numbers) for one in self.operators.get(number, [])]
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
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise TraceError(f"{path} is no readable ETRecord ({str(error)[:100] or 'damaged'}).") from None
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
            raise TraceError(f"{self._path}: {name} is not as ExecuTorch writes it ({error}).") from None

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
