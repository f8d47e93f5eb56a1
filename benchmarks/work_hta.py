"""Worker: HolisticTraceAnalysis, in its own environment (it needs pandas < 3)."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

from workers import peak_bytes, seconds_of, serve

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)

from hta.analyzers.critical_path_analysis import CPGraph  # noqa: E402 - after the silence
from hta.trace_analysis import TraceAnalysis  # noqa: E402

critical_path: Callable[[CPGraph], bool] = CPGraph.critical_path
held: dict[str, Any] = {}


def load(path: str) -> dict[str, Any]:
    """Load one trace as one rank, all its steps."""

    def work() -> None:
        held["analysis"] = TraceAnalysis(
            trace_files={0: path}, trace_dir="/", include_last_profiler_step=True
        )

    seconds = seconds_of(work)
    return {"seconds": seconds, "peak": peak_bytes(), "rows": len(held["analysis"].t.get_trace(0))}


def build() -> dict[str, Any]:
    """Make the critical-path graph of the whole range; the longest path itself is not searched here."""

    def work() -> None:
        held["graph"], _ = held["analysis"].critical_path_analysis(rank=0, annotation="", instance_id=None)

    CPGraph.critical_path = lambda _: True
    try:
        seconds = seconds_of(work)
    finally:
        CPGraph.critical_path = critical_path
    return {"seconds": seconds, "nodes": len(held["graph"].nodes), "edges": len(held["graph"].edges)}


def whatif(factor: float) -> dict[str, Any]:
    """Change the weight of every edge that is time on the device, then search the critical path again."""
    graph = held["graph"]
    if "device" not in held or held["device"][0] is not graph:
        stream = graph.trace_df["stream"]
        events = {edge: graph.edge_to_event_map.get(edge) for edge in graph.edges}
        held["device"] = (
            graph,
            [e for e, event in events.items() if event is not None and stream.get(event, -1) != -1],
        )
    chosen = held["device"][1]
    begin = perf_counter()
    for edge in chosen:
        data = graph.edges[edge]
        data["weight"] = data["object"].weight * factor
    edited = perf_counter()
    if not graph.critical_path():
        raise ValueError("HTA found no critical path")
    return {"seconds": perf_counter() - begin, "edit_seconds": edited - begin, "changed": len(chosen)}


if __name__ == "__main__":
    serve({"load": load, "build": build, "whatif": whatif})
