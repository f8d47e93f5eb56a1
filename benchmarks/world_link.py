"""Steps of two ranks, predicted from one rank in a fake world, beside the same steps over an emulated link.

    python benchmarks/world_link.py -o validation/world_link      about ten minutes; alone on the machine

One process, rank 0 of two. Its process group is the fake world's own, or the same one whose collectives end
when an emulated link has carried them (`emulated_link.py`): real DistributedDataParallel and `fully_shard`,
with their buckets, waits and overlap. The step of the fake world is recorded, the others are measured, in
turns. What the replay makes of the trace with the link's own times is held against the measured ratio.
"""

from __future__ import annotations

import importlib
import json
import queue
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from emulated_link import LINKS, Link, model_of, wait_until
from fsdp_link import units_of
from recordings import Step, main, measured, record

ROUNDS, BLOCK_STEPS, BLOCK_NS = 6, 3, 120e6
MODELS = tuple(
    f"{model}, {way}"
    for model in ("GPT", "MLP", "CNN")
    for way in ("DDP 25", "DDP 4", "DDP 1", "fully_shard")
)


def recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step in the fake world; return measured and predicted ratio of each link."""
    import torch
    from torch import distributed

    import daydream
    from daydream.world import process_group, script

    class Linked(process_group.FakeGroup):
        """Ends collectives when a link has carried them; at once where there is none."""

        over: tuple[Link, float, float] | None = None  # link, bytes a second, seconds of a collective

        def _answer(self, operation: str, put_in: Any, *given: Any, **named: Any) -> Any:
            done = super()._answer(operation, put_in, *given, **named)
            if self.over is None:
                return done
            link, bandwidth, latency = self.over
            nbytes = sum(tensor.nbytes for tensor in put_in) * (2 if operation == "all_gather" else 1)
            rounds = 2 if operation == "all_reduce" else 1
            seconds = rounds * (latency / 2 + nbytes / 2 / bandwidth)
            return carried(done, link.transfer(seconds, time.perf_counter()))

    threading.Thread(target=complete, daemon=True).start()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    script.FakeGroup = Linked  # type: ignore[misc]
    script.make_world({"world_size": 2, "rank": 0, "cluster": None})
    distributed.init_process_group("gloo")
    model, _, way = name.partition(", ")
    step = _step(model, way)
    recorded_ms = record(step, path)
    links = {f"{name}, {bandwidth:g} GB/s": (bandwidth, latency) for bandwidth, latency in LINKS.items()}

    def over(bandwidth: float, latency_us: float) -> Step:
        link = Link(), bandwidth * 1e9, latency_us / 1e6

        def linked() -> None:
            Linked.over = link
            step()
            Linked.over = None

        return linked

    made = {title: over(*link) for title, link in links.items()}
    one = measured(
        {"base": step, "again": step, **made}, {title: ("", {}) for title in made},
        rounds=ROUNDS, block_steps=BLOCK_STEPS, block_ns=BLOCK_NS,
    )  # fmt: skip
    worlds = importlib.import_module("daydream.costs.network.fake_world")
    for title, (bandwidth, latency) in {"": (1e9, 0), **links}.items():
        worlds.cluster_of_world = lambda _, link=(bandwidth, latency): OneLink(*link)
        step_ns = daydream.replay(path).basis_ns
        if not title:
            base_ns = step_ns  # a link that takes no time
            continue
        change = one["changes"][title]
        change["predicted"] = round(step_ns / base_ns, 4)
        change["error"] = round(change["predicted"] / change["measured"] - 1, 4)
    return {"speed": round(one["step_ms"] / recorded_ms, 4), **one}


ASKED: queue.SimpleQueue[tuple[float, Any, Any]] = queue.SimpleQueue()  # end, future, its result


def complete() -> None:
    """Complete futures when they end, one behind the other."""
    while True:
        end, future, result = ASKED.get()
        time.sleep(max(0.0, end - time.perf_counter()))
        future.set_result(result)


def carried(done: Any, end: float) -> Any:
    """Return a work whose waits, and whose future, are over then."""
    import torch

    work, wait = done, done.wait

    def until_then(timeout: Any = None) -> bool:
        wait_until(end)
        return wait(timeout)

    def future() -> Any:
        found: Any = torch.futures.Future()
        ASKED.put((end, found, done.result()))
        return found

    work.wait, work.get_future = until_then, future
    return work


class OneLink:
    """Stands for a cluster: two ranks in a ring on a link, which costs its latency once a collective."""

    gpus_per_node = 2

    def __init__(self, bandwidth: float, latency_us: float) -> None:
        self.bandwidth, self.latency_ns = bandwidth, latency_us * 1e3

    def time_ns(self, operation: str, nbytes: float, *_: Any, **__: Any) -> int:
        """Return the time of a collective among two, ns; `nbytes` as `Cluster.time_ns` has them."""
        rounds = 2 if operation == "all_reduce" else 1
        return round(rounds * (self.latency_ns + nbytes / self.bandwidth) / 2)

    def describe(self) -> str:
        """Return what the link is."""
        return "One link."


def _step(name: str, way: str) -> Step:
    import torch
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    model, loss = model_of(name)
    if way == "fully_shard":
        for unit in units_of(name, model):
            fully_shard(unit)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=float(way.split()[1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    folder = main(__doc__, __file__, MODELS, recording)
    if folder is not None:
        recordings = json.loads(next(folder.glob("*.json")).read_text())["recordings"]
        errors = [abs(change["error"]) for one in recordings for change in one["changes"].values()]
        print(f"{len(errors)} steps: median error {median(errors):.1%}, worst {max(errors):.1%}")
