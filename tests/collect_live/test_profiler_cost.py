"""What recording costs is measured without the script noticing."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from live_models import MODELS
from live_recording import record, train

import daydream
from daydream.collect.live.capture import prepared_profiler
from daydream.collect.live.event_cost import CLASSES
from daydream.collect.live.profiler_cost import measure_profiler_cost

torch = pytest.importorskip("torch", reason="recording needs torch")


def measure() -> dict[str, Any]:
    cost = measure_profiler_cost(prepared_profiler, seconds=0.05)
    if not cost:
        pytest.skip("this torch cannot switch recording on and off")
    return cost


def test_no_two_profilers_hold_what_they_recorded_at_a_time():
    made: list[Any] = []
    held: list[int] = []

    def make() -> Any:
        held.append(sum(profiler.profiler is not None for profiler in made))
        made.append(prepared_profiler(memory=True))
        return made[-1]

    cost = measure_profiler_cost(make, seconds=0.05)
    if not cost:
        pytest.skip("this torch cannot switch recording on and off")
    assert cost["rounds"] == 2 * len(made) >= 4
    assert held == [0] * len(made)
    assert cost["memory_ns"] >= 0
    assert all(cost["event_ns"][name] > 0 for name in CLASSES)


def state() -> list[Any]:
    """Return what a script would miss if it were changed."""
    module, optimizer = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    return [
        torch.get_rng_state().tolist(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
        torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_anomaly_enabled(), torch.get_num_threads(), torch.get_default_device(),
        module._global_forward_hooks, module._global_forward_pre_hooks,
        module._global_module_registration_hooks,
        optimizer._global_optimizer_post_hooks, torch.autograd.backward, threading.active_count(),
    ]  # fmt: skip


def test_the_scripts_state_is_as_before():
    before = state()
    measure()
    assert state() == before

    with (
        torch.no_grad(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"),
        torch.autograd.set_detect_anomaly(True, check_nan=False),
    ):  # fmt: skip
        torch.set_default_dtype(torch.float64)
        torch.use_deterministic_algorithms(True)
        try:
            before = state()
            measure()
            assert state() == before
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)


def test_hooks_of_the_script_do_not_see_our_modules():
    seen: list[Any] = []
    module, optimizer = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    handles = [
        module.register_module_forward_hook(lambda *given: seen.append(given)),
        module.register_module_module_registration_hook(lambda *given: seen.append(given)),
        optimizer.register_optimizer_step_post_hook(lambda *given: seen.append(given)),
    ]
    try:
        measure()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == []


def test_the_cost_is_a_document_with_its_units():
    cost = measure()

    assert json.loads(json.dumps(cost)) == cost
    assert set(cost["event_ns"]) == set(CLASSES)
    assert all(ns >= 0 for ns in cost["event_ns"].values())
    assert min(cost[name] for name in ("input_ns", "module_ns", "inside_ns")) >= 0
    assert 0 <= cost["before_share"] <= 1
    assert {group for group, *_ in cost["heads"]} == set(CLASSES)
    assert cost["versions"]["torch"] == torch.__version__


def test_a_recorded_run_is_predicted_without_the_profiler(tmp_path: Path):
    trace = record(train(*MODELS["mlp"]()), tmp_path, unprofiled=20)
    if "profiler_cost" not in trace.metadata:
        pytest.skip("this torch cannot switch recording on and off")
    result = daydream.replay(trace)

    assert result.unprofiled is not None
    assert result.unprofiled_measured_ns is not None
    assert result.unprofiled_replayed_ns is not None
    assert result.unprofiled_replayed_ns < result.replayed_ns
    assert result.unprofiled.graph.lint() == []
    assert trace.metadata["profiler_cost"]["step_hooks_ns"] >= 0


def test_without_unprofiled_steps_nothing_is_measured(tmp_path: Path):
    trace = record(train(*MODELS["mlp"]()), tmp_path, unprofiled=0)

    assert "profiler_cost" not in trace.metadata
