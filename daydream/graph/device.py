"""What a device runs, as opposed to threads of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from daydream.graph.graph import Graph


def device_work(graph: Graph) -> np.ndarray:
    """Return a mask over tasks of those that a device runs; collectives on CPU threads (gloo) are none."""
    host = np.array([lane.host for lane in graph.lanes] + [False], bool)
    return np.asarray((graph.columns["kind"] > 0) & ~host[graph.columns["lane"]])
