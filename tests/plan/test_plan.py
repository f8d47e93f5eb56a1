"""Plans by hand: how many strategies there are, that nothing good is left out, and what is said."""

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from cli.command_line import held_to
from graph.small_traces import launched, trace
from shared import EXAMPLES, ROOT, view_text

import daydream
from daydream.costs.network.cluster_names import find_cluster
from daydream.errors import DaydreamError, GraphError, NotApplicableError
from daydream.memory.lifetimes import allocations
from daydream.plan import jobs
from daydream.plan.jobs import of_script, of_trace, recorded_model
from daydream.plan.search import (
    Candidate,
    Job,
    Plan,
    Strategy,
    Turn,
    every_strategy,
    needed_bytes,
    plan,
    turn_of,
)  # fmt: skip
from daydream.report.blocks import view
from daydream.report.page import page
from daydream.report.text import lines
from daydream.world import NEVER_MADE
from daydream.world.compose import Block, Model, Pass, compose

PLAIN = {"checkpointing": [False], "offload": [False], "ep": [1]}
H200 = EXAMPLES / "train_gpt_h200.parquet"
GIB = 2**30
ONE = {"tp": [1], "ep": [1], "cp": [1], "micro_batch": [1]}


class Made(Job):
    """Time and memory of strategies by two functions."""

    def __init__(self, ns, nbytes, sequence=0, own=None):
        super().__init__({}, None, 0, 0, sequence, 1, {"ep": [1]}, own)
        self.ns, self.nbytes = ns, nbytes

    def memory_bytes(self, strategy):
        return self.nbytes(strategy)

    def predict(self, strategy):
        ns = self.ns(strategy)
        return Candidate(strategy, strategy.world_size, ns, ns, ns, self.nbytes(strategy), {"compute": ns})


def test_strategies_of_four_gpus_and_samples_by_hand():
    only = {**PLAIN, "pp": [1], "cp": [1], "fsdp": [1]}
    # dp 4: one sample each. dp 2, tp 2: two, as 1 x 2 or 2 x 1. tp 4: four, as 1 x 4, 2 x 2 or 4 x 1.
    every = list(every_strategy(4, 4, only))
    assert sorted((each.tp, each.dp, each.micro_batch, each.micro_batches) for each in every) == [
        (1, 4, 1, 1), (2, 2, 1, 2), (2, 2, 2, 1), (4, 1, 1, 4), (4, 1, 2, 2), (4, 1, 4, 1)
    ]  # fmt: skip
    assert {each.world_size for each in every} == {each.batch for each in every} == {4}


def test_every_axis_counts():
    # Two GPUs on tp, pp or cp cut 2 samples in 2 ways, on fsdp or dp in 1: 8. ep is 1 or 2, switches 2 x 2.
    assert len(list(every_strategy(2, 2, {}))) == 8 * 2 * 4


@pytest.mark.parametrize("by", ["time", "cost"])
@pytest.mark.parametrize("seed", range(8))
def test_pruning_never_drops_the_best(seed, by):
    def drawn(strategy, what):  # checkpointing and offload cost time and save memory
        plain = replace(strategy, checkpointing=False, offload=False)
        saves = strategy.checkpointing + strategy.offload
        return random.Random(f"{seed} {what} {plain}").randrange(10, 40) + (
            saves if what == "ns" else -5 * saves
        )

    made = Made(lambda one: drawn(one, "ns"), lambda one: drawn(one, "bytes"))
    found = plan(made, [4, 8], 8, capacity=needed_bytes(24), by=by)

    every = [each for gpus in (4, 8) for each in every_strategy(gpus, 8, {"ep": [1]})]
    fits = [each for each in every if made.nbytes(each) <= 24]
    best = min(made.ns(each) * (each.world_size if by == "cost" else 1) for each in fits)
    first = found.candidates[0]
    assert first.step_ns * (first.gpus if by == "cost" else 1) == best
    points = [(each.step_ns, each.memory_bytes, each.gpus) for each in found.candidates]
    for each, point in zip(found.candidates, points, strict=True):
        beaten = any(other != point and all(map(int.__le__, other, point)) for other in points)
        assert each.best_of == (not beaten)
    seen = found.seen
    assert min(seen.dominated, seen.too_large) > 0
    assert seen.too_large + seen.dominated + seen.predicted == len(every) == seen.possible


@pytest.mark.slow
def test_the_engine_changes_no_answer():
    model = Model((Block("layer", Pass(10), Pass(20), 1000, input_bytes=8, saved_bytes=100),) * 4)
    job = Job({(1, 1, 1, 1): model}, find_cluster("dgx-h100"), 64, 0.1, 0, needed_bytes(40_000), ONE)
    one, two = (plan(job, [8], 8, engine=each) for each in ("local", "processes:2"))
    assert one.to_json() == two.to_json()
    assert one.candidates


def test_what_would_have_to_be_false_for_the_second_to_win():
    def of(strategy, **parts):
        ns = sum(parts.values())
        return Candidate(strategy, strategy.world_size, ns, ns, ns, 1, parts)

    best = of(Strategy(dp=2), compute=100, tp=50)
    # 20 apart: tp 70 instead of 50 is 1.4 times, bubble 60 instead of 80 is 0.75 times, the nearer to 1.
    assert turn_of(best, of(Strategy(pp=2), compute=90, bubble=80)) == Turn("bubble", 0.75)
    # 10 apart, and 20 more or less of tp or bubble: 1.5 times tp, or half the bubble.
    assert turn_of(best, of(Strategy(pp=2), compute=110, tp=30, bubble=20)) == Turn("tp", 1.5)
    assert turn_of(best, of(Strategy(pp=2), compute=100, tp=50, bubble=5)) is None
    # Of GPUs times time 180 and 260; compute is 160 and 120 of it: three times that makes both 500.
    cheap, dear = of(Strategy(dp=2), compute=80, tp=10), of(Strategy(dp=4), compute=30, tp=20, launch=15)
    assert turn_of(cheap, dear, "cost") == Turn("compute", 3)


def shown(own=None, capacity=24 * GIB, **how):
    """Return a plan by hand: 4 s of work on 2 or 4 GPUs, half again with checkpointing, 10 ms a replica."""
    made = Made(
        lambda one: 4 * 10**9 // one.world_size * (3 if one.checkpointing else 2) // 2 + one.dp * 10**7,
        lambda one: (40 if one.checkpointing else 64) * GIB // one.fsdp,
        sequence=1000,
        own=own,
    )
    limits = {**PLAIN, **ONE, "checkpointing": [False, True], "pp": [1]}
    return plan(made, [2, 4], 8, limits=limits, capacity=capacity, **how)


def test_hours_dollars_bounds_and_own_settings():
    own = Strategy(dp=2, micro_batches=4)
    found = shown(price=3.0, tokens=8e6, own=own)
    best, second, *_ = found.candidates
    # 8 samples of 1,000 tokens a step: 1,000 steps of 1.01 s, on 4 GPUs at 3 dollars an hour.
    assert (best.strategy.fsdp, best.step_ns) == (4, 10**9 + 10**7)
    assert (best.hours, best.dollars) == (pytest.approx(1010 / 3600), pytest.approx(1010 / 3600 * 12))
    assert (second.strategy.checkpointing, second.bound) == (True, "memory")  # 64 GiB / 2 is too much
    assert found.own.strategy == own
    assert found.own.memory_bytes == 64 * GIB
    assert found.seen.impossible == {}
    assert msgspec.convert(found.to_json(), Plan).to_json() == found.to_json()


def test_the_screen_fits_eighty_columns():
    found = shown(price=3.0, tokens=8e6, own=Strategy(dp=2, micro_batches=4))
    text = "\n".join("".join(piece.text for piece in line).rstrip() for line in lines(view(found), 80))
    held_to("plan.txt", text)
    assert max(map(len, text.splitlines())) <= 80


def test_the_page_draws_every_strategy():
    found = shown()
    text = page(found)
    assert text.count("<circle") == len(found.candidates) == 3
    assert text.count('#1f6feb"><title>') == sum(each.best_of for each in found.candidates)


def test_a_search_that_finds_nothing_says_what_would_fit():
    found = shown(capacity=8 * GIB)
    # The least is 40 GiB / 4; of 8 GPUs each has 5 GiB with checkpointing. No batch changes memory here.
    assert found.candidates == []
    said = [(each.change, each.memory_bytes) for each in found.advice]
    assert said == [("the least that any needs", 10 * GIB), ("with 8 GPUs", 5 * GIB)]
    held_to("plan_nothing.txt", view_text(found))
    beside = shown(own=Strategy(dp=2, micro_batches=4), capacity=8 * GIB)  # 64 GiB
    assert beside.candidates == []
    row = next(line for line in view_text(beside, verbose=True).splitlines() if "your own: dp 2" in line)
    assert row.endswith("does not fit")


def test_what_cannot_be_asked():
    with pytest.raises(GraphError, match=r"none of 0 .* 3 samples, 1 at once, feed at most 3 replicas"):
        plan(Made(lambda _: 1, lambda _: 1), [4], 3, limits={"dp": [4]})

    with pytest.raises(GraphError, match="ep can only be 1: a trace"):
        plan(Made(lambda _: 1, lambda _: 1), [4], 4, limits={"ep": [2]})

    def refuse(strategy):
        raise NotApplicableError("no such shape\nmore")

    with pytest.raises(GraphError, match="none of 1 strategies can be predicted: no such shape"):
        plan(Made(refuse, refuse), [1], 1, limits=PLAIN)


def test_blocks_are_composed_and_offloaded():
    model = Model((Block("layer", Pass(10), Pass(20), 1000, saved_bytes=100),) * 4, optimizer_ns=0.5)
    blocks = Job({(1, 1, 1, 2): model}, find_cluster("dgx-h100"), 64, 0.1, 0, 1, ONE)
    plain = Strategy(micro_batch=2, micro_batches=3)
    found = blocks.predict(plain)
    assert found.step_ns == compose(model, plain, blocks.cluster).step_ns == 3 * 4 * 30 + 4000 * 0.5
    # 4,000 parameters of 2 + 4 + 12 bytes, activations of four layers. Offloaded, 12 of these are on the CPU;
    # 6 bytes of each cross at 64 GB/s, and eight GPUs of a node share CPUs that take 0.22 ns a parameter.
    assert blocks.memory_bytes(plain) == 4000 * 18 + 400
    offloaded = replace(plain, offload=True)
    assert blocks.memory_bytes(offloaded) == 4000 * 6 + 400
    assert blocks.predict(offloaded).step_ns == round(360 + 4000 * (6 / 64 + 8 * 0.22))
    with pytest.raises(NotApplicableError, match="not looked at"):
        blocks.memory_bytes(Strategy())


# A recording, and a script ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded():
    return daydream.replay(H200)


def test_blocks_of_a_recording_add_up(recorded):
    model, limits, sequence, samples = recorded_model(recorded.graph)
    assert (limits, sequence, samples) == ({}, 256, 8)
    assert [block.is_layer for block in model.blocks] == [False, *[True] * 6, False]
    assert sum(block.parameters for block in model.blocks) == 43_118_592  # AdamW's own count
    assert (model.parameter_bytes, model.gradient_bytes) == (4, 4)
    assert model.optimizer_bytes == pytest.approx(8, rel=1e-4)
    assert model.blocks[3].input_bytes == 8 * 256 * 768 * 4
    kernels = recorded.graph.select(on="gpu", phase="backward", layer="blocks.2*").total("duration_ns")
    assert model.blocks[3].backward.gpu_ns == pytest.approx(kernels / 4, rel=0.001)  # of four steps
    found = compose(model, Strategy(micro_batch=8), find_cluster("dgx-h100"))
    assert found.step_ns == pytest.approx(recorded.replayed_ns, rel=0.02)
    # What the allocator held in the steps whose backward pass was recorded.
    assert found.peak_bytes == pytest.approx(1_390_006_272)


def test_a_model_that_repeats_no_block_is_of_its_outermost_modules(recorded, monkeypatch):
    monkeypatch.setattr("daydream.plan.jobs.repeated_blocks", lambda _: [])
    model, limits, *_ = recorded_model(recorded.graph)
    assert limits == {"pp": [1]}  # no pipeline is made of them
    blocks = next(block for block in model.blocks if block.name == "blocks")
    kernels = recorded.graph.select(on="gpu", phase="backward", layer="blocks*").total("duration_ns")
    assert blocks.backward.gpu_ns == pytest.approx(kernels / 4, rel=0.001)
    assert sum(block.parameters for block in model.blocks) == 43_118_592


def test_a_plan_and_a_what_if_agree_on_memory(recorded):
    """Of checkpointed blocks the update holds most: parameters, gradients, two moments and its own values."""
    model, *_ = recorded_model(recorded.graph)
    found = compose(model, Strategy(micro_batch=8, checkpointing=True), find_cluster("dgx-h100"))
    what_if = daydream.whatif(recorded, "checkpointing").memory
    assert found.peak_bytes == pytest.approx(what_if.after_bytes, rel=0.01)
    assert found.peak_bytes == pytest.approx(43_118_592 * (4 + 4 + 8 + model.update_bytes), rel=1e-4)


def test_gradients_that_a_script_keeps_itself_count_once(recorded, monkeypatch):
    def kept(trace):
        held = allocations(trace)
        held.remove(held.where(kind="gradient"))
        held.add_before(0, 0, [("unknown", 43_118_592 * 4, -1)])
        return held

    monkeypatch.setattr(jobs, "allocations", kept)
    model = recorded_model(recorded.graph).model
    assert (model.parameter_bytes, model.gradient_bytes) == (4, 4)
    assert model.optimizer_bytes == pytest.approx(8, rel=1e-4)


def test_what_a_gpu_needs_is_more_than_its_tensors():
    assert needed_bytes(100 * GIB) == 107 * GIB + 600 * 2**20


def test_a_trace_answers_for_its_own_micro_batch_alone(recorded):
    job = of_trace(recorded, "dgx-h100")
    found = plan(job, [8, 64], 64, limits={"tp": [1, 2], "pp": [1, 2, 3], "offload": [False]})
    assert {(each.strategy.tp, each.strategy.micro_batch) for each in found.candidates} == {(1, 8)}
    assert "tp, ep, cp and other micro-batches are not predicted" in found.notes[0]
    assert (
        found.notes[-1] == "Nothing is possible with 64 GPUs: 64 samples, 8 at once, feed at most 8 replicas."
    )
    assert all(min(each.parts_ns.values()) >= 0 for each in found.candidates)
    a100 = "Time and memory are those of the recorded H200; dgx-a100 has A100 SXM 80GB."
    assert of_trace(recorded, "dgx-a100").notes[0] == a100
    how = {"phase": "backward", "kind": "collective", "collective": "all_reduce"}
    rank = [*launched("all_reduce", 1, 6, 9, **how), *launched("all_reduce", 101, 106, 109, **how)]
    on_cpu = ROOT / "validation" / "memory_peaks" / "Mixer.parquet"
    with pytest.raises(NotApplicableError, match=r"no GPU ran .*daydream plan train.py"):
        of_trace(daydream.replay(on_cpu), "dgx-h100")
    with pytest.raises(NotApplicableError, match="one of several ranks"):
        of_trace(daydream.replay(trace(rank, steps=(0, 100, 200), device_name="NVIDIA H100")), "dgx-h100")


SCRIPT = """
raise SystemExit("the script was run")

def arguments(tp, **others):
    return ["--tp", tp]
"""


def emulated(monkeypatch, said):
    """Return what a script is asked; `said` gives the error of the process that emulates it, or nothing."""
    asked = []

    def run(words, env, **_):
        how = words[len(jobs.COLLECT) + 1 :]
        asked.append(" ".join([how[1], *how[5:], env.get("MICRO", "")]))
        if not (error := said(how)):
            shutil.copy(H200, how[3])
        return SimpleNamespace(stderr=error)

    monkeypatch.setattr(jobs.subprocess, "run", run)
    return asked


@pytest.mark.parametrize("takes", [["tp=--tp", "micro_batch=MICRO"], ["arguments", "micro_batch=MICRO"]])
def test_a_script_is_emulated_once_a_shape_and_never_run(tmp_path, monkeypatch, takes):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    refused = "error: four do not divide the heads"
    lines = emulated(monkeypatch, lambda how: refused if how[-1] == "4" else "")

    job = of_script(["train.py", "--tp", "2"], takes, "dgx-h100", None, (8, 64))
    limits = {"tp": [1, 2, 4], "ep": [1], "cp": [1], "micro_batch": [8], **PLAIN}
    found = plan(job, [8], 64, limits=limits)

    own = 2 if takes[0] == "tp=--tp" else 1  # what a function returns tells nothing of the script's own
    assert job.own == Strategy(tp=own, dp=8 // own, micro_batches=64 // (8 // own), overlap=True)
    asked = [line.split(" train.py --tp 2 --tp ") for line in lines]
    assert asked[0] == ["H100 SXM 1" if own == 1 else "H100 SXM 2", f"{own} 1"]
    assert sorted(words for _, words in asked[1:]) == ["1 8", "2 8", "4 8"]
    assert found.seen.impossible["four do not divide the heads"] > 0
    assert {each.strategy.tp for each in found.candidates} == {1, 2}
    assert found.own is not None


def test_what_a_script_cannot_be_asked(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    errors = {
        "torch": "Traceback (most recent call last):\nModuleNotFoundError: No module named 'torch'",
        "1": "train.py: error: unrecognized arguments: --tp 1\nerror: no training step",
        "train.py": "Traceback (most recent call last):\nRuntimeError: no data here\nerror: no training step",
    }
    emulated(monkeypatch, lambda how: errors[how[-1]])
    for takes, cluster, said in (
        (["pt=--tp"], "dgx-h100", "--set pt: axes are dp, fsdp"),
        (["settings"], "dgx-h100", "has no function settings"),
        (["layers=--layers"], "dgx-h100", "^--layers is not given: put it and the number"),
        ([], "pcie3x", "unknown cluster"),
        ([], "dgx-h100", "^RuntimeError: no data here$"),  # not what `collect` says after it
        (["tp=--tp"], "dgx-h100", "^unrecognized arguments: --tp 1$"),
    ):
        with pytest.raises(DaydreamError, match=said):
            of_script(["train.py"], takes, cluster, None, (8, 64))
    with pytest.raises(DaydreamError, match=r"'torch'\. train\.py runs in the Python of daydream"):
        of_script(["train.py", "torch"], [], "dgx-h100", None, (8, 64))


def test_a_script_of_one_gpu_makes_no_process_group(monkeypatch):
    emulated(monkeypatch, lambda how: NEVER_MADE if "--world" in how else "")
    job = of_script(["train.py"], [], "dgx-h100", None, (8, 64))
    assert job.own == Strategy(dp=8, micro_batch=8, overlap=True)  # 64 samples, 8 at once
    monkeypatch.setenv("DEPTH", "5")
    for word, how, layers in (("--layers=4", "layers=--layers", 4), ("", "layers=DEPTH", 5)):
        assert of_script(["train.py", word], [how], "dgx-h100", None, (8, 64)).layers == layers
    assert of_script(["train.py"], [], "dgx-h100", None, (16, 0)).own.batch == 128  # as many for each


# On a cluster ---------------------------------------------------------------------------------------


class Waiting(Job):
    """Waits for each prediction; the first worker that finds no `mark` makes it, and is killed."""

    mark: Path | None = None

    def memory_bytes(self, strategy):
        return 1

    def predict(self, strategy):
        time.sleep(0.25)
        if self.mark is not None and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        ns = strategy.micro_batch
        return Candidate(strategy, strategy.world_size, ns, ns, ns, 1, {"compute": ns})


@pytest.mark.slow
def test_two_workers_are_faster_and_a_killed_one_loses_nothing(tmp_path):
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    waiting = Waiting({}, find_cluster("dgx-h100"), capacity=needed_bytes(1))
    limits = {**PLAIN, "pp": [1], "cp": [1], "fsdp": [1], "tp": [1]}
    seconds = []
    answers = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, memory_limit=0, dashboard_address="127.0.0.1:0"
    ) as cluster:
        dask = f"dask:{cluster.scheduler_address}"
        for engine, mark in (("local", None), (dask, None), (dask, None), (dask, tmp_path / "killed")):
            waiting.mark = mark
            started = time.monotonic()
            answers.append(plan(waiting, [1], 3456, limits=limits, engine=engine).to_json())
            seconds.append(time.monotonic() - started)
    assert answers[0]["seen"]["predicted"] == 32  # divisors of 2^7 3^3, samples at once
    assert all(each == answers[0] for each in answers[1:])
    assert (tmp_path / "killed").exists()
    assert seconds[0] / seconds[2] >= 1.6, seconds  # the first time, workers import
