"""DistributedDataParallel over an emulated link, beside the trace without it that is to predict it.

    python benchmarks/ddp_link.py -o validation/ddp_link      about six minutes; alone on the machine

One process, world size 1, the real DistributedDataParallel: its buckets, copies and overlap. A
communication hook hands each bucket to a link that completes it after latency + bytes / bandwidth,
one bucket behind the other. So any bandwidth can be had on one machine, and no second process
takes part of it. The method is that of `recordings.py`; `validation/ledger.py` predicts
the steps again from the traces alone.
"""

from __future__ import annotations

import queue
import threading
import time
from pathlib import Path
from typing import Any

from emulated_link import (
    LINKS,
    Link,
    at_speed,
    model_of,
)  # fmt: skip
from recordings import Change, Step, main, measured, record

ROUNDS, BLOCK_STEPS, BLOCK_NS = 6, 3, 120e6
CAPS = (25.0, 4.0, 1.0)  # MB, `bucket_cap_mb`
MODELS = ("GPT", "MLP", "CNN")


def changes() -> dict[str, tuple[float, float, float, Change]]:
    """Return what is made of a step: GB/s, us and cap, and what predicts it.

    A ring of two has two steps that pass on half of the bytes each: the link's own time.
    """
    return {
        f"DDP, {bandwidth:g} GB/s, cap {cap:g} MB": (
            bandwidth, latency, cap,
            ("ddp", {"workers": 2, "bandwidth": bandwidth, "latency_us": latency / 2, "bucket_mb": cap}),
        )
        for bandwidth, latency in LINKS.items() for cap in CAPS
    }  # fmt: skip


class Reduced:
    """Completes futures of buckets that are sent over a link."""

    def __init__(self, bandwidth: float, latency_us: float) -> None:
        self.link, self.bandwidth, self.latency = Link(), bandwidth * 1e9, latency_us / 1e6
        self.sent: queue.SimpleQueue[tuple[Any, Any, float]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, buffer: Any) -> Any:
        """Return a future of the bytes that are handed to the link now."""
        import torch

        future: Any = torch.futures.Future()
        self.sent.put((future, buffer, time.perf_counter()))
        return future

    def _run(self) -> None:
        while True:
            future, buffer, sent = self.sent.get()
            end = self.link.transfer(self.latency + buffer.nbytes / self.bandwidth, sent)
            time.sleep(max(0.0, end - time.perf_counter()))
            future.set_result(buffer)


def recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step without DDP; return the measured ratio of each link and cap."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    base = _step(name)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    made = changes()
    linked = {title: _step(name, cap, Reduced(*link)) for title, (*link, cap, _) in made.items()}
    # Before the trace: a process that holds more memory gives less of it back, and has fewer page faults.
    for step in linked.values():
        step()
    recorded_ms = record(base, path)
    one = measured(
        {"base": base, "again": base, **linked}, {title: change for title, (*_, change) in made.items()},
        rounds=ROUNDS, block_steps=BLOCK_STEPS, block_ns=BLOCK_NS,
    )  # fmt: skip
    distributed.destroy_process_group()
    return at_speed(recorded_ms, one)


def _step(name: str, cap: float | None = None, link: Reduced | None = None) -> Step:
    """Return a training step of a model of its own, wrapped if there is a link."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model, loss = model_of(name)
    if link is not None:
        model = DistributedDataParallel(model, bucket_cap_mb=cap)
        model.register_comm_hook(None, lambda _, bucket: link.send(bucket.buffer()))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main(__doc__, __file__, MODELS, recording)
