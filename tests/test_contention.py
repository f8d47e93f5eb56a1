"""Contention measured in traces of a machine that has it, and predictions held against that machine.

The machine runs in slices of time (`contention_machine`) and knows nothing of the formulas.
"""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from contention_machine import UPDATE, Machine
from graph.small_graphs import kernels

import daydream
from daydream import GraphError
from daydream.costs.contention import measured_contention
from daydream.predict.contention_option import parsed

EXAMPLE = Path(__file__).parents[1] / "examples" / "synthetic_gpt_gpu.json.gz"


@cache
def recorded(machine):
    return daydream.replay(machine.record())


@cache
def run_again(machine):
    return machine.step_us()


def gained(machine, **change):
    """Return how many times shorter the machine's steps are after a change."""
    return run_again(machine) / run_again(replace(machine, **change))


def predicted(machine, network, **options):
    found = daydream.whatif(recorded(machine), "network", bandwidth_factor=float(network), **options)
    return found.speedup


@pytest.mark.parametrize("factor", [1.0, 1.2, 1.8])
def test_the_factor_of_the_machine_is_measured(factor):
    found = measured_contention(recorded(Machine(kernel_factor=factor)).graph).kernel
    assert found is not None
    assert found.factor == pytest.approx(factor, rel=0.005)


@pytest.mark.parametrize("factor", [1.2, 1.8])
@pytest.mark.parametrize("network", [0.5, 2, 100])
def test_another_network_meets_the_machine_run_again(factor, network):
    machine = Machine(kernel_factor=factor)
    truth = gained(machine, network=network)
    assert predicted(machine, network) == pytest.approx(truth, rel=0.001)
    assert abs(predicted(machine, network, contention="off") - truth) > 0.005  # what this is for


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.4, 1.0), (1.4, 1.2)])
def test_transfers_put_into_a_trace_without_them_slow_its_kernels(factors):
    machine, alone = Machine(*factors, spread=0), Machine(*factors, spread=0, every=0)

    def exchange(graph):
        for work in kernels(graph).group_by("step"):
            backward = work.ids[-machine.layers - 1 : -1]
            for number, done in enumerate(reversed(backward.tolist())):
                if number % machine.every == 0:
                    graph.insert(
                        "reduce", kind="collective", lane="stream 20", gap_ns=1000,
                        duration_ns=machine.transfer_us * 1000,
                        after=[done], before=[work.where(name=UPDATE)],
                    )  # fmt: skip

    found = daydream.whatif(recorded(alone), exchange, contention=factors).predicted_ns / 1000
    assert found == pytest.approx(run_again(machine), rel=0.005)


def test_the_last_pass_is_followed_by_another():
    # Transfers that go on into the next step are slowed by its kernels too: without a pass behind them the
    # last ones would be faster than all others, and steps would never be found to have settled.
    replay = daydream.replay(EXAMPLE)
    how = {"workers": 8, "gradient_mb": 170.0, "bandwidth": 10.0, "contention": (1.3, 1.2)}
    found = daydream.whatif(replay, "tictac", **how)
    assert found.after.settled
    assert found.after.passes <= 5


@pytest.mark.parametrize(
    "option", ["much", "0.9", "1.2,0.5", "1,2,3", "", "nan", 0.0, (1.1, 1.1, 1.1), "inf"]
)
def test_what_is_no_contention_is_refused(option):
    with pytest.raises(GraphError, match="contention is 'measured', 'off', a factor of 1 or more"):
        parsed(option)
