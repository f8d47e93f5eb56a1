"""What is known of the public traces, found again by the importer; skipped where they are not at hand.

A row of `public.tsv` is a trace (or files that are one), a fact, and its value as JSON.
"""

import json
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from shared import shared_trace

import daydream
from daydream.collect.importers import import_trace
from daydream.trace.schema import DEVICE_KINDS

ROWS = Path(__file__).with_name("public.tsv").read_text(encoding="utf-8").splitlines()[1:]


@cache
def imported(names):
    return import_trace([shared_trace(name) for name in names.split()])


def device_work(trace):
    """Return how many kernels (with collectives), copies, memsets and rows without a launch there are."""
    kinds = ("kernel", "collective"), ("memcpy",), ("memset",)
    unlaunched = trace.is_kind(*DEVICE_KINDS) & (trace["parent"] < 0)
    return [int(rows.sum()) for rows in (*(trace.is_kind(*kind) for kind in kinds), unlaunched)]


def covered_ms(trace):
    return [round(step["measured_ns"] / 1e6, 1) for step in trace.metadata["steps"] if step["covered"]]


def backward_share(trace):
    rows = np.flatnonzero(trace.is_kind("kernel"))
    ns = trace["duration_ns"][rows]
    backward = np.array(trace.values("phase", rows), object) == "backward"
    return round(float(ns[backward].sum() / ns.sum()), 3)


FACTS = {
    "rows": len,
    "device work": device_work,
    "covered steps, ms": covered_ms,
    "step source": lambda trace: trace.metadata["step_source"],
    "steps": lambda trace: len(trace.metadata["steps"]),
    "vendor": lambda trace: trace.metadata["vendor"],
    "devices": lambda trace: [device["name"] for device in trace.metadata["devices"]],
    "kinds": lambda trace: dict(Counter(trace.values("kind"))),
    "sync": lambda trace: dict(Counter(trace.values("name", np.flatnonzero(trace.is_kind("sync"))))),
    "phases of operators": lambda trace: sorted(
        {*trace.values("phase", np.flatnonzero(trace.is_kind("operator")))}
    ),
    "device work without a phase": lambda trace: int(
        (trace["phase"][trace.is_kind(*DEVICE_KINDS)] < 0).sum()
    ),
    "backward share": backward_share,
    "replays within 1%": lambda trace: daydream.replay(trace).max_error < 0.01,
}


@pytest.mark.parametrize(("names", "fact", "value"), [line.split("\t") for line in ROWS])
def test_a_public_trace_is_imported_as_known(names, fact, value):
    assert FACTS[fact](imported(names)) == json.loads(value)


def test_the_buckets_of_a_ddp_step():
    trace = imported("kineto/a100_resnet_ddp_rank0of2.json.gz")
    lines = np.flatnonzero(trace.is_kind("collective"))
    columns = ("collective", "elements", "dtype")
    found = list(zip(*(trace.values(name, lines) for name in columns), strict=True))
    reduced = [elements for name, elements, dtype in found if name == "all_reduce" and dtype == "float32"]
    assert reduced == [2_049_000, 7_875_584, 6_563_840, 6_637_568, 2_431_040] * 3
    assert sorted(entry for entry in found if entry[0] == "broadcast") == sorted(
        [("broadcast", 53_120, "float32"), ("broadcast", 53, "int64")] * 3
    )
    assert trace.values("bytes", lines[2:3]) == [2_049_000 * 4]
    per_step = Counter(trace.values("step", lines))
    assert per_step == {0: 7, 1: 7, 2: 7}


def test_collectives_without_arguments_get_their_sizes_from_annotations():
    trace = imported("kineto/v100_dlrm_4_of_8_ranks")
    assert trace.metadata["ranks"] == [{"rank": rank} for rank in range(4)]
    assert trace.metadata["world_size"] == 8
    ends = []
    for rank in range(4):
        lines = np.flatnonzero(trace.is_kind("collective") & (trace["rank"] == rank))
        lines = lines[np.argsort(trace["start_ns"][lines])]
        kinds = [{"r": "all_reduce", "a": "all_to_all"}[each] for each in "aaaararr"]
        assert trace.values("collective", lines) == kinds
        assert trace.values("elements", lines) == [6144, 24, 384, 3392, 394_241, 6144, 112, 226_960]
        assert trace.values("dtype", lines) == ["float32", "int64", "int32", "int32"] + ["float32"] * 4
        ends.append(trace["start_ns"][lines] + trace["duration_ns"][lines])
    spread = np.ptp(np.array(ends), axis=0)
    assert spread.max() <= 7_000  # the ranks' clocks agree
    assert [step["covered"] for step in trace.metadata["steps"]] == [True, False, True, False]


def test_a_checkpointed_model_has_layers_in_forward_and_backward():
    trace = imported("kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz")
    assert trace.is_kind("module").sum() == 450
    for phase in ("forward", "backward"):
        lines = np.flatnonzero(trace.is_kind("kernel") & (trace["phase"] == trace.code("phase", phase)))
        named = [layer for layer in trace.values("layer", lines) if layer is not None]
        assert len(named) > 0.95 * len(lines)
        assert all(layer.startswith("DistributedDataParallel_0") for layer in named)


@pytest.mark.parametrize(
    ("name", "steps", "median", "p10", "p90", "most"),
    [
        ("rtx2080ti_linear_40_iterations", 39, 24.5, 20.6, 27.0, 59.3),
        ("rtx2080ti_resnet_30_iterations", 29, 171.2, 152.3, 755, 829),
    ],
)
def test_steps_cut_at_the_optimizer(name, steps, median, p10, p90, most):
    trace = imported(f"kineto/{name}.json.gz")
    assert trace.metadata["step_source"] == "ends of Optimizer.step#SGD.step"
    times = np.array(covered_ms(trace))
    assert len(times) == steps
    assert [np.median(times), times.max()] == pytest.approx([median, most], rel=0.005)
    for share, stated in ((0.1, p10), (0.9, p90)):
        low, high = (np.quantile(times, share, method=method) for method in ("lower", "higher"))
        assert low * 0.995 <= stated <= high * 1.005
