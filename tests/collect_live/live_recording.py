"""Record a few steps of a small model in this process."""

import tempfile
import warnings
from functools import cache
from pathlib import Path

import pytest
from live_models import MODELS

from daydream.collect.live.recorder import Recorder

torch = pytest.importorskip("torch", reason="recording needs torch")


def record(loop, folder, *, iterations=40, **options):
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


def train(model, loss, **settings):
    """Return a plain iteration."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, **settings)

    def iteration():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return iteration


@cache
def recorded(name):
    """Return a model, its trace, and the parameters whose gradients per step accumulated, in order.

    The order comes from hooks that torch runs inside AccumulateGrad: the truth to hold owners against.
    """
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    order = []
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, path=path: order.append(path))
    iteration = train(model, loss)

    def loop():
        order.clear()
        iteration()

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of modules that are not ours
        trace = record(loop, Path(folder))
    return model, trace, order
