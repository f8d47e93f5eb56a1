"""One of two ranks of DistributedDataParallel: trains with tools, then a model written by hand; writes both.

python ddp_training.py RANK PORT FILE
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from small_training import X, Y, kept, model, on, straight_through, with_weights
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from daydream.instrument import apply


def train(net, rank):
    """Return the losses of four steps, and the gradients of each as they are after all-reduce."""
    parallel = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses, gradients = [], []
    for _ in range(4):
        optimizer.zero_grad()
        loss = F.cross_entropy(parallel(X + rank), Y)
        loss.backward()
        gradients.append([each.grad.flatten().tolist() for each in net.parameters()])
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients


def main():
    rank, port, file = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    by_hand = with_weights(straight_through(kept))
    for block in by_hand[:2]:
        block.act = nn.ReLU()
    plain = train(model(), rank)
    wanted = train(by_hand, rank)
    mask = on("linear", lambda op: op.insert_before_op(kept, inputs=[1]))
    relu = on("gelu", lambda op: op.replace_op(torch.relu, inputs=[0], grad=True))
    with apply(mask, relu) as session:
        found = train(model(), rank)
    left = train(model(), rank)
    ids = list(session.contexts)
    actions = [key for key, one in session.contexts.items() if one.actions.on_operator]
    losses = {"plain": plain, "by_hand": wanted, "with_tools": found, "after": left}
    file.write_text(json.dumps({**losses, "ids": ids, "actions": actions}))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
