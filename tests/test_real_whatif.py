"""What-ifs on public traces, and on machines that are run again with the change."""

import gzip
import sqlite3
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from contention_machine import Machine
from sanity import a_busy_device_gains_from_faster_kernels, sources
from shared import GPT, TRACES, shared_replay, shared_trace

import daydream
from daydream import GraphError
from daydream.costs.contention import measured_contention, parsed
from daydream.errors import DaydreamError
from daydream.simulate import simulate
from daydream.transforms.registry import find


def covered_steps(replay):
    return list(replay.settled.step_times(0))


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


@pytest.fixture(scope="module")
def gpt_calls(tmp_path_factory):
    """Start and end of every launch call of the A100 forward passes, read from the raw tables."""
    path = tmp_path_factory.mktemp("nsys") / "gpt.sqlite"
    path.write_bytes(gzip.decompress(shared_trace(GPT_EAGER).read_bytes()))
    with sqlite3.connect(path) as database:
        rows = database.execute(
            "select r.start, r.end from CUPTI_ACTIVITY_KIND_RUNTIME r join CUPTI_ACTIVITY_KIND_KERNEL k "
            "using (correlationId) order by r.start"
        ).fetchall()
    return np.array(rows)


RTX_LINEAR = "kineto/rtx2080ti_linear_40_iterations.json.gz"

# What-ifs on real training traces, each figure worked out another way from the trace's own columns


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


# What-ifs about communication on a real rank of two, held against sums made from its recorded times


RESNET50_BYTES = 25_557_032 * 4
STEPS = (1, 2)  # those that count


@dataclass(frozen=True)
class Recorded:
    """One step's all-reduces, and when its update began and ended on the device; in ns."""

    start: np.ndarray
    duration: np.ndarray
    nbytes: np.ndarray
    update_ns: int
    update_start: int
    update_end: int

    def reduced(self, factor):
        """Return when the last bucket is reduced, one behind another, each in `factor` times its time."""
        end = 0.0
        for start, duration in zip(self.start, self.duration, strict=True):
            end = max(start, end) + factor * duration
        return end

    def later(self, reduced):
        """Return how much later the step ends when the last bucket is reduced at that time."""
        return max(0.0, reduced + self.update_ns - self.update_end)


@pytest.fixture(name="replay")
def fixture_replay():
    return shared_replay(A100_DDP).recording  # sums are made of recorded times


def recorded(replay, step):
    trace = replay.graph.trace
    frame = trace.to_pandas()
    frame = frame[frame.step == step]
    reduced = frame[(frame.kind == "collective") & (frame.collective == "all_reduce")].sort_values("start_ns")
    update = frame[(frame.phase == "optimizer") & (frame.kind == "kernel")]
    return Recorded(
        start=reduced.start_ns.to_numpy(),
        duration=reduced.duration_ns.to_numpy(),
        nbytes=reduced.bytes.to_numpy(),
        update_ns=int(update.duration_ns.sum()),
        update_start=int(update.start_ns.min()),
        update_end=int((update.start_ns + update.duration_ns).max()),
    )


def delays(comparison):
    return [step["predicted_ns"] - step["replayed_ns"] for step in comparison.to_json()["steps"]]


def test_five_buckets_hold_the_gradients_of_the_network(replay):
    for step in STEPS:
        assert recorded(replay, step).nbytes.sum() == RESNET50_BYTES
        assert len(recorded(replay, step).nbytes) == 5


def starts(graph):
    """Return when each task of a graph starts, by its id."""
    timeline = simulate(graph)
    start = np.zeros(int(timeline.task.max()) + 1, np.int64)
    start[timeline.task] = timeline.start_ns
    return start


def test_each_bucket_waits_for_its_gradients_and_the_update_for_the_buckets(replay):
    longer = 200_000_000
    before = starts(replay.graph)
    for number in range(5):
        graph = replay.graph.copy()
        buckets = graph.select(kind="collective", collective="all_reduce", step=STEPS[0])
        kernels = graph.select(kind="kernel", phase="backward", step=STEPS[0])
        order = graph.columns["order"]
        behind = order[kernels.launch] < order[buckets.launch[number]]
        graph.tasks(kernels.ids[behind][-1:]).set(duration_ns=longer)  # of the bucket's last gradient
        after = starts(graph)
        assert (after[buckets.ids[:number]] == before[buckets.ids[:number]]).all()
        assert (after[buckets.ids[number:]] - before[buckets.ids[number:]] > longer / 2).all()

    graph = replay.graph.copy()
    last = graph.select(kind="collective", collective="all_reduce", step=STEPS[0]).ids[-1:]
    graph.tasks(last).set(duration_ns=longer)
    after = starts(graph)
    update = graph.select(kind="kernel", phase="optimizer", step=STEPS[0])
    assert (after[update.ids] >= after[last] + longer).all()
    assert (before[update.ids] < before[last] + longer).all()


@pytest.mark.parametrize("factor", [0.5, 2.0, 10.0])
def test_a_network_half_as_fast_or_faster_changes_nothing(replay, factor):
    # By hand: the update is launched 20 ms after the last bucket, and at half the bandwidth still behind it.
    for step in STEPS:
        times = recorded(replay, step)
        assert times.reduced(1 / factor) + 5_000_000 < times.update_start
    comparison = daydream.whatif(replay, "network", bandwidth_factor=factor)
    assert delays(comparison) == [0, 0]
    assert comparison.speedup == 1


@pytest.mark.parametrize("factor", [5.5, 6.0, 7.0, 8.0])
def test_a_network_several_times_slower_delays_the_step_by_what_the_chain_of_buckets_exceeds(replay, factor):
    first, second = (recorded(replay, step) for step in STEPS)
    # In the first of the steps the buckets come later and take less: it has room still.
    assert first.later(first.reduced(factor)) == 0
    by_hand = second.later(second.reduced(factor))
    assert by_hand > 5_000_000

    delay = delays(daydream.whatif(replay, "network", bandwidth_factor=1 / factor))
    assert delay[1] == pytest.approx(by_hand, abs=200_000)
    # The next step seems shorter by what the one before it took longer, were it to complete as recorded; but
    # DistributedDataParallel waits for events of the step before, and so the CPU is late as well.
    assert -by_hand < delay[0] < 0


def test_one_bucket_for_all_begins_with_the_last_gradient(replay):
    # On half the bandwidth all is transferred behind the start of the last bucket; five were still hidden.
    second = recorded(replay, STEPS[1])
    by_hand = second.later(second.start[-1] + 2 * second.duration.sum())
    assert by_hand > 10_000_000
    one = daydream.whatif(replay, "bucket-size+network", bucket_mb=100, bandwidth_factor=0.5)
    assert delays(one)[1] == pytest.approx(by_hand, abs=500_000)
    assert delays(daydream.whatif(replay, "bucket-size", bucket_mb=100))[1] == pytest.approx(0, abs=200_000)

    reduced = one.graph.select(kind="collective", collective="all_reduce")
    assert reduced.bytes.tolist() == [RESNET50_BYTES] * 3


def test_smaller_buckets_cost_the_cpu_their_launches(replay):
    graph = replay.graph
    smaller = daydream.whatif(replay, "bucket-size", bucket_mb=1)
    count = len(smaller.graph.select(kind="collective", collective="all_reduce", step=1))
    assert count > 50
    # Nothing waits for transfers, so a step is longer by one launch for each bucket that there is more.
    launches = (count - 5) * graph.facts.launch_cost_ns
    assert delays(smaller) == pytest.approx([launches, launches], rel=0.5)


# A law over the public traces: a busy device gains from faster kernels, or it is said why not


FOUND = dict(sources(TRACES)) if TRACES.exists() else {}
UNLAUNCHED = [name for name in FOUND if name.startswith(("rocprof/", "formats/rocprofv3/"))]


@pytest.mark.slow
@pytest.mark.skipif(not FOUND, reason="the public traces are not at hand")
@pytest.mark.parametrize("folder", sorted({name.split("/")[0] for name in FOUND}) or ["none"])
def test_a_busy_device_gains_from_faster_kernels_or_traced_work_takes_over(folder):
    for name in (each for each in FOUND if each.split("/")[0] == folder):
        try:
            replay = daydream.replay(FOUND[name])
        except DaydreamError:
            continue  # refused
        assert list(a_busy_device_gains_from_faster_kernels(replay, FOUND[name])) == [], name


@pytest.mark.skipif(not FOUND, reason="the public traces are not at hand")
@pytest.mark.parametrize("name", UNLAUNCHED or ["none"])
def test_without_launches_a_device_of_half_the_work_saves_half_of_its_busy_time(name):
    replay = daydream.replay(FOUND[name])
    graph = replay.graph
    steps = [number for number, step in enumerate(graph.steps) if step.get("covered")]
    mine = np.isin(graph.columns["step"], steps)
    order = np.argsort(graph.columns["measured_start_ns"][mine], kind="stable")
    start = graph.columns["measured_start_ns"][mine][order]
    end = start + graph.columns["duration_ns"][mine][order]
    before = np.append(start[0], np.maximum.accumulate(end)[:-1])
    busy = np.maximum(end - np.maximum(start, before), 0).sum() / len(steps)

    half = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    saved = half.replayed_ns - half.predicted_ns

    # Less is saved where work began in the midst of other work: what held it was not recorded.
    assert 0.8 * busy / 2 <= saved <= 1.02 * busy / 2


# Contention measured in traces of a machine that has it, and predictions held against that machine


@cache
def rerun(machine):
    return daydream.replay(machine.record())


@cache
def run_again(machine):
    return machine.step_us()


def gained(machine, **change):
    """Return how many times shorter the machine's steps are after a change."""
    return run_again(machine) / run_again(replace(machine, **change))


def predicted(machine, network, **options):
    found = daydream.whatif(rerun(machine), "network", bandwidth_factor=float(network), **options)
    return found.speedup


@pytest.mark.parametrize("factor", [1.0, 1.2, 1.8])
def test_the_factor_of_the_machine_is_measured(factor):
    found = measured_contention(rerun(Machine(kernel_factor=factor)).graph).kernel
    assert found is not None
    assert found.factor == pytest.approx(factor, rel=0.005)


@pytest.mark.parametrize("factor", [1.2, 1.8])
@pytest.mark.parametrize("network", [0.5, 2, 100])
def test_another_network_meets_the_machine_run_again(factor, network):
    machine = Machine(kernel_factor=factor)
    truth = gained(machine, network=network)
    assert predicted(machine, network) == pytest.approx(truth, rel=0.001)
    assert abs(predicted(machine, network, contention="off") - truth) > 0.005  # what this is for


def test_the_last_pass_is_followed_by_another():
    # Transfers that go on into the next step are slowed by its kernels too: without a pass behind them the
    # last ones would be faster than all others, and steps would never be found to have settled.
    replay = daydream.replay(GPT)
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


# Contention in public traces of several GPUs: what is measured, and what it changes


V100_RECSYS = "kineto/v100_recsys_rank1of2_copy_waits.json.gz"
MI300X_DDP = "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz"


@pytest.mark.parametrize(("name", "least", "most"), [(A100_DDP, 1.15, 1.35), (V100_RECSYS, 1.02, 1.10)])
def test_kernels_are_slower_in_the_steps_in_which_a_transfer_runs_beside_them(name, least, most):
    found = measured_contention(shared_replay(name).graph).kernel

    assert found is not None
    assert least < found.low < found.factor < found.high < most
    assert found.places > 50


def test_kernels_that_run_beside_a_transfer_in_every_step_show_nothing():
    found = daydream.whatif(shared_replay(MI300X_DDP), "network", bandwidth_factor=2.0)

    assert found.contention is not None
    assert found.contention.note().startswith("Contention is not modelled: too few kernels ran during")


def test_less_transferring_beside_kernels_makes_them_faster_and_more_slower():
    replay = shared_replay(V100_RECSYS)
    for factor, gains in ((10.0, True), (0.5, False)):
        measured, off = (
            daydream.whatif(replay, "network", bandwidth_factor=factor, contention=how)
            for how in ("measured", "off")
        )
        assert (measured.speedup > off.speedup) is gains
        assert measured.speedup == pytest.approx(off.speedup, rel=0.03)
        assert measured.timeline.overlaps_settled


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


def test_the_queue_bound_transformer_meets_the_same_two_limits():
    replay = shared_replay(TRANSFORMER)

    half = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    none = daydream.whatif(replay, "scale", on="gpu", factor=0)

    assert replay.max_error <= 0.01
    # Half the GPU's time plus what no GPU speed removes: start-up costs and delays without a cause.
    assert 0.5 < half.predicted_ns / replay.replayed_ns < 0.58
    # The CPU's own time: launches at their unblocked cost and everything between them.
    assert none.predicted_ns < 0.4 * replay.replayed_ns
