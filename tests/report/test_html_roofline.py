"""What the roofline of the HTML report is made of; a browser draws it in `test_html_in_chromium`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import daydream
from daydream import Graph
from daydream.report.html.roofline import NO_PEAKS, NO_WORK, roofline

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


def of_products(name, ns):
    """Counters that give products 10 TFLOP/s at 100 FLOP a byte."""
    return {"flop": 10_000 * ns, "bytes": 100 * ns} if "gemm" in name else {}


def test_without_peaks_or_work_there_is_no_picture_and_it_is_said():
    trace = daydream.load(EXAMPLE)
    trace.columns.pop("shapes", None)
    trace.metadata["devices"] = []
    assert roofline(daydream.build(trace))[-1].text == NO_PEAKS
    trace.metadata["devices"] = [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}]
    assert roofline(daydream.build(trace))[-1].text == NO_WORK
    assert roofline(Graph()) == []


def test_points_are_kernels_by_name_and_layer_and_the_picture_says_how_much_it_covers():
    graph = daydream.replay(counted(of_products)).graph
    kernels = graph.select(kind="kernel")
    products = kernels.where(name="gemm")
    _, covered, drawn = roofline(graph)
    found = re.search(r"([\d.]+)% by counters", covered.text)
    assert found is not None
    share = products.duration_ns.sum() / kernels.duration_ns.sum()
    assert float(found[1]) == pytest.approx(100 * share, abs=0.06)
    every = drawn.value["points"]
    assert [each["ns"] for each in every] == sorted((each["ns"] for each in every), reverse=True)
    points = [each for each in every if each["by"] == "counters"]  # of the others shapes are known
    named = set(zip(products.name, products.layer, strict=True))
    assert {(each["name"], each["layer"] or None) for each in points} == named
    first = points[0]
    of_it = (products.name == first["name"]) & (products.layer == (first["layer"] or None))
    assert (first["kernels"], first["ns"]) == (of_it.sum(), products.duration_ns[of_it].sum())
    assert all((each["intensity"], each["rate"]) == (100, 10_000) for each in points)
    assert {each["kind"] for each in points} == {"compute"}
