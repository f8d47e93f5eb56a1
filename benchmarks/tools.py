"""What tools over the events of a trace take for a million rows: process time, the median of some rounds."""

from __future__ import annotations

from statistics import median
from time import process_time

import numpy as np

import daydream
from daydream.tools.tool import Event, Events

ROWS, ROUNDS = 1_000_000, 5
KINDS = ("operator", "runtime", "kernel", "memcpy")


@daydream.tool
class EachRow:
    """Adds up times row by row."""

    def __init__(self) -> None:
        self.total_ns = 0

    def on_kernel(self, event: Event) -> None:
        """Add one."""
        self.total_ns += event.duration_ns

    on_operator = on_call = on_copy = on_kernel

    def result(self) -> dict[str, int]:
        """Return the sum."""
        return {"total_ns": self.total_ns}


@daydream.tool
class AllRows:
    """Adds them up by columns."""

    def __init__(self) -> None:
        self.total_ns = 0

    def on_kernels(self, events: Events) -> None:
        """Add all of a kind."""
        self.total_ns += int(events["duration_ns"].sum())

    on_operators = on_calls = on_copies = on_kernels

    def result(self) -> dict[str, int]:
        """Return the sum."""
        return {"total_ns": self.total_ns}


def main() -> None:
    """Print a row for each tool."""
    place, names = np.arange(ROWS), [f"k{number}" for number in range(50)]
    columns = {
        "kind": (place % len(KINDS)).astype(np.int32), "name": place % len(names), "start_ns": 10 * place,
        "duration_ns": np.full(ROWS, 7), "stream": np.full(ROWS, 7), "device": np.zeros(ROWS, np.int64),
        "correlation": place,
    }  # fmt: skip
    trace = daydream.Trace(columns, {"kind": list(KINDS), "name": names}, {"notes": [], "steps": []})
    print(f"| tool | s of process time, {ROWS:,} rows |\n|---|---:|")
    for tool in (EachRow, AllRows, "kernel-frequency", "idle-gaps"):
        times = []
        for _ in range(ROUNDS):
            begin = process_time()
            daydream.run_tool(tool, trace)
            times.append(process_time() - begin)
        print(f"| {tool if isinstance(tool, str) else tool.__name__} | {median(times):.2f} |")


if __name__ == "__main__":
    main()
