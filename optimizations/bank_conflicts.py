"""Bank conflicts gone: kernels without the cycles that shared memory loses to them."""

from __future__ import annotations

import numpy as np

from daydream import Graph
from daydream.costs import counted_conflicts
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.KERNELS
CODE = "# pad or swizzle the tiles that the kernel keeps in shared memory (LDS)"
memory = unchanged


def bank_conflicts(graph: Graph) -> None:
    """Predict kernels whose accesses to shared memory (LDS) no longer meet in the same bank.

    Of each kernel that counters tell of, the part of its cycles that was lost to bank conflicts goes: AMD's
    LDSBankConflict, else the cycles of conflicts over those from its begin to its end on all units
    (`SQ_LDS_BANK_CONFLICT` and `GRBM_GUI_ACTIVE`; `l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum` and
    `sm__cycles_elapsed`). It is the most that can be gained: a conflict that something else hides costs
    nothing. Kernels without these counters stay, and how much of the time that is, is said.

    Not modelled: the padding's shared memory, and what it costs in occupancy.
    """
    kernels = graph.select(kind="kernel")
    kernels.need("kernels: only a GPU has banks of shared memory", lacks="device")
    share = counted_conflicts(graph, kernels)
    known = np.isfinite(share)
    if not known.any():
        graph.does_not_apply(
            "no kernel has counters of bank conflicts; count them, and give the file by --counters "
            "(LDSBankConflict; l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum and sm__cycles_elapsed.sum)"
        )
    lost = known & (share > 0)
    if not lost.any():
        graph.does_not_apply(f"the {int(known.sum()):,} kernels with counters have no bank conflicts")
    old = kernels.duration_ns.astype(np.float64)
    total, gone = max(old.sum(), 1.0), (old * np.nan_to_num(share)).sum()
    chosen = graph.tasks(kernels.ids[lost])
    chosen.set(duration_ns=np.rint(old[lost] * (1 - share[lost])).astype(np.int64))
    graph.note(
        f"Bank conflicts take {gone / 1e6:,.3f} ms of {int(lost.sum()):,} kernels, {gone / total:.1%} of the "
        f"kernels' time: an upper bound. {int((~known).sum()):,} kernels ({old[~known].sum() / total:.1%} of "
        "the time) have no counters of them and stay."
    )
