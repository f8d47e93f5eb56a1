"""What a profiler recorded of memory: a row an allocation or a free, beside the trace's own rows.

They are instants, not work, so they are a table of their own. In a trace file they are its last rows.

From a file's rows of memory to a table of events, and what to say of the rows that hold none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from daydream.arrays import unique
from daydream.errors import TraceError
from daydream.text import counted
from daydream.trace.schema import LARGEST_AMOUNT, LARGEST_SUM, LONGEST_NS, NO_ID, UNKNOWN, Columns

HOST = -1  # the device of memory of the CPU
LARGEST_ADDRESS = 2**63 - 1

# name -> (smallest, largest, what a file without the column has)
COLUMNS: dict[str, tuple[int, int, int]] = {
    "rank": (0, 2**31 - 1, 0),
    "time_ns": (-LONGEST_NS, LONGEST_NS, 0),
    "pid": (NO_ID, LARGEST_ADDRESS, NO_ID),
    "tid": (NO_ID, LARGEST_ADDRESS, NO_ID),
    "device": (HOST, 2**31 - 1, HOST),
    "address": (UNKNOWN, LARGEST_ADDRESS, UNKNOWN),
    "bytes": (-LARGEST_AMOUNT, LARGEST_AMOUNT, 0),
    "allocated_bytes": (UNKNOWN, LARGEST_AMOUNT, UNKNOWN),
    "reserved_bytes": (UNKNOWN, LARGEST_AMOUNT, UNKNOWN),
}
MAY_BE_UNKNOWN = ("pid", "tid", "address", "allocated_bytes", "reserved_bytes")
IN_A_FILE = {"time_ns": "start_ns", "bytes": "memory_bytes"}  # what is called so there


class MemoryEvents:
    """Allocations (bytes above 0) and frees (below 0) in the order they were recorded.

    `columns` maps these names to int64 arrays of one length:

    | column | what it holds |
    |---|---|
    | `rank` | rank of the process |
    | `time_ns` | when, from the trace's own origin |
    | `pid`, `tid` | process and thread, `NO_ID` if unknown |
    | `device` | index of the GPU, -1 for memory of the CPU |
    | `address` | where, -1 if not recorded |
    | `bytes` | how much: what the allocator gave, rounded as it rounds; negative for a free |
    | `allocated_bytes`, `reserved_bytes` | the device's totals after it, -1 if not recorded |

    Raises `TraceError` if the columns differ in length or hold what no recording can.
    """

    def __init__(self, columns: Mapping[str, np.ndarray]) -> None:
        lengths = {len(column) for column in columns.values()}
        if len(lengths) > 1 or not {"time_ns", "bytes"} <= columns.keys() <= COLUMNS.keys():
            raise TraceError("its table of memory events lacks columns, or they differ in length")
        rows = lengths.pop() if lengths else 0
        self.columns: Columns = {}
        for name, (least, most, absent) in COLUMNS.items():
            column = columns.get(name)
            if column is None:
                column = np.full(rows, absent)
            elif not np.issubdtype(column.dtype, np.signedinteger):
                raise TraceError(f"the column {name!r} of its memory events holds no integers")
            elif rows and not (least <= int(column.min()) and int(column.max()) <= most):
                raise TraceError(
                    f"the column {name!r} of its memory events holds a number out of its range"
                )
            self.columns[name] = np.asarray(column, np.int64)
        if float(np.abs(self.columns["bytes"]).sum(dtype=float)) > LARGEST_SUM:
            raise TraceError("its memory events add up to more memory than any machine has")

    def __len__(self) -> int:
        return len(self.columns["time_ns"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __repr__(self) -> str:
        return f"<MemoryEvents {len(self):,} rows>"

    def take(self, rows: np.ndarray) -> MemoryEvents:
        """Return some of the events: by numbers, shape (n,), or by a mask, shape (rows,)."""
        return MemoryEvents({name: column[rows] for name, column in self.columns.items()})

    def changed(self, **columns: np.ndarray) -> MemoryEvents:
        """Return the events with some columns replaced, each of shape (rows,)."""
        return MemoryEvents({**self.columns, **columns})

    @classmethod
    def join(cls, parts: list[MemoryEvents]) -> MemoryEvents:
        """Return the events of several tables, one after the other."""
        return cls({name: np.concatenate([part[name] for part in parts]) for name in COLUMNS})


def blocks_in_use(segments: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return the bytes by address of what the metadata says was held before, in order of the segments."""
    found = {}
    for segment in segments:
        address = int(segment["address"])
        for size, asked in segment["blocks"]:
            if asked is not None:
                found[address] = int(size)
            address += int(size)
    return found


MOST_TRIED = 10**7


def with_lost_allocations(events: MemoryEvents) -> tuple[MemoryEvents, int]:
    """Return the events with allocations on GPUs that were not recorded, and how many these are.

    A total that rises by more than its event allocates shows one. Its address is that of a later free of as
    much (or of several that make it up) that no event allocated; without one it is what the total stays up by.
    """
    added = []  # before which event, at which address, how many bytes
    for device in unique(events["device"][events["device"] >= 0]).tolist():
        own = np.flatnonzero(events["device"] == device)
        totals = events["allocated_bytes"][own]
        more = totals - np.cumsum(events["bytes"][own])  # than the events add up to
        rises = np.diff(more)
        stays = np.minimum.accumulate(more[::-1])[::-1][1:] - more[:-1]
        if (totals < 0).any() or not rises.any():
            continue
        last: dict[
            int, tuple[int, bool]
        ] = {}  # by address: the event there, and whether it allocates
        unseen = []  # frees: bytes, event, the one before at the address, address
        for event, address, nbytes in zip(
            own.tolist(),
            *(events[name][own].tolist() for name in ("address", "bytes")),
            strict=True,
        ):
            before, held = last.get(address, (-1, False))
            if nbytes < 0 and not held:
                unseen.append((-nbytes, event, before, address))
            last[address] = event, nbytes > 0
        unseen.sort(key=lambda free: (-free[0], free[1]))
        up = rises > 0
        if up.sum() * len(unseen) > MOST_TRIED:
            continue
        columns = own[1:], rises, stays
        for event, rise, stay in zip(*(each[up].tolist() for each in columns), strict=True):
            rest = rise
            taken = []
            for free in unseen:
                if free[0] <= rest and free[2] < event <= free[1]:
                    rest -= free[0]
                    taken.append(free)
            if not rest:
                unseen = [free for free in unseen if free not in taken]
                added += [(event, address, nbytes) for nbytes, _, _, address in taken]
            elif stay > 0:
                added.append((event, UNKNOWN, min(rise, stay)))
    at, address, nbytes = np.array(added, np.int64).reshape(-1, 3).T
    unknown = np.full(len(at), UNKNOWN)
    lost = events.take(at).changed(
        address=address, bytes=nbytes, allocated_bytes=unknown, reserved_bytes=unknown
    )
    order = np.argsort(np.append(np.arange(len(events)), at - 0.5), kind="stable")
    return MemoryEvents.join([events, lost]).take(order), len(at)


TOTALS = ("allocated_bytes", "reserved_bytes")


def events_of(
    columns: Mapping[str, np.ndarray], bad: np.ndarray, notes: list[str]
) -> MemoryEvents | None:
    """Return the rows that hold events, in order of time, None if there are none; `notes` gets sentences.

    `columns` are those of `MemoryEvents`, int64, shape (rows,), as the file has them; `bad` (bool, shape
    (rows,)) are rows known to hold no event.
    """
    time = columns["time_ns"]
    nbytes = columns["bytes"]
    device = columns["device"]
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
        were = (
            "was no amount of memory and is" if absurd == 1 else "were no amounts of memory and are"
        )
        notes.append(f"{counted(absurd, 'total', 'totals')} of memory events {were} unknown.")
    address = kept["address"]
    kept["address"] = np.where((address > 0) & (address <= LARGEST_ADDRESS), address, UNKNOWN)
    return MemoryEvents(kept)
