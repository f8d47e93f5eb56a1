"""What `fully_shard` costs the CPU by its calls alone: the figures of `optimizations/fsdp.py`.

    python benchmarks/sharding_calls.py      under a minute

Models of 4 and 12 units with 1 and 11 parameters of 16 values each, plain and sharded, take turns;
collectives take no time (`fsdp_link.py`). What a unit or a parameter adds to a step is the CPU time of the
thread, the lower quartile of the rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from fsdp_link import Streams, group_of_one, shard
from torch import Tensor, nn

UNITS, PARAMETERS = (4, 12), (1, 11)
ROUNDS, WARM = 60, 5
SORTS: dict[str, bool | None] = {
    "plain": None,
    "resharded": True,
    "kept": False,
}  # and `reshard` of the others
PASSES = ("forward", "backward", "update")
ONES = torch.ones(16)
Phases = Callable[[], tuple[int, ...]]


class Unit(nn.Module):
    """Some vectors to multiply by."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.factors = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(parameters))

    def forward(self, x: Tensor) -> Tensor:
        """Return the product."""
        for factor in self.factors:
            x = x * factor
        return x


def phases_of(model: nn.Module, *, foreach: bool) -> Phases:
    """Return a training step that returns the thread's CPU time of each of its passes, ns."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, foreach=foreach)

    def step() -> tuple[int, ...]:
        optimizer.zero_grad()
        times = [time.thread_time_ns()]
        loss = model(ONES).sum()
        times.append(time.thread_time_ns())
        loss.backward()
        times.append(time.thread_time_ns())
        optimizer.step()
        times.append(time.thread_time_ns())
        return tuple(later - before for before, later in pairwise(times))

    return step


def measured(streams: Streams, *, foreach: bool) -> dict[tuple[str, str], tuple[float, float]]:
    """Return ns a unit and a parameter that each sort of sharding adds to each pass of a step."""
    steps: dict[tuple[str, int, int], Phases] = {}
    for units in UNITS:
        for parameters in PARAMETERS:
            for sort, reshard in SORTS.items():
                model = nn.Sequential(*(Unit(parameters) for _ in range(units)))
                if reshard is not None:
                    shard(model, list(model), 2, streams, reshard=reshard)
                steps[sort, units, parameters] = phases_of(model, foreach=foreach)
    times: dict[tuple[str, int, int], list[tuple[int, ...]]] = {what: [] for what in steps}
    for _ in range(ROUNDS):
        for what, step in steps.items():
            times[what].append(step())
    quartile = {
        what: [sorted(column)[len(column) // 4] for column in zip(*rounds[WARM:], strict=True)]
        for what, rounds in times.items()
    }
    (few, many), (one, eleven) = UNITS, PARAMETERS
    found = {}
    for sort in ("resharded", "kept"):
        for place, name in enumerate(PASSES):
            more = {
                size: quartile[(sort, *size)][place] - quartile[("plain", *size)][place]
                for size in ((few, one), (many, one), (many, eleven))
            }
            parameter = (more[many, eleven] - more[many, one]) / (many * (eleven - one))
            unit = (more[many, one] - more[few, one]) / (many - few) - one * parameter
            found[sort, name] = unit, parameter
    return found


def main() -> None:
    """Print the costs."""
    torch.set_num_threads(1)
    with group_of_one() as streams:
        streams.bandwidth = 1e9
        lists, single = (measured(streams, foreach=foreach) for foreach in (True, False))
    rows: dict[str, tuple[Any, ...]] = {
        "forward": lists["kept", "forward"],
        "backward": tuple(
            a - b for a, b in zip(lists["resharded", "backward"], lists["kept", "backward"], strict=True)
        ),
        "scatter": lists["kept", "backward"],
        "update, foreach": lists["kept", "update"],
        "update, a parameter at a time": single["kept", "update"],
    }
    for name, (unit, parameter) in rows.items():
        print(f"{name:30} {unit / 1e3:6.0f} us a unit {parameter / 1e3:6.1f} us a parameter")


if __name__ == "__main__":
    main()
