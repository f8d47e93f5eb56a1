"""Layers and phases of recorded models: no operator of forward or backward work is left without."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import MODELS  # noqa: E402
from live_recording import recorded  # noqa: E402

import daydream  # noqa: E402
from daydream.collect.live.run_metadata import describe_run  # noqa: E402
from daydream.predict.breakdown import parts_of  # noqa: E402
from daydream.trace.metadata import mistake_in  # noqa: E402

each_model = pytest.mark.parametrize("name", list(MODELS))
LAST = 3


def texts(trace, column, rows):
    return trace.values(column, np.flatnonzero(rows))


@each_model
def test_a_gradient_is_accumulated_for_its_parameters_owner(name):
    _, trace, order = recorded(name)
    owner = {each["name"]: each["layer"] for each in trace.metadata["parameters"]}
    shapes = {json.dumps([each["shape"]], separators=(",", ":")) for each in trace.metadata["parameters"]}
    rows = (trace["name"] == trace.code("name", "torch::autograd::AccumulateGrad")) & (trace["step"] == LAST)
    # Reentrant checkpointing accumulates the gradient of a block's input too, which is no parameter.
    rows &= np.isin(trace["shapes"], [trace.code("shapes", shape) for shape in shapes])

    assert texts(trace, "layer", rows) == [owner[parameter] for parameter in order]


@each_model
def test_replay_of_a_recorded_trace(name):
    _, trace, _ = recorded(name)

    first, *others = [step["covered"] for step in trace.metadata["steps"]]
    assert (first, len(others)) == (False, 3)
    assert sum(others) >= 2  # on a busy machine the second may count as a first iteration
    assert daydream.replay(trace).max_error <= 0.01


@each_model
def test_a_steps_time_by_layer_adds_up_to_the_step(name):
    _, trace, _ = recorded(name)
    replayed = daydream.replay(trace)

    for (copy, step), expected in replayed.timeline.step_times().items():
        found = parts_of(replayed.settled._replace(copy=copy), [step])["by_layer"]
        assert sum(found.values()) == expected
        assert all(ns > 0 for ns in found.values())  # none where a step ends with the one before it


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what torch.compile imports
def test_buffers_are_described_by_the_names_of_what_is_wrapped():
    inner = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    inner.register_buffer("mask", torch.ones(5, dtype=torch.bool))
    shared = torch.nn.Module()
    shared.register_buffer("again", inner.get_buffer("mask"))
    inner.add_module("2", shared)
    wrapped = torch.nn.DataParallel(inner)  # as DDP, and as `torch.compile`: a module around it

    metadata, _ = describe_run([wrapped], [])

    assert [(each["name"], each["bytes"]) for each in metadata["buffers"]] == [
        ("Sequential.mask", 5), ("1.running_mean", 12), ("1.running_var", 12), ("1.num_batches_tracked", 8),
    ]  # fmt: skip
    assert {each["device"] for each in metadata["buffers"]} == {"cpu"}
    assert mistake_in({"buffers": metadata["buffers"]}) is None
    assert "buffers" in (mistake_in({"buffers": [{"name": "mask", "bytes": -1}]}) or "")
    compiled, _ = describe_run([torch.compile(inner)], [])
    assert compiled["buffers"] == metadata["buffers"]


def test_parameters_and_the_optimizer_are_described():
    model, trace, _ = recorded("gpt")
    described = {each["name"]: each for each in trace.metadata["parameters"]}

    assert list(described) == [name for name, _ in model.named_parameters()]
    assert described["h.0.attn.qkv.weight"] == {
        "name": "h.0.attn.qkv.weight", "layer": "h.0.attn.qkv", "shape": [96, 32], "dtype": "float32",
        "device": "cpu", "requires_grad": True, "gradient_bytes": 4 * 96 * 32,
    }  # fmt: skip
    (optimizer,) = trace.metadata["optimizers"]
    elements = sum(parameter.numel() for parameter in model.parameters())
    assert optimizer["name"] == "Adam"
    assert optimizer["groups"][0]["settings"]["foreach"] is False
    assert optimizer["groups"][0]["elements"] == elements
    assert optimizer["state_bytes"] == 8 * elements + 4 * len(described)
    assert trace.metadata["vendor"] == "cpu"
    assert trace.metadata["versions"]["torch"] == torch.__version__
