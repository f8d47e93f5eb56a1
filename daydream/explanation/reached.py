"""What share of the device's peak the kernels of a step reach: by family, those first that take longest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.costs.devices import device_of
from daydream.costs.kernels import number_formats, peaks, work
from daydream.display import as_json
from daydream.errors import NotApplicableError
from daydream.explanation.causes import Chain, labels
from daydream.graph.selection import Selection
from daydream.graph.tables import KERNEL

# cuDNN's algorithms that fit any convolution. Without `benchmark` it chooses by rules of thumb, and takes
# them at times where Winograd's or a product with precomputed offsets would be faster.
GENERAL = r"implicit_convolve_sgemm|dgrad_engine|wgrad_alg0_engine|convolve_common_engine"
LEAST = 0.03  # of the kernels' time: smaller families are left out
MOST = 3


@dataclass(frozen=True)
class PeakShare:
    """Kernels of one family: their time a step and the share of the peak that bounds them.

    `of` is arithmetic or memory, whichever the family's work would take longer on at the peak rate.
    """

    name: str
    ns: int
    share: float
    of: str

    def to_json(self) -> dict[str, Any]:
        """Return the figure as `explain --json` prints it."""
        return as_json(self, "name ns share_of_peak=share peak=of")


def reached(chain: Chain) -> tuple[PeakShare, ...]:
    """Return what the families of kernels that take longest reach; none without shapes or a known device.

    Kernels whose work is unknown do not count, nor do those that a cache serves: more than the memory's peak.
    """
    graph = chain.graph
    kernels = _kernels(chain)
    try:
        device = device_of(graph)
    except NotApplicableError:
        return ()
    if not len(kernels):
        return ()
    amounts = work(graph, kernels)
    rate = peaks(number_formats(kernels, amounts, device), device)
    arithmetic = np.where(amounts.flop > 0, amounts.flop / rate, np.nan)
    memory = np.where(amounts.nbytes > 0, amounts.nbytes / device.bandwidth, np.nan)
    known = np.isfinite(arithmetic) | np.isfinite(memory)
    family, names = labels(graph, kernels.ids)
    took = kernels.duration_ns.astype(np.float64)

    def by_family(values: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.bincount(family[known], np.nan_to_num(values[known]), len(names))
        return found

    ns, flop_ns, byte_ns = (by_family(values) for values in (took, arithmetic, memory))
    found = []
    for each in np.argsort(-ns, kind="stable")[:MOST].tolist():
        bound_ns = max(flop_ns[each], byte_ns[each])
        if LEAST * took.sum() <= ns[each] and 0 < bound_ns <= ns[each]:
            of = "arithmetic" if flop_ns[each] >= byte_ns[each] else "memory"
            share = float(bound_ns / ns[each])
            found.append(PeakShare(names[each], round(ns[each] / len(chain.steps)), share, of))
    return tuple(found)


def general_convolutions_ns(chain: Chain) -> int:
    """Return what convolutions by cuDNN's general algorithms take a step; 0 where it is next to nothing."""
    kernels = _kernels(chain)
    general = int(kernels.where(name=GENERAL).duration_ns.sum())
    return round(general / len(chain.steps)) if general > LEAST * kernels.duration_ns.sum() else 0


def _kernels(chain: Chain) -> Selection:
    """Return the kernels of the covered steps."""
    graph = chain.graph
    covered = np.array([step.get("covered", False) for step in graph.steps] + [False], bool)
    chosen = (graph.columns["kind"] == KERNEL) & graph.alive & covered[graph.columns["step"]]
    return Selection(graph, np.flatnonzero(chosen))
