"""Layers and phases against the truth: every dispatched operator of every model, and of every optimizer."""

import json
import tempfile
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import (  # noqa: E402
    MODELS,
    record,
    recorded,
)
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import daydream  # noqa: E402
from daydream.collect.live.run_metadata import describe_run  # noqa: E402
from daydream.predict.breakdown import parts_of  # noqa: E402
from daydream.trace.metadata import mistake_in  # noqa: E402

OUTSIDE = "outside all modules"
DETACH = "detach"  # of saved tensors: dispatched, but the profiler does not show the mode there
IN_MODE = "PythonDispatchMode"  # the profiler's row around each operator that a dispatch mode sees


@dataclass(frozen=True)
class Seen:
    """One dispatched operator: what it is, whose it is, and the part of the step it ran in."""

    name: str
    layer: str
    phase: str


class Truth(TorchDispatchMode):
    """Notes every operator that is dispatched."""

    def __init__(self, model, optimizer):
        super().__init__()
        self.seen = []
        self.optimizer = optimizer
        self.phase = "forward"
        self.stack = []
        self.numbers = []  # autograd's number whenever a module was entered or left
        self.last_number = 0
        self.inside = []  # the innermost module from then on
        self.owner_of_tensor = {}
        self.owner = OUTSIDE
        self.owner_of_parameter = {}
        for path, module in model.named_modules():
            layer = path or type(model).__name__
            for parameter in module.parameters(recurse=False):
                self.owner_of_parameter.setdefault(id(parameter), layer)
            module.forward = self.wrapped(module.forward, layer)

    def wrapped(self, forward, layer):
        def run(*args, **options):
            self.stack.append(layer)
            self.mark()
            try:
                return forward(*args, **options)
            finally:
                self.stack.pop()
                self.mark()
                if not self.stack and torch._C._current_autograd_node() is None:
                    self.phase = "loss"  # what follows the model's call

        return run

    def mark(self):
        self.last_number = torch.autograd._get_sequence_nr()
        self.numbers.append(self.last_number)
        self.inside.append(self.stack[-1] if self.stack else OUTSIDE)

    def mark_node(self, layer):
        """Note whose the nodes are that were made since the last look: gradients of gradients."""
        if self.inside and layer != self.inside[-1]:
            self.numbers.append(self.last_number)
            self.inside.append(layer)
        self.last_number = torch.autograd._get_sequence_nr()

    def begin_step(self, *_):
        """Begin to see the optimizer's operators; a hook, as torch's own range must not be seen."""
        self.phase = "optimizer"
        self.owner_of_tensor = {}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                owner = self.owner_of_parameter[id(parameter)]
                mine = [parameter, parameter.grad, *self.optimizer.state.get(parameter, {}).values()]
                self.owner_of_tensor.update({id(one): owner for one in mine if torch.is_tensor(one)})
        self.__enter__()

    def end_step(self, *_):
        self.__exit__(None, None, None)
        self.phase = "forward"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten":
            self.seen.append(Seen(func._schema.name.removeprefix("aten::"), *self.whose(args)))
        return func(*args, **(kwargs or {}))

    def whose(self, args):
        """Return the layer and the phase of the operator that is about to run."""
        if self.phase == "optimizer":
            owners = {self.owner_of_tensor[id(one)] for one in args if id(one) in self.owner_of_tensor}
            if owners:
                (self.owner,) = owners
            return self.owner, "optimizer"
        node = torch._C._current_autograd_node()
        layer = self.stack[-1] if self.stack else OUTSIDE if node is None else self.layer_of(node)
        self.mark_node(layer)
        if node is not None:
            return layer, "backward"
        return layer, "forward" if self.stack else self.phase

    def layer_of(self, node):
        if hasattr(node, "variable"):
            return self.owner_of_parameter.get(id(node.variable), OUTSIDE)
        place = bisect_right(self.numbers, node._sequence_nr()) - 1
        return self.inside[place] if place >= 0 else OUTSIDE


@cache
def recorded_with_truth(name, make):
    """Return a model's trace, and the row of each operator the truth knows, with that truth.

    `make` returns the model's optimizer.
    """
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    optimizer = make(model)
    truth = Truth(model, optimizer)

    def iteration():
        optimizer.zero_grad()
        with truth:
            loss().backward()
        optimizer.step()

    optimizer.register_step_pre_hook(truth.begin_step)
    optimizer.register_step_post_hook(truth.end_step)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace = record(iteration, Path(folder))
    rows, seen = _in_order(trace, truth.seen)
    return trace, rows, seen


def _in_order(trace, seen):
    """Return the rows around the mode's own, and what was noted there: one for one, up to the end."""
    inner = np.flatnonzero((trace["name"] == trace.code("name", IN_MODE)) & (trace["parent"] >= 0))
    rows = trace["parent"][inner]
    named = [(name or "").removeprefix("aten::") for name in trace.values("name", rows)]
    keep = [index for index, name in enumerate(named) if name != DETACH and "::" not in name]
    noted = [one for one in seen if one.name != DETACH][-len(keep) :]
    assert [named[index] for index in keep] == [one.name for one in noted]
    return rows[keep], noted


# Layers and phases against the truth: every dispatched operator of every model, and of every optimizer


# Operators on threads that a model starts itself are not seen by a dispatch mode.
SEEN = [name for name in MODELS if name != "threads"]


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)


def decayed_groups(model):
    matrices = [one for one in model.parameters() if one.dim() > 1]
    vectors = [one for one in model.parameters() if one.dim() <= 1]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def one_by_one(name, groups=None, **settings):
    def make(model):
        given = groups(model) if groups else model.parameters()
        return getattr(torch.optim, name)(given, lr=1e-3, foreach=False, **settings)

    return make


ONE_BY_ONE = {
    "SGD with momentum": one_by_one("SGD", momentum=0.9, nesterov=True, weight_decay=0.1),
    "AdamW in groups": one_by_one("AdamW", groups=decayed_groups),
    "Adam with decay": one_by_one("Adam", groups=decayed_groups, amsgrad=True),
    "Adagrad": one_by_one("Adagrad"),
}  # fmt: skip


def is_layer(found, truth):
    return found in {None, "loss", "<top>"} if truth == OUTSIDE else found == truth


@pytest.mark.parametrize("name", SEEN)
def test_every_operators_layer_and_phase_are_the_true_ones(name):
    trace, rows, truth = recorded_with_truth(name, adam)

    assert len(rows) > 100
    layers, phases = trace.values("layer", rows), trace.values("phase", rows)
    wrong = [
        (one, layer, phase)
        for one, layer, phase in zip(truth, layers, phases, strict=True)
        if phase != one.phase or not is_layer(layer, one.layer)
    ]
    assert wrong == []
    assert {one.phase for one in truth} == {"forward", "loss", "backward", "optimizer"}


@pytest.mark.parametrize("optimizer", list(ONE_BY_ONE))
def test_every_update_has_its_parameters_layer(optimizer):
    trace, rows, truth = recorded_with_truth("mixed", ONE_BY_ONE[optimizer])
    updates = np.flatnonzero([one.phase == "optimizer" for one in truth])

    assert len(updates) > 0
    assert trace.values("layer", rows[updates]) == [truth[index].layer for index in updates.tolist()]


@pytest.mark.parametrize("optimizer", ["Rprop", "Adafactor"])
def test_updates_whose_operators_differ_from_parameter_to_parameter_have_no_layer(optimizer):
    trace, rows, truth = recorded_with_truth("mixed", one_by_one(optimizer))
    updates = np.flatnonzero([one.phase == "optimizer" for one in truth])

    assert len(updates) > 0
    assert {*trace.values("layer", rows[updates])} == {None}


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_an_update_of_all_parameters_at_once_has_no_layer_but_can_be_split_by_bytes(how):
    trace, rows, truth = recorded_with_truth(
        "mixed", lambda model: torch.optim.Adam(model.parameters(), **{how: True})
    )
    updates = np.flatnonzero([one.phase == "optimizer" for one in truth])

    assert len(updates) > 0
    assert {*trace.values("layer", rows[updates])} == {None}
    parameters = {each["name"]: each for each in trace.metadata["parameters"]}
    (group,) = trace.metadata["optimizers"][0]["groups"]
    assert group["settings"][how] is True
    assert sum(parameters[name]["gradient_bytes"] > 0 for name in group["parameters"]) == 12
    assert {parameters[name]["layer"] for name in group["parameters"]} >= {
        "stages.0.a",
        "functional.parts.in",
    }


# Layers and phases of recorded models: no operator of forward or backward work is left without


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
