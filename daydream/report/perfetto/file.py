"""Timelines for https://ui.perfetto.dev: measured, replayed and predicted, each a process of its own.

The file is in the Trace Event Format ("Trace Event Format", Google, 2016): complete
events (`X`) with microseconds, metadata events (`M`) that name processes and threads,
arrows (`s` to `f`) from slice to slice, and counters (`C`). Slices of one thread nest or
follow each other, as the format demands.

The simulated processes show the recorded window once; where it was repeated to let
the step settle, that is the first pass.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from daydream.files.atomic import write_whole
from daydream.report.perfetto.counters import measured_counters, simulated_counters
from daydream.report.perfetto.events import process, span, thread
from daydream.report.perfetto.flows import critical_entries, simulated_flows
from daydream.report.perfetto.tasks import measured_slices, simulated_slices

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.simulate.timeline import Timeline

MEASURED, REPLAYED, PREDICTED = 1, 2, 3
PACK_LEVEL = 4
EVENTS_AT_ONCE = 10_000


def write(
    path: str | os.PathLike[str],
    replay: Replay,
    comparison: Prediction | None = None,
    *,
    force: bool = False,
) -> None:
    """Write the timelines of a replay, or of a what-if with its replay, as .json or .json.gz.

    Raises `OutputError` if the file exists and `force` is not given, or cannot be written.
    """

    def fill(temporary: str) -> None:
        with open(temporary, "wb") as file:
            if str(path).endswith(".gz"):
                with gzip.GzipFile("", "wb", PACK_LEVEL, file, mtime=0) as packed:
                    _fill(packed, replay, comparison)
            else:
                _fill(file, replay, comparison)

    write_whole(path, fill, force=force)


def _fill(file: IO[bytes] | gzip.GzipFile, replay: Replay, comparison: Prediction | None) -> None:
    about: dict[str, Any] = {"measured_ns": replay.measured_ns, "replayed_ns": replay.replayed_ns}
    if comparison is not None:
        about |= {
            "optimization": comparison.optimization,
            "options": {name: str(value) for name, value in comparison.options.items()},
            "measured_ns": comparison.measured_ns,
            "replayed_ns": comparison.replayed_ns,
            "predicted_ns": comparison.predicted_ns,
        }
    head = {"displayTimeUnit": "ms", "otherData": about}
    file.write(json.dumps(head)[:-1].encode() + b', "traceEvents": [\n')
    lines = events(replay, comparison)
    file.write(next(lines).encode())
    while block := list(islice(lines, EVENTS_AT_ONCE)):
        file.write((",\n" + ",\n".join(block)).encode())
    file.write(b"\n]}\n")


def events(replay: Replay, comparison: Prediction | None = None) -> Iterator[str]:
    """Return the events of the file, each as JSON text."""
    graph, timeline = replay.graph, replay.timeline
    processes = [(REPLAYED, "replayed", graph)]
    if comparison is not None:
        processes.append((PREDICTED, f"predicted: {comparison.optimization}", comparison.graph))
    origin = _origin(replay, comparison)
    numbers = count(1)
    if graph.trace is not None:
        yield from _lanes(MEASURED, "measured", graph)
        yield from _steps(MEASURED, graph, _measured_steps(graph), origin)
        yield from measured_slices(MEASURED, graph, _first_lane(graph), origin, numbers)
        yield from measured_counters(MEASURED, graph, origin)
    for pid, name, shown in processes:
        yield from _lanes(pid, name, shown)
        before = None if pid == REPLAYED else graph
        simulated = timeline if comparison is None or pid == REPLAYED else comparison.timeline
        yield from _steps(pid, shown, _simulated_steps(simulated), origin)
        path, first = critical_entries(simulated), _first_lane(shown)
        yield from simulated_slices(pid, simulated, before, first, origin, path)
        yield from simulated_flows(pid, simulated, first, origin, path, numbers)
        yield from simulated_counters(pid, simulated, origin)


def _origin(replay: Replay, comparison: Prediction | None) -> int:
    """Return the earliest time of all: what the file counts from."""
    times = [replay.timeline.start_ns, np.array([step["start_ns"] for step in replay.graph.steps])]
    if comparison is not None:
        times.append(comparison.timeline.start_ns)
    if replay.graph.trace is not None:
        times.append(np.asarray(replay.graph.trace["start_ns"]))
    return min(int(part.min()) for part in times if len(part))


def _ranks(graph: Graph) -> list[int]:
    return sorted({int(step.get("rank", 0)) for step in graph.steps}) or [0]


def _first_lane(graph: Graph) -> int:
    """Return the thread number of lane 0; below it lie the rows of the steps, one a rank."""
    return len(_ranks(graph)) + 1


def _lanes(pid: int, name: str, graph: Graph) -> Iterator[str]:
    yield from process(pid, name)
    ranks = _ranks(graph)
    for place, rank in enumerate(ranks):
        yield from thread(pid, place + 1, f"steps of rank {rank}" if len(ranks) > 1 else "steps")
    first = _first_lane(graph)
    for number, lane in enumerate(graph.lanes):
        yield from thread(pid, first + number, lane.name)


def _measured_steps(graph: Graph) -> Iterator[tuple[int, int, int]]:
    """Return (step, begin, end) of each step, completion to completion."""
    for number, step in enumerate(graph.steps):
        end = int(step.get("completion_ns", step["end_ns"]))
        measured = step.get("measured_ns")
        yield number, int(step["start_ns"]) if measured is None else end - int(measured), end


def _simulated_steps(timeline: Timeline) -> Iterator[tuple[int, int, int]]:
    steps = timeline.graph.steps
    reached: dict[int, int] = {}
    for (copy, number), task in sorted(timeline.last_of_steps.items()):
        if copy == 0:
            rank = int(steps[number].get("rank", 0))
            end = int(timeline.end_ns[task])
            yield number, reached.get(rank, int(steps[number]["start_ns"])), end
            reached[rank] = end


def _steps(
    pid: int, graph: Graph, spans: Iterable[tuple[int, int, int]], origin: int
) -> Iterator[str]:
    ranks = _ranks(graph)
    for number, begin, end in spans:
        step = graph.steps[number]
        if end < begin:
            continue
        tid = ranks.index(int(step.get("rank", 0))) + 1
        args = f',"covered":{json.dumps(bool(step.get("covered")))}'
        if step.get("why_not"):
            args += f',"why_not":{json.dumps(step["why_not"])}'
        yield span(pid, tid, begin - origin, end - begin, json.dumps(step["name"]), '"step"', args)
