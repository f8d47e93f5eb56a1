"""What Inductor's graphs of this process came from: kept as they are compiled or read from a cache.

Asked for before the script compiles, so that nothing is compiled twice. A graph is described while it is
compiled, when its nodes are there, and the description goes into Inductor's caches with it. A graph
that another program compiled with provenance has none: its operators are read from the kernels' names.
"""

from __future__ import annotations

from typing import Any

from daydream.collect.derive.compiled_calls import CompiledGraph
from daydream.collect.derive.kernel_names import operators_of_kernel
from daydream.collect.live.compilation import when_imported
from daydream.collect.live.torch_private import INDUCTOR, keep_provenance
from daydream.handles.nodes import handle_of
from daydream.trace.handle_map import Handle

_kept: list[tuple[str, dict[str, Any]]] = []
_lacking: list[bool] = []  # whether a torch was met that keeps nothing

LACKING = "This torch keeps no provenance of compiled kernels: they have no operators and layers."


def watch_provenance() -> None:
    """Have the provenance of all graphs kept that Inductor compiles from now on, without loading it."""
    when_imported(INDUCTOR, _begin)


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
    """Return operator, layer, source line and bytes of a node of a compiled graph, as JSON has them."""
    handle = handle_of(node)
    nbytes = bytes_of(getattr(node, "meta", {}).get("val"))
    nbytes += sum(bytes_of(getattr(one, "meta", {}).get("val")) for one in node.all_input_nodes)
    return [handle.operator, handle.layer, handle.source, nbytes]


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


def graph_of(key: str, document: dict[str, Any]) -> CompiledGraph:
    """Return a graph from what was kept of it, its kernel calls in order."""
    phase = "backward" if document.get("backward") else ""
    described, nodes = document["described"], document["nodes"]
    names, handles = [], []
    for name in document["order"]:
        found = [described[one] for one in nodes.get(name, []) if one in described]
        mine = [Handle(op, layer, source, phase, nbytes) for op, layer, source, nbytes in found]
        names.append(name)
        handles.append(tuple(mine) or tuple(Handle(op, phase=phase) for op in operators_of_kernel(name)))
    return CompiledGraph(key, tuple(names), tuple(handles))
