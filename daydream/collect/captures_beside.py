"""A capture beside its replay: kernels of a CUDA or HIP graph get the operators of the launches captured.

Where a graph is replayed, one call launches all its kernels, and no operator is around them. Where it was
captured, every launch lies in its operator, and no kernel runs. The two have the same launches in the
same order: the n-th kernel of the replay is of the n-th launch captured.

Files that say what compiled code came from, daydream's own and Inductor's, and how each is joined.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daydream.errors import HandleError
from daydream.files.input_files import reading
from daydream.lazy import regex
from daydream.text import counted, listed
from daydream.trace.handle_map import DebugHandleMap, Handle
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

LARGEST = 1 << 28  # bytes of a map
NODE_NUMBER = regex(r"_\d+$")
OVERLOAD = regex(r"(?<!into)_(default|tensor|scalar|self|out)$", re.IGNORECASE)


def attach_file(trace: Trace, path: Path) -> Trace:
    """Join the map of a file to a trace and return it.

    Texts are names of kernels; numbers are nodes of CUDA graphs where those were recorded, else the order of
    the calls.

    Raises:
        HandleError: the file holds no map, or nothing matches.
        TraceError: it cannot be read.

    """
    handles = read_handles(path)
    named = len(handles) > 0 and isinstance(handles.identifiers[0], str)
    nodes = bool((trace["graph_node"] >= 0).any())
    try:
        return trace.attach_handles(
            handles, "name" if named else "graph node id" if nodes else "order"
        )
    except HandleError as error:
        raise HandleError(f"{path}: {error}") from None


class _NodeMappings(msgspec.Struct):
    """Inductor's `inductor_provenance_tracking_node_mappings.json`, with or without debug handles."""

    kernels: dict[str, list[str]] = msgspec.field(name="cppCodeToPost")


def read_handles(path: Path) -> DebugHandleMap:
    """Return the map of debug handles of a file.

    Args:
        path: JSON that `DebugHandleMap.to_json` wrote (docs/guides/compiled.md), or Inductor's
            `inductor_provenance_tracking_node_mappings*.json`, which knows operators and no layers.

    Raises:
        HandleError: it is neither, or larger than 256 MiB.
        TraceError: it cannot be read.

    """
    with reading(path):
        size = path.stat().st_size
        if size > LARGEST:
            raise HandleError(
                f"{path} has {size:,} bytes; a map of debug handles has {LARGEST:,} at most"
            )
        text = path.read_bytes()
    try:
        if b'"cppCodeToPost"' in text:
            return _of_inductor(msgspec.json.decode(text, type=_NodeMappings))
        return DebugHandleMap.from_json(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise HandleError(f"{path}: this is no node mapping of Inductor: {error}") from None
    except HandleError as error:
        raise HandleError(f"{path}: {error}") from None


def _of_inductor(found: _NodeMappings) -> DebugHandleMap:
    """Return kernels with the operators of the nodes that each is made of.

    A key is the kernel's name, in newer versions `NAME:HANDLE`, a number that grows with the calls. Nodes
    are named after their operator and numbered: `mul_2`, `mm_default_1`. Weights are not known.
    """
    entries: dict[int | str, Any] = {
        kernel: tuple(Handle(_operator(node)) for node in nodes if node)
        for kernel, nodes in found.kernels.items()
        if kernel and any(nodes)
    }
    return DebugHandleMap(entries)


def _operator(node: str) -> str:
    """Return the operator of a node of an Inductor graph: `aten::mm` of `mm_default_1`."""
    name = OVERLOAD.sub("", NODE_NUMBER.sub("", node))
    return f"aten::{name or node}"


LAUNCH = regex(r"^(cuda|hip|cu)\w*Launch(Cooperative)?Kernel", re.ASCII)
GRAPH_LAUNCH = regex(r"^(cuda|hip|cu)GraphLaunch", re.ASCII)
BEGIN = regex(r"StreamBeginCapture")
LEAST_ALIKE = 0.9  # of the names known on both sides, for the capture to be of this graph


@dataclass(frozen=True)
class _Captured:
    """Launches of one capture, in order: rows, and the names of their kernels where known."""

    rows: np.ndarray
    names: list[str]


def attach_capture(trace: Trace, capture: Trace, launched: Mapping[int, str]) -> Trace:
    """Give kernels of graph launches the operator, layer, phase and source line they were captured with.

    Args:
        trace: the recording of replays; it is changed and returned.
        capture: the recording of the capture of the same graphs.
        launched: name of the kernel that a call of the capture launches, by correlation; may be empty.

    Returns:
        The trace. Its notes say what was matched.

    Raises:
        HandleError: there is no graph launch, nothing was captured, or the two do not fit.

    """
    graphs = _graphs(trace)
    if not graphs:
        raise HandleError(
            "the trace has no kernels of a graph launch, so there is nothing to match a capture with"
        )
    captures = _captures(capture, launched)
    if not captures:
        raise HandleError(
            "the capture has no launches without a kernel of their own, as captures leave them"
        )
    entries: dict[int | str, tuple[Handle, ...]] = {}
    begin: dict[int, int] = {}  # capture -> place of its first launch
    places = np.full(len(trace), UNKNOWN, np.int64)
    agreed = compared = 0
    kernel_names = trace.text("name")
    codes = trace["name"]
    for kernels in graphs:
        names = [kernel_names[code] for code in codes[kernels].tolist()]
        which, same, known = _best(captures, names)
        if which is None:
            continue
        if which not in begin:
            begin[which] = len(entries)
            for handle in _handles(capture, captures[which].rows):
                entries[len(entries)] = (handle,)
        places[kernels] = begin[which] + np.arange(len(kernels))
        agreed += same
        compared += known
    if not entries:
        raise HandleError(_no_fit(captures, graphs))
    trace.set_handles(DebugHandleMap(entries), places, by="capture")
    said = (
        f"{agreed:,} of {compared:,} kernel names of the capture are those of the replay."
        if compared
        else "The capture names no kernels: its launches were matched by their number and order alone."
    )
    trace.metadata = {**trace.metadata, "notes": [*trace.metadata.get("notes", []), said]}
    return trace


def _graphs(trace: Trace) -> list[np.ndarray]:
    """Return the kernels of each graph launch in the order of their starts."""
    parent = np.asarray(trace["parent"], np.int64)
    launches = _calls(trace, GRAPH_LAUNCH)
    kernels = np.flatnonzero(
        trace.is_kind("kernel", "collective") & (parent >= 0) & launches[np.maximum(parent, 0)]
    )
    order = kernels[np.lexsort((trace["start_ns"][kernels], parent[kernels]))]
    cut = np.flatnonzero(np.diff(parent[order])) + 1
    return [part for part in np.split(order, cut) if len(part)]


def _captures(capture: Trace, launched: Mapping[int, str]) -> list[_Captured]:
    """Return the launches of each capture: calls that launch no work, from one begin to the next."""
    ran = np.unique(
        capture["correlation"][capture.is_kind("kernel", "collective", "memcpy", "memset")]
    )
    begins = np.sort(capture["start_ns"][_calls(capture, BEGIN)])
    rows = np.flatnonzero(_calls(capture, LAUNCH) & ~np.isin(capture["correlation"], ran))
    rows = rows[np.argsort(capture["start_ns"][rows], kind="stable")]
    part = np.searchsorted(begins, capture["start_ns"][rows], side="right")
    names = [launched.get(one, "") for one in capture["correlation"][rows].tolist()]
    return [
        _Captured(rows[part == one], [names[at] for at in np.flatnonzero(part == one).tolist()])
        for one in np.unique(part).tolist()
    ]


def _calls(trace: Trace, pattern: re.Pattern[str]) -> np.ndarray:
    """Return a mask of the runtime calls whose name a pattern finds."""
    found = [bool(pattern.search(name)) for name in trace.text("name")]
    return np.array([*found, False])[trace["name"]] & trace.is_kind("runtime")


def _best(captures: list[_Captured], names: list[str]) -> tuple[int | None, int, int]:
    """Return the capture with as many launches whose names agree best, how many do and how many are known."""
    best: tuple[int | None, int, int] = (None, 0, 0)
    for which, captured in enumerate(captures):
        if len(captured.rows) != len(names):
            continue
        pairs = [(ours, theirs) for ours, theirs in zip(captured.names, names, strict=True) if ours]
        same = sum(ours == theirs for ours, theirs in pairs)
        if pairs and same < LEAST_ALIKE * len(pairs):
            continue
        if best[0] is None or same > best[1]:
            best = (which, same, len(pairs))
    return best


def _handles(capture: Trace, rows: np.ndarray) -> list[Handle]:
    """Return the operator, layer, phase and source line around each launch."""
    parent = capture["parent"][rows].tolist()
    columns = [capture.values(name, rows.tolist()) for name in ("op", "layer", "phase")]
    stacks = [None if row < 0 else capture.values("stack", [row])[0] for row in parent]
    return [
        Handle(op or "no operator", layer=layer or "", phase=phase or "", source=stack or "")
        for op, layer, phase, stack in zip(*columns, stacks, strict=True)
    ]


def _no_fit(captures: list[_Captured], graphs: list[np.ndarray]) -> str:
    ours = listed([f"{count:,}" for count in sorted({len(each.rows) for each in captures})])
    theirs = listed([f"{count:,}" for count in sorted({len(each) for each in graphs})])
    launches = counted(len(graphs), "graph launch", "graph launches")
    return (
        f"{counted(len(captures), 'capture')} of {ours} launches and {launches} "
        f"of {theirs} kernels do not fit: numbers differ, or kernel names do. Give the capture of the graph "
        "that was replayed, recorded whole"
    )
