"""`--handles` and `--capture`, as people type them."""

import json

import numpy as np

import daydream
from daydream import DebugHandleMap, Handle


def test_a_map_is_given_to_an_import_and_to_a_what_if(ask, folder):
    trace = daydream.load(folder / "step.parquet")
    name = trace.values("name", np.flatnonzero(trace.is_kind("kernel")))[0]
    owners = (Handle("aten::add", "blocks.0", weight=1), Handle("aten::relu", "blocks.1", weight=3))
    (folder / "map.json").write_text(DebugHandleMap({name: owners}, rule="flop").to_json())
    words = ("scale", "--layer", "blocks.1", "--factor", "0", "--json")
    whatif = json.loads(ask("whatif", *words, "--trace", "step.parquet", "--handles", "map.json").out)
    assert any("shared over the operators" in note for note in whatif["notes"])
    assert ask("import step.json.gz --handles map.json -o mapped.parquet").code == 0
    again = json.loads(ask("whatif", *words, "--trace", "mapped.parquet").out)
    assert again["predicted_ns"] == whatif["predicted_ns"] < whatif["replayed_ns"]
    assert ask("whatif", *words, "--trace", "step.parquet").code == 1  # no layers without the map


def test_what_does_not_fit_is_one_line(ask, folder):
    (folder / "map.json").write_text(DebugHandleMap({"absent": (Handle("aten::add"),)}).to_json())
    done = ask("rank --trace step.parquet --handles map.json")
    assert (done.code, done.out) == (1, "")
    assert "no row joins any of the 1 identifiers" in done.err
    done = ask("import step.json.gz --capture step.json.gz -o x.parquet")
    assert done.code == 1
    assert "graph launch" in done.err
    assert not (folder / "x.parquet").exists()
    done = ask("info step.parquet --handles map.json --capture step.json.gz")
    assert done.code == 2
