"""Counted launches meet the kernels of a trace: by kernel, grid and order, else by their mean."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from daydream.costs.counters.amounts import CountedKernel
from daydream.errors import FileError
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.trace import Trace

MOST = 2**53
TELL_NOTHING = {"cycles", "unit_cycles"}  # by themselves
Key = tuple[str, int | None, int]  # a kernel, the blocks of its grid, and the place of its device
ALONE = 0
MANGLED = regex(r"(?:K|St)?(\d{1,4})")
QUALIFIED = regex(r"(?:[\w~]+::)+(?=[\w~])")


@dataclass
class Joined:
    """How much of the device's work has counters: shares of kernels' time, and how they were joined."""

    counters: list[dict[str, Any]]
    notes: list[str]


def join(trace: Trace, kernels: Sequence[CountedKernel], file: str) -> Joined:
    """Return counters for the kernels of a trace, as its metadata has them, and what is to be said of them.

    The n-th launch of a kernel with a grid on a device has the n-th that was counted, where there are as many
    of both; else each has the mean of those that were counted, which is said. Devices are those of the file
    in their order; what was counted on one alone is taken for each. What was counted and is not in the
    trace is said, too. Raises `FileError` where nothing meets.
    """
    rows = np.flatnonzero(trace.is_kind("kernel"))
    rows = rows[np.argsort(trace["correlation"][rows], kind="stable")]
    names, grids = trace.text("name"), trace.text("grid")
    base = [base_name(name) for name in names]
    blocks = [_blocks(grid) for grid in grids]
    devices = _Devices(trace, rows, kernels)
    recorded = [
        (base[name], blocks[grid] if grid >= 0 else None, device)
        for name, grid, device in zip(
            trace["name"][rows].tolist(),
            trace["grid"][rows].tolist(),
            devices.recorded,
            strict=True,
        )
    ]
    wanted = [
        (base_name(one.name), one.blocks, device)
        for one, device in zip(kernels, devices.counted, strict=True)
    ]
    # Where one of the two does not know a kernel's grids, its launches are told apart by order alone.
    without = {name for name, grid, _ in (*recorded, *wanted) if grid is None}
    counts, launches = (_grouped(each, without) for each in (wanted, recorded))
    found: list[CountedKernel | None] = [None] * len(rows)
    aggregated = 0
    used: set[int] = set()
    for (name, grid, device), places in launches.items():
        mine = counts.get((name, grid, ALONE if devices.alone else device))
        if not mine:
            continue
        used.update(mine)
        one_by_one = len(mine) == len(places) and all(
            kernels[each].launches == 1 and kernels[each].ordered for each in mine
        )
        whole = (
            [kernels[each] for each in mine]
            if one_by_one
            else [_mean([kernels[each] for each in mine])] * len(places)
        )
        aggregated += 0 if one_by_one else len(places)
        for place, one in zip(places, whole, strict=True):
            found[place] = one
    if not used:
        raise FileError(
            f"{file}: none of its {counted(len(kernels), 'launch', 'launches')} is a kernel of this trace; "
            f"the first is {kernels[0].name!r:.60}. Count the program that was recorded"
        )
    time = trace["duration_ns"][rows]
    counters = [
        _entry(names[trace["name"][row]], one)
        for row, one in zip(rows.tolist(), found, strict=True)
    ]
    correlation, rank = trace["correlation"][rows].tolist(), trace["rank"][rows].tolist()
    if min(correlation, default=-1) >= 0 and len({*zip(rank, correlation, strict=True)}) == len(
        rows
    ):
        for entry, *launch in zip(counters, rank, correlation, strict=True):
            entry |= dict(zip(("rank", "correlation"), launch, strict=True))
    if any(value > MOST for each in counters for value in each.get("amounts", {}).values()):
        raise FileError(
            f"{file}: a kernel has more than 2^53 of something, which no kernel counts to"
        )
    has = np.array([bool(each.get("amounts", {}).keys() - TELL_NOTHING) for each in counters])
    if not has.any():
        raise FileError(
            f"{file}: its counters tell neither FLOP nor bytes nor instructions; count dram__bytes.sum and "
            "smsp__sass_thread_inst_executed_op_*_pred_on.sum, or FETCH_SIZE and WRITE_SIZE"
        )
    share = time[has].sum() / max(int(time.sum()), 1)
    said = f"{counted(int(has.sum()), 'kernel')} of {len(rows):,}, {share:.1%} of their time"
    notes = [f"{said}, have counters of {file}; {_taken(counters)}."]
    if aggregated:
        notes.append(
            f"{counted(aggregated, 'kernel')} could not be told apart from others of the same name and grid: "
            "each has the mean of those that were counted."
        )
    if devices.alone:
        notes.append(f"{file} counts one device; its counts are used for each of {devices.number}.")
    left = len(kernels) - len(used)
    if left > 0:
        notes.append(
            f"{counted(left, 'counted launch', 'counted launches')} of {file} met no kernel of the trace."
        )
    return Joined(counters, notes)


class _Devices:
    """Which device each launch is of, recorded and counted: places in the order of their numbers.

    All are 0 where they cannot be told apart, as with more of them in one of the two.
    """

    def __init__(self, trace: Trace, rows: np.ndarray, kernels: Sequence[CountedKernel]) -> None:
        pairs = list(zip(trace["rank"][rows].tolist(), trace["device"][rows].tolist(), strict=True))
        places = {pair: place for place, pair in enumerate(sorted(set(pairs)))}
        names = sorted({one.device for one in kernels}, key=_order)
        named = {name: place for place, name in enumerate(names)}
        self.number = len(places)
        self.alone = self.number > 1 and len(named) == 1
        together = not self.alone and len(named) != self.number
        self.recorded = [0 if together else places[pair] for pair in pairs]
        self.counted = [0 if together else named[one.device] for one in kernels]


def _order(device: str) -> tuple[int, str]:
    """Return what devices are sorted by: `Agent 10` stands behind `Agent 2`."""
    number = re.search(r"\d{1,18}$", device)
    return (int(number[0]) if number else -1, device)


def _entry(name: str, one: CountedKernel | None) -> dict[str, Any]:
    """Return a kernel's counters as the metadata has them."""
    if one is None:
        return {"name": name, "flop": None, "bytes": None}
    return {"name": name, "flop": one.flop, "bytes": one.bytes, "amounts": one.amounts}


def _taken(counters: Sequence[dict[str, Any]]) -> str:
    """Return whether counters take over from shapes."""
    if all(one["flop"] is None and one["bytes"] is None for one in counters):
        return "they tell neither FLOP nor bytes, which stay those of shapes"
    return "their FLOP and bytes are taken from them"


@lru_cache(maxsize=1 << 14)  # many launches, few names
def base_name(name: str) -> str:
    """Return a kernel's own name: without its return type, namespaces, template arguments and parameters.

    `void at::native::elementwise_kernel<128, 2>(int, T3)` is `elementwise_kernel`, its mangled name too.
    """
    if name.startswith("_Z"):
        return _mangled_base(name) or name
    plain, depth = [], 0
    for letter in name.replace("(anonymous namespace)::", ""):
        if letter in "<(":
            if letter == "(" and depth == 0:
                break
            depth += 1
        elif letter in ">)" and depth:
            depth -= 1
        elif depth == 0:
            plain.append(letter)
    words = QUALIFIED.sub("", "".join(plain)).replace("::", " ").split()
    return words[-1].removesuffix(".kd") if words else name


def _mangled_base(name: str) -> str | None:
    """Return the innermost name of a mangled one (Itanium C++ ABI): lengths stand before its parts."""
    at, found = 2 + (name[2:3] == "N"), None
    while (length := MANGLED.match(name, at)) is not None:
        end = length.end() + int(length[1])
        if end > len(name):
            return None
        found, at = name[length.end() : end], end
    return found


def _grouped(keys: Sequence[Key], without: Collection[str]) -> dict[Key, list[int]]:
    """Return the places of each kernel and grid; of kernels `without` known grids, of the kernel alone."""
    found: dict[Key, list[int]] = {}
    for place, (name, grid, device) in enumerate(keys):
        found.setdefault((name, None if name in without else grid, device), []).append(place)
    return found


def _mean(kernels: Sequence[CountedKernel]) -> CountedKernel:
    """Return one that has the mean of each counter that all of them have."""
    weights = np.array([one.launches for one in kernels], np.float64)
    shared = set.intersection(*(set(one.metrics) for one in kernels))
    metrics = {
        name: float(np.average([one.metrics[name] for one in kernels], weights=weights))
        for name in shared
    }
    return CountedKernel(kernels[0].name, kernels[0].blocks, metrics, int(weights.sum()))


def _blocks(grid: str) -> int | None:
    numbers = [int(one) for one in re.findall(r"\d+", grid)]
    return prod(numbers) if numbers else None
