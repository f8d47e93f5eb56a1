"""`attach_counters`: a trace takes over what files of counters say of its kernels.

Counted launches meet the kernels of a trace by kernel, grid, device and order, else by their mean. Sums over
many launches stay sums.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from daydream.costs.counters.formats import Totals, read_counted
from daydream.costs.counters.quantities import QUANTITIES, CountedKernel
from daydream.errors import FileError
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.trace import Trace

MOST = 2**53
TELL_NOTHING = {"cycles", "unit_cycles"}  # by themselves
MANGLED = regex(r"(?:K|St)?(\d{1,4})")
QUALIFIED = regex(r"(?:[\w~]+::)+(?=[\w~])")
WINDOW = regex(r"(.+)@(\d{1,15})-(\d{1,15})")
MOST_SAID = 6


def attach_counters(trace: Trace, files: Sequence[str | os.PathLike[str]]) -> Trace:
    """Take FLOP, bytes and what else was counted of a trace's kernels, and note how they were joined.

    Files are told apart by what they hold. Of several, a launch has the counters of all: passes of one
    program. Sums over many launches (Luthier) stay sums: of all kernels, or of those from the 101st to the
    201st for a file given as `FILE@100-200`. Nothing that they say of time is used.

    Args:
        trace: is changed.
        files: Nsight Compute's CSV, rocprofv3's counter CSV or JSON, output of NVBit, Luthier or AccelProf,
            or Kineto JSON with profiler ranges; `.gz` too.

    Returns:
        The trace.

    Raises:
        FileError: a file cannot be read, is damaged, counts nothing that is known, or is of another program.

    """
    kernels: list[CountedKernel] = []
    windows: list[dict[str, Any]] = []
    notes: list[str] = []
    labels = []
    for file in files:
        path, window = path_and_window(file)
        found = read_counted(path)
        if isinstance(found, Totals):
            entry, said = _sums(trace, found, window, path.name)
            windows.append(entry)
            notes.append(said)
            continue
        if window is not None:
            raise FileError(
                f"{path} tells kernels apart: it takes no window such as @{window[0]}-{window[1]}"
            )
        _merge(kernels, found, str(path))
        labels.append(path.name)
    metadata = dict(trace.metadata)
    if kernels:
        metadata["counters"], said_of_kernels = _join(trace, kernels, ", ".join(labels))
        notes = [*said_of_kernels, *notes]
    if windows:
        metadata["counted_windows"] = windows
    trace.metadata = {**metadata, "notes": [*metadata.get("notes", []), *notes]}
    trace.cache = None
    return trace


def path_and_window(file: str | os.PathLike[str]) -> tuple[Path, tuple[int, int] | None]:
    """Return the path and the window of `FILE@100-200`; a file that is really named so is itself."""
    found = None if Path(file).exists() else WINDOW.fullmatch(os.fspath(file))
    if found is None:
        return Path(file), None
    first = int(found[2])
    last = int(found[3])
    if first > last:
        raise FileError(f"{file}: a window such as @100-200 begins with its first kernel")
    return Path(found[1]), (first, last)


def _sums(
    trace: Trace, totals: Totals, window: tuple[int, int] | None, label: str
) -> tuple[dict[str, Any], str]:
    """Return the metadata of sums over a window of a trace's kernels, and what is to be said of them."""
    rows = _kernels_by_launch(trace)
    first, last = window or (0, len(rows) - 1)
    if last >= len(rows) or not len(rows):
        raise FileError(
            f"{label}: the recording has {counted(len(rows), 'kernel')}, the first is number 0"
        )
    time = trace["duration_ns"][rows]
    share = time[first : last + 1].sum() / max(int(time.sum()), 1)
    which = f"kernels {first} to {last} of the recording"
    beyond = ""
    if window is None:
        which = "the whole program that was counted"
        beyond = " It may be more than what this recording has."
    said = ", ".join(
        f"{name.replace('_', ' ')} {value:,.0f}"
        for name, value in list(totals.amounts.items())[:MOST_SAID]
    )
    note = (
        f"{totals.source} ({label}) counted {said}: sums of {which} ({counted(last - first + 1, 'kernel')}, "
        f"{share:.1%} of the kernels' time). No kernel is given a part of them.{beyond}"
    )
    amounts = {name: round(value) for name, value in totals.amounts.items() if name in QUANTITIES}
    entry = {"file": label, "source": totals.source, "first": first, "last": last}
    return {**entry, "amounts": amounts}, note


def _merge(kernels: list[CountedKernel], more: list[CountedKernel], file: str) -> None:
    """Add the counters of another pass over the same launches; or its launches, where it is the first."""
    if not kernels:
        kernels += more
        return
    if len(kernels) != len(more) or not all(map(_same, kernels, more)):
        raise FileError(
            f"{file} counts other launches than the file before it; give passes of one program"
        )
    for one, other in zip(kernels, more, strict=True):
        one.metrics.update(other.metrics)
        one.ordered &= other.ordered
        one.blocks = other.blocks if one.blocks is None else one.blocks


def _same(one: CountedKernel, other: CountedKernel) -> bool:
    """Tell whether two launches are the same one, as two profilers spell it."""
    grids = {one.blocks, other.blocks} - {None}
    return base_name(one.name) == base_name(other.name) and len(grids) <= 1


def _join(
    trace: Trace, kernels: Sequence[CountedKernel], file: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return counters for the kernels of a trace, as its metadata has them, and what is to be said of them.

    The n-th launch of a kernel with a grid on a device has the n-th that was counted, where there are as many
    of both; else each has the mean of those that were counted, which is said. Devices are those of the file
    in their order; what was counted on one alone is taken for each. What was counted and is not in the
    trace is said, too. Raises `FileError` where nothing meets.
    """
    rows = _kernels_by_launch(trace)
    names = [*map(trace.text("name").__getitem__, trace["name"][rows].tolist())]
    blocks = np.array([*map(_blocks, trace.text("grid")), None], object)[trace["grid"][rows]]
    ranks = trace["rank"][rows].tolist()
    correlations = trace["correlation"][rows].tolist()
    pairs = list(zip(ranks, trace["device"][rows].tolist(), strict=True))
    devices = sorted(set(pairs))
    counted_devices = sorted({one.device for one in kernels}, key=_number_of_device)
    alone = len(devices) > 1 and len(counted_devices) == 1
    apart = len(devices) == len(counted_devices)  # else all are together: they cannot be told apart

    # Where one of the two does not know a kernel's grids, its launches are told apart by order alone.
    recorded = [(base_name(name), grid) for name, grid in zip(names, blocks, strict=True)]
    wanted = [(base_name(one.name), one.blocks) for one in kernels]
    without = {name for name, grid in (*recorded, *wanted) if grid is None}

    def key(name: str, grid: int | None, device: int) -> tuple[str, int | None, int]:
        return name, None if name in without else grid, device if apart else 0

    counts: dict[object, list[CountedKernel]] = {}
    for (name, grid), kernel in zip(wanted, kernels, strict=True):
        counts.setdefault(key(name, grid, counted_devices.index(kernel.device)), []).append(kernel)
    launches: dict[tuple[Any, Any], list[int]] = {}
    for place, (name, grid) in enumerate(recorded):
        group = key(name, grid, devices.index(pairs[place]))
        # what one device counted is used for each of them, in its own order
        launches.setdefault((group, pairs[place] if alone else None), []).append(place)

    found: list[CountedKernel | None] = [None] * len(rows)
    aggregated = 0
    used = set()
    for (group, _), places in launches.items():
        mine = counts.get(group)
        if mine is None:
            continue
        used.add(group)
        if len(mine) != len(places) or not all(one.launches == 1 and one.ordered for one in mine):
            aggregated += len(places)
            mine = [_mean(mine)] * len(places)
        for place, one in zip(places, mine, strict=True):
            found[place] = one
    if not used:
        raise FileError(
            f"{file}: none of its {counted(len(kernels), 'launch', 'launches')} is a kernel of this trace; "
            f"the first is {kernels[0].name!r:.60}. Count the program that was recorded"
        )

    entries: list[dict[str, Any]] = [
        {"name": name, "flop": None, "bytes": None}
        if one is None
        else {"name": name, "flop": one.flop, "bytes": one.bytes, "amounts": one.amounts}
        for name, one in zip(names, found, strict=True)
    ]
    keys = list(zip(ranks, correlations, strict=True))
    if min(correlations, default=-1) >= 0 and len(set(keys)) == len(rows):
        for entry, (rank, correlation) in zip(entries, keys, strict=True):
            entry |= {"rank": rank, "correlation": correlation}
    notes = [_checked(entries, trace["duration_ns"][rows], file)]
    if aggregated:
        notes.append(
            f"{counted(aggregated, 'kernel')} could not be told apart from others of the same name and grid: "
            "each has the mean of those that were counted."
        )
    if alone:
        notes.append(f"{file} counts one device; its counts are used for each of {len(devices)}.")
    left = sum(len(each) for group, each in counts.items() if group not in used)
    if left:
        notes.append(
            f"{counted(left, 'counted launch', 'counted launches')} of {file} met no kernel of the trace."
        )
    return entries, notes


def _checked(entries: Sequence[dict[str, Any]], time: np.ndarray, file: str) -> str:
    """Return how much of the kernels' time has counters. Raises `FileError` where they tell nothing."""
    if any(value > MOST for each in entries for value in each.get("amounts", {}).values()):
        raise FileError(
            f"{file}: a kernel has more than 2^53 of something, which no kernel counts to"
        )
    has = np.array([bool(each.get("amounts", {}).keys() - TELL_NOTHING) for each in entries])
    if not has.any():
        raise FileError(
            f"{file}: its counters tell neither FLOP nor bytes nor instructions; count dram__bytes.sum and "
            "smsp__sass_thread_inst_executed_op_*_pred_on.sum, or FETCH_SIZE and WRITE_SIZE"
        )
    share = time[has].sum() / max(int(time.sum()), 1)
    taken = "their FLOP and bytes are taken from them"
    if all(each["flop"] is None and each["bytes"] is None for each in entries):
        taken = "they tell neither FLOP nor bytes, which stay those of shapes"
    of_them = f"{counted(int(has.sum()), 'kernel')} of {len(entries):,}, {share:.1%} of their time"
    return f"{of_them}, have counters of {file}; {taken}."


def _kernels_by_launch(trace: Trace) -> np.ndarray:
    """Return the rows of the kernels in the order of their launches."""
    rows = np.flatnonzero(trace.is_kind("kernel"))
    return rows[np.argsort(trace["correlation"][rows], kind="stable")]


def _number_of_device(device: str) -> tuple[int, str]:
    """Return what devices are sorted by: `Agent 10` follows `Agent 2`."""
    number = re.search(r"\d{1,18}$", device)
    return (int(number[0]) if number else -1, device)


@lru_cache(maxsize=1 << 14)  # many launches, few names
def base_name(name: str) -> str:
    """Return a kernel's own name: without its return type, namespaces, template arguments and parameters.

    `void at::native::elementwise_kernel<128, 2>(int, T3)` is `elementwise_kernel`, its mangled name too.
    """
    if name.startswith("_Z"):
        return _mangled_base(name) or name
    plain = []
    depth = 0
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
    at = 2 + (name[2:3] == "N")
    found = None
    while (length := MANGLED.match(name, at)) is not None:
        end = length.end() + int(length[1])
        if end > len(name):
            return None
        found = name[length.end() : end]
        at = end
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
