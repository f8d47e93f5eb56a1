"""A fake world asks for the same collectives as the real job: gloo, two and four ranks."""

import json

import pytest

pytest.importorskip("torch", reason="runs real jobs")
pytestmark = pytest.mark.slow

JOB = """
import json, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from daydream.world import process_group, script

how, *ways = sys.argv[1:]
torch.set_num_threads(1)

class Gloo(process_group.FakeGroup):
    '''Notes what is asked for as the fake group does, and has gloo do it.'''

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def _answer(self, operation, put_in, pairs=(), **more):
        return super()._answer(operation, put_in, (), **more)

    def allreduce(self, tensors, options):
        self.gloo.allreduce(tensors, options).wait()
        return super().allreduce(tensors, options)

    def broadcast(self, tensors, options):
        self.gloo.broadcast(tensors, options).wait()
        return super().broadcast(tensors, options)

    def allgather(self, outputs, own, options=None):
        self.gloo.allgather(outputs, own).wait()
        return super().allgather(outputs, own, options)

    def all_gather_single_coalesced(self, outputs, own, options=None):
        for output, part in zip(outputs, own):
            self.gloo._allgather_base(output, part).wait()
        return super().all_gather_single_coalesced(outputs, own, options)

    def reduce_scatter_single_coalesced(self, outputs, put_in, options=None):
        for output, whole in zip(outputs, put_in):
            self.gloo._reduce_scatter_base(output, whole).wait()
        return super().reduce_scatter_single_coalesced(outputs, put_in, options)

if how == "fake":
    script.make_world({"world_size": int(ways.pop(0)), "rank": 0, "cluster": None})
    dist.init_process_group("gloo")
else:
    dist.Backend.register_backend("noted", Gloo, devices=["cpu"])
    dist.init_process_group("noted")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))

def model_of(way):
    model = nn.Sequential(*[Block() for _ in range(3)])
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    size = dist.get_world_size()
    split = 2 if "tp" in way else 1
    mesh = init_device_mesh("cpu", (size // split, split), mesh_dim_names=("dp", "tp"))
    for block in model:
        if split > 1:
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if "fsdp" in way:
            fully_shard(block, mesh=mesh["dp"])
    if "fsdp" in way:
        fully_shard(model, mesh=mesh["dp"])
    return model

found = {}
for way in ways:
    torch.manual_seed(0)
    model = model_of(way)
    optimizer = torch.optim.AdamW(model.parameters())
    begin = len(process_group.ASKED)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, 32)).sum().backward()
        if way in ("ddp", "fsdp"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    ranks = {name: of[0] for name, of in process_group.GROUPS.items()}
    found[way] = [
        [one.operation, one.bytes, one.elements, one.dtype, ranks[one.group], one.peer, one.asynchronous]
        for one in process_group.ASKED[begin:]
    ]
if dist.get_rank() == 0:
    print(json.dumps(found))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("size", "ways"), [(2, ("ddp", "fsdp", "tp")), (4, ("tp and fsdp", "fsdp"))], ids=["two", "four"]
)
def test_collectives_are_those_of_the_real_job_in_number_order_bytes_and_group(folder, size, ways):
    folder.script(JOB, begin="")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size))

    real = folder.python(*launcher, "train.py", "real", *ways)
    fake = folder.python("train.py", "fake", str(size), *ways, RANK="0", WORLD_SIZE=str(size))

    assert (real.code, fake.code) == (0, 0), real.err + fake.err
    expected, found = (json.loads(done.out.splitlines()[-1]) for done in (real, fake))
    for way in ways:
        assert len(expected[way]) >= 9  # three steps
        assert found[way] == expected[way]
