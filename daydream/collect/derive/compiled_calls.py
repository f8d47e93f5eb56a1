"""Which kernel call of a compiled graph is which: recorded calls against what the compiler kept.

A compiled graph is a list of kernel calls, made in the same order each time. A recorded call of it
holds operators and ranges in that order, so they are matched by order, with their names as a check.
One graph may be called for several layers, where the program breaks between them: its paths then
begin at the layer around the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
from msgspec.structs import replace

from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.handle_map import DebugHandleMap, Handle
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

CALL = regex(r"## Call CompiledFxGraph (\S+) ##")
FUSED = regex(r"(?:graph_\d+_)?((?:cpp|triton)_\w+)")
PLACE = regex(r":\d+$")


@dataclass(frozen=True)
class CompiledGraph:
    """A compiled graph: its key, its kernel calls' names in order, and the handles of each."""

    key: str
    names: tuple[str, ...]
    handles: tuple[tuple[Handle, ...], ...]


def attach_compiled(
    trace: Trace, graphs: Sequence[CompiledGraph], modules: Iterable[str] = ()
) -> None:
    """Give the kernel calls of compiled graphs their handles, and note how many calls were matched.

    `modules` are paths of modules that are known besides those of the trace: a compiled module leaves no
    range of its own. Does nothing where no graph of these was called.
    """
    matching = _Matching(trace, graphs, frozenset(modules))
    for row, key in _calls(trace):
        matching.add(row, key)
    if not matching.entries:
        return
    handles = DebugHandleMap(matching.entries, rule="bytes")
    trace.set_handles(handles, matching.places, by="order of calls")
    if matching.missing or matching.unmatched:
        trace.metadata["notes"].append(
            f"Of compiled code, {counted(matching.missing, 'kernel call')} of the compiler have no row, "
            f"and {counted(matching.unmatched, 'fused kernel row')} could not be matched."
        )


def _calls(trace: Trace) -> list[tuple[int, str]]:
    """Return (row, key) of each call of a compiled graph."""
    texts = trace.text("name")
    keys = {
        code: found.group(1) for code, text in enumerate(texts) if (found := CALL.fullmatch(text))
    }
    names = trace["name"]
    rows = np.flatnonzero(np.isin(names, list(keys)) & trace.is_kind("annotation", "operator"))
    return [
        (row, keys[code]) for row, code in zip(rows.tolist(), names[rows].tolist(), strict=True)
    ]


class _Matching:
    """The entries of the map that is made, and each row's place among them."""

    def __init__(
        self, trace: Trace, graphs: Sequence[CompiledGraph], modules: frozenset[str]
    ) -> None:
        self.entries: dict[int | str, tuple[Handle, ...]] = {}
        self.places = np.full(len(trace), UNKNOWN, np.int64)
        self.missing = self.unmatched = 0
        self._trace = trace
        self._graphs: dict[str, list[CompiledGraph]] = {}
        for graph in graphs:
            self._graphs.setdefault(graph.key, []).append(graph)
        self._place_of: dict[int | str, int] = {}
        self._modules = _modules(trace) | modules
        parent = np.asarray(trace["parent"], np.int64)
        self._by_parent = np.argsort(parent, kind="stable")
        self._parents = parent[self._by_parent]
        self._known: dict[
            tuple[str, tuple[str, ...]], tuple[CompiledGraph, list[tuple[int, int]]]
        ] = {}

    def add(self, call: int, key: str) -> None:
        """Match the rows of one call of the graph with this key."""
        candidates = self._graphs.get(key)
        rows = self._within(call)
        texts = self._trace.text("name")
        names = tuple(plain_name(texts[code]) for code in self._trace["name"][rows].tolist())
        fused = [
            FUSED.fullmatch(texts[code]) is not None for code in self._trace["name"][rows].tolist()
        ]
        if not candidates:
            self.unmatched += sum(fused)
            return
        if (key, names) not in self._known:
            matches = [(graph, in_order(graph.names, names)) for graph in candidates]
            self._known[key, names] = max(
                matches, key=lambda match: (len(match[1]), -len(match[0].names))
            )
        graph, pairs = self._known[key, names]
        around = (
            self._trace.text("layer")[code]
            if (code := int(self._trace["layer"][call])) >= 0
            else ""
        )
        which = "" if candidates[0] is graph else f"/{candidates.index(graph)}"
        for piece, child in pairs:
            self.places[rows[child]] = self._place(graph, which, piece, around)
        met = {child for _, child in pairs}
        self.missing += len(graph.names) - len(pairs)
        self.unmatched += sum(one and child not in met for child, one in enumerate(fused))

    def _within(self, call: int) -> np.ndarray:
        """Return the operators and ranges directly in a call, and device work launched directly from it."""
        trace = self._trace
        children = self._children(np.array([call]))
        host = trace.is_kind("operator", "annotation")[children]
        launches = children[trace.is_kind("runtime")[children]]
        launched = self._children(launches)
        rows = np.concatenate([children[host], launched])
        called = np.concatenate([children[host], np.asarray(trace["parent"], np.int64)[launched]])
        return rows[np.lexsort((rows, trace["start_ns"][called]))]

    def _children(self, rows: np.ndarray) -> np.ndarray:
        first = np.searchsorted(self._parents, rows, "left")
        last = np.searchsorted(self._parents, rows, "right")
        parts = [
            self._by_parent[begin:end]
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def _place(self, graph: CompiledGraph, which: str, piece: int, around: str) -> int:
        handles = tuple(self._with_path(handle, around) for handle in graph.handles[piece])
        moved = handles != graph.handles[piece]
        identifier = f"{graph.key}{which}/{graph.names[piece]}" + (f"@{around}" if moved else "")
        if identifier not in self._place_of:
            self._place_of[identifier] = len(self.entries)
            self.entries[identifier] = handles
        return self._place_of[identifier]

    def _with_path(self, handle: Handle, around: str) -> Handle:
        """Return the handle with the layer's whole path: a graph compiled below the model begins there."""
        base = around
        while base and handle.layer:
            whole = f"{base}.{handle.layer}"
            if whole in self._modules:
                return replace(handle, layer=whole)
            base = base.rpartition(".")[0]
        if self._is_of_the_model(handle.layer) or not around:
            return handle
        return replace(handle, layer=around)

    def _is_of_the_model(self, layer: str) -> bool:
        """Return whether a path begins as one of a known module: not of a part compiled by itself."""
        return bool(layer) and (layer in self._modules or layer.partition(".")[0] in self._modules)


def in_order(pieces: Sequence[str], names: Sequence[str]) -> list[tuple[int, int]]:
    """Return (place among the pieces, place among the recorded names) of what matches, both in order.

    Recorded names that are no piece's at all are passed over: views, and copies of results.
    """
    wanted = [plain_name(piece) for piece in pieces]
    known = set(wanted)
    kept = [place for place, name in enumerate(names) if name in known]
    found = [names[place] for place in kept]
    if found == wanted:
        return list(enumerate(kept))
    blocks = SequenceMatcher(None, wanted, found, autojunk=False).get_matching_blocks()
    return [(one.a + at, kept[one.b + at]) for one in blocks for at in range(one.size)]


def plain_name(name: str) -> str:
    """Return a kernel call's name as recorded and as the compiler writes it, made the same.

    `extern_kernels.bias_addmm:3` and `aten::addmm` are both `addmm`.
    """
    name = PLACE.sub("", name)
    fused = FUSED.fullmatch(name)
    if fused:
        return fused.group(1)
    if "::" in name:
        return name.rpartition("::")[2]
    parts = name.removeprefix("torch.ops.").split(".")
    last = parts[1] if len(parts) > 1 else parts[0]
    return last.removeprefix("bias_")


def _modules(trace: Trace) -> frozenset[str]:
    """Return the paths of the modules that the trace knows: of parameters' owners, and all around them."""
    owners = [str(one.get("layer", "")) for one in trace.metadata.get("parameters", [])]
    found = {name for name in (*trace.text("layer"), *owners) if name}
    around = {name.rsplit(".", up)[0] for name in found for up in range(1, name.count(".") + 1)}
    return frozenset(found | around)
