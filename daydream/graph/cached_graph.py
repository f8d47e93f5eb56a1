"""A graph in the user's cache: columns, tables and lanes as they were built."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.files.cache_file import text_of, whole_of
from daydream.graph.columns import Columns
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.tables import ALL_LANES, CODED, COLUMNS, KINDS, LONGEST_NS, Facts, Lane
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from daydream.trace.trace import Trace

TASK = "graph."  # begins the names of its arrays
HAND_OFFS, DERIVED = "hand_offs", "derived.hand_offs"
INT64: np.dtype[Any] = np.dtype(np.int64)
TABLES = ("syncs", "waits", "links")


def is_plain(graph: Graph) -> bool:
    """Return whether a graph is as it was built, so that all of it is kept: no edits, no times of a user."""
    names = {lane.name: number for number, lane in enumerate(graph.lanes)}
    given = (graph.overrides, graph.scheduled, graph.modelled, graph.doubted, graph.resized)
    if graph.trace is None or any(given) or graph.recorded_ns is not None or graph.times is not None:
        return False
    as_read = graph.steps == graph.trace.metadata.get("steps")
    return as_read and bool(graph.alive.all()) and names == graph._lane_ids and set(graph.texts) == set(CODED)


def graph_contents(graph: Graph) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the document and the arrays of a graph that is plain."""
    assert graph.trace is not None  # noqa: S101 - it is plain
    arrays = {TASK + name: column for name, column in graph.columns.items()}
    for table in TABLES:
        arrays |= {f"{table}.{name}": column for name, column in getattr(graph, table).columns.items()}
    if HAND_OFFS in graph._of_trace:
        arrays[DERIVED] = graph._of_trace[HAND_OFFS]
    new = {name: texts[len(graph.trace.text(name)) :] for name, texts in graph.texts.items()}
    document = {
        "lanes": [list(lane) for lane in graph.lanes],
        "texts": new,
        "queue_depth": [list(pair) for pair in graph.queue_depth.items()],
        "facts": {each.name: getattr(graph.facts, each.name) for each in fields(Facts)},
        "edits": graph.edits,
    }
    return document, arrays


def cached_graph(trace: Trace, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Graph:
    """Return the graph of a trace from what is kept of it.

    Raises `ValueError`, `TypeError` or `KeyError` where that is not what a graph can be: another dtype or
    length, a task, lane, row, step or text that is not there.
    """
    graph = Graph(trace)
    graph.columns = Columns({name: arrays[TASK + name] for name in COLUMNS})
    count = len(graph.columns["lane"])
    graph.alive = np.ones(count, bool)
    graph.texts = {name: [*trace.text(name), *map(text_of, document["texts"][name])] for name in graph.texts}
    graph.lanes = [_lane(*lane) for lane in document["lanes"]]
    graph._lane_ids = {lane.name: number for number, lane in enumerate(graph.lanes)}
    graph.steps = [dict(step) for step in trace.metadata["steps"]]
    for table in TABLES:
        rows = getattr(graph, table)
        rows.columns = {name: arrays[f"{table}.{name}"] for name in rows.columns}
        need(rows.columns, dict.fromkeys(rows.columns, INT64))
    if DERIVED in arrays:
        graph._of_trace[HAND_OFFS] = arrays[DERIVED]
        need({"parent": trace["start_ns"], "of": arrays[DERIVED]}, {"parent": INT64, "of": INT64})
        need_range(arrays[DERIVED], -1, len(trace) - 1)
    graph.queue_depth = {whole_of(lane): whole_of(depth) for lane, depth in document["queue_depth"]}
    graph.facts = _facts(document["facts"])
    graph.edits, graph._structure = whole_of(document["edits"]), 1
    _check(graph, count)
    return graph


def _check(graph: Graph, count: int) -> None:
    need(graph.columns, {name: np.dtype(dtype) for name, dtype in COLUMNS.items()})
    lanes, trace = len(graph.lanes), graph.trace
    assert trace is not None  # noqa: S101 - it was made of one
    most = {
        "lane": lanes - 1, "kind": len(KINDS) - 1, "phase": len(PHASES) - 1, "row": len(trace) - 1,
        "step": len(graph.steps) - 1, "launch": count - 1, "duration_ns": LONGEST_NS, "gap_ns": LONGEST_NS,
        **{name: len(graph.texts[name]) - 1 for name in CODED},
    }  # fmt: skip
    for name, largest in most.items():
        unknown = name in ("phase", "row", "step", "launch", *CODED)
        need_range(graph.columns[name], -1 if unknown else 0, largest)
    need_range(graph.columns["release_ns"], 0, LONGEST_NS)
    task, lane = (0, count - 1), (0, lanes - 1)
    ends = (
        (graph.syncs, {"task": task, "lane": (ALL_LANES, lanes - 1), "point": task}),
        (graph.waits, {"record": task, "source": lane, "wait": task, "target": lane}),
        (graph.links, {"src": task, "dst": task, "from_start": (0, 1), "cause": (0, max(Cause))}),
    )
    for table, columns in ends:
        for name, (least, largest) in columns.items():
            need_range(table[name], least, largest)
    if any(not 0 <= lane < lanes or depth < 1 for lane, depth in graph.queue_depth.items()):
        raise ValueError("a launch queue of no lane")


def need(columns: Mapping[str, np.ndarray], dtypes: Mapping[str, np.dtype[Any]]) -> None:
    """Raise `ValueError` for columns of other types, or of several lengths."""
    if {name: column.dtype for name, column in columns.items()} != dict(dtypes):
        raise ValueError("a column has another type")
    if len({len(column) for column in columns.values()}) > 1:
        raise ValueError("columns differ in length")


def need_range(values: np.ndarray, least: int, largest: int) -> None:
    """Raise `ValueError` for values out of their range."""
    if len(values) and not least <= int(values.min()) <= int(values.max()) <= largest:
        raise ValueError("a value is out of its range")


def _facts(given: Mapping[str, Any]) -> Facts:
    facts, usual = Facts(**given), Facts()
    for each in fields(Facts):
        value, known = given[each.name], getattr(usual, each.name)
        if type(value) is not type(known) and not (known is None and type(value) is int):
            raise TypeError("a fact is of another type")
    if facts.event_waits.keys() != usual.event_waits.keys():
        raise ValueError("stream waits of another sort")
    facts.event_waits = {name: whole_of(count) for name, count in facts.event_waits.items()}
    facts.notes = [text_of(note) for note in facts.notes]
    return facts


def _lane(*given: Any) -> Lane:
    kinds = (str, int, bool, int, bool, bool)
    if tuple(map(type, given)) != kinds:
        raise TypeError("a lane was needed")
    lane = Lane(*given)
    if not (0 <= lane.rank < 2**31 and -1 <= lane.device < 2**31):
        raise ValueError("a lane of no rank or device")
    return lane
