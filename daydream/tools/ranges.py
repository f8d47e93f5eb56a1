"""Ranges: the part of a trace that a tool sees, with what it launches and its backward pass."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from daydream.errors import TraceError
from daydream.text import listed
from daydream.trace.trace import Trace

FORMS = "layer:GLOB, step:NUMBER, annotation:REGEX or kernels:FIRST-LAST"


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
            from daydream.memory.enclosing import enclosing_rows

            row = enclosing_rows(self.trace, memory)
            inside = (row >= 0) & self.rows[np.maximum(row, 0)]
        return np.flatnonzero(inside)

    def steps(self) -> np.ndarray:
        """Return the steps in it, int64: those that have rows in it."""
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
    number = re.compile(
        rf"(?<!\d){re.escape(wanted)}$"
    )  # ProfilerStep#3 is step 3, and step 13 is not
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
    return Range(trace, _with_children(trace, inside | _backward_of(trace, inside)))


def _kernels(trace: Trace, text: str) -> Range:
    found = re.fullmatch(r"(\d{1,18})-(\d{1,18})", text)
    if not found or int(found[1]) > int(found[2]):
        raise TraceError(f"kernels:{text} is no range; write kernels:100-200")
    first, last = int(found[1]), int(found[2])
    kernels = np.flatnonzero(
        trace.is_kind("kernel", "collective") & (np.asarray(trace["device"]) >= 0)
    )
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
    parent = np.asarray(trace["parent"], np.int64)
    rows = rows.copy()
    waiting = np.flatnonzero((parent >= 0) & ~rows)
    while len(waiting):
        hit = rows[parent[waiting]]
        if not hit.any():
            break
        rows[waiting[hit]] = True
        waiting = waiting[~hit]
    return rows


def _backward_of(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return autograd's nodes of the operators among these rows: bool, shape (rows,).

    A node has the sequence number of its forward operator: the last that began with this number, as views
    and the like have the number of the next operator that makes a node. Each forward thread counts for
    itself; of several threads of a rank, numbers that more than one has are taken for either's.
    """
    sequence = np.asarray(trace["sequence"], np.int64)
    numbered = trace.is_kind("operator") & (sequence >= 0)
    node = numbered & (np.asarray(trace["forward_thread"]) > 0)
    key = np.asarray(trace["rank"], np.int64) << 48 | sequence & (1 << 48) - 1
    forward = np.flatnonzero(numbered & ~node)
    order = forward[np.lexsort((trace["start_ns"][forward], trace["tid"][forward], key[forward]))]
    thread = np.asarray(trace["tid"])[order]
    last = np.append((key[order][1:] != key[order][:-1]) | (thread[1:] != thread[:-1]), True)[
        : len(order)
    ]
    chosen = order[last & rows[order]]
    return np.asarray(node & np.isin(key, key[chosen]))
