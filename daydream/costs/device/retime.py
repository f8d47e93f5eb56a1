"""What is known of kernels, and from where: counters go before shapes, and shapes before names.

New durations of kernels after a change of element type, device or work, and the models behind them.

Models, the first that can answer for a task: `table` (times that the user measured),
`roofline`, `ratio` (work unknown, kind of kernel known), and, where the GPU is unknown,
`paper`: the constants of Daydream (ATC 2020, section 5.1), 3 for matrix kernels and 2
for all others that go from 32 to 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from daydream.arrays import unique
from daydream.costs.device.measured import (
    KernelTable,
    NewShapes,
    TimeRequest,
    from_table,
    need_times_of,
    types_of,
)
from daydream.costs.device.roofline import HALF, Change, Correction, Kernel, device_or_none, time
from daydream.costs.devices import Device, device_of, find_device
from daydream.costs.kernels import (
    bound,
    counted_tasks,
    is_matrix,
    number_formats,
    peaks,
    units_of,
    work,
)
from daydream.costs.operators import MATRIX_CLASSES, STREAMING_CLASSES, kernels_are
from daydream.errors import GraphError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.text import counted as number_of
from daydream.trace.schema import LONGEST_NS

RULES = ("counters", "shapes", "names")
NAMED = {"compute": "products", "memory": "element-wise work or the like"}
BY = {"compute": "arithmetic", "memory": "memory", "latency": "neither (latency)"}


def rule_of(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return what tells the work of each kernel: `counters`, `shapes` or `names`; texts (object)."""
    amounts = work(graph, kernels)
    known = (amounts.flop >= 0) | (amounts.nbytes >= 0)
    counted = counted_tasks(graph, kernels).any(axis=0)
    return np.select([counted, known], RULES[:2], RULES[2]).astype(object)


def counted_kind(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return what bounds each kernel by its counters: compute, memory or latency, None where not counted.

    Counters alone, or with shapes for what they leave out.

    Args:
        graph: the graph of the trace.
        kernels: as they run today.

    Returns:
        texts (object), shape (kernels,).
    """
    found = np.full(len(kernels), None, dtype=object)
    counted = counted_tasks(graph, kernels).any(axis=0)
    device = device_or_none(graph) if counted.any() else None
    if device is None:
        return found
    amounts = work(graph, kernels)
    counted &= (amounts.flop >= 0) & (amounts.nbytes >= 0)
    found[counted] = bound(graph, kernels, device=device).kind[counted]
    found[found == "unknown"] = None
    return found


def by_counters(
    graph: Graph, kernels: Selection, by_name: np.ndarray, compute: float, memory: float
) -> np.ndarray:
    """Return a factor for each kernel: by what counters say bounds it, else by its name. Notes the evidence.

    Args:
        graph: the graph of the trace.
        kernels: as they run today.
        by_name: the factor that each has where nothing was counted, shape (kernels,).
        compute: the factor of kernels bound by arithmetic.
        memory: that of kernels bound by memory. What waits for neither has 1.

    Returns:
        float64, shape (kernels,).
    """
    say_evidence(graph, kernels)
    found = np.array(by_name, np.float64)
    if not counted_tasks(graph, kernels).any():
        return found
    kinds = counted_kind(graph, kernels)
    for kind, factor in (("compute", compute), ("memory", memory), ("latency", 1.0)):
        found[kinds == kind] = factor
    return found


def say_evidence(graph: Graph, kernels: Selection) -> None:
    """Say what kernels' work is known from, and where counters contradict names.

    With counters it is a note. Without, it is one of `facts.rules`, which `-v` and JSON show.

    Args:
        graph: the graph of the trace.
        kernels: those that a change is about, as they run today.
    """
    told = graph.recorded.metadata.get("counters")
    for sentence in evidence(graph, kernels):
        if sentence not in graph.facts.rules:
            graph.facts.rules.append(sentence)
        if told:
            graph.note(sentence)


def evidence(graph: Graph, kernels: Selection) -> Iterator[str]:
    """Return which rule holds for how much of kernels' time, and where counters contradict names.

    Args:
        graph: the graph of the trace.
        kernels: as they run today.

    Returns:
        A sentence or two; none without kernels.
    """
    time = kernels.duration_ns.astype(np.float64)
    total = time.sum()
    if not total:
        return
    rule = rule_of(graph, kernels)
    share = {name: time[rule == name].sum() / total for name in RULES if (rule == name).any()}
    parts = ", ".join(f"{name} for {part:.1%}" for name, part in share.items())
    yield f"What bounds the kernels is known by {parts} of their time."
    if "counters" not in share:
        return
    from daydream.costs.workload.counters import bound_by_l2, reached_l2

    told = counted_kind(graph, kernels)
    by_name = np.full(len(kernels), None, object)
    by_name[kernels_are(kernels, *STREAMING_CLASSES)] = "memory"
    by_name[kernels_are(kernels, *MATRIX_CLASSES)] = "compute"
    device = device_or_none(graph)
    highest = reached_l2(graph)
    if device is not None and highest is not None:
        near = bound_by_l2(graph, kernels, device.bandwidth) & (told == "memory")
        if near.any():
            yield (
                f"L2 bounds {number_of(int(near.sum()), 'kernel')}, {time[near].sum() / total:.1%} of the "
                "time: more passes it than memory gives. Its roof is assumed to be the highest rate of this "
                f"recording, {highest:,.0f} GB/s."
            )
    differs = (told != by_name) & (told != None) & (by_name != None)  # noqa: E711
    if differs.any():
        each = []
        for name, counters in sorted({*zip(by_name[differs], told[differs], strict=True)}):
            which = differs & (by_name == name) & (told == counters)
            each.append(
                f"{int(which.sum()):,} named as {NAMED[name]} are bound by {BY[counters]} "
                f"({time[which].sum() / total:.1%})"
            )
        yield (
            f"Counters contradict the names of {number_of(int(differs.sum()), 'kernel')}, "
            f"{time[differs].sum() / total:.1%} of the time, and decide: {'; '.join(each)}."
        )


def at_peak_ns(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return what kernels would take at the peak that bounds them, NaN where FLOP or bytes are unknown.

    Args:
        graph: the graph of the trace.
        kernels: on a device whose peaks are known.

    Returns:
        ns, shape (kernels,), float64: the longest of FLOP at peak, bytes at full bandwidth and, where they
        were counted, bytes through L2 at the highest rate of this recording.

    Raises:
        NotApplicableError: the device is not in the table.
    """
    from daydream.costs.workload.counters import counted_l2_bytes, reached_l2

    device = device_of(graph)
    amounts = work(graph, kernels)
    formats = number_formats(kernels, device)
    known = (amounts.flop >= 0) & (amounts.nbytes >= 0) & (amounts.flop + amounts.nbytes > 0)
    known &= np.isfinite(peaks(formats, device)) | (amounts.flop == 0)
    at_peak = time(Kernel(amounts.flop, amounts.nbytes, 0.0), device, formats)
    found: np.ndarray = np.where(known, at_peak, np.nan)
    highest = reached_l2(graph)
    if (
        highest is None or highest < device.bandwidth
    ):  # L2 gives more than memory: nothing came near its roof
        return found
    return np.where(known, np.fmax(found, counted_l2_bytes(graph, kernels) / highest), np.nan)


def counted_conflicts(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return which part of each kernel's cycles bank conflicts of shared memory take, NaN where not counted.

    Args:
        graph: the graph of the trace.
        kernels: as they were recorded.

    Returns:
        parts, 0 to 1, shape (kernels,), float64.
    """
    trace = graph.recorded
    entries = graph.recorded.metadata.get("counters")
    if not entries:
        return np.full(len(kernels), np.nan)
    from daydream.costs.workload.counters import conflict_share, entry_of_rows

    device = device_or_none(graph)
    units = units_of(graph, device) if device is not None else 0
    shares = [conflict_share(entry.get("amounts", {}), units) for entry in entries]
    by_entry = np.array([*shares, None], np.float64)  # None is NaN
    rows = graph.row[kernels.ids]
    return by_entry[np.where(rows >= 0, entry_of_rows(trace)[rows], -1)]


class Retimed(Struct, frozen=True):
    """Predicted durations, an entry a task in the order of the selection.

    Attributes:
        duration_ns: ns, int64.
        model: the model behind each: table, roofline, ratio, paper, ...; texts (object).
        before_ns: the durations before, ns.
        doubt: by which part each may be off, at 90%, float64, NaN where no correction tells.
    """

    duration_ns: np.ndarray
    model: np.ndarray
    before_ns: np.ndarray
    doubt: np.ndarray = np.empty(0)

    @property
    def coverage(self) -> dict[str, int]:
        """How much of the old time each model answered for, in ns."""
        names = self.model.astype(str)
        return {name: int(self.before_ns[names == name].sum()) for name in unique(names).tolist()}

    def words(self) -> str:
        """Return a sentence that says which model was used for how much of the time."""
        total = max(sum(self.coverage.values()), 1)
        parts = [
            f"{name} {nanoseconds / total:.0%}"
            for name, nanoseconds in sorted(self.coverage.items(), key=lambda pair: -pair[1])
            if nanoseconds >= total / 200  # what rounds to 0% is left out
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
    grid_factor: float | np.ndarray = np.nan,
    table: KernelTable | None = None,
    shapes: NewShapes | None = None,
    assumed: str | None = None,
    corrections: Sequence[Correction] = (),
) -> Retimed:
    """Return what the kernels would take in another element type, on another device, with other work.

    With measured times (`table`, or the graph's own) these go first, then the roofline model, then
    ratios of a kind of kernel; where the GPU is unknown, the constants of Daydream (ATC 2020, section 5.1).

    Args:
        graph: the graph of the trace.
        selection: kernels and copies.
        dtype: torch's name of a type, or `tf32`: 32-bit data, products in TF32. It changes floating-point
            kernels only.
        device: a name of the table of GPUs, or one of its rows.
        flop_factor: multiplies FLOP; one for all, or shape (tasks,), float64.
        bytes_factor: multiplies bytes, likewise.
        grid_factor: multiplies the blocks, likewise; NaN where they grow with the work, as those of a product
            that sums over more do not.
        table: measured times; by default the graph's own.
        shapes: those of the changed calls, for a table of measured times.
        assumed: the element type of products of which none is known.
        corrections: of this change, beside those of any (`roofline.py`).

    Returns:
        `Retimed`, arrays in the order of the selection.

    Raises:
        NotApplicableError: a peak rate is needed and unknown, or nothing is selected.
    """
    selection.need("kernels to give a new time", lacks="device")
    target = find_device(device) if isinstance(device, str) else device
    change = Change(
        graph,
        selection,
        dtype=dtype,
        target=target,
        flop_factor=flop_factor,
        bytes_factor=bytes_factor,
        grid_factor=grid_factor,
        assumed=assumed,
    )
    change.predict(corrections)
    table = graph.times if table is None else table
    if table is not None:
        if change.other_device and target is not None:
            need_times_of(table, target.name)
        typed = "tf32" if dtype == "tf32" else change.new_dtypes
        asked = TimeRequest(
            dtype=np.where(change.typed, typed, types_of(selection)),
            affected=change.affected,
            resized=(change.flop_factor != 1) | (~change.typed & (change.bytes_factor != 1)),
            shapes=shapes or {},
            other_device=change.other_device,
        )
        measured, known = from_table(graph, selection, table, change.work, asked)
        change.new[known] = measured[known]
        change.model[known] = "table"
    return Retimed(_whole(change.new), change.model, change.old, change.doubt)


def retime_untyped(
    graph: Graph, selection: Selection, *, device: Device
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times of products of unknown element type on another device, as far as types leave them open.

    They run in 32 bits, or in the type of the step's other 16-bit kernels.

    Args:
        graph: the graph of the trace.
        selection: kernels.
        device: a row of the table of GPUs.

    Returns:
        the mask of such products, shape (tasks,), bool; for each the middle of what the types give, ns,
        shape (products,), int64; and by which part of it that may be off, likewise, float64.

    Raises:
        NotApplicableError: the device has no units for the type of the 16-bit kernels.
    """
    products = is_matrix(graph, selection)
    products &= selection.dtype == None  # noqa: E711 - a column of texts and None
    if not products.any():
        return products, np.zeros(0, np.int64), np.zeros(0)
    mine = graph.tasks(selection.ids[products])
    kernels = graph.select(kind="kernel")
    narrow = max(HALF, key=lambda dtype: kernels.where(dtype=dtype).total("duration_ns"))
    device.peak(device.matrix_format(narrow))
    types = ("float32", narrow)  # the slow and the fast of the units that products of a step run on
    cases = np.stack([retime(graph, mine, device=device, assumed=one).duration_ns for one in types])
    low = cases.min(axis=0)
    high = cases.max(axis=0)
    middle = (low + high) // 2
    return products, middle, (high - low) / np.maximum(2 * middle, 1)


def sped_up(before_ns: np.ndarray, by: np.ndarray, model: str | np.ndarray) -> Retimed:
    """Return durations divided by a factor each.

    Args:
        before_ns: ns, shape (tasks,), float64.
        by: the factors, shape (tasks,), float64.
        model: what the factors are from, one text for all or one a task.

    Returns:
        `Retimed`, arrays in the same order.

    Raises:
        GraphError: a task would take longer than is simulated (13 days).
    """
    with np.errstate(over="ignore"):
        new = _whole(before_ns / by)
    return Retimed(new, np.broadcast_to(np.asarray(model, dtype=object), new.shape), before_ns)


def _whole(new_ns: np.ndarray) -> np.ndarray:
    if not (new_ns <= LONGEST_NS).all():
        raise GraphError(
            "with these values a task takes longer than 13 days, which is not simulated"
        )
    return np.rint(new_ns).astype(np.int64)


def measured_first(
    graph: Graph,
    selection: Selection,
    retimed: Retimed,
    *,
    dtype: str | None = None,
    shapes: NewShapes | None = None,
) -> Retimed:
    """Return the graph's measured times of a change where its table has them, else those given.

    The selection has its durations before the change still.

    Args:
        graph: the graph of the trace.
        selection: the tasks that change.
        retimed: their times by a model, in the order of the selection.
        dtype: the element type they change to; None where sizes change.
        shapes: those of the changed calls.

    Returns:
        `Retimed`, arrays in the order of the selection.
    """
    if graph.times is None:
        return retimed
    types = types_of(selection)
    asked = TimeRequest(
        dtype=types if dtype is None else np.full(len(types), dtype, dtype=object),
        affected=retimed.model != "unchanged",
        resized=np.full(len(types), dtype is None),
        shapes=shapes or {},
    )
    new, known = from_table(graph, selection, graph.times, work(graph, selection), asked)
    return Retimed(
        np.where(known, np.rint(new), retimed.duration_ns).astype(np.int64),
        np.where(known, "table", retimed.model),
        retimed.before_ns,
    )
