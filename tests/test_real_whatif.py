"""What-ifs on real training traces, each figure worked out another way from the trace's own columns."""

import numpy as np
import pytest
from shared import shared_replay

import daydream

A100_DDP = "kineto/a100_resnet_ddp_rank0of2.json.gz"
V100_LOADER_4 = "kineto/v100_resnet50_loader_workers_4.json.gz"
RTX_RESNET = "kineto/rtx2080ti_resnet_30_iterations.json.gz"
GPT_EAGER = "nsys/a100_gpt2.7b_forward_eager.sqlite.gz"
TRANSFORMER = "nsys/rtx3070ti_transformer_training_nvtx.sqlite.gz"

MATH = ("gemm", "conv", "scudnn", "winograd", "wgrad_alg", "dgrad_engine")  # of convolutions and products


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


# Fused optimizer


# GPU-bound, with the launch queue full


def test_the_queue_depth_is_learned_where_the_queue_is_full():
    # Calls of the A100 return no earlier than the end of the launch 1,022 places before, those of the
    # RTX 3070 Ti 1,021 places before: with the call itself 1,022 are in flight there when it is entered.
    eager, transformer = shared_replay(GPT_EAGER).graph.facts, shared_replay(TRANSFORMER).graph.facts

    assert (eager.queue_depth, eager.queue_learned) == (1022, True)
    assert (transformer.queue_depth, transformer.queue_learned) == (1021, True)


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
