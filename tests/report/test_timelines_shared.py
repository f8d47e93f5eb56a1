"""Timeline files of public traces of three kinds: in the format, and with all that a reader looks for."""

from __future__ import annotations

from collections import Counter

import pytest
from shared import shared_replay
from timeline_files import problems, read, slices, threads

import daydream
from daydream.report import perfetto as file

TRACES = {  # and which arrows each of them must have beside launches
    "kineto/v100_dlrm_4_of_8_ranks": {"stream wait", "critical path"},
    "kineto/h100_bert_small_inference.json.gz": {"critical path"},
    "odd/cpu_only.json.gz": {"critical path"},
}


@pytest.mark.parametrize("name", TRACES)
def test_the_file_is_in_the_format_and_complete(name, tmp_path):
    replay = shared_replay(name)
    comparison = daydream.whatif(replay, "scale", on="cpu", factor=0.5)
    file.write(tmp_path / "timeline.json.gz", replay, comparison)
    document = read(tmp_path / "timeline.json.gz")
    events = document["traceEvents"]

    assert problems(document) == []
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["measured", "replayed", "predicted: scale"]
    lanes = {lane.name for lane in replay.graph.lanes}
    assert {text for (pid, _), text in threads(document).items() if pid == 2} >= lanes
    arrows = Counter(event["name"] for event in events if event["ph"] == "s")
    on_device = any(lane.on_device and not lane.host for lane in replay.graph.lanes)
    assert arrows.keys() >= TRACES[name] | ({"launch"} if on_device else set())
    counters = {event["name"].split(":")[0] for event in events if event["ph"] == "C"}
    assert replay.graph.trace is not None
    of_memory = {"memory"} if replay.graph.trace.memory is not None else set()
    assert counters == ({"in flight", "streams busy"} if on_device else set()) | of_memory
    for process in ("replayed", "predicted"):
        shown = [event for event in slices(document, process) if event["cat"] not in ("step", "wait")]
        assert any(event["args"].get("critical") for event in shown)
        assert sum("phase" in event["args"] for event in shown) > 0.5 * len(shown)
    assert any(event["args"].get("changed") and "before_us" in event["args"] for event in shown)
