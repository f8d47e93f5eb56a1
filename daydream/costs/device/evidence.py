"""What is known of kernels, and from where: counters go before shapes, and shapes before names."""

from __future__ import annotations

import numpy as np

from daydream.costs.counters.quantities import conflict_share
from daydream.costs.device.roofline import device_or_none, is_matrix_kernel, names_fit
from daydream.costs.devices import device_of
from daydream.costs.kernels import bound, counted_tasks, number_formats, peaks, units_of, work
from daydream.costs.workload.cache import bound_by_l2, counted_l2_bytes, reached_l2
from daydream.costs.workload.counters import entry_of_rows
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.lazy import regex
from daydream.text import counted as number_of

RULES = ("counters", "shapes", "names")
# Kernels that by their names read and write, and calculate next to nothing.
STREAMING_NAME = regex(
    r"(?i)elementwise|reduce_kernel|CatArray|copy|fill|softmax|norm|multi_tensor|adam|dropout|triton_(poi|red|per)"
)
NAMED = {"compute": "products", "memory": "element-wise work or the like"}
BY = {"compute": "arithmetic", "memory": "memory", "latency": "neither (latency)"}


def rule_of(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return what tells the work of each kernel: `counters`, `shapes` or `names`; texts (object)."""
    return np.array(RULES, dtype=object)[_rule(graph, kernels)]


def _rule(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return the same as a place in `RULES`."""
    amounts = work(graph, kernels)
    known = (amounts.flop >= 0) | (amounts.nbytes >= 0)
    counted = counted_tasks(graph, kernels).any(axis=0)
    found: np.ndarray = np.where(
        counted, RULES.index("counters"), np.where(known, RULES.index("shapes"), RULES.index("names"))
    )
    return found


def held_up(graph: Graph, kernels: Selection) -> np.ndarray:
    """Return a mask of kernels that counters show to be bound by neither arithmetic nor memory."""
    counted = counted_tasks(graph, kernels).all(axis=0)
    device = device_or_none(graph) if counted.any() else None
    if device is None:
        return np.zeros(len(kernels), bool)
    found: np.ndarray = counted & (bound(graph, kernels, device=device).kind == "latency")
    return found


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


def named_kind(kernels: Selection) -> np.ndarray:
    """Return what names say bounds each kernel: compute, memory, or None; texts (object)."""
    found = np.full(len(kernels), None, dtype=object)
    found[names_fit(kernels, STREAMING_NAME.search)] = "memory"
    found[is_matrix_kernel(kernels)] = "compute"
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
    told = graph.trace is not None and graph.trace.metadata.get("counters")
    for sentence in evidence(graph, kernels):
        graph.facts.rules += [sentence] * (sentence not in graph.facts.rules)
        if told:
            graph.note(sentence)


def evidence(graph: Graph, kernels: Selection) -> list[str]:
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
        return []
    rule = _rule(graph, kernels)
    ours = [(name, rule == place) for place, name in enumerate(RULES)]
    parts = [f"{name} for {time[mine].sum() / total:.1%}" for name, mine in ours if mine.any()]
    said = [f"What bounds the kernels is known by {', '.join(parts)} of their time."]
    if not (rule == RULES.index("counters")).any():
        return said
    said += _of_l2(graph, kernels, time / total)
    told, by_name = counted_kind(graph, kernels), named_kind(kernels)
    differs = (told != by_name) & (told != None) & (by_name != None)  # noqa: E711
    if differs.any():
        pairs = sorted(set(zip(by_name[differs].tolist(), told[differs].tolist(), strict=True)))
        each = [
            _pair(differs & (by_name == name) & (told == counters), time, total, name, counters)
            for name, counters in pairs
        ]
        said.append(
            f"Counters contradict the names of {number_of(int(differs.sum()), 'kernel')}, "
            f"{time[differs].sum() / total:.1%} of the time, and decide: {'; '.join(each)}."
        )
    return said


def _of_l2(graph: Graph, kernels: Selection, part: np.ndarray) -> list[str]:
    """Return what L2 bounds, and what its roof is taken from; nothing where it bounds nothing."""
    device, highest = device_or_none(graph), reached_l2(graph)
    if device is None or highest is None:
        return []
    near = bound_by_l2(graph, kernels, device.bandwidth) & (counted_kind(graph, kernels) == "memory")
    if not near.any():
        return []
    kernels_near = number_of(int(near.sum()), "kernel")
    said = (
        f"L2 bounds {kernels_near}, {part[near].sum():.1%} of the time: more passes it than memory gives. "
        f"Its roof is assumed to be the highest rate of this recording, {highest:,.0f} GB/s."
    )
    return [said]


def _pair(which: np.ndarray, time: np.ndarray, total: float, name: str, counters: str) -> str:
    return (
        f"{int(which.sum()):,} named as {NAMED[name]} are bound by {BY[counters]} "
        f"({time[which].sum() / total:.1%})"
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
    device, amounts = device_of(graph), work(graph, kernels)
    rate = peaks(number_formats(kernels, amounts, device), device)
    known = (amounts.flop >= 0) & (amounts.nbytes >= 0) & (amounts.flop + amounts.nbytes > 0)
    known &= np.isfinite(rate) | (amounts.flop == 0)
    arithmetic = np.where(amounts.flop > 0, amounts.flop / rate, 0.0)
    found: np.ndarray = np.where(known, np.maximum(arithmetic, amounts.nbytes / device.bandwidth), np.nan)
    highest = reached_l2(graph)
    if highest is None or highest < device.bandwidth:  # L2 gives more than memory: nothing came near its roof
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
    trace, found = graph.trace, np.full(len(kernels), np.nan)
    entries = trace.metadata.get("counters") if trace is not None else None
    if trace is None or not entries:
        return found
    device = device_or_none(graph)
    units = units_of(graph, device) if device is not None else 0
    shares = [conflict_share(entry.get("amounts", {}), units) for entry in entries]
    by_entry = np.array([*(np.nan if share is None else share for share in shares), np.nan])
    rows = graph.columns["row"][kernels.ids]
    place = np.where(rows >= 0, entry_of_rows(trace)[np.maximum(rows, 0)], -1)
    return by_entry[place]
