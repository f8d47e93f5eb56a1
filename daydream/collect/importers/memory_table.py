"""From a file's rows of memory to a table of events, and what to say of the rows that hold none."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from daydream.text import counted
from daydream.trace.memory_events import LARGEST_ADDRESS, MemoryEvents
from daydream.trace.schema import UNKNOWN
from daydream.trace.valid import LARGEST_AMOUNT, LONGEST_NS

TOTALS = ("allocated_bytes", "reserved_bytes")


def events_of(columns: Mapping[str, np.ndarray], bad: np.ndarray, notes: list[str]) -> MemoryEvents | None:
    """Return the rows that hold events, in order of time, None if there are none; `notes` gets sentences.

    `columns` are those of `MemoryEvents`, int64, shape (rows,), as the file has them; `bad` (bool, shape
    (rows,)) are rows known to hold no event.
    """
    time, nbytes, device = columns["time_ns"], columns["bytes"], columns["device"]
    bad = bad | (np.abs(time) > LONGEST_NS) | (np.abs(nbytes) > LARGEST_AMOUNT) | (device >= 2**31)
    keep = np.flatnonzero(~bad)
    if left_out := len(bad) - len(keep):
        notes.append(
            f"{counted(left_out, 'row', 'rows')} of memory told no time, device or number of bytes and "
            f"{'was' if left_out == 1 else 'were'} left out."
        )
    if not len(keep):
        return None
    keep = keep[np.argsort(time[keep], kind="stable")]
    kept = {name: column[keep] for name, column in columns.items()}
    absurd = 0
    for name in TOTALS:
        if name in kept:
            odd = (kept[name] < UNKNOWN) | (kept[name] > LARGEST_AMOUNT)
            absurd += int(odd.sum())
            kept[name] = np.where(odd, UNKNOWN, kept[name])
    if absurd:
        were = "was no amount of memory and is" if absurd == 1 else "were no amounts of memory and are"
        notes.append(f"{counted(absurd, 'total', 'totals')} of memory events {were} unknown.")
    address = kept["address"]
    kept["address"] = np.where((address > 0) & (address <= LARGEST_ADDRESS), address, UNKNOWN)
    return MemoryEvents(kept)
