"""`daydream confirm` on real scripts: the change is made in the run, undone again, and compared."""

import json
import shutil

import pytest
from shared import EXAMPLES

import daydream

pytest.importorskip("torch", reason="confirms changes in real training scripts")

FEW = ("--rounds", "3", "--block-steps", "2")
# Warm-up, capture, timing, the change's warm-up, blocks, a window with the change, and some more.
LONG_ENOUGH = 5 + 1 + 4 + 21 + 4 + 3 * 3 * 3 + 8 + 4
NOTHING = """
from contextlib import contextmanager

def half(graph):
    graph.select(kind="cpu").scale(0.5)

@contextmanager
def apply(model, optimizer):
    yield
"""


def confirmed(folder, *args):
    done = folder.confirm(*args)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("train_gpt.py", "fused-adam"),
        pytest.param("train_cnn.py", "foreach-optimizer", marks=pytest.mark.slow),
    ],
)
def test_an_example_is_confirmed(folder, script, name):
    shutil.copy(EXAMPLES / script, folder.path)
    small = ("--width", "32", "--layers", "2") if script == "train_gpt.py" else ("--batch", "2")
    found = confirmed(folder, name, *FEW, "--json", script, "--steps", str(LONG_ENOUGH), *small)

    assert found["rounds"] == 3
    assert found["baseline_ns"] / found["confirmed_ns"] == pytest.approx(found["confirmed_speedup"], rel=1e-3)
    assert found["baseline_ns"] / found["predicted_ns"] == pytest.approx(found["predicted_speedup"], rel=1e-3)
    # the range is of the same step, and of the recorded one beside its own prediction
    assert found["predicted_low_ns"] <= found["predicted_ns"] <= found["predicted_high_ns"]
    assert found["inside"] == (
        found["predicted_low_ns"] <= found["confirmed_ns"] <= found["predicted_high_ns"]
    )
    recorded = [found[f"recorded_predicted_{each}ns"] for each in ("low_", "", "high_")]
    assert recorded == sorted(recorded)
    ratio = found["confirmed_speedup"] / found["predicted_speedup"]
    assert found["error"] == pytest.approx(ratio - 1, rel=1e-3)
    compared = found["difference"]
    assert compared["before"]["prediction"] == name
    assert compared["after"]["steps"] == 3
    assert compared["before"]["by_phase"].keys() >= {"forward", "backward", "optimizer"}
    assert compared["before"]["by_phase"].keys() == compared["after"]["by_phase"].keys()
    assert any("Adam" in each["operator"] or "_for" in each["operator"] for each in compared["operators"])


def test_an_own_file_is_made_and_undone(folder):
    folder.script(
        """
        from contextlib import contextmanager

        def twice(graph, *, factor: float = 0.5):
            graph.select(kind="cpu").scale(factor)

        @contextmanager
        def apply(model, optimizer, factor):
            print("made", type(model).__name__, type(optimizer).__name__, factor, flush=True)
            yield
            print("undone", flush=True)
        """,
        "twice.py",
        begin="",
    )
    folder.script(
        f"""
        for _ in range({LONG_ENOUGH}):
            step()
        """
    )
    done = folder.confirm("twice.py", *FEW, "--factor", "0.25", "-o", "kept.parquet", "train.py")

    assert done.code == 0, done.err
    assert "made Linear SGD 0.25\nundone\n" in done.out
    made = [line for line in done.out.splitlines() if line.startswith(("made ", "undone"))]
    # warm-up; where rounds 1 and 2 meet; round 3; the recorded window
    assert made == ["made Linear SGD 0.25", "undone"] * 4
    assert "confirmed" in done.out
    rows = [line.split("  ")[1] for line in done.out.splitlines() if line.startswith("  ")]
    assert {"without the change", "predicted", "confirmed"} <= {*rows}, done.out
    before, after = (daydream.load(folder.path / f"kept{more}.parquet") for more in ("", ".changed"))
    assert "confirmed" in before.metadata
    assert [step["covered"] for step in after.metadata["steps"]] == [False, True, True, True]
    assert set(after.text("layer")) == set(before.text("layer"))


@pytest.mark.slow
@pytest.mark.parametrize("missing", [0, 1])
def test_it_takes_as_many_steps_as_are_said(folder, missing):
    folder.script(NOTHING, "half.py", begin="")
    needed = 5 + 4 + 21 + 4 + 3 * 3 * 3
    folder.script(f"for _ in range({needed - missing}):\n    step()")
    done = folder.confirm("half.py", *FEW, "train.py")

    assert done.code == missing, done.err
    assert "\ndaydream: captured\n" in done.err  # and not where: that file is gone
    assert (f"3 rounds take {needed} training steps; {needed - 1} ran." in done.err) == bool(missing)


def test_a_change_that_fails_is_told_and_the_script_goes_on(folder):
    folder.script(
        """
        def broken(graph):
            graph.select(kind="cpu").scale(0.5)

        def apply(model, optimizer):
            raise ValueError("no such kernel")
        """,
        "broken.py",
        begin="",
    )
    folder.script(
        f"""
        for _ in range({LONG_ENOUGH}):
            step()
        print("trained to the end")
        """
    )
    done = folder.confirm("broken.py", *FEW, "train.py")

    assert done.code == 1
    assert "trained to the end" in done.out
    assert "error: the change could not be made in the script: ValueError: no such kernel" in done.err
