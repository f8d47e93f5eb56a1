"""Worker: daydream's side, and a plain networkx simulation of the same graph."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet  # noqa: F401 - imported here so that no timing holds an import
from timing import timed
from workers import peak_bytes, seconds_of, serve

import daydream
from daydream.collect.importers import import_trace
from daydream.graph.build import build as build_graph
from daydream.graph.lower import lower
from daydream.simulate import engine

held: dict[str, Any] = {}


def load(path: str, *, save: bool = True) -> dict[str, Any]:
    """Import a profiler file, and write it as parquet."""
    with tempfile.TemporaryDirectory() as folder:

        def work() -> None:
            held["trace"] = import_trace([path])
            if save:
                held["trace"].save(Path(folder) / "trace.parquet")

        seconds = seconds_of(work)
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    return {"seconds": seconds, "peak": peak_bytes(), "rows": len(held["trace"]), "parquet": size}


def build() -> dict[str, Any]:
    """Build the graph and lower it to the plan engines run, as far as a first simulation needs."""

    def work() -> None:
        held["graph"] = build_graph(held["trace"])
        held["plan"] = lower(held["graph"]).plan

    seconds = seconds_of(work)
    return {"seconds": seconds, "tasks": len(held["graph"]), "edges": len(held["plan"].edge_src)}


def rerun(factor: float, *, first: bool = False) -> dict[str, Any]:
    """Change the durations of device tasks and simulate again; `first`: with the engine's cut of the plan."""
    plan, graph = held["plan"], held["graph"]
    if "on_device" not in held or len(held["on_device"]) != len(plan):
        on_device = np.array([lane.on_device for lane in graph.lanes])
        held["on_device"] = on_device[plan.lane]
    on_device = held["on_device"]

    def work() -> None:
        if first:
            plan.cache.clear()
        duration = plan.duration_ns.copy()
        duration[on_device] = np.rint(duration[on_device] * factor)
        held["start"], _ = engine.run(plan.with_costs(duration))

    return {"seconds": timed(work)()}


def whatif(factor: float) -> dict[str, Any]:
    """Ask the whole question of a replayed trace: copy, edit, lint, simulate until settled, compare."""
    if "replay" not in held or held["replay"].graph is not held["graph"]:
        held["replay"] = daydream.replay(held["graph"])
    before = held["replay"]

    def work() -> None:
        held["comparison"] = daydream.whatif(before, "scale", on="gpu", factor=factor)
        held["predicted_ns"] = held["comparison"].predicted_ns

    return {"seconds": timed(work)(), "simulated": len(held["comparison"].timeline.task)}


def networkx_build() -> dict[str, Any]:
    """Make the same graph in networkx."""
    from plain_networkx import to_digraph

    def work() -> None:
        held["digraph"] = to_digraph(held["plan"])

    return {"seconds": seconds_of(work), "edges": held["digraph"].number_of_edges()}


def networkx_rerun(factor: float) -> dict[str, Any]:
    """Change durations in networkx and run Algorithm 1 there; the answer is held against the last `rerun`."""
    from plain_networkx import simulate

    digraph, plan, on_device = held["digraph"], held["plan"], held["on_device"]
    chosen = np.flatnonzero(on_device).tolist()
    old = plan.duration_ns.tolist()

    def work() -> None:
        for task in chosen:
            digraph.nodes[task]["duration"] = round(old[task] * factor)
        held["networkx"] = simulate(digraph)

    seconds = seconds_of(work)
    if [held["networkx"][task] for task in range(len(plan))] != held["start"].tolist():
        raise ValueError("networkx and the scan disagree")
    return {"seconds": seconds}


if __name__ == "__main__":
    serve({
        "load": load, "build": build, "rerun": rerun, "whatif": whatif,
        "networkx_build": networkx_build, "networkx_rerun": networkx_rerun,
    })  # fmt: skip
