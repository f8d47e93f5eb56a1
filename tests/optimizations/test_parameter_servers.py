"""Parameter servers, p3 and tictac: each answer worked out by hand."""

import pytest
from daydream.optimizations.ddp import ddp
from daydream.optimizations.fsdp import fsdp
from daydream.optimizations.p3 import p3, tictac
from recorded import Program, makespan, refuses
from training_programs import GRADIENT, ONE, layer, reduced, steps_between, times, training

from daydream import GraphError, NotApplicableError

# p3


def test_the_next_forward_pass_waits_for_the_parameters_it_needs():
    #  stream 7  6|forward 0 50|forward 1 50|grad 1 60|grad 0 60|              |forward 0 50|...
    #  network                                     166|push 20|pull 20|226|push 20|pull 20|
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=100.0, latency_us=0.0, update="server")  # 4,000 B / 2 at 100 B/ns
    ran = times(graph)
    assert ran["push"][:2] == [(166, 186), (226, 246)]
    assert ran["pull"][:2] == [(186, 206), (246, 266)]
    assert ran["forward 0"] == [(6, 56), (266, 316)]
    assert ran["forward 1"][1] == (316, 366)
    assert makespan(graph) == 366 + 2 * 60 + 20 + 20
    assert graph.lint() == []


@pytest.mark.parametrize("optimization", [p3, tictac])
def test_what_is_needed_first_goes_first(optimization):
    # 4,000 B / 2 at 25 B/ns are 80 ns. When push 1 has ended, pull 1 and push 0 are ready: for p3 layer 0
    # goes first, its pull too; tictac pulls when all gradients are there, at 326.
    #  network    166|push 1|246|push 0|326|pull 0|406|pull 1|486|
    #  stream 7                                       |F 0 50|   |F 1 50|
    graph = training(steps=2)
    optimization(graph, workers=2, bandwidth=25.0, latency_us=0.0, update="server")
    ran = times(graph)
    assert ran["push"][:2] == [(166, 246), (246, 326)]
    assert ran["pull"][:2] == [(326, 406), (406, 486)]
    assert ran["forward 0"][1] == (406, 456)
    assert ran["forward 1"][1] == (486, 536)
    assert graph.lint() == []


def test_slices_let_an_urgent_gradient_overtake():
    # Two slices of 40 ns each; at 206 the second push of layer 1 has begun, at 246 layer 0 takes over.
    graph = training(steps=2)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0, slice_mb=ONE / 2, update="server")
    ran = times(graph)
    assert len(ran["push"]) == len(ran["pull"]) == 2 * 2 * 2
    # push 1a 166-206, then push 1b or pull 1a (both ready, push 1b first ready) 206-246, layer 0 until 406.
    assert ran["forward 0"][1][0] == 246 + 4 * 40
    assert ran["forward 1"][1][0] == max(406 + 50, 406 + 2 * 40)


def test_without_sequence_numbers_the_first_forward_work_waits_for_all():
    graph = training(steps=2, sequences=False)
    p3(graph, workers=2, bandwidth=25.0, latency_us=0.0, update="server")
    assert times(graph)["forward 0"][1][0] == 486


# tictac


# Where the worker updates


def looping(*kernels, steps=2):
    """Two layers whose update is a loop over their parameters, on a device with kernels of these times."""
    program = Program()
    ends = [0]
    for step in range(steps):
        program.step = step
        for backward, number in ((False, 0), (False, 1), (True, 1), (True, 0)):
            layer(program, number, backward=backward, on_device=bool(kernels))
        for number in range(2):
            update = (f"update {number}", kernels[number]) if kernels else None
            program.op("aten::add_", "optimizer", *([update] if update else []), shapes=GRADIENT)
        ends.append(program.now)
    return program.graph(steps=steps_between(ends))


def test_a_loop_updates_each_parameter_when_it_has_come_right_before_it_is_read():
    # An update takes 4 of the CPU, a launch of 6 and its kernel of 10 (layer 0) or 30 (layer 1).
    #  thread    2|4|6|6|
    #  stream 7      10|update 0 10|forward 0 50|update 1 30|forward 1 50|grad 1 60|grad 0 60|
    #                  10           20            70          100          150       210       270
    #  network                                                 210|push 1|pull 1|  270|push 0|pull 0|310
    graph = looping(10, 30)
    p3(graph, workers=2, bandwidth=100.0, latency_us=0.0)
    ran = times(graph)
    assert ran["update of parameters"][:1] == [(2, 6)]  # on the CPU
    on_device = graph.select(kind="kernel", name="update of parameters")
    assert on_device.duration_ns.tolist() == [10, 30] * 2
    assert ran["forward 0"] == [(20, 70), (310 + 10, 310 + 10 + 50)]
    assert ran["forward 1"] == [(100, 150), (370 + 30, 370 + 30 + 50)]
    assert not len(graph.select(op="add_", name="^update .$"))
    assert graph.lint() == []


def test_more_slices_than_can_be_simulated_are_refused():
    refuses(r"slice_mb 1e-09 makes .* slices", p3, training(), slice_mb=1e-9)


# all that exchange gradients


@pytest.mark.parametrize("optimization", [ddp, fsdp, p3, tictac])
@pytest.mark.parametrize(
    ("graph", "options", "error", "words"),
    [
        (training, {"workers": 1}, NotApplicableError, "one worker"),
        (training, {"workers": 0}, GraphError, "1 or more"),
        (training, {"bandwidth": 0.0}, GraphError, "above 0"),
        (lambda: training(shapes=None), {}, NotApplicableError, "gradients are unknown"),
        (reduced, {}, NotApplicableError, "several ranks already"),
    ],
)
def test_an_exchange_of_gradients_says_why_it_does_not_apply(optimization, graph, options, error, words):
    with pytest.raises(error, match=words):
        optimization(graph(), **{"bandwidth": 1.0, **options})
