"""The tools that ship. Each is one class of at most 15 lines, and an example of how to write one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import numpy as np

from daydream.graph.rules.synchronization import DEVICE_SYNC, EVENT_SYNC, STREAM_SYNC
from daydream.lazy import regex
from daydream.memory.enclosing import argument_bytes
from daydream.tools.tool import Event, Events, tool

MOST = 20  # rows of a table


def _table(names: str, rows: Iterable[tuple[Any, ...]], by: str = "") -> list[dict[str, Any]]:
    """Return rows with the names of their columns; `by` gives those with the largest values of one."""
    found = [dict(zip(names.split(), row, strict=True)) for row in rows]
    if by:
        first, *_ = names.split()
        found = sorted(found, key=lambda row: (-row[by], str(row[first])))[:MOST]
    return found


@tool
class KernelFrequency:
    """How often each device kernel runs, collectives included."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.total: Counter[str] = Counter()

    def on_kernel(self, kernel: Event) -> None:
        self.count[kernel.name] += 1
        self.total[kernel.name] += kernel.duration_ns

    def result(self) -> dict[str, Any]:
        rows = ((name, count, self.total[name]) for name, count in self.count.most_common())
        return {"kernels": _table("name count total_ns", rows)}


@tool
class TopKernels:
    """The kernels that take the most time, and the calls that they come from, the innermost first."""

    def __init__(self) -> None:
        self.total: Counter[tuple[str, str, str]] = Counter()

    def on_kernel(self, kernel: Event) -> None:
        around = list(kernel.around)
        names = [event.name for event in around]  # the launch, the operator, what called it
        source = next((f" at {event.stack}" for event in around if event.stack), "")
        stack = " < ".join(names) + source
        self.total[kernel.name, "".join(names[1:2]), stack] += kernel.duration_ns

    def result(self) -> dict[str, Any]:
        most = self.total.most_common(MOST)
        rows = ((name, operator, ns, stack) for (name, operator, stack), ns in most)
        return {"kernels": _table("name operator total_ns stack", rows)}


@tool
class OperatorFootprint:
    """The most that one call of each operator is given, by its arguments' shapes: an upper bound."""

    def __init__(self) -> None:
        self.most: dict[str, int] = defaultdict(int)

    def on_operators(self, operators: Events) -> None:
        sizes = argument_bytes(operators.trace, operators.rows)
        for name, given in zip(operators.values("name"), sizes, strict=True):
            self.most[name] = max(self.most[name], sum(given))

    def result(self) -> dict[str, Any]:
        rows = (each for each in self.most.items() if each[1])
        return {"operators": _table("name bytes", rows, by="bytes")}


@tool
class LaunchDelays:
    """How long kernels wait between the start of their launch and their own, a stream at a time."""

    def __init__(self) -> None:
        self.waits: dict[tuple[int, int, int], list[int]] = defaultdict(list)

    def on_kernel(self, kernel: Event) -> None:
        if kernel.parent is not None:
            stream = (kernel.rank or 0, kernel.device, kernel.stream)
            self.waits[stream].append(kernel.start_ns - kernel.parent.start_ns)

    def result(self) -> dict[str, Any]:
        rows = []
        for stream, waits in sorted(self.waits.items()):
            figures = map(int, np.percentile(waits, [50, 95, 100]))
            rows.append((*stream, len(waits), *figures))
        return {"streams": _table("rank device stream kernels median_ns p95_ns longest_ns", rows)}


@tool
class Synchronization:
    """What waits for a device or for other ranks: calls that synchronize, and barriers."""

    def __init__(self) -> None:
        self.total: Counter[tuple[str, str]] = Counter()
        self.count: Counter[tuple[str, str]] = Counter()

    def on_call(self, call: Event) -> None:
        if any(rule.search(call.name) for rule in (DEVICE_SYNC, STREAM_SYNC, EVENT_SYNC, BARRIER)):
            self.count[call.name, call.op or ""] += 1
            self.total[call.name, call.op or ""] += call.duration_ns

    on_operator = on_call

    def result(self) -> dict[str, Any]:
        rows = ((*at, count, self.total[at]) for at, count in self.count.items())
        return {"calls": _table("name operator count total_ns", rows, by="total_ns")}


BARRIER = regex(r"\bbarrier\b", re.IGNORECASE)


@tool
class Copies:
    """Copies and memsets of a device by direction and size."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)

    def on_copy(self, copy: Event) -> None:
        size = copy.bytes or 0
        self.found[copy.name, 1 << size.bit_length()].append((size, copy.duration_ns))

    def result(self) -> dict[str, Any]:
        rows = (
            (*group, len(each), *map(sum, zip(*each, strict=True)))
            for group, each in sorted(self.found.items())
        )
        return {"copies": _table("name below_bytes count bytes total_ns", rows)}


@tool
class MemoryCurves:
    """Allocated memory of each rank and device over the recording, side by side: most of each of 20 parts."""

    def on_allocations(self, allocations: Events) -> None:
        time = allocations["time_ns"]
        rank = allocations["rank"]
        device = allocations["device"]
        part = (time - min(time, default=0)) * MOST // (np.ptp(time) + 1 if len(time) else 1)
        self.rows: dict[int, dict[str, Any]] = {
            n: {"part": n + 1} for n in np.unique(part).tolist()
        }
        for at in sorted(set(zip(rank.tolist(), device.tolist(), strict=True))):
            mine = (rank == at[0]) & (device == at[1])
            name = f"rank {at[0]}, {'CPU' if at[1] < 0 else f'GPU {at[1]}'} bytes"
            total = allocations["allocated_bytes"][mine]
            held = np.where(total >= 0, total, np.cumsum(allocations["bytes"][mine]))
            for n, most in zip(part[mine].tolist(), held.tolist(), strict=True):
                self.rows[n][name] = max(most, self.rows[n].get(name, most))

    def result(self) -> dict[str, Any]:
        return {"parts": list(self.rows.values())}


@tool
class IdleGaps:
    """The longest times in which a device had no work, and the kernel or copy that ended each."""

    def __init__(self) -> None:
        self.work: list[tuple[Any, ...]] = []

    def on_kernels(self, work: Events) -> None:
        names = ("start_ns", "duration_ns", "rank", "device", "name")
        self.work += zip(*map(work.values, names), strict=True)

    on_copies = on_kernels

    def result(self) -> dict[str, Any]:
        end: dict[tuple[int, int], int] = {}
        gaps = []
        for start, ns, rank, device, name in sorted(self.work, key=itemgetter(0)):
            before = end.setdefault((rank, device), start)
            if start > before:
                gaps.append((name, rank or 0, device, before, start - before))
            end[rank, device] = max(before, start + ns)
        return {"gaps": _table("until rank device start_ns gap_ns", gaps, by="gap_ns")}
