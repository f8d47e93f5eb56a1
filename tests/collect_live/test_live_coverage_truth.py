"""Layers and phases against the truth: every dispatched operator of every model, and of every optimizer."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from live_models import MODELS  # noqa: E402
from live_truth import OUTSIDE, recorded_with_truth  # noqa: E402

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
