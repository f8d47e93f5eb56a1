"""Several processes, one trace; and the example scripts."""

import socket

import numpy as np
import pytest
from shared import EXAMPLES, view_text

import daydream
from daydream.collect.derive.collectives import host_collectives, match_collectives
from daydream.graph.lower import problems
from daydream.report.info import overview
from daydream.report.views.info import collectives_of_steps

pytest.importorskip("torch", reason="collects real training scripts")
pytestmark = pytest.mark.slow

DDP = """
        import os, time
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
            time.sleep(0.2)  # else a gloo thread may wait for Python's lock, and the lock's owner for it
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
    exchanged = collectives_of_steps(trace)
    assert len(exchanged) == 6
    assert len(set(exchanged.values())) == 1  # every step of every rank
    (each,) = set(exchanged.values())
    buckets = [("all_reduce", bucket["bytes"]) for bucket in trace.metadata["ddp"][0]["buckets"]]
    assert sorted(each) == sorted(buckets)
    ranks = trace.metadata["ranks"]
    assert [(each["rank"], len(each["unprofiled_step_ns"])) for each in ranks] == [(0, 20), (1, 20)]
    assert trace.metadata["unprofiled_step_ns"] == trace.of_rank("unprofiled_step_ns", 0)
    assert not any("parameters" in each for each in ranks)  # they are the same
    said = view_text(overview(trace), verbose=True)
    assert "2 all_reduce of 1.52 MiB in total in a step, the same on every rank" in said
    assert "397,322 parameters" in said
    assert done.notes() == []
    assert done.hidden() == []


def test_ranks_on_gloo_wait_for_each_other_in_the_simulation(folder, port):
    folder.script(
        DDP.replace(
            "                model(torch",
            "                time.sleep(0.03 * rank)\n                model(torch",
        )
        + "        train(int(os.environ['RANK']), 2, os.environ['MASTER_PORT'])\n"
    )
    done = folder.collect("--nproc-per-node", "2", "train.py", PET_MASTER_PORT=port)
    assert done.code == 0, done.err
    trace = done.trace()

    met = match_collectives(trace)
    assert {len(rows) for rows in met.rows} == {2}
    assert len(met) == len(host_collectives(trace)) / 2
    assert met.alone == {}
    graph = daydream.build(trace)
    assert problems(graph) == []
    assert not any("could not be found" in note for note in graph.facts.notes)
    transfers = graph.select(kind="collective", name="gloo:all_reduce")
    early = transfers.where(lambda tasks: tasks.rank == 0)
    recorded = trace["duration_ns"][early.row]
    assert np.median(recorded) > 20_000_000  # the other rank slept as long
    assert np.median(early.duration_ns) < np.median(recorded) / 2

    replay = daydream.replay(graph)
    assert {step.rank for step in replay.steps} == {0, 1}
    assert replay.max_error < 0.01
    assert replay.settled.passes > 1
    assert not any("as recorded, not repeated" in note for note in replay.notes)
    assert daydream.whatif(replay, "no-stragglers").speedup > 1.2
    assert daydream.whatif(replay, "network", bandwidth_factor=0.01).speedup < 1


def test_a_rank_that_fails_fails_the_run_and_what_there_is_is_kept(folder, port):
    folder.script(
        DDP + "            if rank == 1: raise ValueError('bad data')\n"
        "        train(int(os.environ['RANK']), 2, os.environ['MASTER_PORT'])\n"
    )
    done = folder.collect("--nproc-per-node", "2", "train.py", PET_MASTER_PORT=port)

    assert done.code == 1
    assert "ValueError: bad data" in done.err
    assert sorted(ranks_and_steps(done.trace())) == [0, 1]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ranks_started_by_the_script_give_one_trace(method, folder, port):
    folder.script(
        DDP + "        if __name__ == '__main__':\n"
        "            import torch.multiprocessing as mp\n"
        f"            mp.start_processes(train, args=(2, {port}), nprocs=2, start_method='{method}')\n"
    )
    done = folder.collect("train.py")

    assert done.code == 0, done.err
    assert sorted(ranks_and_steps(done.trace())) == [0, 1]


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
