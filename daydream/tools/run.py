"""Tools by name, by the path of a file, or by entry point; and one run over a trace, or a range of it.

A range is the part of a trace that a tool sees, with what it launches and its backward pass.
"""

from __future__ import annotations

import fnmatch
import importlib.metadata
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from daydream.costs.workload.calls import forward_rows
from daydream.errors import DaydreamError, TraceError
from daydream.graph.calls import enclosing
from daydream.memory.enclosing import enclosing_rows
from daydream.text import listed, meant
from daydream.tools import shipped
from daydream.tools.tool import CALLBACKS, MARK, Events, ToolError, tables
from daydream.trace.trace import Trace
from daydream.transforms.registry import load_file, loading
from daydream.transforms.user_file import own_code

ENTRY_POINTS = "daydream.tools"
FORMS = "layer:GLOB, step:NUMBER, annotation:REGEX or kernels:FIRST-LAST"


def tools() -> dict[str, str]:
    """Return the names of the tools that ship or that installed packages add, and what each gives."""
    others = importlib.metadata.entry_points(group=ENTRY_POINTS)
    own = {name: (inspect.getdoc(cls) or "").split("\n")[0] for name, cls in _in(shipped).items()}
    return {**{point.name: f"of {point.value}" for point in others}, **own}


def find_tool(name: str) -> type:
    """Return a tool's class by its name or by the path of a Python file.

    Raises:
        ToolError: there is none, or its file cannot be loaded.
    """
    own = _in(shipped)
    if name.endswith(".py") or "/" in name:
        found = _in(load_file(name))
        if len(found) > 1:
            others = f"{len(found)} tools ({', '.join(found)}); leave one of them in it"
            raise ToolError(f"{name} has {others}")
        if not found:
            raise ToolError(f"{name} has no class under @daydream.tool")
        return next(iter(found.values()))
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


def _in(module: ModuleType) -> dict[str, type]:
    """Return the tools that a module defines, by name."""
    return {
        vars(cls)[MARK]: cls
        for cls in vars(module).values()
        if isinstance(cls, type) and MARK in vars(cls) and cls.__module__ == module.__name__
    }


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
        who = getattr(cls, "__name__", cls)
        raise ToolError(f"{who} is no tool: write @daydream.tool above the class")
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
    given = []
    callbacks = []
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
                of_kind &= trace["device"] >= 0
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


# Ranges -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Range:
    """Rows of a trace that a tool sees: bool, shape (rows,); `named` are the steps, if it is of steps."""

    trace: Trace
    rows: np.ndarray
    all: bool = False
    named: tuple[int, ...] = ()

    def memory(self) -> np.ndarray:
        """Return the memory events in it, int64: those of a row in it, of steps those within their time."""
        memory = self.trace.memory
        if memory is None:
            return np.zeros(0, np.int64)
        if self.all:
            return np.arange(len(memory))
        inside = np.zeros(len(memory), bool)
        if self.named:
            time = memory["time_ns"]
            for step in (self.trace.metadata["steps"][at] for at in self.named):
                within = (step["start_ns"] <= time) & (time < step["end_ns"])
                inside |= within & (memory["rank"] == step["rank"])
        else:
            row = enclosing_rows(self.trace, memory)
            inside = (row >= 0) & self.rows[np.maximum(row, 0)]
        return np.flatnonzero(inside)

    def steps(self) -> np.ndarray:
        """Return the numbers of the steps in it, int64: those it names, else those that have rows in it."""
        if self.all:
            return np.arange(len(self.trace.metadata.get("steps", [])))
        found = np.unique(self.trace["step"][self.rows]).astype(np.int64)
        return np.array(self.named, np.int64) if self.named else found[found >= 0]


def in_range(trace: Trace, text: str | None) -> Range:
    """Return the part of a trace that a text names, all of it if it is None.

    Raises:
        TraceError: the text is no range, or the trace has nothing in it.
    """
    if text is None:
        return Range(trace, np.ones(len(trace), bool), all=True)
    kind, colon, value = text.partition(":")
    if not colon or kind not in _FINDERS:
        raise TraceError(f"{text!r} is no range; write {FORMS}")
    return _FINDERS[kind](trace, value)


def _layer(trace: Trace, glob: str) -> Range:
    layers = trace.text("layer")
    if not layers:
        raise TraceError("this trace has no layers; record it with `daydream collect`")
    codes = [code for code, layer in enumerate(layers) if fnmatch.fnmatchcase(layer, glob)]
    rows = np.isin(trace["layer"], codes)
    if not rows.any():
        raise TraceError(f"no layer matches {glob!r}; layers are {listed(layers)}")
    return Range(trace, rows)


def _step(trace: Trace, wanted: str) -> Range:
    names = [str(step["name"]) for step in trace.metadata.get("steps", [])]
    number = re.compile(rf"(?<!\d){re.escape(wanted)}$")  # in ProfilerStep#13 there is no step 3
    numbered = [at for at, name in enumerate(names) if wanted and number.search(name)]
    if not numbered:
        there = f"no step {wanted!r}; steps are {listed(names)}"
        raise TraceError(there if names else "this trace has no steps")
    return Range(trace, np.isin(trace["step"], numbered), named=tuple(numbered))


def _annotation(trace: Trace, regex: str) -> Range:
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise TraceError(f"{regex!r} is no regular expression ({error})") from None
    named = [code for code, name in enumerate(trace.text("name")) if pattern.search(name)]
    rows = trace.is_kind("annotation") & np.isin(trace["name"], named)
    if not rows.any():
        raise TraceError(f"no annotation matches {regex!r}")
    inside = _with_children(trace, rows)
    makers = forward_rows(trace, np.arange(len(trace)))
    return Range(trace, _with_children(trace, inside | ((makers >= 0) & inside[makers])))


def _kernels(trace: Trace, text: str) -> Range:
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})", text)
    if not found or int(found[1]) > int(found[2]):
        raise TraceError(f"kernels:{text} is no range; write kernels:100-200")
    first = int(found[1])
    last = int(found[2])
    on_device = trace.is_kind("kernel", "collective") & (trace["device"] >= 0)
    kernels = np.flatnonzero(on_device)
    if first >= len(kernels):
        raise TraceError(
            f"this trace has {len(kernels):,} kernels, the first is number 0: {first} is past them"
        )
    rows = np.zeros(len(trace), bool)
    rows[kernels[np.argsort(trace["start_ns"][kernels], kind="stable")][first : last + 1]] = True
    return Range(trace, rows)


_FINDERS: dict[str, Callable[[Trace, str], Range]] = {
    "layer": _layer,
    "step": _step,
    "annotation": _annotation,
    "kernels": _kernels,
}


def _with_children(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the rows and all that lies in them or that they launch: bool, shape (rows,)."""
    every = np.arange(len(trace))
    return enclosing(trace["parent"], rows, every, inner=True) >= 0
