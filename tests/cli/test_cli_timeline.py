"""`-o`: the timeline files are in the Trace Event Format and show what they should."""

import numpy as np
import pytest
from machine.programs import PROGRAMS
from timeline_files import NS, problems, read, slices, threads

import daydream
from daydream.report import perfetto as file


@pytest.mark.parametrize(
    ("command", "trace", "name"),
    [(["replay"], "ranks", "out.json"), (["whatif", "amp"], "step.parquet", "out.json.gz")],
)
def test_the_file_is_in_the_trace_event_format(ask, folder, command, trace, name):
    done = ask(*command, "--trace", trace, "-o", name)

    assert done.code == 0, done.err
    assert done.err.splitlines()[-1] == f"wrote {name}   open it at https://ui.perfetto.dev"
    assert problems(read(folder / name)) == []


def test_times_are_those_of_the_timeline(folder):
    replay = daydream.replay(folder / "step.parquet")
    file.write(folder / "out.json", replay)

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


def insert_after_the_loss(graph):
    kernels = graph.select(kind="kernel")
    kernels.scale(0.5)
    graph.insert("checkpoint", kind="memcpy", lane="disk", duration_ns=5_000, after=[kernels.head(1)])


def test_what_changed_and_what_is_new_is_marked(folder):
    replay = daydream.replay(folder / "step.parquet")
    comparison = daydream.whatif(replay, insert_after_the_loss)
    file.write(folder / "out.json", replay, comparison)
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
    file.write(tmp_path / "out.json", daydream.replay(trace))
    document = read(tmp_path / "out.json")

    assert problems(document) == []
    assert "stream 7 (overlapping)" in threads(document).values()
