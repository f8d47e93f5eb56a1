"""What counters say of a trace's kernels, as sentences: `explain -v`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream.costs.counters.listing import counters_table
from daydream.costs.counters.quantities import QUANTITIES

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

MOST = 8  # kernels: those that take longest


def counted_sentences(trace: Trace | None) -> list[str]:
    """Return a sentence for each of the kernels that take longest and were counted, and one for each sum."""
    if trace is None or not (trace.metadata.get("counters") or trace.metadata.get("counted_windows")):
        return []
    rows = counters_table(trace)
    kernels = [row for row in rows if "total_ns" in row]
    return [_sentence(row) for row in (*kernels[:MOST], *rows[len(kernels) :])]


def _sentence(row: dict[str, float | str]) -> str:
    told = [f"{name} {_figure(row[name])}" for name in QUANTITIES if name in row]
    each = "a launch" if "total_ns" in row else "in all"
    return (
        f"{row['kernel']:.60}: {', '.join(told)} {each} ({row['counted']:,} of {row['launches']:,} counted)."
    )


def _figure(value: float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
