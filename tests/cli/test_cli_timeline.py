"""`-o`: the timeline files are in the Trace Event Format and show what they should."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from machine.programs import PROGRAMS

import daydream
from daydream.report import perfetto

NS = 1000  # a microsecond


def read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)


def slices(document: dict[str, Any], process: str) -> list[dict[str, Any]]:
    pids = {
        e["pid"]
        for e in document["traceEvents"]
        if e["name"] == "process_name" and e["args"]["name"].startswith(process)
    }
    (pid,) = pids
    return [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == pid]


def threads(document: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {
        (e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }


def problems(document: dict[str, Any]) -> list[str]:
    """Return what breaks the format: missing keys, bad times, slices that neither nest nor follow."""
    found = []
    lanes = defaultdict(list)
    named = threads(document)
    for event in document["traceEvents"]:
        missing = {
            "X": {"pid", "tid", "ts", "dur", "name", "cat", "args"},
            "M": {"pid", "tid", "name", "args"},
        }[event["ph"]]
        missing = missing - set(event)
        if missing:
            found.append(f"{event} lacks {missing}")
        elif event["ph"] == "X":
            if not (type(event["ts"]) in (int, float) and event["ts"] >= 0 and event["dur"] >= 0):
                found.append(f"bad times in {event}")
            if (event["pid"], event["tid"]) not in named:
                found.append(f"no name for the thread of {event}")
            lanes[event["pid"], event["tid"]].append(
                (round(event["ts"] * NS), round(event["dur"] * NS), event["name"])
            )
    for lane, events in lanes.items():
        open_ends: list[int] = []
        for start, duration, name in sorted(events, key=lambda event: (event[0], -event[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            if open_ends and start + duration > open_ends[-1]:
                found.append(f"{name!r} overlaps on {named[lane]}")
            open_ends.append(start + duration)
    return found


@pytest.mark.parametrize("command", [["replay"], ["whatif", "amp"], ["whatif", "amp+fused-adam"]])
@pytest.mark.parametrize("trace", ["step.parquet", "ranks"])
@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_the_file_is_in_the_trace_event_format(run, folder, command, trace, name):
    done = run(*command, "--trace", trace, "-o", name)

    assert done.code == 0, done.err
    assert done.err.splitlines()[-1] == f"wrote {name}   open it at https://ui.perfetto.dev"
    assert problems(read(folder / name)) == []


def test_measured_and_replayed_tasks_are_all_there(folder):
    replay = daydream.replay(folder / "step.parquet")
    perfetto.write(folder / "out.json", replay)
    document = read(folder / "out.json")

    rows = [event for event in slices(document, "measured") if event["cat"] != "step"]
    tasks = [event for event in slices(document, "replayed") if event["cat"] not in ("step", "wait")]
    assert len(rows) == len(replay.graph.trace)
    assert len(tasks) == (replay.timeline.copy == 0).sum()
    assert {event["name"] for event in slices(document, "replayed") if event["cat"] == "step"} == {
        f"ProfilerStep#{number}" for number in range(24, 28)
    }
    assert set(threads(document).values()) == {"steps", *(lane.name for lane in replay.graph.lanes)}


def test_times_are_those_of_the_timeline(folder):
    replay = daydream.replay(folder / "step.parquet")
    perfetto.write(folder / "out.json", replay)

    kernels = [event for event in slices(read(folder / "out.json"), "replayed") if event["cat"] == "kernel"]
    timeline = replay.timeline
    chosen = (timeline.copy == 0) & (timeline.column("kind") == "kernel")
    origin = int(replay.graph.trace["start_ns"].min())
    assert sorted(round(event["ts"] * NS) for event in kernels) == sorted(
        (timeline.start_ns[chosen] - origin).tolist()
    )
    assert (
        sum(round(event["dur"] * NS) for event in kernels)
        == replay.graph.columns["duration_ns"][timeline.task[chosen]].sum()
    )


def test_a_call_that_stands_blocked_shows_what_it_waits_for(folder):
    replay = daydream.replay(folder / "step.parquet")
    perfetto.write(folder / "out.json", replay)

    waits = [event for event in slices(read(folder / "out.json"), "replayed") if event["cat"] == "wait"]
    assert {"wait: synchronization", "wait: thread hand-off"} <= {event["name"] for event in waits}


def insert_after_the_loss(graph: daydream.Graph) -> None:
    kernels = graph.select(kind="kernel")
    kernels.scale(0.5)
    graph.insert("checkpoint", kind="memcpy", lane="disk", duration_ns=5_000, after=[kernels.head(1)])


def test_what_changed_and_what_is_new_is_marked(folder):
    replay = daydream.replay(folder / "step.parquet")
    comparison = daydream.whatif(replay, insert_after_the_loss)
    perfetto.write(folder / "out.json", replay, comparison)
    document = read(folder / "out.json")

    predicted = slices(document, "predicted")
    (new,) = [event for event in predicted if event["args"].get("inserted")]
    assert (new["name"], new["dur"], threads(document)[new["pid"], new["tid"]]) == (
        "checkpoint [inserted]",
        5.0,
        "disk",
    )
    kernels = [event for event in predicted if event["cat"] == "kernel"]
    assert all(event["args"]["before_us"] == pytest.approx(2 * event["dur"], abs=0.002) for event in kernels)
    assert not any("before_us" in event["args"] for event in slices(document, "replayed"))
    assert problems(document) == []


def test_work_that_overlaps_on_one_stream_gets_a_row_of_its_own(tmp_path):
    path = PROGRAMS["cpu_bound"]().run(steps=4).write(tmp_path / "t.json", 1, 3)
    trace = daydream.load(path)
    kernels = np.flatnonzero(trace["kind"] == trace.code("kind", "kernel"))
    trace.columns["start_ns"][kernels[10]] = trace["start_ns"][kernels[9]] + 1
    perfetto.write(tmp_path / "out.json", daydream.replay(trace))
    document = read(tmp_path / "out.json")

    assert problems(document) == []
    assert "stream 7 (overlapping)" in threads(document).values()


def test_the_same_result_gives_the_same_file(folder):
    replay = daydream.replay(folder / "step.parquet")
    for name in ("a.json.gz", "b.json.gz"):
        perfetto.write(folder / name, replay)

    assert (folder / "a.json.gz").read_bytes() == (folder / "b.json.gz").read_bytes()
