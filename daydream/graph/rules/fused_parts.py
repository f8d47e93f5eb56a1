"""Fused work: one task for each operator and layer that owns a part of it.

A kernel of compiled code does the work of several layers. Its parts follow each other on its lane, share its
launch, and together take its time exactly; so selecting a layer selects that layer's part, whatever is done
with it is bounded by the share, and tables by layer, phase or operator add up. The kernel's name stays.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.edit.place import place_next_to
from daydream.graph.graph import Graph
from daydream.graph.tables import KERNEL, phase_code
from daydream.trace.handle_map import DebugHandleMap, Identifier

Owner = tuple[str, str, str]  # operator, layer, phase


def owners_of(handles: DebugHandleMap, identifier: Identifier) -> tuple[list[Owner], np.ndarray]:
    """Return who owns parts of a piece, and each one's part: float64, shape (owners,), adding up to 1."""
    parts: dict[Owner, float] = {}
    for handle, share in zip(handles[identifier], handles.shares(identifier).tolist(), strict=True):
        owner = handle.operator, handle.layer, handle.phase
        parts[owner] = parts.get(owner, 0.0) + share
    return list(parts), np.array(list(parts.values()))


def part_fused(graph: Graph) -> None:
    """Divide the tasks whose rows have debug handles over the operators and layers that own them."""
    trace = graph.trace
    if trace is None or trace.handles is None:
        return
    columns, handles = graph.columns, trace.handles
    row = columns["row"].astype(np.int64)
    code = np.where(row >= 0, np.asarray(trace["handle"], np.int64)[np.maximum(row, 0)], -1)
    # The CPU time of launching belongs to the call, not to what it launched; a copy or a collective is one.
    mine = (code >= 0) & graph.alive & ((columns["kind"] == KERNEL) | _is_work(graph))
    for place, identifier in enumerate(handles):
        tasks = np.flatnonzero(mine & (code == place))
        if len(tasks):
            _part(graph, tasks, *owners_of(handles, identifier))


def _is_work(graph: Graph) -> np.ndarray:
    """Return a mask of the tasks whose row is a host row that is no call into a runtime."""
    trace = graph.trace
    assert trace is not None  # noqa: S101 - it has handles
    host: np.ndarray = trace.is_kind("operator", "annotation")[np.maximum(graph.columns["row"], 0)]
    return host & (graph.columns["row"] >= 0)


def _part(graph: Graph, tasks: np.ndarray, owners: list[Owner], shares: np.ndarray) -> None:
    """Divide some tasks; the first part keeps the task's id, and what followed it follows the last."""
    columns, count = graph.columns, len(owners)
    bounds = np.floor(np.cumsum(shares) * columns["duration_ns"][tasks][:, None] + 0.5).astype(np.int64)
    bounds[:, -1] = columns["duration_ns"][tasks]
    durations = np.diff(bounds, axis=1, prepend=0)
    own = {name: columns[name][tasks] for name in columns}
    before = bounds - durations
    parts = [tasks]
    if count > 1:
        keys = place_next_to(graph, np.repeat(tasks, count - 1), behind=True).reshape(len(tasks), -1)
        for number in range(1, count):
            start = own["measured_start_ns"]
            given = {
                **own, "order": keys[:, number - 1], "duration_ns": durations[:, number], "release_ns": 0,
                "measured_start_ns": np.where(start >= 0, start + before[:, number], start),
                "gap_ns": own["gap_ns"] if number == count - 1 else 0,
            }  # fmt: skip
            parts.append(graph.add(len(tasks), **given))
        to = np.arange(graph.size)
        to[tasks] = parts[-1]
        links = graph.links.columns
        ends = np.where(links["from_start"] != 0, links["src"], to[links["src"]])
        graph.links.columns = {**links, "src": ends}
        graph.columns["gap_ns"][tasks] = 0
        graph.columns["duration_ns"][tasks] = durations[:, 0]
    for ids, (operator, layer, phase) in zip(parts, owners, strict=True):
        graph.columns["op"][ids] = graph.code("op", operator)
        if layer:
            graph.columns["layer"][ids] = graph.code("layer", layer)
        elif count > 1:
            graph.columns["layer"][ids] = -1  # the layer of the largest share is another's
        if phase:
            graph.columns["phase"][ids] = phase_code(phase)
    graph.touch()
