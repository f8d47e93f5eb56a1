"""Parameter servers, p3 and tictac: each answer worked out by hand."""

from __future__ import annotations

import pytest
import strategies  # noqa: F401 - sets hypothesis up
from daydream.optimizations.p3 import p3
from daydream.optimizations.tictac import tictac
from training_programs import ONE, reduced, times, training

from daydream import GraphError, NotApplicableError, simulate
from daydream.simulate.steady import settle
from daydream.transforms.compose import parse

# p3


def test_the_next_forward_pass_waits_for_the_parameters_it_needs():
    #  stream 7  6|forward 0 50|forward 1 50|grad 1 60|grad 0 60|              |forward 0 50|...
    #  network                                     166|push 20|pull 20|226|push 20|pull 20|
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=100.0, latency_us=0.0)  # 4,000 B / 2 at 100 B/ns
    ran = times(graph)
    assert ran["push"][:2] == [(166, 186), (226, 246)]
    assert ran["pull"][:2] == [(186, 206), (246, 266)]
    assert ran["forward 0"] == [(6, 56), (266, 316)]
    assert ran["forward 1"][1] == (316, 366)
    assert ran["update"] == [(226, 256), (366 + 2 * 60, 366 + 2 * 60 + 30)]
    assert simulate(graph).makespan_ns == 366 + 2 * 60 + 20 + 20
    assert graph.lint() == []


def test_where_the_server_updates_the_optimizer_goes():
    graph = training()
    p3(graph, workers=2, bandwidth=1e6, latency_us=0.0, update="server")
    assert not len(graph.select(kind="kernel", phase="optimizer"))
    assert simulate(graph).makespan_ns == 6 + 2 * 50 + 2 * 60
    assert graph.lint() == []


def test_what_is_needed_first_goes_first():
    # 80 ns each. When push 1 has ended, pull 1 and push 0 are ready: layer 0 goes first, its pull too.
    #  network  166|push 1|246|push 0|326|pull 0|406|pull 1|486|
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0)
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(326, 406), (406, 486)]
    assert ran["forward 0"][1] == (406, 456)
    assert ran["forward 1"][1] == (486, 536)


def test_slices_let_an_urgent_gradient_overtake():
    # Two slices of 40 ns each; at 206 the second push of layer 1 has begun, at 246 layer 0 takes over.
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0, slice_mb=ONE / 2)
    ran = times(graph)
    assert len(ran["push"]) == len(ran["pull"]) == 2 * 2 * 2
    # push 1a 166-206, then push 1b or pull 1a (both ready, push 1b first ready) 206-246, layer 0 until 406.
    assert ran["forward 0"][1][0] == 246 + 4 * 40
    assert ran["forward 1"][1][0] == max(406 + 50, 406 + 2 * 40)


def test_servers_of_their_own_take_pushes_and_pulls_at_once():
    graph = training(steps=2)
    p3(graph, workers=4, servers=2, bandwidth=100.0, latency_us=0.001)  # 4,000 B x 4/2 at 100 B/ns: 80 ns
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(247, 327), (327, 407)]
    assert ran["forward 0"][1][0] == 407


def test_p3_settles_over_repeated_steps():
    # 400 ns each, layer 0 first: its forward kernel runs beside pull 1, and while layer 1 goes forward
    # and backward the link has nothing to do.
    #  network  |push 1|push 0|pull 0|pull 1|                 |push 1|...
    #  stream 7                      |F 0|  |forward 1|grad 1|grad 0|
    graph = training(steps=3, uncovered=1)
    p3(graph, workers=2, bandwidth=5.0, latency_us=0.0)
    settled = settle(graph)
    assert settled.timeline.copy.max() > 0
    assert settled.step_ns == 4 * 400 + 50 + 60


def test_without_sequence_numbers_the_first_forward_work_waits_for_all():
    graph = training(steps=2, sequences=False)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0)
    assert times(graph)["forward 0"][1][0] == 486


def test_on_more_bandwidth_p3_is_never_slower():
    ends = []
    for bandwidth in (1.0, 5.0, 25.0, 1e6):
        graph = training(steps=3)
        p3(graph, workers=4, bandwidth=bandwidth, latency_us=0.0)
        ends.append(simulate(graph).makespan_ns)
    assert ends == sorted(ends, reverse=True)
    assert ends[-1] == simulate(training(steps=3)).makespan_ns  # and never faster than a single worker


# tictac


def test_parameters_are_pulled_in_the_order_they_are_needed():
    # 4,000 B / 2 at 25 B/ns are 80 ns. All gradients are there at 326.
    #  network  166|push 1|push 0|pull 0|pull 1|
    #  stream 7                         |F 0 50|  |F 1 50|
    #                       326  406    486
    graph = training(steps=2)
    tictac(graph, workers=2, bandwidth=25.0, latency_us=0.0)
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(326, 406), (406, 486)]
    assert ran["forward 0"][1] == (406, 456)
    assert ran["forward 1"][1] == (486, 536)
    assert graph.lint() == []


def test_without_that_order_the_first_operator_waits_for_all():
    graph = training(steps=2)
    tictac(graph, workers=2, bandwidth=25.0, latency_us=0.0, order="ready")
    ran = times(graph)
    assert ran["forward 0"][1] == (486, 536)
    assert ran["forward 1"][1] == (536, 586)


def test_servers_of_their_own_send_back_what_has_come():
    graph = training(steps=2)
    tictac(graph, workers=4, servers=2, bandwidth=100.0, latency_us=0.001)  # 4,000 B x 4/2 at 100 B/ns: 80 ns
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(327, 407), (407, 487)]
    assert set(graph.select(name="^pull$").lane.tolist()) == {"network, back"}


def test_where_the_server_updates_the_worker_does_not():
    graph = training()
    tictac(graph, workers=2, bandwidth=1e6, latency_us=0.0, update="server")
    assert not len(graph.select(kind="kernel", phase="optimizer"))
    assert simulate(graph).makespan_ns == 6 + 2 * 50 + 2 * 60
    assert graph.lint() == []


def test_slices_and_no_barrier_are_never_slower_and_order_helps():
    ends = {}
    for bandwidth in (5.0, 25.0, 100.0, 1e6):
        for name, make in (("p3", p3), ("tictac", tictac)):
            graph = training(steps=3)
            make(graph, workers=2, bandwidth=bandwidth, latency_us=0.0)
            ends[name, bandwidth] = simulate(graph).makespan_ns
        graph = training(steps=3)
        tictac(graph, workers=2, bandwidth=bandwidth, latency_us=0.0, order="ready")
        ends["ready", bandwidth] = simulate(graph).makespan_ns
        assert ends["p3", bandwidth] <= ends["tictac", bandwidth] <= ends["ready", bandwidth]
    ordered = [ends["tictac", bandwidth] for bandwidth in (5.0, 25.0, 100.0, 1e6)]
    assert ordered == sorted(ordered, reverse=True)
    assert ordered[-1] == simulate(training(steps=3)).makespan_ns  # never faster than a single worker


@pytest.mark.parametrize("both", ["fsdp+ddp", "p3+fsdp", "tictac+p3", "ddp+tictac", "fsdp+tictac"])
def test_gradients_are_exchanged_in_one_way(both):
    with pytest.raises(GraphError, match="exclude"):
        parse(both)


def test_waits_of_a_step_that_is_not_repeated_hold_none_that_is():
    # 400 ns each. The last step's marker ends late, as where a recording stops: what step 0 waited for,
    # moved on by the length of the window, would fall behind the last step's work.
    #  network  |push 1|push 0|pull 0|pull 1|                 |push 1|...
    #  stream 7                      |F 0|  |forward 1|grad 1|grad 0|
    graph = training(steps=3, uncovered=1)
    graph.steps[-1]["end_ns"] += 300
    tictac(graph, workers=2, bandwidth=5.0, latency_us=0.0)
    settled = settle(graph)
    repeated = {step: ns for (copy, step), ns in settled.times.items() if copy == 1}
    assert repeated == {1: 4 * 400 + 50 + 60, 2: 4 * 400 + 50 + 60}


# both


@pytest.mark.parametrize("optimization", [p3, tictac])
@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (training, {"workers": 1}, NotApplicableError, "one worker"),
        (training, {"servers": -1}, GraphError, "0 or more"),
        (training, {"bandwidth": 0.0}, GraphError, "above 0"),
        (lambda: training(shapes=None), {}, NotApplicableError, "sizes of gradients"),
        (reduced, {}, NotApplicableError, "several ranks already"),
    ],
)
def test_a_parameter_server_says_why_it_does_not_apply(optimization, graph, options, error, words):
    with pytest.raises(error, match=words):
        optimization(graph(), **options)
