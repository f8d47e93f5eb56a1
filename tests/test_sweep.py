"""Sweeps: every combination once, each as its what-if, refused ones with their reason, on any engine."""

from pathlib import Path

import pytest
from graph.small_traces import call, launched, op, trace
from machine.programs import PROGRAMS

import daydream
from daydream import DaydreamError, GraphError, OutputError
from daydream.parallel import Engine

OWN = """
def {name}(graph, *, part: str = "long", factor: float = 0.5, times: int = 1, fail: bool = False):
    \"\"\"Scale a kernel.\"\"\"
    print("no result")
    if fail:
        raise RuntimeError("as asked")
    graph.select(name=part).scale(factor**times)
"""


#  thread 1  |long 5|short 5|                     a step of 100, of which a synchronization waits for long
#  stream 7     |long 60    |data ...
def steps(number=4, long=60, every=100):
    rows = []
    for n in range(number):
        at = every * n
        rows += launched("long_kernel", at, at + 6, at + 6 + long)
        rows += [op("data", at + 10, at + 100, op="data")]
        rows += [call("cudaDeviceSynchronize", at + 100, at + every)] if every > 100 else []
    return trace(rows, steps=tuple(float(every * n) for n in range(number + 1)))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "step.json.gz"
    return daydream.load(PROGRAMS["multi_stream"]().run(steps=6).write(path, 2, 5))


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "my_own.py"
    path.write_text(OWN.format(name="my_own"), encoding="utf-8")
    return str(path)


SCALES = {"factor": [0.5, 1.0, 0.25], "on": ["cpu", "gpu"]}


@pytest.fixture(scope="module")
def found(recorded):
    return daydream.sweep(recorded, "scale", SCALES)


def test_each_scenario_is_the_what_if_with_its_options(recorded, found):
    before = daydream.replay(recorded)

    for each in found.scenarios:
        alone = daydream.whatif(before, "scale", **each.options)
        for figure in ("replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup"):
            assert getattr(each, figure) == getattr(alone, figure)
        assert (each.changed, each.inserted, each.removed) == (alone.changed, alone.inserted, alone.removed)
        assert list(each.notes) == [note for note in alone.notes if note not in before.notes]
    [one] = found.traces
    assert (one.measured_ns, one.replay_error) == (before.basis_measured_ns, before.basis_error)
    assert one.replayed_ns == found.scenarios[0].replayed_ns


def test_a_trace_that_cannot_be_replayed_takes_nothing_from_the_others():
    none = trace([op("data", 0, 90)])
    found = daydream.sweep([steps(), none], "scale", {"factor": [0.5, 0.25]}, on="cpu")

    assert [each.reason is None for each in found.traces] == [True, False]
    assert len(found.scenarios) == len(found.refused) == 2
    assert all("no step" in each.reason for each in found.refused)
    with pytest.raises(GraphError, match="no step"):
        daydream.sweep(none, "scale", {"factor": [0.5, 0.25]}, on="cpu")


def test_one_that_fails_loses_no_other(own):
    found = daydream.sweep(steps(), own, {"fail": [True, False], "times": [1, 2]})

    assert [each.reason for each in found.refused] == ["my_own.py, line 6: RuntimeError: as asked"] * 2
    assert len(found.scenarios) == 2


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ({}, {}, "several values"),
        ({"on": "cpu"}, {}, "needs a list of values"),
        ({"factor": [0.5, 0.5]}, {}, "given 0.5 twice"),
        ({"factor": [0.5]}, {"scale.factor": 2.0}, "given twice"),
        ({"on": ["cpu", "gpu"]}, {}, "needs --factor"),
        ({"factor": list(range(1001)), "kind": [str(n) for n in range(1000)]}, {}, "1,001,000 scenarios"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_read(values, options, said):
    with pytest.raises(GraphError, match=said):
        daydream.sweep("there-is-no-such-file.json", "scale", values, **options)


@pytest.mark.parametrize("engine", ["processes:2", pytest.param("dask:2", id="dask", marks=pytest.mark.slow)])
def test_the_engine_changes_nothing(recorded, own, engine):
    if engine.startswith("dask"):
        pytest.importorskip("distributed", reason="needs the extra `dask`")
    two = {"one": recorded, "other": steps()}
    values = {"factor": [0.5, 1.0, 0.25, 0.1], "on": ["cpu", "gpu"]}
    here = daydream.sweep(two, "scale", values)

    assert daydream.sweep(two, "scale", values, engine=engine).to_json() == here.to_json()
    if engine == "processes:2":  # a file of a user's own goes with the question
        there = daydream.sweep(two, own, {"times": [1, 2, 3], "fail": [True, False]}, engine=engine)
        alone = daydream.sweep(two, own, {"times": [1, 2, 3], "fail": [True, False]})
        assert there.to_json() == alone.to_json()
        assert len(alone.refused) > 0


@pytest.mark.parametrize("name", ["all.csv", "all.parquet"])
def test_all_scenarios_are_written_to_a_file(found, tmp_path, name):
    from pyarrow import csv, parquet

    path = tmp_path / name
    found.save(path)
    rows = (csv.read_csv if name.endswith("csv") else parquet.read_table)(path).to_pylist()

    assert [row["predicted_ns"] for row in rows[:4]] == [each.predicted_ns for each in found.scenarios]
    assert [row["refused"] for row in rows[4:]] == [each.reason for each in found.refused]
    assert [row["on"] for row in rows] == [row["on"] for row in found.rows()]
    with pytest.raises(OutputError, match="exists already"):
        found.save(path)
    found.save(path, force=True)
    with pytest.raises(OutputError, match=r"\.csv or \.parquet"):
        found.save(Path(tmp_path / "all.txt"))


def test_what_cannot_be_sent_to_workers_is_told(recorded, tmp_path):
    with pytest.raises(GraphError, match="is a Replay, which is not sent"):
        daydream.sweep(daydream.replay(recorded), "scale", SCALES, engine="processes:1")
    described = tmp_path / "lab.toml"
    described.touch()
    elsewhere = Engine("dask", address="tcp://host:8786")
    with pytest.raises(DaydreamError, match="is a file of this machine"):
        daydream.sweep(recorded, "scale", SCALES, name=str(described), engine=elsewhere)


def test_a_value_has_to_be_one_of_the_choices():
    with pytest.raises(GraphError, match="model must be one of bytes, sum, not 'best'"):
        daydream.sweep("there-is-no-such-file.json", "fused-adam", {"model": ["sum", "best"]})
