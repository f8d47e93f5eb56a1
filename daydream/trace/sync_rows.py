"""The device's own records of synchronizations, told from kernels by their names."""

from __future__ import annotations

import numpy as np

from daydream.trace.schema import FIELDS, Columns, Texts

# As Kineto names what CUPTI records of them (CUpti_ActivitySynchronizationType). No kernel has such a name.
SYNC_NAMES = frozenset(("Stream Sync", "Context Sync", "Event Sync", "Stream Wait Event"))
NOT_OF_SYNCS = ("parent", "op", "layer", "phase", "step", "dtype")


def tell_syncs(columns: Columns, texts: Texts) -> None:
    """Make rows of kind `kernel` with such a name rows of kind `sync`, in place.

    `collect` wrote them as kernels up to November 2026, with a torch that does not say what its events are
    (2.11, for one): a wait of the CPU for the whole device then counted as work of the device.
    """
    names = [code for code, name in enumerate(texts.get("name", ())) if name in SYNC_NAMES]
    kinds = texts.get("kind", [])
    if not names or "kernel" not in kinds:
        return
    rows = np.isin(columns["name"], names) & (columns["kind"] == kinds.index("kernel"))
    if not rows.any():
        return
    if "sync" not in kinds:
        kinds.append("sync")
    columns["kind"] = np.where(rows, kinds.index("sync"), columns["kind"]).astype(columns["kind"].dtype)
    for name in NOT_OF_SYNCS:
        if name in columns:
            column = columns[name]
            columns[name] = np.where(rows, FIELDS[name].null, column).astype(column.dtype)
