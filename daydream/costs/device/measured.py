"""Times that a user measured, where a change asks for them: they come before every model.

A table answers by the name of a kernel, or by operator call: name, shapes and element type,
before and after the change. Where it holds both, a task's time goes with their ratio, so that
what the measurement and the training step do not share (caches, clocks) cancels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from daydream.costs.device.table import CPU, KernelTable
from daydream.costs.devices import device_properties, find_device
from daydream.costs.kernels import TF32_KERNEL, Work
from daydream.costs.workload.calls import calls_of
from daydream.costs.workload.shapes import Shape
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection

NewShapes = Mapping[
    int, tuple[str, Shape | None]
]  # by distinct work: its new shapes, and output shape


class TimeRequest(NamedTuple):
    """What changes for some tasks, an entry a task: what a table is asked.

    `affected` tasks change at all; `resized` ones do more or less work, `shapes` says in which
    shapes. `other_device`: the table's times are those of the new device, taken as they are.
    """

    dtype: np.ndarray
    affected: np.ndarray
    resized: np.ndarray
    shapes: NewShapes
    other_device: bool = False


def give_table(graph: Graph, table: KernelTable | str | os.PathLike[str] | None) -> None:
    """Let predictions on a graph and its copies use a table, or the file of one.

    Raises `TraceError` if the file is not one, `GraphError` if its times are of a CPU and the work on a GPU,
    or the other way round.
    """
    if table is None:
        return
    table = table if isinstance(table, KernelTable) else KernelTable.load(table)
    here = device_name(graph)
    if table.device is not None and (table.device == CPU) != (here == CPU):
        raise GraphError(
            f"the table holds times of {_said(table.device)}, and this trace's work ran on {_said(here)}.\n"
            "       Run `daydream calibrate` with this trace on a machine like that one."
        )
    graph.times = table


def _said(device: str | None) -> str:
    return "a CPU" if device == CPU else f"a {device or 'GPU'}"


def device_name(graph: Graph) -> str:
    """Return the name of the GPU that did the graph's work, empty if it has none, or `cpu`."""
    if not len(graph.select(on="gpu")):
        return CPU
    return str(device_properties(graph).get("name") or "")


def need_times_of(table: KernelTable, device: str) -> None:
    """Raise `NotApplicableError` if a table's times are those of another device."""
    if table.device is None:
        return
    try:
        same = find_device(table.device) == find_device(device)
    except NotApplicableError:
        same = False
    if not same:
        raise NotApplicableError(
            f"the table holds times of a {table.device}, and the question is about a {device}.\n"
            "       Run `daydream calibrate` there, or leave --table out."
        )


def from_table(
    graph: Graph, selection: Selection, table: KernelTable, task_work: Work, asked: TimeRequest
) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of each task by the table, and a mask of those that it knows."""
    old = selection.duration_ns.astype(np.float64)
    new, known = old.copy(), np.zeros(len(old), bool)
    names = selection.name.tolist()
    for index in np.flatnonzero(asked.affected).tolist():
        time = table.kernel(names[index]) if names[index] else None
        if time is not None:
            new[index], known[index] = time, True
    trace = graph.recorded
    if not len(trace):
        return new, known
    calls = calls_of(trace)
    which = np.where(task_work.call >= 0, calls.which[np.maximum(task_work.call, 0)], -1)
    with_shapes = np.isin(which, list(asked.shapes))
    ask = np.flatnonzero(asked.affected & ~known & (which >= 0) & (with_shapes | ~asked.resized))
    if not len(ask):
        return new, known
    recorded = recorded_ns(graph)
    comparable = table.device in (None, device_name(graph))  # with what was recorded
    kept = types_of(selection)
    keys = list(
        zip(which[ask].tolist(), kept[ask].tolist(), asked.dtype[ask].tolist(), strict=True)
    )
    time_of: dict[tuple[int, str | None, str | None], float] = {}
    for key, duration in zip(keys, old[ask].tolist(), strict=True):
        time_of[key] = time_of.get(key, 0.0) + duration
    most_first = sorted(
        time_of, key=lambda key: -time_of[key]
    )  # what measures may not get to the end
    answers = {key: _answer(table, calls.keys[key[0]], key, asked) for key in most_first}
    for index, key in zip(ask.tolist(), keys, strict=True):
        time, before = answers[key]
        if time is None or (before is None and not comparable and not asked.other_device):
            continue
        new[index] = old[index] * time / max(before or recorded[task_work.call[index]], 1.0)
        known[index] = True
    return new, known


def _answer(
    table: KernelTable,
    call: tuple[str, str, Shape | None],
    key: tuple[int, str | None, str | None],
    asked: TimeRequest,
) -> tuple[float | None, float | None]:
    """Return a call's time after the change and, where it is the same device's, before it."""
    op, shapes, hint = call
    which, dtype, new_dtype = key
    new_shapes, new_hint = asked.shapes.get(which, (shapes, hint))
    if asked.other_device:
        return table.call(op, new_shapes, new_dtype, new_hint), None
    if (new_shapes, new_dtype) == (shapes, dtype):
        return None, None
    before = table.call(op, shapes, dtype, hint)
    return table.call(op, new_shapes, new_dtype, new_hint), before


def types_of(selection: Selection) -> np.ndarray:
    """Return the element type of each task as a table names it: float32 kernels in TF32 are `tf32`."""
    types, names = selection.dtype, selection.name
    in_tf32 = [bool(name and TF32_KERNEL.search(name)) for name in names.tolist()]
    return np.where((types == "float32") & np.array(in_tf32, bool), "tf32", types)


def recorded_ns(graph: Graph) -> np.ndarray:
    """Return by row of the trace what an operator call took: its device work's time, on a CPU its own."""
    trace = graph.recorded
    calls = calls_of(trace)
    duration = np.asarray(trace["duration_ns"], np.float64)
    device = np.flatnonzero(calls.owner >= 0)
    total = np.bincount(calls.owner[device], duration[device], len(trace))
    return np.where(calls.launches_work, total, duration)
