"""What an operator call takes: on a CPU by its clock, on a GPU by events around many calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

WARM_UP = 3  # calls: libraries choose their kernel in the first
CPU_CALLS = 200  # at most; the fastest counts, as other programs only ever add
GPU_CALLS = 100  # in a row between two events; well under the launches that a stream's queue holds
GPU_BLOCKS = 5
HEAD_START_CYCLES = 2_000_000  # about 1 ms of a GPU that waits while the CPU launches ahead of it
NS = 1e9


def time_ns(run: Callable[[], object], device: str, limit_s: float) -> tuple[float, int]:
    """Return the time of a call in ns, and of how many calls; it stops after `limit_s` seconds.

    A call that is under way is not stopped: a single slow one counts alone.
    """
    return _on_gpu(run, limit_s) if device.startswith("cuda") else _on_cpu(run, limit_s)


def _on_cpu(run: Callable[[], object], limit_s: float) -> tuple[float, int]:
    end = time.perf_counter_ns() + limit_s * NS
    times: list[int] = []
    for _ in range(WARM_UP + CPU_CALLS):
        begin = time.perf_counter_ns()
        run()
        now = time.perf_counter_ns()
        times.append(now - begin)
        if now >= end:
            break
    counted = times[WARM_UP:] or times[-1:]
    return float(min(counted)), len(counted)


def _on_gpu(run: Callable[[], object], limit_s: float) -> tuple[float, int]:
    """Time blocks of calls behind a head start, so that launching them is not what is measured."""
    import torch

    for _ in range(WARM_UP):
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    one = time.perf_counter() - begin
    calls = int(min(max(limit_s / GPU_BLOCKS / max(one, 1e-6), 1), GPU_CALLS))
    end = begin + limit_s
    means: list[float] = []
    event: Any = torch.cuda.Event
    wait: Any = getattr(torch.cuda, "_sleep", None)
    for _ in range(GPU_BLOCKS):
        first = event(enable_timing=True)
        last = event(enable_timing=True)
        if wait is not None:
            wait(HEAD_START_CYCLES)
        first.record()
        for _ in range(calls):
            run()
        last.record()
        torch.cuda.synchronize()
        means.append(first.elapsed_time(last) * 1e6 / calls)
        if time.perf_counter() >= end:
            break
    return float(median(means)), calls * len(means)


@contextmanager
def number_format(dtype: str | None) -> Iterator[None]:
    """Let products of float32 run in TF32 for `tf32`, and exactly for all else."""
    import torch

    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value
