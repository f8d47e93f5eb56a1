"""Record a few steps of a small model in this process."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from live_models import MODELS

from daydream.collect.live.recorder import Recorder
from daydream.trace.trace import Trace

torch = pytest.importorskip("torch", reason="recording needs torch")


def record(loop: Callable[[], Any], folder: Path, *, iterations: int = 40, **options: Any) -> Trace:
    """Return the trace of a loop's body, called until the recording is over."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    recorder = Recorder(folder / "trace.parquet", **{"warmup": 2, "steps": 3, "unprofiled": 0, **options})
    recorder.install()
    try:
        for _ in range(iterations):
            loop()
            if recorder.done:
                break
        recorder.finish("the loop ended")
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    assert recorder.trace is not None
    return recorder.trace


def train(model: Any, loss: Callable[[], Any], **settings: Any) -> Callable[[], None]:
    """Return a plain iteration."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, **settings)

    def iteration() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return iteration


@cache
def recorded(name: str) -> tuple[Any, Trace, list[str]]:
    """Return a model, its trace, and the parameters whose gradients per step accumulated, in order.

    The order comes from hooks that torch runs inside AccumulateGrad: the truth to hold owners against.
    """
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    order: list[str] = []
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, path=path: order.append(path))
    iteration = train(model, loss)

    def loop() -> None:
        order.clear()
        iteration()

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of modules that are not ours
        trace = record(loop, Path(folder))
    return model, trace, order
