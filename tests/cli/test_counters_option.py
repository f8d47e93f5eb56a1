"""`--counters` on the command line: what it changes, what it says, and what it refuses."""

import json
from pathlib import Path

import pytest
from command_line import daydream

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "synthetic_gpt_gpu.json.gz"
TABLE = (
    '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
    '"0","1","ampere_sgemm_128x64_tn","","dram__bytes.sum","Mbyte","2.5"\n'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counters")
    (folder / "c.csv").write_text(TABLE)
    (folder / "bytes.csv").write_text(TABLE.replace("2.5", "2,5"))
    (folder / "notes.txt").write_text("nothing was counted here\n")
    return folder


def asked(folder, command, *words):
    return daydream(*command, "--trace", str(EXAMPLE), *words, folder=folder)


@pytest.mark.parametrize("command", [["whatif", "amp"], ["explain"], ["rank", "--no-curves"]])
def test_commands_say_how_many_kernels_have_counters(folder, command):
    notes = json.loads(asked(folder, command, "--counters", "c.csv", "--json").out)["notes"]
    assert any("have counters of c.csv; their FLOP and bytes are taken from them" in note for note in notes)
    assert any("each has the mean of those that were counted" in note for note in notes)


def test_a_trace_that_is_imported_keeps_them(folder):
    done = daydream("import", str(EXAMPLE), "--counters", "c.csv", "-o", "t.parquet", folder=folder)
    assert done.code == 0, done.err
    found = json.loads(daydream("info t.parquet --json", folder=folder).out)
    assert any("have counters of c.csv" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("gone.csv", "No such file"),
        ("notes.txt", "no counters that are known"),
        ("bytes.csv", "decimal comma"),
    ],
)
def test_a_file_without_counters_is_one_line(folder, file, said):
    done = asked(folder, ["whatif", "amp"], "--counters", file)
    assert (done.code, done.out) == (1, "")
    first, *more = done.err.splitlines()
    assert first.startswith("error: ")
    assert said in done.err
    assert all(line.startswith(" ") for line in more)
