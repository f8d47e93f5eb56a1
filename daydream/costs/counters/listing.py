"""`counters_table`: what was counted of the kernels of a trace, a row a name."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from daydream.collect.load import load
from daydream.costs.counters.quantities import QUANTITIES
from daydream.costs.workload.counters import entry_of_rows
from daydream.trace.trace import Trace


def counters_table(trace: Trace | str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return what was counted of each kernel, those first that take longest; and sums over windows.

    Args:
        trace: with counters (`attach_counters`, `import --counters`), or the path of one.

    Returns:
        A row a kernel name: `kernel`, `launches`, `counted` (launches with counters), `total_ns`, and the
        mean a launch of each quantity that was counted, by the names of `daydream.costs.counters.quantities`.
        Sums over kernels 100 to 200 are rows named `(kernels 100 to 200, Luthier)`, not means. Without
        counters there are no rows.

    Raises:
        TraceError: a path leads to no usable trace.

    """
    if not isinstance(trace, Trace):
        trace = load(trace)
    entries = trace.metadata.get("counters") or []
    rows = np.flatnonzero(trace.is_kind("kernel"))
    place, names = entry_of_rows(trace)[rows], trace["name"][rows]
    time, texts = trace["duration_ns"][rows], trace.text("name")
    found: list[dict[str, Any]] = []
    for code in np.unique(names[place >= 0]).tolist():
        mine = names == code
        told = [entries[at].get("amounts") or {} for at in place[mine].tolist() if at >= 0]
        told = [each for each in told if each]
        if told:
            row = {"kernel": texts[code], "launches": int(mine.sum()), "counted": len(told)}
            found.append({**row, "total_ns": int(time[mine].sum()), **_means(told)})
    found.sort(key=lambda row: (-row["total_ns"], row["kernel"]))
    for window in trace.metadata.get("counted_windows") or []:
        name = f"(kernels {window['first']} to {window['last']}, {window['source']})"
        launches = window["last"] - window["first"] + 1
        found.append(
            {"kernel": name, "launches": launches, "counted": launches, **window["amounts"]}
        )
    return found


def counted_in(trace: Trace) -> dict[str, Any] | None:
    """Return of how many kernels something was counted, and what; None if nothing was.

    Args:
        trace: a recording.

    Returns:
        `kernels` that were counted, `of` how many, their `quantities` by the names of
        `daydream.costs.counters.quantities`, and the `windows` of which only sums are known.

    """
    entries = trace.metadata.get("counters") or []
    windows = trace.metadata.get("counted_windows") or []
    if not entries and not windows:
        return None
    rows = np.flatnonzero(trace.is_kind("kernel"))
    told = [
        {key for key in ("flop", "bytes") if entry.get(key) is not None}
        | {*(entry.get("amounts") or ())}
        for entry in entries
    ]
    counted = np.array([*map(bool, told), False])[entry_of_rows(trace)[rows]]
    told += [set(window["amounts"]) for window in windows]
    return {
        "kernels": int(counted.sum()),
        "of": len(rows),
        "quantities": [name for name in QUANTITIES if any(name in each for each in told)],
        "windows": [
            f"{window['first']} to {window['last']}, {window['source']}" for window in windows
        ],
    }


def _means(told: list[dict[str, float]]) -> dict[str, float]:
    """Return the means of what all of some launches have."""
    shared = [name for name in QUANTITIES if all(name in each for each in told)]
    means = {name: sum(each[name] for each in told) / len(told) for name in shared}
    return {
        name: value if value < 1 and value % 1 else round(value) for name, value in means.items()
    }
