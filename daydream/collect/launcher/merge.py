"""One trace of the traces that the processes of a run left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daydream.text import counted
from daydream.trace.trace import Trace

TIMES = "unprofiled_step_ns"
# What ranks tell differently: parameters of a sharded or pipelined model, the GPU each one uses. The
# plain name holds the lowest rank's, `..._by_rank` all of them, the latter only where they differ.
OF_EACH_RANK = (
    TIMES,
    "confirmed",
    "profiler_cost",
    "parameters",
    "buffers",
    "optimizers",
    "ddp",
    "devices",
    "held_before",
)


def merge(
    traces: Mapping[int, Path], ended: Mapping[int, Mapping[str, Any]], root: int
) -> tuple[Trace | Path, list[str]]:
    """Return the trace of a run, and sentences about what is missing from it.

    `traces` are files by process id, `ended` what the processes said in the end, `root` the
    process that was started. Ranks of one job become one trace. Processes that trained
    without knowing of each other do not: of them one is kept, the root's if it has one.
    A single file is returned as it is.
    """
    world = max((int(each["world"]) for each in ended.values() if each.get("world")), default=1)
    if len(traces) == 1:
        (path,) = traces.values()
        return path, _missing(world, 1)
    loaded = {pid: Trace.load(path) for pid, path in sorted(traces.items())}
    for pid, trace in loaded.items():
        rank = ended.get(pid, {}).get("rank")
        if rank is not None:
            trace.metadata["rank"] = rank
    ranks = [trace.metadata.get("rank") for trace in loaded.values()]
    if world == 1 or None in ranks or len(set(ranks)) < len(ranks):
        kept = root if root in traces else min(traces)
        return traces[kept], [
            f"{len(traces)} processes trained independently of each other; the trace is that of {kept}."
        ]
    return _joined(list(loaded.values())), _missing(world, len(traces))


def _missing(world: int, found: int) -> list[str]:
    if found >= world:
        return []
    return [f"The job has {counted(world, 'rank')}; {found} of them ran here and left a trace."]


def _joined(traces: list[Trace]) -> Trace:
    """Return one trace on one clock: that of the rank whose origin is the earliest."""
    import numpy as np

    from daydream.collect.importers import join_ranks

    origin = min(int(trace.metadata.get("origin_ns", 0)) for trace in traces)
    for trace in traces:
        shift = int(trace.metadata.get("origin_ns", 0)) - origin
        rank = int(trace.metadata["rank"])
        trace.columns["rank"] = np.full(len(trace), rank, np.int32)
        trace.columns["start_ns"] = trace.columns["start_ns"] + shift
        if (memory := trace.memory) is not None:
            trace.memory = memory.changed(
                rank=np.full(len(memory), rank), time_ns=memory["time_ns"] + shift
            )
        trace.metadata["origin_ns"] = origin
        for step in trace.metadata["steps"]:
            step["rank"] = rank
            for edge in ("start_ns", "end_ns", "completion_ns"):
                if step.get(edge) is not None:
                    step[edge] += shift
    source = traces[0].metadata.get("source")
    joined = join_ranks(traces)
    joined.metadata["source"] = source  # each process named its part after the whole
    for name in OF_EACH_RANK:
        found = {str(trace.metadata["rank"]): trace.metadata.get(name) for trace in traces}
        known = {
            rank: value
            for rank, value in sorted(found.items(), key=_by_number)
            if value is not None
        }
        joined.metadata.pop(name, None)
        if not known:
            continue
        joined.metadata[name] = next(iter(known.values()))
        if (
            name == TIMES or len({str(value) for value in found.values()}) > 1
        ):  # times: of every rank
            joined.metadata[f"{name}_by_rank"] = known
    return joined


def _by_number(item: tuple[str, Any]) -> int:
    return int(item[0])
