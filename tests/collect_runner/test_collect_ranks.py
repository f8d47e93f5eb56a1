"""Several processes, one trace; and the example scripts."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

import daydream

pytest.importorskip("torch", reason="collects real training scripts")
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DDP = """
        import os
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        def train(rank, world, port):
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
            dist.init_process_group("gloo", rank=rank, world_size=world)
            model = DistributedDataParallel(torch.nn.Linear(64, 64))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(40):
                optimizer.zero_grad()
                model(torch.randn(2, 64)).sum().backward()
                optimizer.step()
            dist.destroy_process_group()
"""


@pytest.fixture
def port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return str(found.getsockname()[1])


def ranks_and_steps(trace):
    found = {}
    for step in trace.metadata["steps"]:
        found.setdefault(step["rank"], []).append((step["name"], step["covered"]))
    return found


def collectives(trace, rank):
    mine = trace["rank"] == rank
    names = np.asarray(trace.text("name"), object)[
        trace["name"][mine & trace.is_kind("operator", "annotation")]
    ]
    return sorted(name for name in names.tolist() if "allreduce" in name or "all_reduce" in name)


def test_torchrun_gives_one_trace_with_both_ranks(folder, port):
    script = str(EXAMPLES / "train_ddp.py")
    done = folder.collect("--nproc-per-node", "2", "-o", "t.parquet", script, PET_MASTER_PORT=port)

    assert done.code == 0, done.err
    trace = done.trace("t.parquet")
    steps = ranks_and_steps(trace)
    assert sorted(steps) == [0, 1]
    assert steps[0] == steps[1]
    assert np.unique(trace["rank"]).tolist() == [0, 1]
    assert {step["rank"] for step in daydream.replay(trace).to_json()["steps"]} == {0, 1}
    assert trace.metadata["source"] == "t.parquet"
    assert collectives(trace, 0) == collectives(trace, 1) != []
    assert "note:" not in done.err
    assert done.hidden() == []


def test_a_rank_that_fails_fails_the_run_and_what_there_is_is_kept(folder, port):
    folder.script(
        DDP + "            if rank == 1: raise ValueError('bad data')\n"
        "        train(int(os.environ['RANK']), 2, os.environ['MASTER_PORT'])\n"
    )
    done = folder.collect("--nproc-per-node", "2", "train.py", PET_MASTER_PORT=port)

    assert done.code == 1
    assert "ValueError: bad data" in done.err
    assert sorted(ranks_and_steps(done.trace())) == [0, 1]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ranks_started_by_the_script_give_one_trace(method, folder, port):
    folder.script(
        DDP + "        if __name__ == '__main__':\n"
        "            import torch.multiprocessing as mp\n"
        f"            mp.start_processes(train, args=(2, {port}), nprocs=2, start_method='{method}')\n"
    )
    done = folder.collect("train.py")

    assert done.code == 0, done.err
    assert sorted(ranks_and_steps(done.trace())) == [0, 1]


@pytest.mark.parametrize("name", ["train_gpt.py", "train_cnn.py", "train_ddp.py"])
def test_an_example_can_be_collected(name, folder):
    done = folder.collect("--stop-after", str(EXAMPLES / name))

    assert done.code == 0, done.err
    assert done.steps(name.replace(".py", ".parquet")) == 3
    assert "loss" in done.out


def test_processes_that_train_apart_are_not_one_job(folder):
    folder.script("for _ in range(40):\n    step()\n", "one.py")
    folder.script(
        "import subprocess, sys\n"
        "for _ in range(2):\n    subprocess.run([sys.executable, 'one.py'], check=True)\n", begin="",
    )  # fmt: skip
    done = folder.collect("train.py")

    assert done.code == 0
    assert "trained independently" in done.err
    assert len(ranks_and_steps(done.trace())) == 1
