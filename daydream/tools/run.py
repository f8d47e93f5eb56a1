"""Tools by name, by the path of a file, or by entry point; and one run over a trace: what it is given and found."""

from __future__ import annotations

import importlib.metadata
import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import DaydreamError
from daydream.text import meant
from daydream.tools.ranges import Range, in_range
from daydream.tools.tool import CALLBACKS, MARK, Events, ToolError, tables
from daydream.transforms.registry import load_file, loading
from daydream.transforms.user_file import own_code

ENTRY_POINTS = "daydream.tools"


def tools() -> dict[str, str]:
    """Return the names of the tools that ship or that installed packages add, and what each gives."""
    from daydream.tools import shipped

    found = {name: (inspect.getdoc(cls) or "").split("\n")[0] for name, cls in _in(shipped).items()}
    others = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {
        **found,
        **{point.name: f"of {point.value}" for point in others if point.name not in found},
    }


def find_tool(name: str) -> type:
    """Return a tool's class by its name or by the path of a Python file.

    Raises:
        ToolError: there is none, or its file cannot be loaded.
    """
    if name.endswith(".py") or "/" in name:
        return _from_file(name)
    from daydream.tools import shipped

    own = _in(shipped)
    if name in own:
        return own[name]
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS, name=name):
        with loading(f"{name}, which is {point.value},"):
            loaded = point.load()
        if isinstance(loaded, type) and hasattr(loaded, MARK):
            return loaded
        raise ToolError(f"{point.value} is no class under @daydream.tool")
    hint = meant(name.replace("_", "-"), tools(), "`daydream tool --list` shows those there are.")
    raise ToolError(f"unknown tool {name!r}. {hint}")


def _from_file(path: str) -> type:
    """Return the one tool that a Python file defines."""
    found = _in(load_file(path))
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise ToolError(f"{path} has no class under @daydream.tool")
    raise ToolError(f"{path} has {len(found)} tools ({', '.join(found)}); leave one of them in it")


def _in(module: ModuleType) -> dict[str, type]:
    """Return the tools that a module defines, by name."""
    return {
        vars(cls)[MARK]: cls
        for cls in vars(module).values()
        if isinstance(cls, type) and MARK in vars(cls) and cls.__module__ == module.__name__
    }


if TYPE_CHECKING:
    from daydream.trace.trace import Trace


def run_tool(which: str | type, trace: Trace, range: str | None = None) -> dict[str, Any]:  # noqa: A002
    """Return what a tool finds in a trace.

    Args:
        which: a tool's class, its name (`kernel-frequency`), or the path of a Python file that holds one.
        trace: the trace.
        range: the part of it that the tool sees: `layer:blocks.1*`, `step:3`, `annotation:REGEX` or
            `kernels:100-200` (the 101st to the 201st of the recording). Layers, steps and annotations have
            what they launch, and the backward pass of what lies in them. All of the trace if None.

    Returns:
        What its `result` gives: figures and texts by name, and tables as lists of mappings; names end in
        their unit.

    Raises:
        ToolError: there is no such tool, or it failed.
        TraceError: the trace has nothing in this range.

    """
    cls = find_tool(which) if isinstance(which, str) else which
    name = getattr(cls, MARK, None)
    if name is None:
        raise ToolError(
            f"{getattr(cls, '__name__', cls)} is no tool: write @daydream.tool above the class"
        )
    chosen = in_range(trace, range)
    with _guarded(name, cls):
        running = cls()
        _give_events(running, trace, chosen)
        found = running.result()
    if not isinstance(found, Mapping):
        raise ToolError(f"{name}: result() must return a mapping, not {type(found).__name__}")
    return {str(key): value for key, value in found.items()}


def _give_events(running: Any, trace: Trace, chosen: Range) -> None:
    """Call the callbacks: first those for columns, then those for single events in the order of their starts."""
    rows, memory, steps = tables(trace)
    given, callbacks = [], []
    for one, (several, kinds) in CALLBACKS.items():
        if not (hasattr(running, one) or hasattr(running, several)):
            continue
        if one == "on_allocation":
            events = Events(memory, chosen.memory(), "time_ns")
        elif one == "on_step":
            events = Events(steps, chosen.steps())
        else:
            of_kind = trace.is_kind(*kinds) & chosen.rows
            if one in {"on_kernel", "on_collective"}:  # those of CPU processes no kernel carries
                of_kind &= np.asarray(trace["device"]) >= 0
            events = Events(rows, np.flatnonzero(of_kind))
        if hasattr(running, several):
            getattr(running, several)(events)
        if hasattr(running, one):
            given.append(events)
            callbacks.append(getattr(running, one))
    if not given:
        return
    starts = np.concatenate([events[events.when] for events in given])
    which = np.repeat(np.arange(len(given)), [len(events) for events in given])
    within = np.concatenate([np.arange(len(events)) for events in given])
    order = np.argsort(starts, kind="stable")
    for part, at in zip(which[order].tolist(), within[order].tolist(), strict=True):
        callbacks[part](given[part].row(at))


@contextmanager
def _guarded(name: str, cls: type) -> Iterator[None]:
    """Say of what fails in a tool where that was."""
    try:
        with own_code(inspect.getsourcefile(cls) or name):
            yield
    except DaydreamError:
        raise
    except Exception as error:  # a user's own code may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        raise ToolError(f"{name} failed in {where}: {type(error).__name__}: {error}") from error
