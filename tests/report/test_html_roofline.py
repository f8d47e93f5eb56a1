"""The roofline of the HTML report: what is drawn, by hand, and a browser that shows it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import daydream
from daydream import Graph
from daydream.costs.devices import find_device
from daydream.report.html.roofline import MOST, NO_PEAKS, NO_WORK, Point, _svg, picture

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "synthetic_gpt_gpu.json.gz"


def counted(amounts):
    """Return the trace made by hand, on an A100, with what `amounts` gives for a kernel's name and ns."""
    trace = daydream.load(EXAMPLE)
    trace.metadata["devices"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    rows = np.flatnonzero(trace.is_kind("kernel"))
    rows = rows[np.argsort(trace["correlation"][rows], kind="stable")]
    times = trace["duration_ns"][rows].tolist()
    trace.metadata["counters"] = [
        {"name": name, **amounts(name, ns)}
        for name, ns in zip(trace.values("name", rows), times, strict=True)
    ]
    return trace


@pytest.fixture(scope="module")
def replay():
    """Of counters that give its products 10 TFLOP/s at 100 FLOP a byte."""
    return daydream.replay(
        counted(lambda name, ns: {"flop": 10_000 * ns, "bytes": 100 * ns} if "gemm" in name else {})
    )


def point(intensity, rate, ns=1_000, name="k", layer="blocks.1", kind="compute"):
    return Point(name, layer, 1, intensity, rate, ns, kind, "counters")


def test_circles_lie_at_their_figures_and_have_areas_like_their_time():
    device = find_device("a100")
    svg = _svg([point(10.0, 1_000.0, 4_000), point(100.0, 10_000.0, 1_000)], device, ["float32"])
    circles = re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"[^>]*><title>', svg)
    (x0, y0, r0), (x1, y1, r1) = (map(float, circle) for circle in circles)
    assert x1 > x0
    assert y1 < y0  # more FLOP a second is further up
    assert r0**2 == pytest.approx(4 * r1**2)


def test_hover_tells_name_layer_and_evidence_and_nothing_is_markup():
    svg = _svg([point(10.0, 1_000.0, name="<script>alert(1)</script>")], find_device("a100"), ["float32"])
    assert "<script>" not in svg
    assert "layer blocks.1" in svg
    assert "known by counters" in svg


def test_a_large_trace_draws_a_bounded_picture():
    many = [point(1.0 + at, 100.0 + at) for at in range(3 * MOST)]
    assert _svg(many, find_device("a100"), ["float32"]).count("<title>") == MOST


def test_without_peaks_or_work_there_is_no_picture_and_it_is_said():
    trace = daydream.load(EXAMPLE)
    trace.columns.pop("shapes", None)
    trace.metadata["devices"] = []
    assert picture(daydream.build(trace)) == f'<p class="help">{NO_PEAKS}</p>'
    trace.metadata["devices"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    assert picture(daydream.build(trace)) == f'<p class="help">{NO_WORK}</p>'
    assert picture(Graph()) == ""


def test_kernels_of_no_known_type_are_drawn_under_one_line():
    graph = daydream.build(counted(lambda name, ns: {"flop": 1_000, "bytes": 100}))
    graph.select(kind="kernel").set(dtype=None)
    drawn = picture(graph)
    assert "<circle" in drawn
    assert drawn.count(">float32<") == 1


def test_the_picture_says_how_much_it_covers_and_by_what(replay):
    drawn, kernels = picture(replay.graph), replay.graph.select(kind="kernel")
    share = kernels.where(name="gemm").duration_ns.sum() / kernels.duration_ns.sum()
    found = re.search(r"([\d.]+)% by counters", drawn)
    assert found is not None
    assert float(found[1]) == pytest.approx(100 * share, abs=0.06)
    assert "100 FLOP/B, 10 TFLOP/s, bound by arithmetic" in drawn


def test_the_roof_of_l2_is_dashed_and_only_there_where_it_gives_more_than_memory():
    device, points = find_device("a100"), [point(1.0, 1_000.0, 4_000)]
    with_l2 = _svg(points, device, ["float32"], 3 * device.bandwidth)
    assert str(with_l2).count("stroke-dasharray") == 1
    assert "L2, as reached here" in str(with_l2)
    for rate in (None, device.bandwidth / 2):
        assert "stroke-dasharray" not in str(_svg(points, device, ["float32"], rate))
