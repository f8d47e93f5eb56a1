"""ExecuTorch's files at the command line: imported, asked, refused in one line."""

import json
import shutil
from pathlib import Path

import pytest

FILES = Path(__file__).resolve().parents[1] / "collect" / "executorch"


@pytest.fixture
def model(folder):
    """A folder with an ETDump, its ETRecord and a table of Inspector."""
    for kind in ("etdp", "etrecord", "json"):
        shutil.copy(FILES / f"portable.{kind}", folder / f"model.{kind}")
    return folder


def test_an_imported_program_is_asked_as_any_trace(ask, model):
    done = ask("import model.etdp --etrecord model.etrecord --json")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["rows"], told["steps"], told["covered"]) == (116, 6, 5)
    assert any("54 of 54 rows, 100.0% of their time, have debug handles" in note for note in told["notes"])
    for words in (["info", "model.parquet"], ["replay", "--trace", "model.parquet"]):
        assert ask(*words).code == 0
    replayed = json.loads(ask("replay --trace model.parquet --json").out)
    assert replayed["error"] == 0
    assert "aten::convolution" in ask("explain --trace model.parquet -v").out
    answer = json.loads(ask("whatif scale --trace model.parquet --layer fc1 --factor 0.5 --json").out)
    assert 0 < answer["predicted_ns"] < answer["replayed_ns"]


@pytest.mark.parametrize("name", ["model.etdp", "model.json"])
def test_any_command_reads_the_files_themselves(ask, model, name):
    done = ask("replay --trace", name)
    assert done.code == 0, done.err
    assert "error 0.00%" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["model.json", "--etrecord", "model.etrecord"], "is no ETDump, and the ETRecord"),
        (["model.etdp", "--etrecord", "none.etrecord"], "none.etrecord: no such file"),
        (["model.etdp", "--etrecord", "model.json"], "is no readable ETRecord"),
        (
            ["model.etrecord"],
            "is an ETRecord; import the ETDump of its program with --etrecord model.etrecord",
        ),
        (["model.etdp", "model.json"], "give it alone"),
    ],
)
def test_what_does_not_fit_is_one_line(ask, model, words, said):
    done = ask("import", *words, "-o", "out.parquet")
    assert done.code == 1
    assert done.err.startswith("error: ")
    assert said in done.err
    assert "Traceback" not in done.err
    assert not (model / "out.parquet").exists()
