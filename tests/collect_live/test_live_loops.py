"""Loops of every shape: what a step is, and what happens where there is none."""

import gc
import os
import time
import warnings
from itertools import count
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

import torch.nn.functional as F  # noqa: E402, N812 - everyone's name for it
from live_models import (  # noqa: E402  # noqa: E402
    MLP,
    MODELS,
    record,
    train,
)
from torch import nn  # noqa: E402
from torch.optim.optimizer import _global_optimizer_post_hooks  # noqa: E402

import daydream  # noqa: E402
from daydream.collect.live import recorder as recorder_module  # noqa: E402
from daydream.collect.live.recorder import Recorder  # noqa: E402
from daydream.errors import DaydreamError  # noqa: E402
from daydream.trace.schema import BY_CLOCK  # noqa: E402
from daydream.trace.trace import Trace  # noqa: E402


@pytest.fixture(autouse=True)
def no_optimizer_of_another_test():
    """Whether a script has an optimizer that has not stepped yet is looked up among all living objects."""
    gc.collect()


def per_step(trace, name):
    """Return how often an operator runs in each step."""
    rows = (trace["name"] == trace.code("name", name)) & (trace["step"] >= 0)
    return np.bincount(trace["step"][rows], minlength=len(trace.metadata["steps"])).tolist()


def covered(trace):
    return [step["covered"] for step in trace.metadata["steps"]]


def hooks_left():
    module = nn.modules.module
    return [
        *module._global_forward_hooks, *module._global_forward_pre_hooks,
        *module._global_forward_hooks_always_called, *_global_optimizer_post_hooks,
    ]  # fmt: skip


def training(updates):
    """An iteration of a small model, whose optimizer makes an update in those of some numbers, from 1."""
    model, loss = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = count(1)

    def loop():
        loss().backward()
        if updates(next(numbers)):
            optimizer.step()
            optimizer.zero_grad()

    return loop


def test_accumulated_gradients_are_one_step(tmp_path):
    trace = record(training(lambda number: number % 4 == 0), tmp_path, iterations=60)

    assert per_step(trace, "aten::linear") == [8, 8, 8, 8]
    assert trace.metadata["step_source"] == "steps of the optimizer SGD"
    assert daydream.replay(trace).max_error <= 0.01


def test_of_several_optimizers_the_rarest_makes_the_step(tmp_path):
    class Generator(MLP):
        pass

    class Discriminator(MLP):
        pass

    generator, discriminator = Generator(), Discriminator()
    judge = nn.Linear(4, 16)
    often = torch.optim.SGD([*discriminator.parameters(), *judge.parameters()], lr=0.1)
    rarely = torch.optim.Adam(generator.parameters())
    numbers = count(1)

    def loop():
        often.zero_grad()
        F.relu(discriminator(torch.randn(8, 16))).mean().backward()
        often.step()
        if next(numbers) % 3 == 0:
            rarely.zero_grad()
            discriminator(judge(generator(torch.randn(8, 16)))).mean().backward()
            rarely.step()

    trace = record(loop, tmp_path, iterations=60)

    assert per_step(trace, "aten::linear") == [3 * 2 + 5] * 4
    assert trace.metadata["step_source"] == "steps of the optimizer Adam"
    layers = {*trace.text("layer")}
    assert {"Generator.first", "Discriminator.first", "Linear"} <= layers
    names = [each["name"] for each in trace.metadata["parameters"]]
    assert len(names) == len({*names})


def test_a_skipped_update_is_no_ordinary_step(tmp_path):
    trace = record(training(lambda number: number != 5), tmp_path, steps=4)

    assert per_step(trace, "aten::linear") == [2, 2, 4, 2, 2]
    assert covered(trace) == [False, True, False, True, True]
    assert "differ" in trace.metadata["steps"][2]["why_not"]


def test_an_update_that_the_gradient_scaler_skips_is_a_step_set_apart(tmp_path):
    model, loss = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    step = torch.amp.GradScaler.step
    count = 0

    def loop():
        nonlocal count
        count += 1
        optimizer.zero_grad()
        scaler.scale(loss() * (float("inf") if count == 5 else 1.0)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    trace = record(loop, tmp_path, steps=3)

    assert per_step(trace, "aten::linear") == [2, 2, 2, 2, 2]
    assert covered(trace) == [False, True, False, True, True]  # as many as asked for beside it
    assert "skipped" in trace.metadata["steps"][2]["why_not"]
    assert trace.metadata["notes"] == []
    assert torch.amp.GradScaler.step is step


def test_updates_by_hand_tell_which_backward_passes_are_one_step(tmp_path):
    model, loss = MODELS["mlp"]()
    numbers = count(1)

    def loop():
        loss().backward()
        if next(numbers) % 3 == 0:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None

    trace = record(loop, tmp_path, iterations=60)

    assert per_step(trace, "aten::linear") == [6, 6, 6, 6]


def test_a_closure_runs_forward_and_backward_inside_the_optimizer(tmp_path):
    model, loss = MODELS["mlp"]()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        found = loss()
        found.backward()
        return found

    trace = record(lambda: optimizer.step(closure), tmp_path)

    assert len(covered(trace)) == 4
    linear = (trace["name"] == trace.code("name", "aten::linear")) & (trace["step"] > 0)
    assert {*trace.values("layer", np.flatnonzero(linear))} == {"first", "second"}
    assert {*trace.values("phase", np.flatnonzero(linear))} == {"forward"}
    nodes = trace.is_kind("operator") & (trace["phase"] == trace.code("phase", "backward"))
    updates = trace.is_kind("operator") & (trace["phase"] == trace.code("phase", "optimizer"))
    assert updates.any()
    assert not ((trace["sequence"] >= 0) & (trace["forward_thread"] > 0) & updates).any()
    assert nodes.any()
    assert None not in trace.values("layer", np.flatnonzero(nodes & (trace["step"] == 2)))


def test_unprofiled_steps_are_timed_and_the_loop_goes_on_without_hooks(tmp_path):
    before, backward = hooks_left(), torch.autograd.backward
    model, loss = MODELS["mlp"]()
    iteration = train(model, loss)
    said = []
    recorder = Recorder(tmp_path / "trace.parquet", steps=2, warmup=2, unprofiled=20, on_progress=said.append)
    recorder.install()
    during = []
    while not recorder.done:
        iteration()
        during.append(len(nn.modules.module._global_forward_hooks))
    iteration()
    recorder.finish("the loop ended")

    assert recorder.trace is not None
    times = recorder.trace.metadata["unprofiled_step_ns"]
    assert len(times) == 20
    assert min(times) > 0
    assert during == [0, 1, 1, 1] + [0] * (len(during) - 4)
    assert said[0].startswith("waiting")
    assert said[-1] == "writing"
    assert [text for text in said if text.startswith("capturing")] == [
        "capturing: the step before the first", "capturing: step 1 of 2", "capturing: step 2 of 2",
    ]  # fmt: skip
    assert hooks_left() == before
    assert torch.autograd.backward is backward
    assert Trace.load(tmp_path / "trace.parquet").metadata == recorder.trace.metadata


@pytest.mark.parametrize(
    ("bound", "value", "said"),
    [("MOST_SECONDS", 0, "0 s were recorded"), ("MOST_EVENTS", 7, "some 7 events were recorded")],
)
def test_a_recording_ends_with_the_step_in_which_it_becomes_too_large(
    tmp_path, monkeypatch, bound, value, said
):
    held = count(0, 6_000)  # bytes more at each look: 4 events, then 8
    monkeypatch.setattr(recorder_module, bound, value)
    monkeypatch.setattr(recorder_module, "_resident_bytes", lambda: next(held))
    trace = record(train(*MODELS["mlp"]()), tmp_path, steps=1_000)

    assert covered(trace) == [False, True] + [True] * (bound == "MOST_EVENTS")
    [note] = trace.metadata["notes"]
    assert note.endswith(f"of 1000 could be measured before {said}, the most that one recording holds.")


@pytest.mark.parametrize("iterations", [0, 2])
def test_too_few_steps_are_an_error_that_says_how_many_are_needed(tmp_path, iterations):
    with pytest.raises(DaydreamError, match="no training step" if not iterations else "2 to warm up"):
        record(train(*MODELS["mlp"]()), tmp_path, iterations=iterations)

    assert list(tmp_path.iterdir()) == []
    assert hooks_left() == []


@pytest.mark.parametrize(
    ("warmup", "steps"),
    [(1, 2), pytest.param(3, 1, id="while ours is prepared")],
)
def test_the_scripts_own_profiler_keeps_its_trace_and_so_do_we(tmp_path, warmup, steps):
    iteration = train(*MODELS["mlp"]())
    recorder = Recorder(tmp_path / "trace.parquet", warmup=warmup, steps=steps, unprofiled=0)
    recorder.install()
    iteration()
    iteration()
    theirs = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)
    with pytest.warns(UserWarning, match=r"torch\.profiler itself"):
        theirs.start()
    iteration()
    iteration()
    theirs.stop()
    for _ in range(4):
        iteration()
    recorder.finish("the loop ended")

    assert sum(event.key == "aten::linear" and event.count == 4 for event in theirs.key_averages()) == 1
    assert recorder.trace is not None
    assert per_step(recorder.trace, "aten::linear") == [2] * (steps + 1)


def test_a_notebook_records_with_a_context_manager(tmp_path):
    iteration = train(*MODELS["mlp"]())
    with daydream.collect(tmp_path / "trace.parquet", warmup=1, steps=1, unprofiled=2) as recording:
        for _ in range(4):
            iteration()

    assert recording.trace is not None
    assert len(Trace.load(tmp_path / "trace.parquet")) == len(recording.trace)
    with pytest.raises(ZeroDivisionError), daydream.collect(tmp_path / "other.parquet"):
        raise ZeroDivisionError
    assert not (tmp_path / "other.parquet").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_records_nothing(tmp_path):
    iteration = train(*MODELS["mlp"]())
    recorder = Recorder(tmp_path / "trace.parquet", warmup=1, steps=1, unprofiled=0)
    recorder.install()
    iteration()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, of forking with threads
        child = os.fork()
    if child == 0:
        try:
            recorder.finish("the child ended")
            os._exit(0 if recorder.trace is None and not (tmp_path / "trace.parquet").exists() else 1)
        finally:
            os._exit(2)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    iteration()
    iteration()
    recorder.finish("the loop ended")
    assert recorder.trace is not None


def test_loss_modules_are_the_loss(tmp_path):
    model = MLP()
    criterion = nn.MSELoss()

    trace = record(train(model, lambda: criterion(model(torch.randn(8, 16)), torch.randn(8, 4))), tmp_path)

    assert {*trace.text("layer")} == {"MLP", "first", "second", "loss"}
    rows = trace["layer"] == trace.code("layer", "loss")
    phases = trace.values("phase", np.flatnonzero(rows & trace.is_kind("operator")))
    assert {*phases} == {"loss", "backward"}


# Pauses of a script are waits or work by how long its thread ran meanwhile


PAUSE_S = 0.1


def spin():
    """Keep the thread on a CPU for that long, however long others keep it off."""
    end = time.thread_time() + PAUSE_S
    while time.thread_time() < end:
        pass


def recorded(folder, pause, **options):
    folder.mkdir()
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop():
        pause()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    return record(loop, folder, iterations=10, **options)


def by_clock(trace):
    """Return how long the thread ran, and how long that was, between looks at its clock around a pause."""
    rows = np.flatnonzero(trace["name"] == trace.code("name", BY_CLOCK))
    rows = rows[trace["duration_ns"][rows] > 1e9 * PAUSE_S]
    assert len(rows)  # not every one: looks at the clock that would cost much are left out
    return trace["cpu_ns"][rows], trace["duration_ns"][rows]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not count it")
def test_a_script_that_sleeps_waits_and_one_that_spins_works(tmp_path):
    asleep = recorded(tmp_path / "asleep", lambda: time.sleep(PAUSE_S))
    awake = recorded(tmp_path / "awake", spin)

    (slept, waited), (ran, lasted) = map(by_clock, (asleep, awake))
    assert (slept < 0.5 * waited).all()
    assert (ran >= 0.9e9 * PAUSE_S).all()
    assert (ran <= 1.1 * lasted).all()
    assert daydream.whatif(asleep, "scale", on="cpu", factor=0.0).predicted_ns >= 1e9 * PAUSE_S
    if (ran > 0.9 * lasted).all():  # else other programs kept it waiting
        assert daydream.whatif(awake, "scale", on="cpu", factor=0.0).predicted_ns < 1e6


def test_frames_that_wait_are_recorded_with_stacks(tmp_path):
    trace = recorded(tmp_path / "a", lambda: time.sleep(PAUSE_S), with_stack=True)

    rows = np.flatnonzero(trace.is_kind("blocked") & (trace["name"] == trace.code("name", "sleep")))
    assert len(rows) >= 3
    assert trace["duration_ns"][rows].min() >= 1e9 * PAUSE_S
