"""What `collect --memory` costs: the training thread's CPU time a step, recorded with memory and without.

    python benchmarks/recording_memory.py           a table on stdout, about four minutes
    python benchmarks/recording_memory.py MLP       of one model

Windows of steps without a profiler, with it, and with it and memory come in random order within each round,
in one process a model; a figure is the median over the rounds. CPU time, as other programs that run beside
stretch a step more than this changes it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from functools import partial
from statistics import median
from typing import Any

from recordings import KEEP_FREED_MEMORY

ROUNDS, STEPS = 40, 8
PLAIN, RECORDED, MEMORY = "plain", "recorded", "memory"
MODELS = ("GPT", "MLP", "LSTM", "CNN", "TransformerEncoder")
TABLE = (
    "| model | events a step | recorded / plain | with memory / recorded | ns an event | on two threads |\n"
    "|---|---|---|---|---|---|"
)


def main() -> None:
    """Measure each model in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="which models; all without")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(_measured(options.one))
        return
    print(TABLE, flush=True)
    for name in options.models or MODELS:
        done = subprocess.run(
            [sys.executable, __file__, "--one", name], capture_output=True, text=True, check=True,
            env={**os.environ, **KEEP_FREED_MEMORY, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        print(done.stdout.splitlines()[-1], flush=True)


def _measured(name: str) -> str:
    import small_models
    import torch
    from event_costs import measure_profiler_cost

    from daydream.collect.live.capture import prepared_profiler

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    model, loss = small_models.MODELS[name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    for _ in range(20):
        step()
    chance, times, events = random.Random(1), {kind: [] for kind in (PLAIN, RECORDED, MEMORY)}, 0.0
    for _ in range(ROUNDS):
        for kind in chance.sample(list(times), len(times)):
            nanoseconds, found = _window(step, kind)
            times[kind].append(nanoseconds)
            events = max(events, found)
    ratio = {
        (above, below): median(a / b for a, b in zip(times[above], times[below], strict=True))
        for above, below in ((RECORDED, PLAIN), (MEMORY, RECORDED))
    }
    each = median(a - b for a, b in zip(times[MEMORY], times[RECORDED], strict=True)) / max(events, 1)
    calibrated = [
        measure_profiler_cost(partial(prepared_profiler, memory=True)).get("memory_ns", 0) for _ in range(5)
    ]
    return (
        f"| {name} | {events:,.0f} | {ratio[RECORDED, PLAIN]:.2f} | {ratio[MEMORY, RECORDED]:.3f} "
        f"| {each:.0f} | {median(calibrated):.0f} ({min(calibrated):.0f} to {max(calibrated):.0f}) |"
    )


def _window(step: Any, kind: str) -> tuple[float, float]:
    """Return the median CPU time of a step in ns, and memory events a step."""
    from daydream.collect.live.capture import prepared_profiler, warm_memory
    from daydream.collect.live.layer_hooks import LayerHooks

    if kind == PLAIN:
        return _timed(step), 0.0
    profiler, hooks, warm = prepared_profiler(memory=kind == MEMORY), LayerHooks(), warm_memory()
    hooks.install()
    profiler.start_trace()
    taken = _timed(step)
    hooks.remove()
    profiler.stop_trace()
    del warm
    memory = [event for event in profiler.events() if event.name == "[memory]"]
    return taken, len(memory) / (STEPS + 1)


def _timed(step: Any) -> float:
    step()
    times = []
    for _ in range(STEPS):
        begin = time.thread_time_ns()
        step()
        times.append(time.thread_time_ns() - begin)
    return median(times)


if __name__ == "__main__":
    main()
