"""What recording cost in a trace: as it says itself, else what it typically costs.

`daydream collect` writes the typical cost into its traces, with what its hooks took; up to November 2026 it
measured the cost in the process that it recorded. A trace of `torch.profiler` alone does not tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from daydream.collect.live.typical_cost import TYPICAL
from daydream.trace.trace import Trace

VENDORS = (None, "cuda", "rocm", "xpu")  # whose devices torch.profiler records itself


def told_cost(trace: Trace) -> Mapping[str, Any] | None:
    """Return what this trace says that recording cost; None if it does not."""
    found: Mapping[str, Any] | None = trace.metadata.get("profiler_cost")
    return found or None


def cost_of_recording(trace: Trace) -> Mapping[str, Any] | None:
    """Return what recording cost an event, in ns; None where nothing is known of it.

    The typical cost is for traces of torch.profiler with work of a device: there the CPU's time may be
    hidden, and show after a change. What another profiler costs is not known.
    """
    found = told_cost(trace)
    if found is not None or not _by_torch_profiler(trace):
        return found
    return TYPICAL


def _by_torch_profiler(trace: Trace) -> bool:
    metadata = trace.metadata
    return (
        metadata.get("profiler") is None
        and "nsys" not in (metadata.get("versions") or {})
        and metadata.get("vendor") in VENDORS
        and "collected" not in metadata
        and bool(trace.is_kind("operator").any())
        and bool(trace.is_kind("kernel").any())
    )


def was_measured(trace: Trace) -> bool:
    """Return whether what recording cost was measured in the recorded process."""
    return "rounds" in (told_cost(trace) or {})
