"""What-ifs on real training traces, each figure worked out another way from the trace's own columns."""

import gzip
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from shared import shared_replay, shared_trace

import daydream
from daydream.transforms.registry import find

A100_DDP = "kineto/a100_resnet_ddp_rank0of2.json.gz"
V100_LOADER_4 = "kineto/v100_resnet50_loader_workers_4.json.gz"
RTX_RESNET = "kineto/rtx2080ti_resnet_30_iterations.json.gz"
RTX_LINEAR = "kineto/rtx2080ti_linear_40_iterations.json.gz"
GPT_EAGER = "nsys/a100_gpt2.7b_forward_eager.sqlite.gz"
TRANSFORMER = "nsys/rtx3070ti_transformer_training_nvtx.sqlite.gz"

MATH = ("gemm", "conv", "scudnn", "winograd", "wgrad_alg", "dgrad_engine")  # of convolutions and products


def covered_steps(replay):
    return list(replay.settled.step_times(0))


def steps_near_the_median(replay):
    times = replay.settled.step_times(0)
    usual = np.median(list(times.values()))
    return [number for number, ns in times.items() if abs(ns - usual) <= 0.25 * usual]


def device_rows(trace):
    return np.flatnonzero(trace.is_kind("kernel", "memcpy", "memset", "collective"))


# AMP


def test_faster_kernels_alone_gain_nothing_where_the_cpu_is_the_limit():
    # The A100 is busy 24 % of the step: every kernel waits for its launch, so no kernel's
    # duration is on the chain of causes, and a GPU that takes no time at all changes nothing either.
    replay = shared_replay(A100_DDP)

    amp = daydream.whatif(replay, "amp", model="paper")

    assert amp.changed > 1000
    assert amp.speedup == pytest.approx(1.0, abs=0.002)
    assert daydream.whatif(replay, "scale", on="gpu", factor=0).speedup == pytest.approx(1.0, abs=0.002)


def test_amp_by_the_paper_on_a_gpu_bound_step_gives_the_sum_of_its_faster_kernels():
    # RTX 2080 Ti, ResNet: the stream is busy all the time and everything is 32 bits wide. By hand:
    # convolutions and matrix products / 3, other kernels (batch norms of cuDNN too) / 2; copies, memsets and
    # the optimizer as they are.
    replay = shared_replay(RTX_RESNET)
    trace = replay.graph.trace
    rows = device_rows(trace)
    names = np.array(trace.values("name", rows), dtype=object)
    kernel = np.array(trace.values("kind", rows)) == "kernel"
    update = np.array(trace.values("phase", rows)) == "optimizer"
    math = np.array([any(word in name.lower() for word in MATH) for name in names])
    duration = trace["duration_ns"][rows].astype(float)
    faster = np.where(kernel & ~update, duration / np.where(math, 3, 2), duration)
    by_hand = {step: faster[trace["step"][rows] == step].sum() for step in steps_near_the_median(replay)}

    amp = daydream.whatif(replay, "amp", model="paper")

    # Pauses of the CPU that the GPU used to hide come to light in single steps; the median one is the sum.
    ratios = [
        ns / by_hand[step] for (copy, step), ns in amp.after.times.items() if copy == 0 and step in by_hand
    ]
    assert np.median(ratios) == pytest.approx(1.0, abs=0.03)
    assert min(ratios) > 0.99
    said = amp.to_json()
    assert 1.9 < said["typical_replayed_ns"] / said["typical_predicted_ns"] < 2.3
    # The run as a whole spends 8.2 of its 9.7 s in the loader, which gains nothing.
    assert 1.1 < amp.speedup < 1.2


def test_amp_stops_at_the_cpu_floor_and_fusing_the_optimizer_lowers_it():
    # V100 with four loader workers: the optimizer launches 362 kernels a step from a CPU that has little
    # time left. AMP alone frees the GPU but not the CPU; both together gain more than the sum of each.
    replay = shared_replay(V100_LOADER_4)
    floor = daydream.whatif(replay, "scale", on="gpu", factor=0)
    amp = daydream.whatif(replay, "amp", model="paper")
    fused = daydream.whatif(replay, "fused-adam")
    both = daydream.whatif(replay, "amp+fused-adam", **{"amp.model": "paper"})

    assert floor.predicted_ns <= amp.predicted_ns < replay.replayed_ns
    saved = replay.replayed_ns - np.array([amp.predicted_ns, fused.predicted_ns, both.predicted_ns])
    assert saved[2] > saved[0] + saved[1]


def test_amp_leaves_copies_collectives_the_optimizer_and_16_bit_kernels_alone():
    for name in (A100_DDP, V100_LOADER_4, RTX_RESNET):
        graph = shared_replay(name).graph.copy()
        before, types = graph.columns["duration_ns"].copy(), graph.select().dtype
        find("amp").function(graph, model="paper")
        changed = graph.tasks(np.flatnonzero(graph.columns["duration_ns"] != before))

        assert set(changed.kind) == {"kernel"}
        assert set(types[np.isin(graph.ids, changed.ids)]) == {"float32"}
        assert set(changed.dtype) == {"float16"}  # what is predicted on top of it sees that
        assert "optimizer" not in set(changed.phase)
        assert not any("tf32" in task or "s884" in task for task in changed.name)


# Fused optimizer


def optimizer_cpu_ns(replay):
    """CPU time a step from the first operator of `Optimizer.step` ranges to the end of the last."""
    trace = replay.graph.trace
    start, duration = trace["start_ns"], trace["duration_ns"]
    operators = np.flatnonzero(trace.is_kind("operator"))
    spans = []
    for row in np.flatnonzero(trace.is_kind("annotation")).tolist():
        if trace.values("name", [row])[0].startswith("Optimizer.step#") and trace["tid"][row] >= 0:
            here = operators[(trace["tid"][operators] == trace["tid"][row])]
            here = here[(start[here] >= start[row]) & (start[here] < start[row] + duration[row])]
            if len(here) and trace["step"][row] in covered_steps(replay):
                spans.append((start[here] + duration[here]).max() - start[here].min())
    return float(np.sum(spans) / len(covered_steps(replay)))


@pytest.mark.parametrize("name", [A100_DDP, RTX_LINEAR])
def test_a_fused_optimizer_saves_its_cpu_time_where_the_cpu_is_the_limit(name):
    # CPU-bound on an A100 and on an RTX 2080 Ti: what goes is the CPU time from the optimizer's first
    # operator to its last; what stays is one launch, and Python before, behind and for each tensor.
    replay = shared_replay(name).recording  # sums are made of recorded times

    fused = daydream.whatif(replay, "fused-adam")

    stays = fused.graph.select(on="gpu", phase="optimizer").launches().duration_ns
    walks = fused.graph.select(name="parameters in Python").duration_ns
    saved = replay.replayed_ns - fused.predicted_ns
    expected = optimizer_cpu_ns(replay) - np.median(stays) - np.median(walks)
    assert saved == pytest.approx(expected, rel=0.1)


def test_a_fused_optimizer_hides_behind_the_gpu_where_the_gpu_is_the_limit():
    replay = shared_replay(RTX_RESNET)

    fused = daydream.whatif(replay, "fused-adam")

    # One kernel does the work of all the others: only the space between them goes, 1 us for each.
    assert 1.0 <= fused.speedup < 1.01


# GPU-bound, with the launch queue full


@pytest.fixture(scope="module")
def gpt_calls(tmp_path_factory):
    """Start and end of every launch call of the A100 forward passes, read from the raw tables."""
    path: Path = tmp_path_factory.mktemp("nsys") / "gpt.sqlite"
    path.write_bytes(gzip.decompress(shared_trace(GPT_EAGER).read_bytes()))
    with sqlite3.connect(path) as database:
        rows = database.execute(
            "select r.start, r.end from CUPTI_ACTIVITY_KIND_RUNTIME r join CUPTI_ACTIVITY_KIND_KERNEL k "
            "using (correlationId) order by r.start"
        ).fetchall()
    return np.array(rows)


def test_the_queue_depth_is_learned_where_the_queue_is_full():
    # Calls of the A100 return no earlier than the end of the launch 1,022 places before, those of the
    # RTX 3070 Ti 1,021 places before: with the call itself 1,022 are in flight there when it is entered.
    eager, transformer = shared_replay(GPT_EAGER).graph.facts, shared_replay(TRANSFORMER).graph.facts

    assert (eager.queue_depth, eager.queue_learned) == (1022, True)
    assert (transformer.queue_depth, transformer.queue_learned) == (1021, True)


def test_without_gpu_time_a_queue_bound_step_takes_the_cpu_its_own_time(gpt_calls):
    # By hand: 1,832 launches a pass, each the median of the calls that met room (6.8 us), and the time
    # between calls as it was. Passes 1 to 9, from raw calls: 78.9 ms in the mean.
    replay = shared_replay(GPT_EAGER)
    start, end = gpt_calls.T
    unblocked = np.median((end - start)[:1000])
    passes = [slice(number * 1832, (number + 1) * 1832 - 1) for number in range(1, 10)]
    own = [(start[1:] - end[:-1])[span].sum() + 1832 * unblocked for span in passes]

    result = daydream.whatif(replay, "scale", on="gpu", factor=0)

    assert result.predicted_ns == pytest.approx(np.mean(own), rel=0.03)


def test_half_the_gpu_time_halves_a_queue_bound_step():
    replay = shared_replay(GPT_EAGER)
    rows = device_rows(replay.graph.trace)
    kernels = replay.graph.trace["duration_ns"][rows].sum() / 10
    startup = 1832 * replay.graph.facts.startup_ns

    result = daydream.whatif(replay, "scale", on="gpu", factor=0.5)

    assert result.predicted_ns == pytest.approx(kernels / 2 + startup, rel=0.005)


def test_times_in_quarters_of_a_us_change_no_answer():
    replay = shared_replay("cases/symptoms/s13c_ts_quarter_us.json.gz")

    result = daydream.whatif(replay, "scale", on="gpu", factor=0.5)

    assert (replay.graph.facts.queue_depth, replay.graph.facts.queue_learned) == (1022, True)
    assert result.predicted_ns == pytest.approx(31.42e6, rel=0.001)  # as with whole ns


def test_the_queue_bound_transformer_meets_the_same_two_limits():
    replay = shared_replay(TRANSFORMER)

    half = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    none = daydream.whatif(replay, "scale", on="gpu", factor=0)

    assert replay.max_error <= 0.01
    # Half the GPU's time plus what no GPU speed removes: start-up costs and delays without a cause.
    assert 0.5 < half.predicted_ns / replay.replayed_ns < 0.58
    # The CPU's own time: launches at their unblocked cost and everything between them.
    assert none.predicted_ns < 0.4 * replay.replayed_ns
