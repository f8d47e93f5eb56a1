"""Which steps a collected script gives; tests/collect_live has loops of every shape."""

import textwrap

import pytest

pytest.importorskip("torch", reason="collects real training scripts")

ACCUMULATION = """
    for index in range(4 * 40):
        model(torch.randn(2, 4)).sum().backward()
        if index % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    """


def test_accumulated_gradients_are_steps_and_the_steps_before_are_timed(folder):
    folder.script(textwrap.dedent(ACCUMULATION) + "print('trained')")
    done = folder.collect("train.py")

    assert (done.code, done.out) == (0, "trained\n")
    assert done.steps() == 3
    assert done.trace().metadata["unprofiled_step_ns"]
    assert "Traceback" not in done.err


def test_stop_after_ends_the_script_when_the_steps_are_captured(folder):
    folder.script(ACCUMULATION.replace("40", "1_000_000_000"))
    done = folder.collect("--stop-after", "train.py")

    assert done.code == 0
    assert done.steps() == 3
