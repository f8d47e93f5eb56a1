"""Files beside the trace: counters, handles, contention, ranges of steps, ExecuTorch's."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import daydream as typed
from contention_machine import Machine
from long_recording import SOME, STEPS
from shared import GPT, ROOT

import daydream
from daydream import DebugHandleMap, Handle

# `--counters` on the command line: what it changes, what it says, and what it refuses


TABLE = (
    '"ID","Process ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"\n'
    '"0","1","ampere_sgemm_128x64_tn","","dram__bytes.sum","Mbyte","2.5"\n'
)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    counted = tmp_path_factory.mktemp("counters")
    (counted / "c.csv").write_text(TABLE)
    return counted


def asked(counted, command, *words):
    return typed(*command, "--trace", str(GPT), *words, folder=counted)


@pytest.mark.parametrize("command", [["whatif", "amp"], ["explain"], ["rank", "--no-curves"]])
def test_commands_say_how_many_kernels_have_counters(counted, command):
    notes = asked(counted, command, "--counters", "c.csv", "--json").json()["notes"]
    assert any("have counters of c.csv; their FLOP and bytes are taken from them" in note for note in notes)
    assert any("each has the mean of those that were counted" in note for note in notes)


def test_a_trace_that_is_imported_keeps_them(counted):
    typed("import", str(GPT), "--counters", "c.csv", "-o", "t.parquet", folder=counted).good()
    found = typed("info t.parquet --json", folder=counted).json()
    assert any("have counters of c.csv" in note for note in found["notes"])


# `--handles` and `--capture`, as people type them


def test_a_map_is_given_to_an_import_and_to_a_what_if(ask, folder):
    trace = daydream.load(folder / "step.parquet")
    name = trace.values("name", np.flatnonzero(trace.is_kind("kernel")))[0]
    owners = (Handle("aten::add", "blocks.0", weight=1), Handle("aten::relu", "blocks.1", weight=3))
    (folder / "map.json").write_text(DebugHandleMap({name: owners}, rule="flop").to_json())
    words = ("scale", "--layer", "blocks.1", "--factor", "0", "--json")
    whatif = ask("whatif", *words, "--trace", "step.parquet", "--handles", "map.json").json()
    assert any("shared over the operators" in note for note in whatif["notes"])
    assert ask("import step.json.gz --handles map.json -o mapped.parquet").code == 0
    again = ask("whatif", *words, "--trace", "mapped.parquet").json()
    assert again["predicted_ns"] == whatif["predicted_ns"] < whatif["replayed_ns"]
    assert ask("whatif", *words, "--trace", "step.parquet").code == 1  # no layers without the map


# `--json`: one object with exactly the keys of docs/json.md, and nothing else on stdout


PAGE = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "command",
    [
        "info step.parquet", "replay --trace step.parquet", "whatif amp --trace step.parquet",
        "explain --trace step.parquet", "rank --pairs 0 --no-curves --trace step.parquet",
        "sweep scale --on gpu --set factor=0.5 --trace step.parquet", "compare step.parquet step.parquet",
        "scaling --workers 1,4 --bandwidth 10 --gradient-mb 10 --trace step.parquet",
    ],
)  # fmt: skip
def test_json_has_the_keys_of_the_page(ask, command):
    result = ask(*command.split(), "--json").good().json()

    section = PAGE.partition(f"## `daydream {command.split()[0]} --json`\n")[2].partition("\n##")[0]
    assert result.pop("schema") == 1
    assert result.pop("trace", "step.parquet") == "step.parquet"
    rows = [line.partition(" | ")[0] for line in section.splitlines() if line.startswith("`")]
    assert set(re.findall(r"`(\w+)", " ".join(rows))) - {"schema", "trace"} <= set(result)


def test_what_a_users_code_prints_goes_to_stderr(ask, folder):
    (folder / "chatty.py").write_text(
        "print('loading')\n\ndef chatty(graph, *, loud: bool = False):\n    print('editing', loud)\n"
        "    graph.select().scale(1)\n"
    )

    done = ask("whatif ./chatty.py --loud --trace step.parquet --json")

    assert done.good().json()["options"] == {"loud": True}
    # Once for the estimated step, once for the recorded one.
    assert done.err == "loading\nediting True\nediting True\n"


# `--contention` of `whatif` and `scaling`, as it is typed and as it is told


NETWORK = ("whatif", "network", "--bandwidth-factor", "4", "--trace", "transfers.parquet")


@pytest.fixture(scope="module")
def recording():
    return Machine(kernel_factor=1.3).record()


def test_a_prediction_tells_what_it_was_made_with(ask, folder, recording):
    recording.save(folder / "transfers.parquet")
    shown = " ".join(ask(*NETWORK).out.split())
    assert "Kernels take x1.30 while a transfer runs, measured on " in shown
    found = {
        how: ask(*NETWORK, "--contention", how, "--json").good().json()
        for how in ("measured", "off", "1.3", "2,1.1")
    }
    modes = {how: result["contention"]["mode"] for how, result in found.items()}
    assert modes == {"measured": "measured", "off": "off", "1.3": "given", "2,1.1": "given"}
    assert found["2,1.1"]["contention"] == {
        "mode": "given", "matrix_factor": 2.0, "other_factor": 2.0, "transfer_factor": 1.1,
        "evidence": {"kernel": None, "matrix": None, "other": None, "transfer": None},
        "kernels": True, "reason": None,
    }  # fmt: skip
    assert list(found["measured"]["contention"]["evidence"]["kernel"]) == [
        "factor", "low", "high", "places", "beside", "alone", "overlapped_ns",
    ]  # fmt: skip
    # Less transferring makes kernels faster, which nobody told where it is off.
    assert found["measured"]["speedup"] > found["off"]["speedup"]
    assert found["measured"]["speedup"] == pytest.approx(found["1.3"]["speedup"], rel=1e-3)


# `--steps A:B`: questions about some of the steps, from a profiler's file, a parquet trace, the cache


def steps_of(done):
    """Return the names of the steps that `replay --json` tells of."""
    return [step["name"] for step in done.good().json()["steps"]]


def test_a_range_is_the_same_from_every_source(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("DAYDREAM_CACHE", str(tmp_path / "cache"))
    whole = steps_of(ask("replay --trace step.parquet --json"))
    first = ask("replay --trace step.parquet --steps 1:3 --json")

    assert steps_of(first) == whole[:2] != whole
    assert ask("replay --trace step.parquet --steps 1:3 --json") == first  # kept
    assert steps_of(ask("replay --trace step.json.gz --steps 1:3 --json")) == whole[:2]
    assert steps_of(ask("replay --trace step.parquet --json")) == whole  # another question

    assert ask("import step.json.gz --steps 1:3 -o few.parquet").code == 0
    assert steps_of(ask("replay --trace few.parquet --json")) == whole[:2]


# ExecuTorch's files at the command line: imported, asked, refused in one line


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
    told = done.json()
    assert (told["rows"], told["steps"], told["covered"]) == (116, 6, 5)
    assert any("54 of 54 rows, 100.0% of their time, have debug handles" in note for note in told["notes"])
    for words in (["info", "model.parquet"], ["replay", "--trace", "model.parquet"]):
        assert ask(*words).code == 0
    replayed = ask("replay --trace model.parquet --json").json()
    assert replayed["error"] == 0
    assert "aten::convolution" in ask("explain --trace model.parquet -v").out
    answer = ask("whatif scale --trace model.parquet --layer fc1 --factor 0.5 --json").json()
    assert 0 < answer["predicted_ns"] < answer["replayed_ns"]


# Of a long recording commands answer from the steps that stand for all, and say so


@pytest.mark.parametrize("words", [["whatif", "amp"], ["rank"], ["explain"], ["replay"]])
def test_answers_say_of_which_steps_they_are(ask, long, words):
    said = " ".join(ask(*words, "--trace", str(long)).good().out.split())
    run = daydream.load(long, steps="typical").metadata["typical_run"]

    assert run in said
    assert run.startswith(f"{SOME} of {STEPS} steps stand for all (--steps ")
    assert "stand for all" not in ask(*words, "--trace", str(long), "--steps", ":").good().out


def test_compare_tells_it_of_both(ask, long):
    # lines break by the path's length
    said = " ".join(ask("compare", "-v", str(long), str(long)).good().out.split())

    assert said.count(f"{SOME} of {STEPS} steps") == 2
