"""Stages of a pipeline: a rank of each is recorded, one after the other, and their traces become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from daydream.collect.launcher.runner import joined_ranks
from daydream.errors import DaydreamError
from daydream.files.atomic import own_folder
from daydream.trace.trace import Trace

NO_MESSAGES = (
    "rank {} exchanges no messages with another rank: the script has no pipeline whose stages could be recorded.\n"
    "Leave --all-stages out."
)


def record_stages(
    record: Callable[[Path, Any], Any], path: Path, recording: Any, *, force: bool
) -> Any:
    """Record a rank of each stage, and write one trace; return what came of the last recording.

    Args:
        record: records a rank into a file, and returns a `Collected`.
        path: where the trace goes.
        recording: the `Recording` of the first rank.
        force: write over a file that is there.

    Raises:
        DaydreamError: the first rank sends nothing to another one.
    """
    with own_folder("daydream") as folder:
        world = {**recording.fake_world, "stages": str(folder)}
        ranks, traces = [world["rank"]], list[Trace]()
        while ranks:
            of_rank = replace(recording, fake_world={**world, "rank": ranks[0]})
            done = record(folder / f"{ranks[0]}.parquet", of_rank)
            if done.path is None:
                return done
            traces.append(Trace.load(done.path))
            ranks = ranks[1:] if len(traces) > 1 else stages_of(traces[0])
        joined_stages(traces).save(path, force=force)
    return replace(done, path=path)


def stages_of(trace: Trace) -> list[int]:
    """Return the ranks of the other stages: those of the group in which the trace's rank sends messages."""
    world = trace.metadata["fake_world"]
    asked = zip(trace.values("collective"), trace.values("group"), strict=True)
    group = next((group for operation, group in asked if operation in ("send", "recv")), None)
    if group is None:
        raise DaydreamError(NO_MESSAGES.format(world["rank"]))
    (ranks,) = (each["ranks"] for each in trace.metadata["groups"] if each["name"] == group)
    return [rank for rank in ranks if rank != world["rank"]]


def joined_stages(traces: list[Trace]) -> Trace:
    """Return one trace of several ranks of a fake world, whose first steps begin at one time."""
    for trace in traces:
        trace.metadata["rank"] = trace.metadata["fake_world"]["rank"]
        trace.metadata["origin_ns"] = -min(step["start_ns"] for step in trace.metadata["steps"])
    joined = joined_ranks(traces)
    joined.metadata["notes"].append(
        "Stages were recorded one after the other and are joined by their messages; other collectives are those "
        "of each rank alone."
    )
    return joined
