"""`daydream info --anonymous`: the answers stay to the digit, and no name of a person's does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from shared import shared_trace

import daydream
from daydream.cli.anonymous import as_before

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
OF_MODELS = r"GPT|qkv|norm_1|blocks\.|Qwen|self_attn|q_proj|\.py\b|/root|/home"
NUMBERS = ("replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns")


def in_file(path):
    """Return every text of a trace's file."""
    trace = daydream.Trace.load(path)
    return json.dumps([trace.texts, trace.metadata, trace.handles and trace.handles.to_json()])


@pytest.fixture
def made(ask, tmp_path):
    def make(source):
        target = tmp_path / "sent.parquet"
        assert ask("info", "--anonymous", str(source), "-o", str(target)).code == 0
        return daydream.load(source), target

    return make


@pytest.mark.parametrize("name", ["synthetic_gpt_gpu.json.gz", "train_gpt_h200.parquet"])
def test_whatifs_and_shares_are_those_of_the_trace(made, name):
    trace, target = made(EXAMPLES / name)
    sent = daydream.load(target)

    one, other = (daydream.whatif(each, "amp").to_json() for each in (trace, sent))
    assert {key: one[key] for key in NUMBERS} == {key: other[key] for key in NUMBERS}
    for side in ("before", "after"):
        assert one[side]["ns_by_cause"] == other[side]["ns_by_cause"]
        assert [*one[side]["by_layer"].values()] == [*other[side]["by_layer"].values()]
    one, other = (daydream.explain(each).to_json()["causes"] for each in (trace, sent))
    assert [(each["cause"], each["ns"], each["share"]) for each in one] == [
        (each["cause"], each["ns"], each["share"]) for each in other
    ]


@pytest.mark.parametrize(
    "name",
    [
        "kineto/h100_qwen_0.5b_inference.json.gz",
        "nsys/a100_gpt2.7b_forward_eager.sqlite.gz",
        "train_gpt_h200.parquet",
    ],
)
def test_no_name_of_a_model_or_a_file_survives(made, name):
    trace, target = made(EXAMPLES / name if "/" not in name else shared_trace(name))

    assert not re.search(OF_MODELS, in_file(target))
    own = {text for text in trace.text("layer") if "." in text}
    assert not [text for text in own if json.dumps(text) in in_file(target)]
    assert as_before(trace, daydream.load(target))


def test_names_of_others_are_numbers_and_public_ones_stay(made, tmp_path):
    source = tmp_path / "job.json"
    events = [
        {"name": "nn.Module: SecretNet_0", "cat": "python_function", "ts": 0, "dur": 99, "tid": 1},
        {"name": "aten::linear", "cat": "cpu_op", "ts": 1, "dur": 20, "tid": 1},
        {"name": "secretlib::mix_in", "cat": "cpu_op", "ts": 30, "dur": 20, "tid": 1},
        {"name": "epoch of Secret", "cat": "user_annotation", "ts": 60, "dur": 9, "tid": 1},
    ]
    rows = [{"ph": "X", "pid": 1, **each} for each in events]
    source.write_text(json.dumps({"traceEvents": rows, "host_name": "secret-host"}))

    texts = in_file(made(source)[1])
    assert "ecret" not in texts
    assert "mix_in" not in texts
    assert "aten::linear" in texts


def test_a_file_is_only_written_for_it(ask):
    done = ask("info", str(EXAMPLES / "mlp_cpu.json.gz"), "-o", "x.parquet")
    assert done.code == 2
    assert "goes with --anonymous" in done.err
