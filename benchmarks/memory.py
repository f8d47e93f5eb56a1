"""Memory: bytes a task of the plan, the timeline and the whole graph, against networkx."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable
from typing import Any

import numpy as np
from plain_networkx import to_digraph
from results import Aim, Part, Settings, Table, alone, say
from synthetic import synthetic
from traces import sources

from daydream.collect.importers import import_trace
from daydream.graph.build import build
from daydream.graph.graph import Graph
from daydream.graph.lower import lower
from daydream.graph.plan import Plan
from daydream.simulate import engine

METHOD = """\
Bytes a task. Ours are the bytes of the arrays: the plan, start and end, what the scan keeps to run
again, and the graph that people edit (all its columns, also names, phases and rows of the trace, and its
tables; not the texts behind the codes, which do not grow with tasks). networkx is what `tracemalloc`
counts while a graph with lane, duration, gap and release on its nodes and latency on its edges is made."""

COLUMNS = {
    "graph": "graph",
    "tasks": "tasks",
    "edges": "edges/task",
    "plan": "plan + start + end",
    "cut": "kept by the scan",
    "whole": "graph",
    "networkx": "networkx",
    "share": "plan + start + end / networkx",
}


def measure(settings: Settings) -> Part:
    """Return the memory benchmark."""
    part = Part("Memory", METHOD)
    table = Table("Bytes a task", COLUMNS)
    part.tables.append(table)
    part.aims += [
        Aim("plan, start and end", 100, {}, least=False, unit="bytes a task"),
        Aim("the graph that people edit", 100, {}, least=False, unit="bytes a task"),
        Aim("plan, start and end against networkx", 0.1, {}, least=False),
    ]
    with sources(quick=settings.quick) as chosen:
        for source in chosen:
            graph = build(import_trace([source.path]))
            _weigh(part, source.name, lower(graph).plan, graph)
    _weigh(part, "synthetic, 100k", synthetic(100_000), None)
    return part


def _weigh(part: Part, name: str, plan: Plan, graph: Graph | None) -> None:
    say(f"memory of {name}")
    start, end = engine.run(plan)
    arrays = [getattr(plan, column) for column in Plan.__slots__ if column not in {"cache", "scheduled"}]
    run = _bytes([*arrays, start, end])
    row: dict[str, Any] = {
        "graph": name,
        "tasks": len(plan),
        "edges": len(plan.edge_src) / len(plan),
        "plan": run / len(plan),
        "cut": _bytes(_inside(plan.cache)) / len(plan),
        "networkx": _traced(plan) / len(plan),
    }
    row["share"] = row["plan"] / row["networkx"]
    part.aims[0].cases[name] = row["plan"]
    part.aims[2].cases[name] = row["share"]
    if graph is not None:
        tables = (graph.syncs, graph.waits, graph.links)
        columns = [column for table in tables for column in table.columns.values()]
        row["whole"] = _bytes([*graph.columns.values(), graph.alive, *columns]) / len(graph)
        part.aims[1].cases[name] = row["whole"]
    part.tables[0].rows.append(row)


def _bytes(arrays: Iterable[np.ndarray | None]) -> int:
    """Return the bytes of some arrays, each counted once; what is only broadcast takes none."""
    owned = {id(array): array for array in arrays if array is not None}
    return sum(0 if array.strides == (0,) else array.nbytes for array in owned.values())


def _inside(value: Any) -> list[np.ndarray]:
    """Return every array in nested lists, tuples and dictionaries."""
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        return _inside(list(value.values()))
    if isinstance(value, list | tuple):
        return [array for part in value for array in _inside(part)]
    return []


def _traced(plan: Plan) -> int:
    tracemalloc.start()
    digraph = to_digraph(plan)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if len(digraph) != len(plan):
        raise ValueError("networkx lost a task")
    return size


if __name__ == "__main__":
    alone(measure)
