"""What Inductor's graphs of this process came from: kept as they are compiled or read from a cache.

Asked for before the script compiles, so that nothing is compiled twice. A graph is described while it is
compiled, when its nodes are there, and the description goes into Inductor's caches with it. A graph
that another program compiled with provenance has none: its operators are read from the kernels' names.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec.structs import replace

from daydream.collect.derive.compiled_calls import FUSED, CompiledGraph, plain_name
from daydream.collect.derive.device_names import operators_of_kernel
from daydream.collect.live.compilation import when_imported
from daydream.collect.live.torch_compiler import (
    DYNAMO_FRAMES,
    DYNAMO_GRAPHS,
    INDUCTOR,
    keep_provenance,
    on_graph_breaks,
    on_uncompiled_frames,
)
from daydream.handles.nodes import handle_of
from daydream.trace.handle_map import Handle
from daydream.trace.schema import Document

_kept: list[tuple[str, Document]] = []
_lacking: list[bool] = []  # whether a torch was met that keeps nothing

_breaks: list[Document] = []
_uncompiled: dict[str, Document] = {}  # by the function's source line
RESUMED = re.compile(r"^(?:torch_dynamo_resume_in_)+(\w+?)(?:_at_\d+)+$")
MOST_BREAKS = 1_000
LONGEST = 200
NO_WORK = -1
COPY = "aten::copy_"
UNSAFE_VIEW = "aten::_unsafe_view"  # a view, though its operator does not say so
LACKING = "This torch keeps no provenance of compiled kernels: they have no operators and layers."


def watch_provenance() -> None:
    """Have the provenance of all graphs kept that Inductor compiles from now on, without loading it."""
    when_imported(INDUCTOR, _begin)


def watch_graph_breaks() -> None:
    """Have place and reason of all graph breaks kept from now on, without loading the compiler.

    Of functions, too, that a graph break makes it leave uncompiled: one in a loop, say.
    """
    when_imported(DYNAMO_GRAPHS, lambda: on_graph_breaks(_keep_break))
    when_imported(DYNAMO_FRAMES, lambda: on_uncompiled_frames(_keep_uncompiled))


def _keep_break(region: str, reason: str, frame: Any) -> None:
    if len(_breaks) >= MOST_BREAKS or any(one["region"] == region for one in _breaks):
        return
    place = None if frame is None else _place(frame.filename, frame.lineno, frame.name)
    _breaks.append({"region": region, "reason": _first_line(reason), "source": place})


def _keep_uncompiled(error: Any, code: Any) -> None:
    source = _place(code.co_filename, code.co_firstlineno, code.co_name)
    if len(_uncompiled) >= MOST_BREAKS or source in _uncompiled:
        return
    stack = list(getattr(error, "real_stack", None) or [])
    at = _place(stack[-1].filename, stack[-1].lineno, stack[-1].name) if stack else None
    reason = _first_line(getattr(error, "msg", "") or error)
    sort = getattr(error, "gb_type", "")
    if sort and sort != reason:
        reason = f"{sort} ({reason})"[:LONGEST]
    _uncompiled[source] = {"source": source, "reason": reason, "at": at}


def _place(file: str, line: int, function: str) -> str:
    name = re.split(r"[/\\]", str(file))[-1]
    plain = RESUMED.sub(r"\1", str(function))
    return f"{name}({int(line)}): {plain}"[:LONGEST]


def _first_line(text: Any) -> str:
    return str(text).strip().partition("\n")[0][:LONGEST]


def graph_breaks() -> list[Document]:
    """Return region, reason and source line of the graph breaks so far; each compiled frame has one."""
    return list(_breaks)


def uncompiled_frames() -> list[Document]:
    """Return source line, reason and place of the reason of each function that was left uncompiled so far."""
    return list(_uncompiled.values())


def _begin() -> None:
    if not keep_provenance(describe, lambda key, document: _kept.append((str(key), document))):
        _lacking.append(True)


def notes() -> list[str]:
    """Return what is to be said where a torch was met that keeps nothing."""
    return [LACKING] if _lacking else []


def compiled_graphs() -> list[CompiledGraph]:
    """Return the graphs that were compiled, or read from a cache, so far."""
    return [graph_of(key, document) for key, document in _kept]


def describe(node: Any) -> list[Any]:
    """Return operator, layer, source line and bytes of a node of a compiled graph, as JSON has them.

    A view is no work: it only says how the others find their elements, and has NO_WORK for bytes. So has a
    constant of one element: of equal ones the compiler keeps the first, of whatever layer, and writes it into
    each kernel. A copy that writes back what a layer made, as batch norm's running statistics, belongs to
    that layer.
    """
    handle = handle_of(node)
    view = handle.operator == UNSAFE_VIEW or getattr(node.target, "is_view", False)
    if view or _is_constant(node):
        return [handle.operator, handle.layer, handle.source, NO_WORK]
    if handle.operator == COPY and not handle.layer:
        copied = [made for one in node.all_input_nodes if (made := handle_of(one)).layer]
        handle = replace(handle, layer=copied[-1].layer, source=copied[-1].source) if copied else handle
    nbytes = bytes_of(getattr(node, "meta", {}).get("val"))
    nbytes += sum(bytes_of(getattr(one, "meta", {}).get("val")) for one in node.all_input_nodes)
    return [handle.operator, handle.layer, handle.source, nbytes]


def _is_constant(node: Any) -> bool:
    """Return whether a node makes one element of nothing."""
    value: Any = getattr(node, "meta", {}).get("val")
    if node.all_input_nodes or not hasattr(value, "element_size"):
        return False
    return bytes_of(value) == int(value.element_size())


def bytes_of(value: Any) -> int:
    """Return the bytes of a tensor or of several; 0 of what has none, or whose sizes are not known."""
    if isinstance(value, list | tuple):
        return sum(bytes_of(each) for each in value)
    if not hasattr(value, "element_size"):
        return 0
    try:
        elements = 1
        for size in value.shape:
            elements *= _hint(size)
        return elements * int(value.element_size())
    except (RuntimeError, TypeError, ValueError):
        return 0


def _hint(size: Any) -> int:
    """Return a size as a number: of a dynamic one, what it was when the graph was compiled. Adds no guard."""
    symbol = getattr(size, "node", None)
    return int(size) if symbol is None else int(symbol.hint)


def graph_of(key: str, document: Document) -> CompiledGraph:
    """Return a graph from what was kept of it, its kernel calls in order."""
    phase = "backward" if document.get("backward") else ""
    described = document["described"]
    nodes = document["nodes"]
    order = document["order"]
    known = {name: [one for one in nodes.get(name, []) if one in described] for name in order}
    calls = {
        name: [one for one in known[name] if plain_name(described[one][0]) == plain_name(name)]
        for name in order
        if not FUSED.match(name)
    }
    called = {one for mine in calls.values() for one in mine}
    names = []
    handles = []
    for name in order:
        # A call of a library does its own operator alone, and nothing else does that one.
        own = calls.get(name) or [one for one in known[name] if one not in called] or known[name]
        found = [described[one] for one in own]
        work = [one for one in found if one[3] != NO_WORK] or found
        mine = [Handle(op, layer, source, phase, max(nbytes, 0)) for op, layer, source, nbytes in work]
        names.append(name)
        handles.append(tuple(mine) or tuple(Handle(op, phase=phase) for op in operators_of_kernel(name)))
    return CompiledGraph(key, tuple(names), tuple(handles))
