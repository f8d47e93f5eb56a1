"""`explain`, `rank` and `whatif` answer one question alike, and `rank` has a row for a line of code."""

from collections import Counter
from pathlib import Path

import pytest
from shared import shared_replay

import daydream
from daydream.transforms.real_change import lines_of, why_not_offered
from daydream.transforms.registry import find

EXAMPLES = Path(__file__).parents[2] / "examples"
TRACES = ["mlp_cpu.json.gz", "synthetic_gpt_gpu.json.gz", "kineto/rtx2080ti_resnet_30_iterations.json.gz"]


@pytest.fixture(scope="module", params=TRACES)
def replay(request):
    name = request.param
    return shared_replay(name) if "/" in name else daydream.replay(EXAMPLES / name)


@pytest.fixture(scope="module")
def ranking(replay):
    return daydream.rank(replay, pairs=0, with_curves=False)


def test_each_line_of_code_has_one_row(ranking):
    lines = Counter(each.code for each in ranking.optimizations if each.code)
    assert {line for line, rows in lines.items() if rows > 1} == set()
    assert "restructured-batchnorm" not in {each.optimization for each in ranking.optimizations}


def test_the_loader_is_ranked_with_the_workers_that_explain_asks_about():
    replay = shared_replay("kineto/rtx2080ti_resnet_30_iterations.json.gz")
    first = daydream.rank(replay, pairs=0, with_curves=False).optimizations[0]
    assert (first.optimization, first.options) == ("dataloader", {"workers": 8})


def test_what_the_recorded_script_cannot_have_is_left_out_with_the_reason():
    replay = daydream.replay(EXAMPLES / "mlp_cpu.json.gz")
    left_out = daydream.rank(replay, pairs=0, with_curves=False).left_out
    for name in ("fused-cross-entropy", "foreach-optimizer"):
        assert left_out[name].endswith("is for a GPU, and this trace has no GPU work")
    assert "`rank --all`" in left_out["restructured-batchnorm"]
    every = daydream.rank(replay, pairs=0, with_curves=False, every=True)
    assert "foreach-optimizer" in {each.optimization for each in every.optimizations}
    asked = [each.optimization for cost in daydream.explain(replay).avoidable for each in cost.whatifs]
    assert not {"fused-cross-entropy", "foreach-optimizer"} & set(asked)


def test_a_line_of_code_names_the_optimizer_of_the_script():
    graph = daydream.replay(EXAMPLES / "mlp_cpu.json.gz").graph  # trains by Adam
    assert lines_of([find("fused-optimizer")], graph) == "torch.optim.Adam(parameters, fused=True)"
    by_sgd = shared_replay("kineto/rtx2080ti_resnet_30_iterations.json.gz").graph
    assert lines_of([find("fused-optimizer")], by_sgd) == "torch.optim.SGD(parameters, fused=True)"
    assert "another optimizer than SGD" in str(why_not_offered(find("fused-adam"), by_sgd))
