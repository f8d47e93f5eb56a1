"""How predictions of strategies are judged, and what the tables' names tell."""

from __future__ import annotations

import numpy as np
import pytest

from daydream.plan.search import Strategy
from validation.strategies import Row, b200_rows, ci_rows, judged, megatron_rows


def test_predictions_are_judged_by_error_order_and_regret():
    rows = [Row(str(ms), "one", ms) for ms in (10.0, 20.0, 30.0, 40.0, 50.0)]
    rows += [Row(str(ms), "two", ms) for ms in (10.0, 12.0)]
    found = judged(rows, np.array([5.0, 15.0, 10.0, 20.0, 25.0, 6.0, 5.0]), np.zeros(7))
    assert found["scale"] == pytest.approx(2)  # of the first row
    one, two = found["groups"]
    assert one["spearman"] == pytest.approx(
        0.9
    )  # 1 - 6 (1 + 1) / (5 * 24): the second and the third changed places
    assert (one["regret"], two["regret"]) == (0, pytest.approx(0.2))
    assert two["best_predicted"] == "12.0"
    assert found["median_group_spearman"] == pytest.approx(0.9)  # a group of two does not count
    assert found["unscaled_median_error"] == 0.5


def test_names_tell_strategies():
    case = {"case": "llama3_70b_l12_tp2_cp4_pp1_dp1_seq32768_mbc4_cef", "model": "llama3-70b", "layers": "12"}
    (row,) = b200_rows([{**case, "real_ms": "1758", "real_allocated_gib": "68.43"}])
    assert row.strategy == Strategy(tp=2, cp=4, micro_batches=4, sharded_optimizer=True)
    assert row.script == ("--model=llama3-70b", "--sequence=32768")
    test = {"suite": "gpt", "golden": "golden_values_dev_dgx_h100.json", "iter_s": "0.1", "mem_max": ""}
    name = "gpt3_mcore_te_tp1_pp4_vp1_dist_optimizer_overlap_grad_reduce"
    known, unknown = ci_rows([{**test, "case": name}, {**test, "case": "t5_release"}])
    assert (known.run, known.layers, "--flash" in known.script) == ("h100", [12], False)
    assert known.strategy == Strategy(
        dp=2, pp=4, micro_batch=4, micro_batches=4, chunks=3, sharded_optimizer=True, overlap=True
    )
    assert "model_config.yaml" in unknown.why_not
    (shared,) = ci_rows([{**test, "case": "gpt3_mcore_te_tp2_pp1_resume_torch_dist_cp2_nondeterministic"}])
    assert shared.strategy == Strategy(dp=2, tp=2, cp=2, micro_batch=4, micro_batches=4)
    assert "--flash" in shared.script
    (both,) = ci_rows([{**test, "case": "t5_mcore_tp4_pp1", "golden": "golden_values_lts.json"}])
    assert (both.run, both.layers) == ("a100", [12, 12])
    (few,) = ci_rows(
        [{**test, "case": "bert_mcore_tp1_pp2_1node", "golden": "golden_values_dev_dgx_gb200.json"}]
    )
    assert few.strategy == Strategy(dp=2, pp=2, micro_batch=4, micro_batches=16)
    table = {
        "# GPUs": "8", "global batch": "16", "micro batch": "2", "hidden size": "1024", "# layers": "12",
        "tensor parallelism": "2", "data parallelism": "2", "pipeline parallelism": "2",
        "attention heads": "16", "sequence length": "1024", "iteration time (ms)": "100",
    }  # fmt: skip
    (one,) = megatron_rows([table])
    assert one.strategy == Strategy(dp=2, tp=2, pp=2, micro_batch=2, micro_batches=4)
    (many,) = megatron_rows([{**table, "Parameters (billion)": "3.6"}])
    assert many.strategy.checkpointing
