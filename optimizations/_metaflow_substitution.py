"""Substitution of layers: where they stand in a graph, and tasks of other times in their place."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError, Groups, NotApplicableError, Selection
from daydream.model import remove_with_operators


def places_of(graph: Graph, layers: str, phase: str) -> Groups:
    """Return the work of layers that match a pattern, what no other layer parts being one group.

    Device work but for collectives, or on a trace without any the CPU's.
    """
    work = graph.select(on="gpu" if len(graph.select(on="gpu")) else "cpu", phase=phase)
    work = work - work.where(kind="collective")
    mine = work.where(layer=layers)
    others = work.where(lambda tasks: tasks.layer != None) - mine  # noqa: E711 - an array of texts
    return mine.stretches(others)


def usual_times(places: Groups) -> tuple[np.ndarray, np.ndarray]:
    """Return durations and gaps of the tasks of a typical place: medians over those of the usual size."""
    if not len(places):
        return np.empty(0), np.empty(0)
    size = _most_frequent(places.sizes)
    usual = places.where(places.sizes == size).by_group
    durations, gaps = usual.duration_ns.reshape(-1, size), usual.gap_ns.reshape(-1, size)
    return np.median(durations, axis=0), np.median(gaps, axis=0)


def by_place_in_step(places: Groups) -> list[Groups]:
    """Return the first place of every step, the second of every step, ..., as many as most steps have."""
    if not len(places):
        return []
    step = np.stack([places.first().step, places.first().rank])
    each = [np.flatnonzero((step == one[:, None]).all(axis=0)) for one in np.unique(step, axis=1).T]
    count = _most_frequent(np.array([len(one) for one in each]))
    return [
        places.take(np.array([one[at] for one in each if len(one) == count], np.int64)) for at in range(count)
    ]


def substitute(places: Groups, durations: np.ndarray, gaps: np.ndarray) -> None:
    """Give each place as many tasks as there are durations, with these times.

    Tasks that are too many go with their launches and operators; missing ones come
    after the last, device work with a launch. Gaps are those of CPU tasks.
    """
    if not len(places):
        return
    parts, graph = places.by_group, places.tasks.graph
    at = np.arange(len(parts)) - np.repeat(np.append(0, np.cumsum(places.sizes))[:-1], places.sizes)
    on_cpu = bool((parts.kind == "cpu").all())
    kept = Selection(graph, parts.ids[at < len(durations)], parts.words)
    rest = Selection(graph, parts.ids[at >= len(durations)], parts.words)
    short = [places.where(places.sizes == size) for size in np.unique(places.sizes) if size < len(durations)]
    if len(kept):
        kept.set(name="substitute", duration_ns=durations[at[at < len(durations)]])
    if len(kept) and on_cpu:
        kept.set(gap_ns=gaps[at[at < len(durations)]])
    for group in short:
        last, size = group.last(), int(group.sizes[0])
        for time, gap in zip(durations[size:].tolist(), gaps[size:].tolist(), strict=True):
            how = {"gap_ns": gap} if on_cpu else {}
            last = graph.insert_after(last, "substitute", duration_ns=time, **how)
    if len(rest):
        remove_with_operators(rest)


def set_times(graph: Graph, layers: str, chosen: Selection, times: dict[str, float]) -> None:
    """Give layers, operators and kernels among the chosen tasks the times (ns) of a table.

    A layer takes its time forward in each of its places, backward it changes by the same
    ratio; an operator takes it a call, its kernels together. A time of 0 removes.
    Raises `GraphError` for names that are neither.
    """
    unknown = [name for name in times if not _named(chosen, name)]
    if unknown:
        raise GraphError(
            f"layers {layers!r} have no layer, operator or kernel {', '.join(map(repr, unknown))}"
        )
    for name, time in times.items():
        tasks = chosen.where(layer=name)
        calls = _exactly(chosen, chosen.op == name).group_by("call")
        ratio: np.ndarray | float
        if len(tasks):
            forward = places_of(graph, name, "forward").total("duration_ns")
            if not len(forward) or not np.median(forward):
                raise NotApplicableError(f"layer {name!r} does no work in the forward pass")
            ratio = time / float(np.median(forward))
        elif len(calls):
            tasks = calls.by_group
            ratio = np.repeat(time / np.maximum(calls.total("duration_ns"), 1), calls.sizes)
        else:
            tasks = _exactly(chosen, chosen.name == name)
            ratio = time / np.maximum(tasks.duration_ns, 1)
        if time:
            tasks.scale(ratio)
        else:
            chosen = chosen - tasks
            remove_with_operators(tasks)


def _most_frequent(numbers: np.ndarray) -> int:
    values, counts = np.unique(numbers, return_counts=True)
    return int(values[np.argmax(counts)])


def _exactly(tasks: Selection, mask: np.ndarray) -> Selection:
    return Selection(tasks.graph, tasks.ids[mask], tasks.words)


def _named(tasks: Selection, name: str) -> bool:
    return bool(len(tasks.where(layer=name)) or (tasks.op == name).any() or (tasks.name == name).any())
