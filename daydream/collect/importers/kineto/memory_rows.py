"""Kineto's `[memory]` rows (`profile_memory=True`): instants of allocations and frees.

Since 2022 they have an address and the allocator's totals. `Device Type` counts as PyTorch's `DeviceType`:
0 is the CPU, 1 CUDA, 6 HIP (c10/core/DeviceType.h).
"""

from __future__ import annotations

import numpy as np

from daydream.collect.importers.kineto.events import Args, Event
from daydream.collect.importers.kineto.values import Numbers, start_ns
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import UNKNOWN
from daydream.trace.valid import LARGEST_AMOUNT, LONGEST_NS

MEMORY_ROW = "[memory]"
MEMORY_LEFT_OUT = "of memory told no time, device or number of bytes"
CPU_TYPE = 0
NONE = -(2**62)  # a number of bytes that no row has
NO_ARGS = Args()


class MemoryRows:
    """The `[memory]` rows of a file, gathered while it is read."""

    def __init__(self) -> None:
        self._rows: list[Event] = []
        self.left_out = 0

    def append(self, event: Event) -> None:
        """Keep a row."""
        self._rows.append(event)

    def events(self, first_ns: int, threads: Numbers, *, exact: bool) -> MemoryEvents | None:
        """Return the rows as a table in order of time, None if there are none; times count from `first_ns`.

        Rows without a time, a device or a number of bytes are left out and counted in `left_out`.
        """
        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        args = [row.args or NO_ARGS for row in rows]
        numbers, signed = Numbers(UNKNOWN), Numbers(NONE)
        time, bad = start_ns([row.ts for row in rows], exact=exact)
        time -= first_ns
        kind = numbers.of([each.device_type for each in args])
        device = numbers.of([each.device_id for each in args]).astype(np.int64)
        nbytes = signed.of([each.memory_bytes for each in args]).astype(np.int64)
        amounts = {
            name: numbers.of([getattr(each, field) for each in args]).astype(np.int64)
            for name, field in (("allocated_bytes", "allocated"), ("reserved_bytes", "reserved"))
        }
        bad |= (np.abs(nbytes) > LARGEST_AMOUNT) | (kind < 0) | ((kind != CPU_TYPE) & (device < 0))
        bad |= (np.abs(time) > LONGEST_NS) | (device >= 2**31)
        address = numbers.of([each.address for each in args]).astype(np.int64)
        columns = {
            "time_ns": time,
            "pid": threads.of([row.pid for row in rows]),
            "tid": threads.of([row.tid for row in rows]),
            "device": np.where(kind == CPU_TYPE, HOST, device),
            "address": np.where(address > 0, address, UNKNOWN),
            "bytes": nbytes,
            **{
                name: np.where((column < 0) | (column > LARGEST_AMOUNT), UNKNOWN, column)
                for name, column in amounts.items()
            },
        }
        keep = np.flatnonzero(~bad)
        self.left_out = len(rows) - len(keep)
        order = keep[np.argsort(time[keep], kind="stable")]
        return MemoryEvents({name: column[order] for name, column in columns.items()}) if len(keep) else None
