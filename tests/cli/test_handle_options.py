"""`--handles` and `--capture`, as people type them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from command_line import Done

import daydream
from daydream import DebugHandleMap, Handle

Run = Callable[..., Done]


def test_a_map_is_given_to_an_import_and_to_a_what_if(run: Run, folder: Path) -> None:
    trace = daydream.load(folder / "step.parquet")
    name = trace.values("name", np.flatnonzero(trace.is_kind("kernel")))[0]
    owners = (Handle("aten::add", "blocks.0", weight=1), Handle("aten::relu", "blocks.1", weight=3))
    (folder / "map.json").write_text(DebugHandleMap({name: owners}, rule="flop").to_json())
    words = ("scale", "--layer", "blocks.1", "--factor", "0", "--json")
    whatif = json.loads(run("whatif", *words, "--trace", "step.parquet", "--handles", "map.json").out)
    assert any("shared over the operators" in note for note in whatif["notes"])
    assert run("import", "step.json.gz", "--handles", "map.json", "-o", "mapped.parquet").code == 0
    again = json.loads(run("whatif", *words, "--trace", "mapped.parquet").out)
    assert again["predicted_ns"] == whatif["predicted_ns"] < whatif["replayed_ns"]
    assert run("whatif", *words, "--trace", "step.parquet").code == 1  # no layers without the map


def test_what_does_not_fit_is_one_line(run: Run, folder: Path) -> None:
    (folder / "map.json").write_text(DebugHandleMap({"absent": (Handle("aten::add"),)}).to_json())
    done = run("rank", "--trace", "step.parquet", "--handles", "map.json")
    assert (done.code, done.out) == (1, "")
    assert "no row joins any of the 1 identifiers" in done.err
    done = run("import", "step.json.gz", "--capture", "step.json.gz", "-o", "x.parquet")
    assert done.code == 1
    assert "graph launch" in done.err
    assert not (folder / "x.parquet").exists()
    done = run("info", "step.parquet", "--handles", "map.json", "--capture", "step.json.gz")
    assert done.code == 2
