"""Throughput: what a second of training covers, where a change alters what a step covers."""

import pytest
from graph.small_graphs import kernels

import daydream

H200 = "examples/train_gpt_h200.parquet"  # batches of 8 sequences of 256 tokens, in one pass a step


@pytest.fixture(scope="module")
def replayed():
    return daydream.replay(H200)


def twice_as_long(graph, *, times=4.0, unit="samples"):
    kernels(graph).scale(2)
    graph.covers(times, unit)


def test_a_step_that_covers_four_times_the_samples_in_twice_the_time_gives_twice_the_throughput(replayed):
    found = daydream.whatif(replayed, twice_as_long)

    rate = found.throughput
    assert rate.unit == "samples"
    assert rate.gain == pytest.approx(4 * found.replayed_ns / found.predicted_ns)
    assert rate.before_per_s == pytest.approx(8 / (found.replayed_ns / 1e9))
    assert rate.after_per_s == pytest.approx(4 * 8 / (found.predicted_ns / 1e9))


def test_tokens_are_those_of_all_samples(replayed):
    found = daydream.whatif(replayed, twice_as_long, unit="tokens")

    assert found.throughput.unit == "tokens"
    assert found.throughput.before_per_s == pytest.approx(8 * 256 / (found.replayed_ns / 1e9))


def test_a_sweep_is_sorted_by_throughput_unless_by_step(replayed):
    asked = ["ddp", {"workers": [2, 8]}]

    by_throughput = daydream.sweep(replayed, *asked, bandwidth=100.0)
    by_step = daydream.sweep(replayed, *asked, bandwidth=100.0, sort="step")

    assert [each.options["workers"] for each in by_throughput.scenarios] == [8, 2]
    assert [each.options["workers"] for each in by_step.scenarios] == [2, 8]
