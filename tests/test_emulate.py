"""A GPU that does not exist: what runs on it, what it holds, what its kernels take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daydream.costs.devices import find_device
from daydream.errors import NotApplicableError
from daydream.trace.recorded_time import made_up
from daydream.trace.trace import Trace

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


def test_causal_attention_computes_its_blocks_on_and_under_the_diagonal() -> None:
    from daydream.world.emulate import emulated, observed
    from daydream.world.emulate_costs import work

    def step(causal: bool) -> int:
        q = torch.randn(1, 2, 1024, 64, device="cuda", dtype=torch.bfloat16)
        attend = torch.nn.functional.scaled_dot_product_attention
        calls = observed(gpu, lambda: attend(q, q, q, is_causal=causal))
        [call] = of_name(calls, "_scaled_dot_product_cudnn_attention")
        return work(call)[0]

    with emulated("h100") as gpu:
        whole = 2 * 2 * 1024 * 1024 * (64 + 64)
        assert step(causal=False) == whole
        assert step(causal=True) == whole * 9 // 16  # 8 x 8 blocks of 128, 36 of them


def test_what_needs_values_is_refused_and_files_stay(tmp_path: Path) -> None:
    from daydream.world.emulate import emulated

    file = tmp_path / "checkpoint.pt"
    file.write_text("of an earlier run")
    with emulated("h100") as gpu:
        x = torch.ones(8, 8, device="cuda")
        torch.save({"x": x}, file)
        assert torch.compile(torch.nn.ReLU())(x).shape == (8, 8)
        held = gpu.held_bytes
        del x
        assert torch.cuda.max_memory_allocated() >= held > torch.cuda.memory_allocated()
        with pytest.raises(SystemExit, match=r"needs values of tensors.*aten::nonzero"):
            torch.ones(8, device="cuda").nonzero()
    assert file.read_text() == "of an earlier run"
    assert list(gpu.left_out) == [
        "torch.save wrote nothing",
        "torch.compile was left out, and the program ran as without it",
    ]


DDP = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.distributed.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(80, 64)), 8):
    model(x.cuda()).sum().backward()
    optimizer.step()
"""
CPU = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(10):
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
"""


def collect(folder: Path, script: str, *options: str) -> Any:
    (folder / "train.py").write_text(script)
    words = ["-m", "daydream", "collect", "--no-suggestions", "--emulate", "h100", *options, "train.py"]
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)


def test_a_rank_of_ddp_is_emulated_and_marked_so(tmp_path: Path) -> None:
    done = collect(tmp_path, DDP, "--world", "8")
    assert done.returncode == 0, done.stderr
    trace = Trace.load(tmp_path / "train.parquet")
    assert made_up(trace) == "emulated H100 SXM, rank 0 of 8 in a fake world"
    assert not any("aten::select" in name for name in trace.text("name"))  # the data loader's
    assert sum(one == "all_reduce" for one in trace.values("collective")) >= 3
    [left_out] = [note for note in trace.metadata["notes"] if note.startswith("Not emulated")]
    assert "DDP's buckets stay those of its first step" in left_out


def test_a_script_without_a_gpu_is_refused(tmp_path: Path) -> None:
    done = collect(tmp_path, CPU)
    assert done.returncode == 1
    assert "the recorded steps ran nothing on the emulated GPU" in done.stderr
    assert not (tmp_path / "train.parquet").exists()


def test_an_unknown_gpu_is_refused() -> None:
    from daydream.world.emulate import emulated

    with pytest.raises(NotApplicableError, match="unknown GPU"), emulated("h999"):
        pass
