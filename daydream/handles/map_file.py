"""A map of debug handles from a file, and the way it is joined where nobody says one."""

from __future__ import annotations

import os

from daydream.errors import FileError, HandleError
from daydream.files.input_files import check_regular
from daydream.trace.handle_map import DebugHandleMap
from daydream.trace.trace import Trace


def read_map(path: str | os.PathLike[str]) -> DebugHandleMap:
    """Return the map of a JSON file. Raises `FileError`, which names the file, if it holds none."""
    check_regular(path)
    try:
        with open(path, "rb") as file:
            return DebugHandleMap.from_json(file.read())
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None
    except HandleError as error:
        raise FileError(f"{path}: {error}") from None


def attach_file(trace: Trace, path: str | os.PathLike[str]) -> Trace:
    """Join the map of a file to a trace and return it.

    Texts are names of kernels; numbers are nodes of CUDA graphs where those were recorded, else the order of
    the calls. Raises `FileError` if the file holds no map, or nothing matches.
    """
    handles = read_map(path)
    named = len(handles) > 0 and isinstance(handles.identifiers[0], str)
    nodes = bool((trace["graph_node"] >= 0).any())
    try:
        return trace.attach_handles(handles, "name" if named else "graph node id" if nodes else "order")
    except HandleError as error:
        raise FileError(f"{path}: {error}") from None
