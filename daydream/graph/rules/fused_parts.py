"""Fused work: one task for each operator and layer that owns a part of it.

A kernel of compiled code does the work of several layers. Its parts follow each other on its lane, share its
launch, and together take its time exactly; so selecting a layer selects that layer's part, whatever is done
with it is bounded by the share, and tables by layer, phase or operator add up. The kernel's name stays.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from daydream.graph.draft import Draft
from daydream.graph.lower import follow_instead
from daydream.graph.tables import KERNEL, phase_code


def part_fused(draft: Draft) -> None:
    """Divide the tasks whose rows have debug handles over the operators and layers that own them."""
    trace = draft.trace
    handles = trace.handles
    if handles is None:
        return
    code = np.where(draft.row >= 0, trace["handle"][draft.row], -1)
    # The CPU time of launching belongs to the call, not to what it launched; a copy or a collective is one.
    code[(draft.kind != KERNEL) & ~draft.of_rows("operator", "annotation")] = -1
    for place, identifier in enumerate(handles):
        tasks = np.flatnonzero(code == place)
        if len(tasks):
            parts: dict[tuple[str, str, str], float] = defaultdict(float)
            for handle, share in zip(
                handles[identifier], handles.shares(identifier).tolist(), strict=True
            ):
                parts[handle.operator, handle.layer, handle.phase] += share
            _part(draft, tasks, parts)


def _part(draft: Draft, tasks: np.ndarray, parts: dict[tuple[str, str, str], float]) -> None:
    """Divide some tasks; the first part keeps the task's id, and what followed it follows the last."""
    whole = draft.duration_ns[tasks]
    ends = np.floor(np.cumsum(list(parts.values()))[:, None] * whole + 0.5).astype(np.int64)
    ends[-1] = whole
    durations = np.diff(ends, axis=0, prepend=0)
    if (
        len(parts) > 1
    ):  # where there is no room for more keys of program order, all that is behind moves on
        sequence = np.argsort(draft.order, kind="stable")
        wanted = np.where(np.isin(sequence[:-1], tasks), len(parts), 0)
        pushed = np.cumsum(np.maximum(wanted - np.diff(draft.order[sequence]), 0))
        draft.move(sequence[1:], order=draft.order[sequence[1:]] + pushed)
    same = draft.values(tasks)
    ids = tasks
    for number, (operator, layer, phase) in enumerate(parts):
        if number:
            start = np.where(same["start_ns"] >= 0, same["start_ns"] + ends[number - 1], -1)
            new = {"order": same["order"] + number, "start_ns": start, "release_ns": 0}
            ids = draft.add(len(tasks), **(same | new))
        draft.duration_ns[ids] = durations[number]
        draft.gap_ns[ids] = 0
        draft.op[ids] = draft.code("op", operator)
        if layer or len(parts) > 1:  # the layer of the largest share is another's
            draft.layer[ids] = draft.code("layer", layer or None)
        if phase:
            draft.phase[ids] = phase_code(phase)
    draft.gap_ns[ids] = same["gap_ns"]
    follow_instead(draft, tasks, ids)
