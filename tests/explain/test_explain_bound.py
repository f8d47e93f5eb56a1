"""What bounds a step, from what is left of it without each side: one word for `explain` and `rank`."""

import pytest
from shared import shared_replay

import daydream
from daydream.predict.breakdown import Share
from daydream.predict.explain import bound
from daydream.predict.suggest import WhatIfResult
from daydream.report.views.explanation import verdict
from daydream.simulate.critical_path import Bound, PathCause


def answer(left):
    return WhatIfResult("scale", {"factor": 0.0}, 100, left)


def bounded(shares, *, without_cpu, without_device):
    kinds = [(PathCause(key), share) for key, share in shares.items()]
    causes = [Share(cause, cause.bound, round(100 * share), share) for cause, share in kinds]
    device = None if without_device is None else answer(without_device)
    return bound(causes, answer(without_cpu), device)


@pytest.mark.parametrize(
    ("shares", "without_cpu", "without_device", "expected"),
    [
        ({"compute-bound kernels": 0.95}, 97, 40, "GPU"),
        ({"launch-bound CPU": 0.9}, 30, 96, "CPU"),
        ({"launch-bound CPU": 0.5, "compute-bound kernels": 0.5}, 60, 60, "turns"),
        # Each alone takes nearly as long; the path lies on the side that is a little shorter.
        ({"launch-bound CPU": 0.81, "compute-bound kernels": 0.19}, 98, 97, Bound.BOTH),
        ({"launch-bound CPU": 0.2, "compute-bound kernels": 0.8}, 97, 98, Bound.BOTH),
        # The device is not fast enough beside the loader to leave it alone, but loading is what takes long.
        ({"data loading": 0.68, "kernels of unknown bound": 0.32}, 47, 79, "data loading"),
        ({"untraced CPU time": 0.88, "kernels of unknown bound": 0.12}, 17, 89, "CPU"),
        ({"kernels of unknown bound": 0.8, "launch-bound CPU": 0.2}, 85, 25, "GPU"),
        ({"untraced device work": 0.6, "launch-bound CPU": 0.4}, 98, 97, "unrecorded"),
        ({"CPU operators": 1.0}, 0, None, "CPU"),
    ],
)
def test_the_side_that_takes_nearly_as_long_alone_bounds_the_step(
    shares, without_cpu, without_device, expected
):
    assert bounded(shares, without_cpu=without_cpu, without_device=without_device) == expected


@pytest.mark.parametrize(
    "name",
    ["h800_deepseek_train_dualpipe_rank0of64", "a100_ddp_rank0of2_record_param_comms"],
)
def test_sentence_table_and_ranking_say_the_same(name):
    replay = shared_replay(f"formats/kineto_distributed/{name}.json.gz")
    explanation = daydream.explain(replay)
    ranking = daydream.rank(replay, ["amp"], pairs=0, with_curves=False)

    assert ranking.bound == explanation.bound
    opposite = {"GPU": "CPU", "CPU": "GPU"}.get(explanation.bound, "")
    if explanation.bound_share(opposite) > 0.6:  # then the sentence says why
        assert "the critical path runs" in verdict(explanation)
