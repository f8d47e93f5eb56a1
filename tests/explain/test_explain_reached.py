"""What share of the device's peak kernels reach, beside the causes of a step."""

import pytest
from graph.small_traces import call, kernel, op, trace
from shared import shared_replay

import daydream
from daydream.costs.devices import find_device
from daydream.report.views.explanation import beside

STEPS = 4
V100 = {"devices": [{"id": 0, "name": "Tesla V100-SXM2-16GB"}]}


def recorded(shapes, name="volta_sgemm_128x64_nn", **metadata):
    """Return steps of 600 us: a product of 1024 x 1024 matrices that takes 547 of them."""
    rows = [
        [
            op("aten::mm", at, at + 20, op="aten::mm", shapes=shapes, dtype="float32"),
            call("cudaLaunchKernel", at + 5, at + 10, number, op="aten::mm"),
            kernel(name, at + 12, at + 559, number, op="aten::mm", dtype="float32"),
            call("cudaDeviceSynchronize", at + 20, at + 600),
        ]
        for at, number in ((600 * step, step + 1) for step in range(STEPS))
    ]
    return trace(rows, steps=tuple(600 * step for step in range(STEPS + 1)), **metadata)


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
    ("shapes", "metadata"),
    [(None, V100), ("[[1024,1024],[1024,1024]]", {}), ("[[1024,512],[1024,1024]]", V100)],
)
def test_without_shapes_or_a_known_device_nothing_is_said(shapes, metadata):
    assert daydream.explain(recorded(shapes, **metadata)).kernels == ()


def test_kernels_of_a_public_trace_reach_a_part_of_the_peak():
    explanation = daydream.explain(shared_replay("kineto/v100_resnet50_loader_workers_4.json.gz"))

    assert {each.name for each in explanation.kernels} >= {"volta_scudnn"}
    assert all(0.3 < each.share_of_peak <= 1 for each in explanation.kernels)


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
