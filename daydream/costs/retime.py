"""New durations of kernels after a change of element type, device or work, and the models behind them.

Models, the first that can answer for a task: `table` (times that the user measured),
`roofline`, `ratio` (work unknown, kind of kernel known), and, where the GPU is unknown,
`paper`: the constants of Daydream (ATC 2020, section 5.1), 3 for matrix kernels and 2
for all others that go from 32 to 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.costs.calls import calls_of
from daydream.costs.devices import Device, find_device
from daydream.costs.kernels import Work
from daydream.costs.roofline import HALF, PAPER, Change, is_matrix_kernel, is_tf32_kernel
from daydream.costs.table import KernelTable
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection


@dataclass(frozen=True)
class Retimed:
    """Predicted durations in ns, an entry a task, and the models behind them.

    `coverage` is how much of the old time each model answered for, in ns.
    """

    duration_ns: np.ndarray
    coverage: dict[str, int]

    def words(self) -> str:
        """Return a sentence that says which model was used for how much of the time."""
        total = max(sum(self.coverage.values()), 1)
        parts = [
            f"{name} {nanoseconds / total:.0%}"
            for name, nanoseconds in sorted(self.coverage.items(), key=lambda pair: -pair[1])
            if nanoseconds >= total / 200  # what rounds to 0 % is left out
        ]
        return f"Times by model, as shares of the time before: {', '.join(parts) or 'none'}."


def retime(
    graph: Graph,
    selection: Selection,
    *,
    dtype: str | None = None,
    device: str | Device | None = None,
    flop_factor: float | np.ndarray = 1.0,
    bytes_factor: float | np.ndarray = 1.0,
    table: KernelTable | None = None,
    model: str = "auto",
) -> Retimed:
    """Return what the kernels would take in another element type, on another device, with other work.

    `dtype` is torch's name of a type, or `tf32`: 32-bit data, products in TF32. It changes
    floating-point kernels only. `device` is a name of the table of GPUs. The factors
    multiply FLOP and bytes, one for all or one a task. With `model="paper"` the
    constants of the paper are used throughout.

    Raises `NotApplicableError` if a peak rate is needed and unknown, `NoMatchError` if
    nothing is selected.
    """
    selection.need("kernels to give a new time")
    old = selection.duration_ns.astype(np.float64)
    if model == "paper":
        return _by_paper(selection, dtype, old)
    target = find_device(device) if isinstance(device, str) else device
    change = Change(
        graph, selection, dtype=dtype, target=target, flop_factor=flop_factor, bytes_factor=bytes_factor
    )
    new, used = change.predict()
    if table is not None:
        _by_table(graph, selection, dtype, table, change.work, new, used)
    return Retimed(np.rint(new).astype(np.int64), coverage_of(used, old))


def coverage_of(used: np.ndarray, old: np.ndarray) -> dict[str, int]:
    """Return how much of the old time each model answered for."""
    return {str(name): int(old[used == name].sum()) for name in np.unique(used.astype(str)).tolist()}


def _by_paper(selection: Selection, dtype: str | None, old: np.ndarray) -> Retimed:
    if dtype not in HALF:
        raise NotApplicableError(
            "the paper's constants say what 16-bit types give; choose float16 or bfloat16"
        )
    names = selection.name
    wide = (selection.dtype == "float32") & ~is_tf32_kernel(names)
    new = np.where(wide, old / np.where(is_matrix_kernel(names), *PAPER), old)
    return Retimed(np.rint(new).astype(np.int64), coverage_of(np.where(wide, "paper", "unchanged"), old))


def _by_table(
    graph: Graph,
    selection: Selection,
    dtype: str | None,
    table: KernelTable,
    task_work: Work,
    new: np.ndarray,
    used: np.ndarray,
) -> None:
    """Overwrite durations that the user measured, by kernel name first, then by operator call."""
    times = [table.kernel(name) if name else None for name in selection.name.tolist()]
    hit = np.array([time is not None for time in times], bool)
    new[hit] = [time for time in times if time is not None]
    used[hit] = "table"
    trace = graph.trace
    calls = np.unique(task_work.call[task_work.call >= 0])
    if trace is None or not len(calls):
        return
    measured = {}
    names, shapes, dtypes = (trace.values(column, calls) for column in ("name", "shapes", "dtype"))
    for call, name, shape, old_dtype in zip(calls.tolist(), names, shapes, dtypes, strict=True):
        if name is None or shape is None:
            continue
        wanted = dtype if dtype is not None and str(old_dtype).startswith(("float", "bfloat")) else old_dtype
        time = table.call(name, shape, wanted)
        if time is not None:
            measured[call] = (time, table.call(name, shape, old_dtype) if wanted != old_dtype else None)
    if not measured:
        return
    owner = calls_of(trace).owner
    device = np.flatnonzero(owner >= 0)
    recorded = np.asarray(trace["duration_ns"], np.float64)[device]
    total = np.bincount(owner[device], recorded, len(trace))
    for index in np.flatnonzero(np.isin(task_work.call, list(measured)) & ~hit).tolist():
        call = int(task_work.call[index])
        time, before = measured[call]
        new[index] = selection.duration_ns[index] * time / max(before or total[call], 1.0)
        used[index] = "table"
