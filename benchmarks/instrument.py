"""What instrumentation costs per step: process time, interleaved, with an A/A control.

    python benchmarks/instrument.py

Prints a line for each case: the median over rounds of (case / plain step) - 1. Steps are of 100 ms and more.
`A/A` is the plain step against itself. The paper's figure (Amanda, ASPLOS 2024, section 6.5): below 1 % in
eager mode.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from daydream.instrument import Tool, apply

ROUNDS, STEPS = 9, 2


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    blocks = [
        nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
        for _ in range(6)
    ]
    net, x = nn.Sequential(*blocks), torch.randn(384, 512)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)

    def steps(number: int = STEPS) -> float:
        start = time.process_time()
        for _ in range(number):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return (time.process_time() - start) / number

    nothing = Tool()
    nothing.add_inst_for_op(lambda _: None)
    one = Tool()
    one.add_inst_for_op(lambda op: op.insert_after_op(lambda _: None) if op["type"] == "gelu" else None)

    def under(tool: Tool, *, cache: bool = True) -> Callable[[], float]:
        def run() -> float:
            with apply(tool, cache=cache):
                steps(2)  # the first is analysed, the second begins with what was ordered
                return steps()

        return run

    cases: dict[str, Callable[[], float]] = {
        "A/A": steps,
        "tools without actions": under(nothing),
        "one kind with an action": under(one),
        "the same, without the cache": under(one, cache=False),
    }
    ratios: dict[str, list[float]] = {name: [] for name in cases}
    steps(3)
    plain_ms = []
    for _ in range(ROUNDS):
        for name, run in cases.items():
            plain = steps()
            plain_ms.append(plain * 1e3)
            ratios[name].append(run() / plain - 1)
    print(f"plain step: {statistics.median(plain_ms):.0f} ms of process time, one thread, {ROUNDS} rounds")
    for name, found in ratios.items():
        low, _, high = statistics.quantiles(found, n=4)
        print(f"{name:<30} {statistics.median(found):+7.1%}   quartiles {low:+.1%} to {high:+.1%}")


if __name__ == "__main__":
    main()
