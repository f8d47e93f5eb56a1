"""`daydream import --handles`: a compiler's own map joined to its trace, or refused in one line."""

import json
from pathlib import Path

import pytest

import daydream
from daydream.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "synthetic_gpt_gpu.json.gz"


@pytest.fixture
def imported(tmp_path, capsys):
    def run(text):
        path, output = tmp_path / "map.json", tmp_path / "t.parquet"
        path.write_text(text)
        with pytest.raises(SystemExit) as ended:
            main(["import", str(EXAMPLE), "--handles", str(path), "-o", str(output), "--json"])
        return int(ended.value.code or 0), *capsys.readouterr(), output

    return run


def test_a_map_by_name_is_joined_and_kept(imported):
    trace = daydream.load(EXAMPLE)
    kernels = trace.is_kind("kernel")
    name = trace.text("name")[int(trace["name"][kernels][0])]
    handles = daydream.DebugHandleMap({name: [daydream.Handle("aten::add", "mine")]})
    code, out, err, output = imported(handles.to_json())
    assert code == 0, err
    read = daydream.load(output)
    assert read.handles == handles
    rows = trace.is_kind("kernel") & (trace["name"] == trace.code("name", name))
    assert (read["handle"] >= 0).tolist() == rows.tolist()
    assert any("have debug handles" in note for note in json.loads(out)["notes"])


@pytest.mark.parametrize("text", ["{}", '{"format": "daydream.handles", "version": 1, "entries": []}'])
def test_a_file_that_joins_nothing_is_one_line(imported, text):
    code, _, err, output = imported(text)
    assert code == 1
    assert "map.json" in err
    assert not output.exists()
