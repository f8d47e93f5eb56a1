"""Causes of small steps, worked out by hand: shares, waits beside them, and what avoids them."""

import pytest
from graph.small_traces import repeated as recorded_steps
from graph.small_traces import rows, trace
from machine.programs import PROGRAMS
from shared import EXAMPLES, shared_replay, view_text
from two_streams import steps

import daydream
from daydream.costs.devices import find_device
from daydream.graph.plan import Cause
from daydream.graph.tables import KINDS
from daydream.predict.breakdown import OF_KERNELS, Behind, Share
from daydream.predict.explain import bound
from daydream.predict.suggest import WhatIfResult
from daydream.report.views.explanation import beside, sentence, verdict
from daydream.simulate.critical_path import OF_EDGE, OF_KIND, Bound, PathCause
from daydream.transforms.real_change import lines_of, why_not_offered
from daydream.transforms.registry import find

KERNELS = PathCause.KERNELS
STEPS = 4


def repeated(text, length):
    """Return a trace of steps of no profiler that is known to cost anything: the recorded step counts."""
    return recorded_steps(text, length, times=STEPS, profiler="by hand")


def causes(explanation):
    return {each.cause: each.ns for each in explanation.causes}


def found(explanation, sort):
    return next(each for each in explanation.avoidable if each.sort == sort)


#  thread 1  |launch 5|launch 5|sync ................ 2|load 32|      a step: 6 + 60 + 2 + 32 = 100
#  stream 7     +6 |k 60                              |
#  stream 8           +6 |side 40       |
TWO_STREAMS = """
    launch k 0 6 66 phase=forward
    launch side 5 11 51 stream=8 phase=forward
    call cudaDeviceSynchronize 10 68
    op load 68 100 op=load phase=data
"""
HIDDEN = TWO_STREAMS.replace("stream=8", "stream=8 kind=collective")
EXPOSED = HIDDEN.replace("11 51", "11 91").replace(" 68 100", " 93 125").replace(" 68", " 93")


def test_the_critical_path_adds_up_to_the_step():
    explanation = daydream.explain(repeated(TWO_STREAMS, 100))

    assert causes(explanation) == {
        KERNELS: 60_000, "data loading": 32_000, "latency between lanes": 6_000, "synchronization": 2_000
    }  # fmt: skip
    assert explanation.step_ns == explanation.replayed_ns == 100_000
    assert [each.share for each in explanation.causes] == [0.6, 0.32, 0.06, 0.02]


def test_cpu_and_device_that_wait_for_each_other_take_turns():
    explanation = daydream.explain(repeated(TWO_STREAMS, 100))

    # Without CPU: 6 + 60. The calls stand from 10, when they are entered, to 66.
    assert explanation.bound == "turns"
    assert explanation.without_cpu.predicted_ns == 66_000
    assert verdict(explanation).startswith("CPU and device take turns: with no CPU cost at all")
    wait = found(explanation, "synchronization")
    assert wait.count_per_step == 1
    assert wait.label == "cudaDeviceSynchronize"
    assert explanation.synchronization_wait_ns == wait.cost_ns
    assert wait.best.options == {"which": "^cudaDeviceSynchronize$"}


def test_hidden_communication_is_said_to_be_hidden_and_by_what():
    explanation = daydream.explain(repeated(HIDDEN, 100))
    communication = explanation.communication

    assert (communication.total_ns, communication.exposed_ns, communication.hidden_ns) == (40_000, 0, 40_000)
    assert communication.behind == (Behind(KERNELS, 40_000),)
    assert explanation.without_communication.saving_ns == 0
    assert "all of it hidden: 40.00 us run during kernels" in " ".join(beside(explanation))
    assert not [each for each in explanation.avoidable if each.sort == "exposed communication"]


def test_exposed_communication_saves_what_nothing_else_hides():
    explanation = daydream.explain(repeated(EXPOSED, 125))

    # The collective runs from 11 to 91, 25 longer than the kernel beside it.
    assert causes(explanation)["exposed communication"] == 80_000
    assert explanation.communication.hidden_ns == 0
    cost = found(explanation, "exposed communication")
    assert (cost.cost_ns, cost.saving_ns) == (80_000, 25_000)
    assert cost.best is None  # nothing else in the step could hide it, and its size is not known
    assert cost.limit.predicted_ns == 100_000
    words = view_text(explanation, verbose=True).split()
    assert "removing it saves 25.00 us" in " ".join(words)


#  thread 1  |launch 5|.5.|2 copy_ |5 copy call (waits 33) 4|1|python 45|    6 + 40 + 1 + 3 + 4 + 1 + 45 = 100
#  stream 7      +6 |k 40              |1|copy 3|
BLOCKING_COPY = """
    launch k 0 6 46 phase=forward
    op aten::copy_ 10 55 layer=head op=aten::copy_ phase=forward
    call cudaMemcpyAsync 12 54 correlation=2 layer=head op=aten::copy_ phase=forward
    memcpy Memcpy DtoH (Device -> Pageable) 47 50 correlation=2 bytes=4
    op python 55 100 op=python phase=other
"""


def test_a_blocking_copy_is_named_with_operator_layer_and_what_it_would_save():
    explanation = daydream.explain(repeated(BLOCKING_COPY, 100))

    assert causes(explanation) == {
        "launch-bound CPU": 46_000, KERNELS: 40_000, "latency between lanes": 6_000,
        "synchronization": 4_000, "copies": 3_000, "between device tasks": 1_000,
    }  # fmt: skip
    cost = found(explanation, "blocking copies from the device")
    assert (cost.count_per_step, cost.cost_ns) == (1, 33_000)
    assert (cost.label, cost.layer) == ("aten::copy_", "head")
    # All waits go but that of the last step: behind it the window has no more work to run ahead to.
    assert cost.saving_ns == 33_000 * (STEPS - 2) // (STEPS - 1)
    assert sentence(cost) == (
        "1 call per step of aten::copy_ blocks the CPU for 33.00 us, copying from the device (layer head, "
        "forward)."
    )


def test_loading_that_is_waited_for_saves_what_workers_would_hide():
    steps = """
        op next 0 5000 op=next phase=data
        launch k 5000 5006 8000 phase=forward
        call cudaDeviceSynchronize 5010 8002
        op rest 8002 10000 op=rest phase=other
    """

    explanation = daydream.explain(repeated(steps, 10_000))

    assert causes(explanation)["data loading"] == 5_000_000
    cost = found(explanation, "data loading")
    assert cost.label == "next"
    assert cost.saving_ns == 5_000_000 - 1_500_000  # a batch is still fetched, in 1.5 ms
    assert daydream.explain(repeated(steps, 10_000), "dataloader").share("data loading") == 1.5 / 6.5


def test_a_full_launch_queue_is_told_as_queue_wait_not_as_cpu_work():
    #  thread 1  |1|1|1 .. wait for room ..|1 .. wait ..|     4 launches of 1, 4 kernels of 10 a step
    #  stream 7     +6 |k 10|k 10|k 10|k 10|
    each = "\n".join(
        f"call cudaLaunchKernel {i} {i + 1} correlation={i}\nkernel k {begin} {begin + 10} correlation={i}"
        for i, begin in enumerate(range(6, 46, 10))
    )

    graph = daydream.build(repeated(each, 40))
    graph.select(kind="cpu").set(gap_ns=0)
    graph.queue_depth = {number: 8 for number, lane in enumerate(graph.lanes) if lane.on_device}
    explanation = daydream.explain(graph)

    assert explanation.bound == "GPU"
    assert causes(explanation) == {KERNELS: 40_000}
    launching = explanation.launch_calls
    assert (launching.calls_per_step, launching.total_ns, launching.queue_wait_ns) == (4, 40_000, 36_000)
    assert explanation.without_cpu.saving_ns == 0
    assert verdict(explanation) == (
        "GPU-bound; most of the time in launch calls (36.00 us of 40.00 us per step) is queue wait, and "
        "without any CPU cost the step would still take 40.00 us of 40.00 us."
    )
    faster = daydream.explain(graph, "scale", on="gpu", factor=0.0)
    assert faster.launch_calls.queue_wait_ns == 0


def test_a_cpu_that_launches_slowly_is_launch_bound():
    named = "op=aten::add phase=forward"
    steps = "\n".join(
        f"op aten::add {at} {at + 18} {named}\nlaunch k {at + 3} {at + 9} {at + 11} {named}"
        for at in range(0, 100, 20)
    )

    explanation = daydream.explain(repeated(steps, 100))

    assert explanation.bound == "CPU"
    assert explanation.device_busy_share == pytest.approx(0.1)
    assert explanation.share("launch-bound CPU") + explanation.share("untraced CPU time") == pytest.approx(1)
    cost = found(explanation, "launch-bound CPU")
    alone = daydream.whatif(explanation.replay, cost.best.optimization)
    assert cost.saving_ns == alone.replayed_ns - alone.predicted_ns > 0.5 * explanation.replayed_ns


def test_work_between_batches_is_told_where_the_program_is_known():
    line = "prepare.py(12):prepare"
    steps = f"""
        op aten::resize 0 60 op=aten::resize phase=other stack={line}
        launch k 60 66 100 phase=forward
        call cudaDeviceSynchronize 70 102
    """

    explanation = daydream.explain(repeated(steps, 102))

    cost = found(explanation, "work between batches")
    assert (cost.cost_ns, cost.source) == (60_000, line)
    assert "DataLoader(dataset, num_workers=4" in " ".join(view_text(explanation).split())


def test_without_a_device_the_operators_are_the_causes():
    steps = "op aten::mm 0 90 op=aten::mm\nop aten::add 90 100 op=aten::add"

    explanation = daydream.explain(repeated(steps, 100))

    assert causes(explanation) == {"CPU operators": 100_000}
    assert [(part.name, part.ns) for part in explanation.causes[0].largest] == [
        ("aten::mm", 90_000), ("aten::add", 10_000)
    ]  # fmt: skip
    assert (explanation.bound, explanation.device_busy_share, explanation.launch_calls) == ("CPU", None, None)
    assert verdict(explanation).startswith("CPU only")


def test_a_change_is_explained_on_top_of_itself():
    recorded = repeated(TWO_STREAMS, 100)
    explanation = daydream.explain(recorded, "scale", on="gpu", factor=0.5)

    # The kernels take 30 and 20, each behind its launch: 6 + 30 + 2 + 32.
    assert explanation.replayed_ns == explanation.step_ns == 70_000
    assert causes(explanation)[KERNELS] == 30_000
    assert explanation.after.optimization == "scale"
    wait = found(explanation, "synchronization")
    both = daydream.whatif(
        recorded, "scale+remove-sync", on="gpu", factor=0.5, which="^cudaDeviceSynchronize$"
    )
    assert wait.best.optimization == "scale+remove-sync"
    assert wait.saving_ns == 70_000 - both.predicted_ns


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_on_the_machine_shares_add_up_and_every_saving_is_a_what_if(name, tmp_path):
    PROGRAMS[name]().run(steps=12).write(tmp_path / "trace.json", 6, 10)
    replay = daydream.replay(tmp_path / "trace.json")
    explanation = daydream.explain(replay)

    assert abs(sum(each.ns for each in explanation.causes) - explanation.step_ns) <= len(explanation.causes)
    for cost in explanation.avoidable:
        for answer in cost.whatifs:
            if answer.predicted_ns is not None:
                asked = daydream.whatif(explanation.replay, answer.optimization, **answer.options)
                assert answer.predicted_ns == asked.predicted_ns
            else:
                assert answer.reason
    text = view_text(explanation)
    assert text.isascii()
    assert "None" not in text


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


V100 = {"devices": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}]}


def recorded(shapes, name="volta_sgemm_128x64_nn", **metadata):
    """Return steps of 600 us: a product of 1024 x 1024 matrices that takes 547 of them."""
    text = """
        op aten::mm 0 20 op=aten::mm dtype=float32
        call cudaLaunchKernel 5 10 correlation=1 op=aten::mm
        kernel gemm 12 559 correlation=1 op=aten::mm dtype=float32
        call cudaDeviceSynchronize 20 600
    """
    found = rows(text, times=STEPS, every=600, ids=1)
    for each in found:
        each["name"] = name if each["kind"] == "kernel" else each["name"]
        each["shapes"] = shapes if each["kind"] == "operator" else None
    return trace(found, steps=tuple(600 * step for step in range(STEPS + 1)), **metadata)


def test_a_product_far_below_the_peak_is_told():
    explanation = daydream.explain(recorded("[[1024,1024],[1024,1024]]", **V100))

    (found,) = explanation.kernels
    peak = find_device("v100").peak("float32")  # FLOP a ns
    assert (found.name, found.ns, found.peak) == ("volta_sgemm", 547_000, "arithmetic")
    assert found.share_of_peak == pytest.approx(2 * 1024**3 / peak / 547_000)
    said = f"{100 * found.share_of_peak:.1f}% of the device's peak arithmetic"
    assert said in " ".join(beside(explanation))
    assert explanation.to_json()["kernels"] == [found.to_json()]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int)", 547_000),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", 0),
    ],
)
def test_convolutions_by_an_algorithm_that_fits_all_are_told(name, told):
    explanation = daydream.explain(recorded(None, name))

    assert explanation.general_convolutions_ns == told
    assert ("cudnn.benchmark = True" in " ".join(beside(explanation))) == bool(told)


def test_a_line_of_code_names_the_optimizer_of_the_script():
    graph = daydream.replay(EXAMPLES / "mlp_cpu.json.gz").graph  # trains by Adam
    assert lines_of([find("fused-optimizer")], graph) == "torch.optim.Adam(parameters, fused=True)"
    by_sgd = shared_replay("kineto/rtx2080ti_resnet_30_iterations.json.gz").graph
    assert lines_of([find("fused-optimizer")], by_sgd) == "torch.optim.SGD(parameters, fused=True)"
    assert "another optimizer than SGD" in str(why_not_offered(find("fused-adam"), by_sgd))


# One taxonomy of causes and bounds: a key, a label, a colour each, which every output takes from there.


def test_every_kind_of_task_and_of_edge_has_a_cause():
    assert set(OF_KIND) == set(KINDS)
    assert [*Cause.__members__.values()] == [*range(11)]  # as edges store them
    assert set(OF_EDGE) == set(Cause) - {Cause.LANE}  # which is a gap, or a start-up on the device
    assert {cause.bound for cause in OF_KERNELS.values()} == {OF_KIND["kernel"].bound}


# A step that a change does not move says what it waits for instead.


def said(change):
    return [note for note in daydream.whatif(steps(), change).notes if "does not move" in note]


def test_work_that_nothing_waits_for_leaves_the_step_to_what_it_waits_for():
    def halve_short(graph):
        graph.select(name="^short_kernel").scale(0.5)

    assert said(halve_short) == [
        "The step's time does not move with this change: it waits for the GPU (60%)."
    ]
