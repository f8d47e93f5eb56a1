"""`daydream collect --world`: one rank of a job whose other ranks do not exist."""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from shared import ROOT

import daydream
from daydream.trace.recorded_steps import made_up
from daydream.world import Refused, explain_errors

torch = pytest.importorskip("torch", reason="collects real training scripts")

BEGIN = """
import os, sys, json, torch
import torch.distributed as dist
torch.set_num_threads(1)
torch.manual_seed(0)
"""
TRAIN = """
model = torch.nn.Sequential(*[torch.nn.Linear(32, 32, bias=False) for _ in range(3)])
if sys.argv[1:] == ["ddp"]:
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    model(torch.randn(4, 32)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
VALUES = """
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
group = dist.new_group([0, 2], backend="nccl")
from daydream.world.process_group import ASKED
found = {"world": [rank, size, dist.get_backend(), os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]]}
x = torch.arange(4.0)
dist.all_reduce(x, group=group)
found["all_reduce"] = x.tolist()
parts = [torch.zeros(2) for _ in range(4)]
dist.all_gather(parts, torch.tensor([1.0, 2.0]))
found["all_gather"] = [part.tolist() for part in parts]
out = torch.zeros(2)
dist.reduce_scatter_tensor(out, torch.arange(8.0))
found["reduce_scatter"] = out.tolist()
out = torch.zeros(4)
dist.all_to_all_single(out, torch.arange(4.0))
found["all_to_all"] = out.tolist()
out = torch.ones(3, dtype=torch.bfloat16)
dist.recv(out, 0)
found["recv"] = out.tolist()
work = dist.isend(out, 3)
work.wait()
torch.multiprocessing.spawn(lambda own, x: found.update(spawned=[own, x]), (5,), nprocs=4)
dist.broadcast_object_list([None], src=0)
found["backends"] = [dist.get_backend(group), dist.get_backend(dist.new_group(backend="gloo"))]
objects = [None] * 4
dist.all_gather_object(objects, {"a": rank})
found["objects"] = objects
dist.monitored_barrier()
from torch.distributed._functional_collectives import all_reduce
found["functional"] = (all_reduce(torch.ones(2), "sum", group) + 1).tolist()
found["asked"] = [
    [one.collective, one.bytes, one.dtype, one.group, one.peer, one.asynchronous] for one in ASKED
]
print(json.dumps(found))
"""


def collect(folder, script, *args, world=("--world", "4", "--rank", "2")):
    folder.script(script, begin=BEGIN)
    return folder.collect(*world, *args)


def test_a_group_gives_what_this_rank_has_and_notes_what_was_asked(folder):
    done = collect(folder, VALUES, "train.py")

    found = json.loads(done.out.splitlines()[-1])
    assert found["world"] == [2, 4, "nccl", "2", "4"]
    assert found["all_reduce"] == [0, 1, 2, 3]
    assert found["all_gather"] == [[1, 2]] * 4
    assert found["reduce_scatter"] == [4, 5]  # the third of four parts
    assert found["all_to_all"] == [0, 1, 2, 3]
    assert found["recv"] == [0, 0, 0]
    assert found["objects"] == [{"a": 2}] * 4
    assert found["functional"] == [2, 2]
    assert found["spawned"] + found["backends"] == [2, 5, "nccl", "gloo"]
    asked = [one for one in found["asked"] if one[2] not in ("int64", "uint8")]  # those of objects
    assert asked == [
        ["all_reduce", 16, "float32", "1", -1, False],
        ["all_gather", 8, "float32", "0", -1, False],
        ["reduce_scatter", 32, "float32", "0", -1, False],
        ["all_to_all", 16, "float32", "0", -1, False],
        ["recv", 6, "bfloat16", "0", 0, True],
        ["send", 6, "bfloat16", "0", 3, True],
        ["barrier", 0, "", "0", -1, False],
        ["all_reduce", 8, "float32", "1", -1, True],
    ]
    assert not list(folder.path.glob("*.parquet"))  # it trained nothing


def of_a_step(trace):
    """Return how often each collective is in the second step, with its bytes and group, and the waits."""
    rows = np.flatnonzero(trace.is_kind("annotation") & (trace["correlation"] >= 0) & (trace["step"] == 1))
    columns = ("name", "bytes", "dtype", "group")
    return Counter(zip(*(trace.values(name, rows) for name in columns), strict=True))


@pytest.mark.slow
def test_ddp_reduces_its_bucket_and_waits_behind_the_backward_pass(folder):
    done = collect(
        folder, 'dist.init_process_group("nccl")\n' + TRAIN, "--cluster", "dgx-h100", "train.py", "ddp"
    )

    assert (done.code, done.err.count("Traceback")) == (0, 0)
    trace = done.trace()
    nbytes = 3 * 32 * 32 * 4
    assert of_a_step(trace) == {
        ("fake:all_reduce", nbytes, "float32", "0"): 1, ("fake:wait", None, None, None): 1,
    }  # fmt: skip
    assert trace.metadata["fake_world"] == {
        "world_size": 4,
        "rank": 2,
        "cluster": "dgx-h100",
        "imbalance": 1.0,
    }
    assert trace.metadata["groups"][0]["ranks"] == [0, 1, 2, 3]
    replay = daydream.replay(trace)
    [reduction] = replay.graph.select(kind="collective", name="all_reduce").where(step=1)
    waits = replay.graph.select(name="fake:wait").where(step=1)
    assert reduction.phase.tolist() == ["backward"]
    assert (replay.graph.links["dst"] == waits.ids[0]).any()
    assert done.trace().metadata["world_size"] == 4
    assert any("rank 2 of 4 in a fake world" in note for note in replay.notes)


@pytest.mark.slow
def test_fully_shard_gathers_and_scatters_its_parameters(folder):
    done = collect(folder, 'dist.init_process_group("gloo")\n' + TRAIN, "train.py", "fsdp")

    part = 32 * 32 * 4 // 4
    # Each layer is gathered for the forward and for the backward pass; its gradients are scattered.
    assert of_a_step(done.trace()) == {
        ("fake:all_gather", part, "float32", "0"): 6,
        ("fake:reduce_scatter", 4 * part, "float32", "0"): 3,
        ("fake:wait", None, None, None): 9,
    }


RECEIVED = 'dist.init_process_group("gloo")\nx = torch.ones(10)\n'
PIPELINE = """
dist.init_process_group("nccl")
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(32, 32)
shapes = {}
if sys.argv[1:]:
    x = torch.randn(2, 32, requires_grad=True)
    shapes = {"input_args": x, "output_args": x}
stage = PipelineStage(model, rank, size, torch.device("cpu"), **shapes)
schedule = Schedule1F1B(stage, 4, loss_fn=lambda out, _: out.sum())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
given = [torch.randn(8, 32, requires_grad=True)] if rank == 0 else []
target = {"target": torch.randn(8, 32)} if rank == size - 1 else {}
for _ in range(20):
    optimizer.zero_grad()
    schedule.step(*given, **target)
    optimizer.step()
"""


@pytest.mark.slow
def test_a_stage_of_a_pipeline_sends_and_receives_each_micro_batch(folder):
    done = collect(folder, PIPELINE, "train.py", "with shapes")

    both_ways = {(f"fake:{way}", 2 * 32 * 4, "float32", "0"): 8 for way in ("send", "recv")}
    assert of_a_step(done.trace()) == {**both_ways, ("fake:wait", None, None, None): 16}


@pytest.mark.slow
def test_all_stages_are_one_trace(folder):
    (folder.path / "train.parquet").write_text("an older one")
    stages = "--world", "2", "--all-stages", "--force"
    done = collect(folder, PIPELINE, "train.py", world=stages)  # the second gets shapes from the first

    assert sorted({step["rank"] for step in done.trace().metadata["steps"]}) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        (PIPELINE, "need none of them where each PipelineStage is given input_args and output_args"),
        (
            'dist.init_process_group("gloo")\n' + TRAIN.partition("optimizer =")[0]
            + 'from torch.distributed.checkpoint import save\nsave({"a": model}, checkpoint_id="saved")',
            "leave saving out in a fake world",
        ),
        ('dist.init_process_group("gloo", world_size=2, rank=0)', "the script sets world_size to 2"),
        ("torch.multiprocessing.spawn(print, nprocs=8)", "record --world 8"),
        ("torch.distributed.rpc.init_rpc('a')", "the script uses torch.distributed.rpc"),
        (RECEIVED + "dist.all_gather_single(x, x)", "10 elements do not divide among the 4 ranks of group"),
        pytest.param(
            RECEIVED + "x.cuda()", "this machine has none: add --emulate NAME, such as --emulate h100",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
    ids=["objects", "checkpoint", "another world", "spawn", "rpc", "divide", "gpu"],
)  # fmt: skip
def test_what_one_rank_cannot_know_ends_the_script_with_a_line(folder, script, said):
    done = collect(folder, script, "train.py")

    assert [line for line in done.err.splitlines() if said in line]
    assert (done.code, list(folder.path.glob("*.parquet"))) == (1, [])
    assert "Traceback" not in done.err


EMULATED = "--emulate", "h100", "train.py"
ON_GPU = """
from torch.utils.data import DataLoader, TensorDataset
dist.init_process_group("nccl")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(80, 64)), 8):
    model(x.cuda()).sum().backward()
    optimizer.step()
"""


def test_a_rank_of_ddp_is_emulated_and_marked_so(folder):
    done = collect(folder, ON_GPU, *EMULATED, world=("--world", "8", "--cluster", "dgx-h100"))
    assert done.code == 0, done.err
    trace = done.trace()
    assert made_up(trace) == "emulated H100 SXM, rank 0 of 8 in a fake world"
    assert not any("aten::select" in name for name in trace.text("name"))  # the data loader's
    assert sum(one == "all_reduce" for one in trace.values("collective")) >= 3
    [left_out] = [note for note in trace.metadata["notes"] if note.startswith("Not emulated")]
    assert "DDP's buckets stay those of its first step" in left_out
    assert any("buffers of its communication library" in note for note in daydream.memory_of(trace).notes)
    del trace.metadata["fake_world"]
    assert any("beside tensors is a model's" in note for note in daydream.memory_of(trace).notes)
    # the CPU decides: slow ones, fast ones
    found = daydream.whatif(done.trace(), "scale", on="gpu", factor=0.5)
    assert found.predicted_high_ns > 1.4 * found.simulated_ns > 1.6 * found.predicted_low_ns > 0


def test_a_script_without_a_gpu_is_refused(folder):
    script = """
        for _ in range(10):
            step()
    """
    folder.script(script)
    done = folder.collect(*EMULATED)
    assert done.code == 1
    assert "the recorded steps ran nothing on the emulated GPU" in done.err
    assert not (folder.path / "train.parquet").exists()


def test_an_error_that_ends_the_script_is_explained_or_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *given: shown.append(given[1]))
    monkeypatch.setattr(Refused, "why", None)
    explain_errors()
    sys.excepthook(OSError, OSError("libnccl.so.2: cannot open"), None)
    assert Refused.why.startswith("the script calls NCCL past torch.distributed")
    sys.excepthook(ValueError, error := ValueError("bad batch\nof 3"), None)
    assert (shown, Refused.why) == ([error], "the script failed: ValueError: bad batch")


# -- a fake world asks for the collectives of the real job, and holds as much memory: two and four ranks -----

WORLDS = ROOT / "validation" / "worlds.py"


@pytest.mark.slow
def test_collectives_and_peaks_are_those_of_the_real_job():
    words = [sys.executable, WORLDS, "--part", "asked", "--model", "MLP", "--json"]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)

    rows = json.loads(done.stdout)["rows"]
    assert [row["way"] for row in rows] == [
        "ddp", "fsdp", "tp", "1f1b", "ddp", "fsdp", "tp", "fsdp x tp", "1f1b",
    ]  # fmt: skip
    assert [row["unequal"] for row in rows] == [[]] * len(rows)
    assert all(row["asked"] >= 32 and abs(row["peak_error"]) <= 0.02 for row in rows)
