"""`fully_shard` over an emulated link, beside the trace without it that is to predict it.

    python benchmarks/fsdp_link.py -o validation/fsdp_link --repeats 2 --minutes 6     six minutes, alone

One process of a group of N: the real `fully_shard`, with its hooks, copies, shards of the optimizer and
order of collectives. Its all-gathers and reduce-scatters are its own hooks for custom ones
(`set_custom_all_gather`, `set_custom_reduce_scatter`): each takes as long as a ring of N on a link
of this bandwidth, one behind the other, and moves nothing. The other workers' shards are copies
of our own that lie ready where they would arrive, and the gradients that come back are always those of
the first step, not zeros, which an update is slower with.

Twice: as torch does it on a CPU, which has no streams, so that each collective is waited for
where it is asked for; and with streams: `torch.cpu`, in which streams and events do nothing, is
replaced by one where they do, and a thread that waits for an event waits for the link. That is the
schedule of a GPU. The method is that of `recordings.py`; `validation/ledger.py` predicts
the steps again from the traces alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emulated_link import (
    LINKS,
    Link,
    at_speed,
    model_of,
    wait_until,
)  # fmt: skip
from recordings import Change, Step, main, measured, record

ROUNDS, BLOCK_STEPS, BLOCK_NS = 5, 2, 60e6
WORKERS = (2, 4)
MODELS = ("GPT", "CNN")
HANDLE = "_get_device_handle"  # by which torch finds streams and events
MODES = {"streams": True, "none": False}  # what is beside compute: transfers as on a GPU, or nothing


def changes() -> dict[str, tuple[int, bool, float, bool, Change]]:
    """Return what is made of a step: workers, resharded or not, GB/s, streams or not; and what predicts it.

    A ring of N passes on 1/N of the bytes in each of N - 1 steps: the link's own time.
    """
    return {
        f"fully_shard of {workers}, {'' if again else 'not '}resharded, {bandwidth:g} GB/s, {mode}": (
            workers, again, bandwidth, streams,
            ("fsdp", {
                "stage": 3 if again else 2, "workers": workers, "bandwidth": bandwidth,
                "latency_us": latency / (workers - 1), "overlap": streams,
                "forward_prefetch": streams,
            }),
        )
        for mode, streams in MODES.items() for workers in WORKERS for again in (True, False)
        for bandwidth, latency in LINKS.items()
    }  # fmt: skip


class Streams:
    """Stands for `torch.cpu`: streams and events that do something, if `on`, over one link."""

    def __init__(self) -> None:
        self.link, self.on = Link(), True
        self.bandwidth, self.latency = 1.0, 0.0  # GB/s; seconds of a collective
        self.compute = _Stream(self, blocks=True)
        self.current = self.compute

    def ring(self, nbytes: int, workers: int) -> None:
        """Move the bytes of a collective on the current stream; without streams stand still meanwhile."""
        seconds = self.latency + (workers - 1) / workers * nbytes / (self.bandwidth * 1e9)
        now = time.perf_counter()
        end = self.link.transfer(seconds, max(now, self.current.ready) if self.on else now)
        if self.on:
            self.current.ready = end
        else:
            wait_until(end)

    def Stream(self, **_: Any) -> _Stream:  # noqa: N802 - torch's name
        """Return a new stream, of any priority."""
        return _Stream(self)

    def Event(self) -> _Event:  # noqa: N802 - torch's name
        """Return an event that nobody has recorded."""
        return _Event(self)

    def current_stream(self, *_: Any) -> _Stream:
        """Return the stream that work is on now."""
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        """Have work on this stream."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class _Stream:
    """When all that was put on a stream is done; work on a stream runs on the thread, transfers beside it."""

    def __init__(self, of: Streams, *, blocks: bool = False) -> None:
        self.of, self.blocks, self.ready = of, blocks, 0.0

    def wait_event(self, event: _Event | None) -> None:
        if event is None or not self.of.on:
            return
        if self.blocks:
            wait_until(event.done)
        else:
            self.ready = max(self.ready, event.done)

    def wait_stream(self, stream: _Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self) -> _Event:
        event = _Event(self.of)
        event.record(self)
        return event


class _Event:
    def __init__(self, of: Streams) -> None:
        self.of, self.done = of, 0.0

    def record(self, stream: _Stream | None = None) -> None:
        self.done = (stream or self.of.current).ready


class Ring:
    """What `fully_shard` takes for its own all-gather or reduce-scatter: memory, and a call."""

    def __init__(self, streams: Streams, workers: int, sent: list[tuple[str, int]], *, gathers: bool) -> None:
        self.streams, self.workers, self.sent, self.gathers = streams, workers, sent, gathers
        self.kept: Any = None
        self.filled = False

    def allocate(self, size: Any, *, dtype: Any, device: Any) -> Any:
        """Return memory; where others would write to, always the same, which has their part already."""
        import torch

        # A reduce-scatter's input is asked for on the compute stream, and made by torch as usual.
        if not self.gathers and self.streams.current is self.streams.compute:
            return torch.empty(*size, dtype=dtype, device=device)
        if self.kept is None:
            self.kept = torch.zeros(*size, dtype=dtype, device=device)
        return self.kept

    def __call__(self, output_tensor: Any, input_tensor: Any, **_: Any) -> None:
        """Move it: an all-gather's result or a reduce-scatter's input is what the ring passes on."""
        nbytes = max(output_tensor.nbytes, input_tensor.nbytes)
        self.sent.append(("all_gather" if self.gathers else "reduce_scatter", nbytes))
        if not self.filled:
            own = input_tensor.clone() if self.gathers else input_tensor[: len(output_tensor)]
            output_tensor.view(-1, len(own)).copy_(own.expand(len(output_tensor) // len(own), -1))
            self.filled = True
        self.streams.ring(nbytes, self.workers)


def shard(
    model: Any, units: list[Any], workers: int, streams: Streams, *, reshard: bool
) -> list[tuple[str, int]]:
    """Shard a model, unit by unit; return the list that its collectives are written to, with their bytes.

    Each unit is gathered one ahead in the forward pass too, as a GPU's CPU, which runs ahead, would have it.
    """
    from torch.distributed import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (max(WORKERS) // workers, workers), mesh_dim_names=("copies", "shards"))
    sent: list[tuple[str, int]] = []
    for unit in units:
        fully_shard(unit, mesh=mesh["shards"], reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh["shards"], reshard_after_forward=None if reshard else False)
    for unit, following in zip((model, *units), units, strict=False):
        unit.set_modules_to_forward_prefetch([following])
    for unit in (*units, model):
        unit.set_custom_all_gather(Ring(streams, workers, sent, gathers=True))
        unit.set_custom_reduce_scatter(Ring(streams, workers, sent, gathers=False))
    return sent


@contextlib.contextmanager
def group_of_one() -> Iterator[Streams]:
    """Be one worker of a group whose others do not exist; yield its streams."""
    from torch import distributed
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param_group, _fsdp_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    streams = Streams()
    users: list[Any] = [_fsdp_collectives, _fsdp_param_group, _fsdp_state]
    theirs = [getattr(user, HANDLE) for user in users]
    distributed.init_process_group("fake", rank=0, world_size=max(WORKERS), store=FakeStore())
    try:
        for user in users:
            setattr(user, HANDLE, lambda *_: streams)
        yield streams
    finally:
        for user, handle in zip(users, theirs, strict=True):
            setattr(user, HANDLE, handle)
        distributed.destroy_process_group()


def recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step without sharding; return the measured ratio of each link."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    base = _step(*model_of(name))
    with group_of_one() as streams:
        models = {}
        for workers in WORKERS:
            for again in (True, False):
                model, loss = model_of(name)
                shard(model, units_of(name, model), workers, streams, reshard=again)
                models[workers, again] = _step(model, loss)
        made = changes()
        linked = {
            title: _over(streams, models[workers, again], bandwidth, on)
            for title, (workers, again, bandwidth, on, _) in made.items()
        }
        # Before the trace: a process that holds more memory gives less of it back, and has fewer page faults.
        for step in models.values():
            step()
        recorded_ms = record(base, path)
        one = measured(
            {"base": base, "again": base, **linked}, {title: change for title, (*_, change) in made.items()},
            rounds=ROUNDS, block_steps=BLOCK_STEPS, block_ns=BLOCK_NS,
        )  # fmt: skip
    return at_speed(recorded_ms, one)


def units_of(name: str, model: Any) -> list[Any]:
    """Return the blocks that a model repeats."""
    from small_models import Residual

    return list(model.blocks) if name == "GPT" else [part for part in model if isinstance(part, Residual)]


def _over(streams: Streams, step: Step, bandwidth: float, on: bool) -> Step:  # noqa: FBT001 - of a tuple
    """Return a sharded model's step over a link of this bandwidth."""

    def over() -> None:
        streams.bandwidth, streams.latency, streams.on = bandwidth, LINKS[bandwidth] / 1e6, on
        step()

    return over


def _step(model: Any, loss: Any) -> Step:
    """Return a training step; the update as on a GPU, all parameters in one call of each operator.

    Parameters hardly move, as the sharded models get the same gradients again and again.
    """
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6, foreach=True)

    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main(__doc__, __file__, MODELS, recording)
