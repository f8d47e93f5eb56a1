"""What a recorded run says of itself, in lines: model, optimizers, buckets, collectives, bare steps."""

from __future__ import annotations

from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.report.text.layout import printable
from daydream.report.text.numbers import count, listed, time_text

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

MIB = 1 << 20
MOST_SETTINGS = 5
TOLD = ("lr", "momentum", "betas", "weight_decay", "foreach", "fused")
MOST_KINDS = 4


def collected_facts(trace: Trace) -> list[tuple[str, str]]:
    """Return (name, text) for what `daydream collect` adds to a trace; empty for others."""
    metadata = trace.metadata
    lines = [
        ("model", _model(metadata.get("parameters", []))),
        ("optimizer", "\n".join(_optimizer(one) for one in metadata.get("optimizers", []))),
        ("buckets", "\n".join(_buckets(one) for one in metadata.get("ddp", []))),
        ("collectives", _collectives(trace)),
        ("unprofiled", _unprofiled(metadata)),
    ]
    return [(name, text) for name, text in lines if text]


def _model(parameters: list[dict[str, Any]]) -> str:
    if not parameters:
        return ""
    elements = sum(int(np.prod(one["shape"], dtype=np.int64)) for one in parameters)
    types = listed(sorted({str(one["dtype"]) for one in parameters}))
    text = f"{elements:,} parameters in {count(len(parameters), 'tensor')}, {types}"
    frozen = sum(not one["requires_grad"] for one in parameters)
    if frozen:
        text += f", {frozen} of the tensors frozen"
    return f"{text}; gradients {_size(sum(one['gradient_bytes'] for one in parameters))}"


def _optimizer(optimizer: dict[str, Any]) -> str:
    groups = optimizer["groups"]
    settings = groups[0]["settings"] if groups else {}
    told = [f"{name} {_setting(settings[name])}" for name in TOLD if name in settings][:MOST_SETTINGS]
    text = f"{printable(str(optimizer['name']))}{' (' + ', '.join(told) + ')' if told else ''}"
    if len(groups) > 1:
        text += f", {len(groups)} groups (the first one's settings)"
    tensors = sum(group["tensors"] for group in groups)
    return f"{text}, {count(tensors, 'tensor')}, state {_size(optimizer['state_bytes'])}"


def _setting(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def _buckets(ddp: dict[str, Any]) -> str:
    sizes = [bucket["bytes"] for bucket in ddp.get("buckets", [])]
    if not sizes:
        return ""
    text = f"{count(len(sizes), 'gradient bucket')} in the order they get ready: "
    text += ", ".join(_size(size) for size in sizes[:8]) + (", ..." if len(sizes) > 8 else "")
    cap = ddp.get("cap_bytes")
    return text + (f"; limit {_size(cap)}" if cap else "")


def _collectives(trace: Trace) -> str:
    """Return what was exchanged in a step, and whether the ranks agree."""
    found = collectives_of_steps(trace)
    if not found:
        return ""
    ranks = sorted({rank for rank, _ in found})
    by_rank = {rank: [kinds for (whose, _), kinds in found.items() if whose == rank] for rank in ranks}
    typical = Counter(by_rank[ranks[0]]).most_common(1)[0][0]
    kinds = Counter(name for name, _ in typical)
    sizes = {name: sum(size for other, size in typical if other == name) for name in kinds}
    in_all = {name: f"{_size(size)} in total" if size else "unknown size" for name, size in sizes.items()}
    told = [f"{number} {printable(name)} of {in_all[name]}" for name, number in kinds.most_common(MOST_KINDS)]
    text = f"{listed(told)} in a step"
    if len(ranks) > 1:
        same = all(by_rank[rank] == by_rank[ranks[0]] for rank in ranks)
        text += ", the same on every rank" if same else "; ranks differ in what they exchange"
    return text


def collectives_of_steps(trace: Trace) -> dict[tuple[int, int], tuple[tuple[str, int], ...]]:
    """Return the collectives of each covered step of each rank, in order: operation and bytes.

    Rows of a device where there are some, else calls on the host; bytes are 0 where unknown.
    """
    if "collective" not in trace.columns or "step" not in trace.columns:
        return {}
    known = (trace["collective"] >= 0) & (trace["step"] >= 0)
    rows = known & trace.is_kind("collective")
    if not rows.any():
        rows = known & trace.is_kind("operator")
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    steps = trace.metadata["steps"]
    covered = np.array([bool(step.get("covered")) for step in steps], bool)
    chosen = np.flatnonzero(rows)
    chosen = chosen[covered[trace["step"][chosen]]]
    names = trace.values("collective", chosen)
    sizes = (
        np.maximum(np.asarray(trace["bytes"])[chosen], 0) if "bytes" in trace.columns else [0] * len(chosen)
    )
    for step, name, size in zip(trace["step"][chosen].tolist(), names, sizes, strict=True):
        rank = int(steps[step].get("rank", 0))
        found.setdefault((rank, step), []).append((str(name), int(size)))
    return {key: tuple(each) for key, each in found.items()}


def _unprofiled(metadata: dict[str, Any]) -> str:
    times = metadata.get("unprofiled_step_ns")
    if not times:
        return ""
    text = (
        f"{time_text(median(times))} per step in the median of {count(len(times), 'step')} without a profiler"
    )
    others = metadata.get("unprofiled_step_ns_by_rank", {})
    if len(others) > 1:
        medians = [median(each) for each in others.values() if each]
        text += f"; ranks {time_text(min(medians))} to {time_text(max(medians))}"
    return text


def _size(size: float) -> str:
    return f"{size / MIB:,.1f} MiB" if size >= MIB / 10 else f"{size / 1024:,.1f} KiB"
