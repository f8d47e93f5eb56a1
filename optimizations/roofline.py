"""Every kernel at some part of its roofline: what better kernels could give at most."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import at_peak_ns, device_of, floor_ns, say_evidence
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.KERNELS
CODE = "# a better kernel: torch.compile with max-autotune, another library, or your own"
memory = unchanged


def roofline(graph: Graph, *, reach: float = 0.8) -> None:
    """Predict kernels that all reach a part of the peak that bounds them.

    A kernel's bound is what its FLOP take at the device's peak or its bytes at its bandwidth, whichever is
    longer; `reach` 0.8 gives it 1/0.8 of that, but not less than the smallest kernels take. Kernels that are
    better already stay. FLOP and bytes are those that were counted, else those of shapes; kernels of which
    one of the two is unknown stay, and how much of the time that is, is said.

    It is a bound for all of the kernels' own work: no kernel of a smaller one is foreseen. Not modelled:
    fusion, which takes bytes away (`compile`), and clocks under load.

    Args:
        reach: Share of the roofline that kernels reach.
    """
    if not 0 < reach <= 1:
        raise GraphError(f"reach must be above 0 and at most 1, not {reach:g}")
    kernels = graph.select(kind="kernel")
    kernels.need("kernels: peaks of CPUs are not known", lacks="device")
    device_of(graph)  # raises where its peaks are unknown
    say_evidence(graph, kernels)
    old, bound = kernels.duration_ns.astype(np.float64), at_peak_ns(graph, kernels)
    known = np.isfinite(bound)
    if not known.any():
        graph.does_not_apply("of no kernel FLOP and bytes are known; record shapes, or give --counters")
    least = np.minimum(floor_ns(graph), old)
    new = np.minimum(old, np.maximum(np.nan_to_num(bound) / reach, least))
    faster = known & (np.rint(new) < old)
    if not faster.any():
        graph.does_not_apply(f"every kernel of known work reaches {reach:g} of its bound already")
    graph.tasks(kernels.ids[faster]).set(duration_ns=np.rint(new[faster]).astype(np.int64))
    total, stay = max(old.sum(), 1.0), known & ~faster
    graph.note(
        f"{int(faster.sum()):,} kernels of {old[faster].sum() / 1e6:,.3f} ms become "
        f"{new[faster].sum() / 1e6:,.3f} ms at {reach:g} of their bound; {int(stay.sum()):,} "
        f"({old[stay].sum() / total:.1%} of the time) are as good already. Unknown, and left as they are: "
        f"{int((~known).sum()):,} ({old[~known].sum() / total:.1%})."
    )
