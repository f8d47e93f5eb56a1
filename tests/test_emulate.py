"""A GPU that does not exist: what runs on it, what it holds, what its kernels take."""

from __future__ import annotations

from typing import Any

import pytest

from daydream.costs.devices import find_device
from daydream.errors import NotApplicableError

torch: Any = pytest.importorskip("torch")


def of_name(calls: list[Any], name: str) -> list[Any]:
    return [call for call in calls if call.name == f"aten::{name}"]


def test_a_layer_is_noted_with_its_products_and_its_memory() -> None:
    from daydream.world.emulate import WORKSPACE, emulated, observed

    with emulated("h100") as gpu:
        layer = torch.nn.Linear(1024, 4096).to("cuda")
        x = torch.randn(256, 1024, device="cuda")
        before = gpu.held_bytes
        calls = observed(gpu, lambda: layer(x).sum().backward(), layer)
        assert str(layer.weight.device) == "cuda:0"

    assert before == WORKSPACE + 4 * (1024 * 4096 + 4096 + 256 * 1024)
    [forward] = of_name(calls, "addmm")
    assert (forward.results, forward.phase) == ([(256, 4096)], "forward")
    assert forward.held_bytes == before + 4 * 256 * 4096
    [gradient] = of_name(calls, "mm")  # of the weight alone: the input needs none
    assert gradient.phase == "backward"
    assert sorted(gradient.results[0]) == [1024, 4096]


def test_autocast_and_attention_are_those_of_cuda() -> None:
    from daydream.world.emulate import emulated, observed

    with emulated("h100") as gpu:
        x = torch.randn(2, 4, 64, 64, device="cuda")

        def step() -> None:
            with torch.autocast("cuda", torch.bfloat16):
                heads = (x @ x).softmax(-1).bfloat16()
                torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)

        calls = observed(gpu, step)

    assert of_name(calls, "bmm")[0].dtypes == ["bfloat16", "bfloat16"]
    assert of_name(calls, "_softmax")[0].result_dtypes == ["float32"]  # the CPU's list has 16 bits
    assert of_name(calls, "_scaled_dot_product_cudnn_attention")


def test_a_number_that_nobody_knows_is_plausible_and_counted() -> None:
    from daydream.world.emulate import emulated

    with emulated("h100") as gpu:
        loss = torch.randn(8, device="cuda").sum()
        assert loss.item() == 1.0
        assert not loss.isnan()
        assert loss.isfinite()
        assert gpu.read == 3


def test_a_product_takes_its_flop_at_a_part_of_the_peak() -> None:
    from daydream.world.emulate import Call
    from daydream.world.emulate_costs import Learned, roofline_ns

    rows, inner, columns = 132 * 128, 4096, 1024  # tiles of 128 x 128 in whole waves of 132 units
    product = Call(
        "aten::mm",
        [(rows, inner), (inner, columns)],
        ["bfloat16", "bfloat16"],
        [(rows, columns)],
        ["bfloat16"],
        nbytes=2 * (rows * inner + inner * columns + rows * columns),
        number_format="bfloat16",
    )
    half = Learned(kernels=1, of_peak=0.5, of_bandwidth=1.0)
    expected = 1_400 + 2 * rows * inner * columns / (989.4e3 * 0.5)
    assert roofline_ns(product, find_device("h100"), half) == pytest.approx(expected)


def test_an_unknown_gpu_is_refused() -> None:
    from daydream.world.emulate import emulated

    with pytest.raises(NotApplicableError, match="unknown GPU"), emulated("h999"):
        pass
