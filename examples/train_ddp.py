"""Train a perceptron on several processes with DistributedDataParallel, on GPUs if there are enough.

    daydream collect --nproc-per-node 2 examples/train_ddp.py

The trace holds every rank. Without torchrun, or `--nproc-per-node`, it is a job of one rank. With `--late-ms`
the last rank comes so much later in each step, in a range that is called `late`.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel


def place() -> tuple[torch.device, str]:
    """Return this rank's device, and the backend for it."""
    local, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if torch.cuda.device_count() >= ranks:
        return torch.device("cuda", local), "nccl"
    return torch.device("cpu"), "gloo"


def main() -> None:
    """Train; rank 0 says how the loss went."""
    parser = argparse.ArgumentParser()
    for name, value in (
        ("steps", 60),
        ("batch", 32),
        ("width", 256),
        ("layers", 6),
        ("bucket-mb", 1),
        ("late-ms", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()

    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    os.environ.update({name: os.environ.get(name, value) for name, value in alone.items()})
    device, backend = place()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    distributed.init_process_group(backend)
    rank = distributed.get_rank()

    torch.manual_seed(rank)  # every rank its own data; DDP starts them all with rank 0's parameters
    hidden = [
        nn.Sequential(nn.Linear(options.width, options.width), nn.ReLU()) for _ in range(options.layers)
    ]
    model = nn.Sequential(*hidden, nn.Linear(options.width, 10)).to(device)
    model = DistributedDataParallel(model, bucket_cap_mb=options.bucket_mb)
    optimizer = torch.optim.Adam(model.parameters())
    loss_of = nn.CrossEntropyLoss()
    for step in range(options.steps):
        rows = torch.randn(options.batch, options.width, device=device)
        labels = torch.randint(10, (options.batch,), device=device)
        if options.late_ms and rank == distributed.get_world_size() - 1:
            with torch.profiler.record_function("late"):
                time.sleep(options.late_ms / 1000)
        loss = loss_of(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
