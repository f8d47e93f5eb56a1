"""`daydream memory --trace`: the answer first, other looks, JSON for scripts, files, one line for errors."""

import gzip
import json

import pytest
from command_line import daydream
from memory.recordings import PARAMETER, SGD, Recording, training_step


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with `t.parquet`: three steps of one layer on the CPU, with its metadata."""
    folder = tmp_path_factory.mktemp("trained")
    recording = Recording()
    for number in (3, 4, 5):
        training_step(recording, number)
    trace = recording.trace(folder)
    trace.metadata |= {"parameters": [PARAMETER], "optimizers": [SGD]}
    trace.save(folder / "t.parquet")
    return folder


@pytest.mark.parametrize("by", ["operators", "layers", "idle"])
def test_other_looks_have_text_and_json(trained, by):
    done = daydream("memory --trace t.parquet --by", by, folder=trained)
    said = json.loads(daydream("memory --trace t.parquet --by", by, "--json", folder=trained).out)

    assert done.code == 0
    assert done.out.startswith("cpu: ")
    assert said["by"] == by
    assert isinstance(said[by], list)


def test_a_timeline_and_a_report_are_written(trained):
    done = daydream(
        "memory --trace t.parquet -o m.json.gz --html m.html", folder=trained
    )  # fmt: skip

    assert done.code == 0
    events = json.loads(gzip.decompress((trained / "m.json.gz").read_bytes()))["traceEvents"]
    counters = [event["args"]["value"] for event in events if event["name"] == "memory: cpu"]
    assert max(counters) == 16120
    assert 'id="memory-chart"' in (trained / "m.html").read_text()
    again = daydream("memory --trace t.parquet --html m.html", folder=trained)
    assert again.code == 1
    assert "--force" in again.err
