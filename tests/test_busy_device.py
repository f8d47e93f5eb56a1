"""A law over the public traces: a busy device gains from faster kernels, or it is said why not."""

import sys
from pathlib import Path

import numpy as np
import pytest
from shared import TRACES

import daydream
from daydream.errors import DaydreamError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "validation"))
from sanity import a_busy_device_gains_from_faster_kernels, sources

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
