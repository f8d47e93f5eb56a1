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


def collectives(trace):
    rows = np.flatnonzero(trace.is_kind("collective"))
    columns = ("rank", "step", "collective", "elements", "bytes", "dtype")
    return [*map(list, zip(*(trace.values(name, rows) for name in columns), strict=True))]


FACTS = {
    "collectives": collectives,
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


def test_a_checkpointed_model_has_layers_in_forward_and_backward():
    trace = imported("kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz")
    assert trace.is_kind("module").sum() == 450
    for phase in ("forward", "backward"):
        lines = np.flatnonzero(trace.is_kind("kernel") & (trace["phase"] == trace.code("phase", phase)))
        named = [layer for layer in trace.values("layer", lines) if layer is not None]
        assert len(named) > 0.95 * len(lines)
        assert all(layer.startswith("DistributedDataParallel_0") for layer in named)
