"""Memory on the command line: its own command, and in whatif, rank, sweep, scaling, explain."""

import gzip
import json
import pickle

import pytest
from command_line import daydream
from memory.recordings import PARAMETER, SGD, Recording, training_step
from memory.two_blocks import ALWAYS, LAYER, WEIGHT, two_blocks

# `daydream memory --snapshot`: the answer first, on one screen; JSON for scripts; one line for errors


MIB = 1 << 20
START = 1 << 40


def stack(line):
    return [{"filename": "/home/someone/gpt/model.py", "line": line, "name": "forward"}]


def made(path, name="forward"):
    """Write a snapshot: 30 blocks of 1 to 30 MiB, from as many lines, then all are freed."""
    events, at = [], START
    for line in range(1, 31):
        frames = [{**stack(line)[0], "name": name}]
        events += [
            {"action": "segment_alloc", "addr": at, "size": max(20, line + line % 2) * MIB, "stream": 0},
            {"action": "alloc", "addr": at, "size": line * MIB + 512, "stream": 0, "frames": frames},
        ]
        at += 64 * MIB
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    return path.name


@pytest.fixture
def file(folder):
    return made(folder / "s.pickle")


def test_the_peak_and_whether_it_fits_come_first(ask, file):
    done = ask("memory --snapshot", file, "--capacity", "24GB")

    first, *_ = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert first.startswith("cuda:0: peak ")
    assert " allocated, " in first
    assert "reserved: fits in 24 GB (" in first
    assert "gpt/model.py:30 forward" in done.out


@pytest.mark.parametrize(
    ("capacity", "verdict"),
    [
        ("700MiB", "too close to tell in 700 MiB ("),
        ("100MB", "does not fit in 100 MB"),
        ("1.5GiB", "fits in 1.5 GiB ("),
        ("104857600", "does not fit in 100 MiB"),
    ],
)
def test_the_capacity_is_told_as_typed(ask, file, capacity, verdict):
    done = ask("memory --snapshot", file, "--capacity", capacity)

    assert verdict in done.out.splitlines()[0]
    assert ("out of memory at request" in done.out) == verdict.startswith("does not")


def test_names_in_a_snapshot_do_not_steer_the_terminal(ask, folder):
    name = made(folder / "odd.pickle", name="\x1b[31mred\n")
    done = ask("memory --snapshot", name)

    assert "\x1b" not in done.out
    assert "?[31mred?" in done.out


# Peak memory where a change is predicted: one line or column, JSON, verdicts, limits, mistakes


NOW = ALWAYS + LAYER + 4 + 4 * WEIGHT


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    held = tmp_path_factory.mktemp("memory")
    trace = two_blocks()
    trace.save(held / "m.parquet")
    type(trace)(trace.columns, trace.texts, trace.metadata).save(held / "none.parquet")
    return held


def asked(held, *words, trace="m.parquet"):
    return daydream(*words, "--trace", trace, folder=held)


def test_rank_has_a_column_and_sorts_by_it(held):
    done = asked(held, "rank --by memory --capacity 2400 --no-curves")
    assert done.code == 0
    first, *_ = done.out.splitlines()
    assert first.startswith("fused-adam: peak memory 2.6 -> 2.1 KiB")
    found = asked(held, "rank --by memory --json --no-curves").json()
    known = [each["memory"]["after_bytes"] for each in found["changes"] if each["memory"]]
    assert known == sorted(known)


def test_the_largest_batch(held):
    done = asked(held, "memory --largest-batch --capacity", str(round((ALWAYS + 4 + 160 * 100) * 1.02)))
    assert done.code == 0
    assert done.out.splitlines()[0] == ("largest batch that fits 17.47 KiB: 100, 50 times the recorded 2")
    assert "from 105: does not fit" in done.out
    assert done.err.splitlines()[-1] == "next: daydream whatif batch-size --factor 50 m.parquet"
    none = asked(held, "memory --largest-batch --capacity 1000")
    assert "next: daydream rank --by memory m.parquet" in none.err  # a factor of 1 is no change
    again = asked(held, "memory --largest batch --capacity 1000 --json")
    found = again.json()
    assert (found["what"], found["recorded"], found["fits"], found["too_large"]) == ("batch", 2, 0, 1)


def test_a_users_file_says_what_it_does_to_memory(held):
    text = "def mine(graph, *, part: float = 0.5):\n    graph.select(phase='optimizer').scale(part)\n\n\n"
    text += (
        "def memory(held, *, part: float = 0.5):\n    held.scale(held.where(kind='optimizer_state'), part)\n"
    )
    (held / "mine.py").write_text(text)

    found = asked(held, "whatif ./mine.py --part 0.25 --json").json()["memory"]

    assert found["after_bytes"] == NOW - 3 * WEIGHT


def explained(held, *words, trace="m.parquet"):
    done = asked(held, "explain", *words, trace=trace)
    assert done.code == 0, done.err
    return " ".join(done.out.split())


def test_a_sweep_is_named_by_its_option_and_leads_with_what_fits(held):
    done = asked(held, "sweep --set batch-size.factor=16,2 --sort order --capacity 3000")

    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("batch-size factor=2: ")  # 16 does not fit
    assert "--factor 2" in done.err
    assert ["does not fit" in line for line in lines if line.split()[:1] == ["16"]] == [True]
    nothing = asked(held, "sweep batch-size --set factor=2,16 --capacity 1000").out
    assert nothing.startswith("batch-size: no scenario fits the device's memory")


def test_explain_says_when_parameters_alone_do_not_fit(held):
    assert "parameters alone take 512 bytes: only sharding" in explained(held, "--capacity", "500")
    assert "alone" not in explained(held, "--capacity", "513")


def test_the_report_of_a_whatif_tells_the_peak_then_and_who_holds_it(held):
    done = asked(held, "whatif fused-adam --html w.html --no-ranking --capacity 2KiB")
    assert done.code == 0, done.err
    page = (held / "w.html").read_text("utf-8")
    assert "<span>peak memory</span> <strong>2.1 KiB</strong>" in page
    assert "2.1 to 2.2; does not fit in 2.00 KiB" in page
    assert "After fused-adam: peak 2.6 -&gt; 2.1 KiB" in page
    recorded, then = page.split("After fused-adam: peak", 1)
    assert "As recorded: " in recorded
    assert "optimizer state" in then.partition("</table>")[0]


# `daydream memory --trace`: the answer first, other looks, JSON for scripts, files, one line for errors


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
    said = daydream("memory --trace t.parquet --by", by, "--json", folder=trained).json()

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
