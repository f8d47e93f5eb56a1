"""Worker: training steps of a small model with this or that of recording switched on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from small_models import MODELS
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from workers import serve

from daydream.collect.live.capture import Capture, prepared_profiler
from daydream.collect.live.layer_hooks import LayerHooks
from daydream.collect.live.session import Session

STEP: dict[str, Callable[[], None]] = {}
WAYS = ("nothing", "nothing again", "hooks", "profiler", "capturing")


def prepare(model: str) -> None:
    """Make a model and its optimizer, and warm both up."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    net, loss = MODELS[model]()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    STEP["step"] = step
    for _ in range(10):
        step()


def steps(count: int, way: str = "nothing") -> float:
    """Return the seconds a step takes, over `count` steps after one to settle."""
    begin, end = _way(way)
    begin()
    STEP["step"]()
    start = perf_counter()
    for _ in range(count):
        STEP["step"]()
    seconds = (perf_counter() - start) / count
    end()
    return seconds


def _way(way: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    if way == "hooks":
        hooks = LayerHooks()
        return hooks.install, hooks.remove
    if way == "profiler":
        profiler = prepared_profiler()
        return profiler.start_trace, profiler.stop_trace
    if way == "capturing":
        capture = Capture()
        return capture.start, lambda: capture.stop([])
    return lambda: None, lambda: None


def collect() -> int:
    """Record this process's steps as `daydream collect` does, to the end; return the trace's rows."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder) / "trace.parquet", warmup=2, steps=3, unprofiled=5)
        session.install()
        while not session.done:
            STEP["step"]()
        session.finish("the end")
        return len(session.trace) if session.trace is not None else 0


def one_module(calls: int) -> dict[str, float]:
    """Return the microseconds of a call of an inner `nn.Identity`: plain, with empty hooks, with ours."""
    inner, x, hooks = torch.nn.Identity(), torch.zeros(1), LayerHooks()
    taken = {}

    class Outer(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            begin = perf_counter()
            for _ in range(calls):
                inner(x)
            taken[way] = (perf_counter() - begin) / calls * 1e6
            return x

    outer = Outer()
    way = "plain"
    outer(x)
    way = "empty"
    empty = [
        register_module_forward_pre_hook(lambda *_: None),
        register_module_forward_hook(lambda *_: None, always_call=True),
    ]
    outer(x)
    for handle in empty:
        handle.remove()
    way = "ours"
    hooks.install()
    outer(x)
    hooks.remove()
    return taken


if __name__ == "__main__":
    serve({"prepare": prepare, "steps": steps, "collect": collect, "one_module": one_module})
