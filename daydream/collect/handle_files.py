"""Files that say what compiled code came from, daydream's own and Inductor's, and how each is joined."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from daydream.errors import HandleError
from daydream.files.input_files import check_regular
from daydream.lazy import regex
from daydream.trace.handle_map import DebugHandleMap, Handle
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
        return trace.attach_handles(handles, "name" if named else "graph node id" if nodes else "order")
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
    check_regular(path)
    if path.stat().st_size > LARGEST:
        size = path.stat().st_size
        raise HandleError(f"{path} has {size:,} bytes; a map of debug handles has {LARGEST:,} at most")
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
