"""Kineto's `[memory]` rows (`profile_memory=True`): instants of allocations and frees.

Since 2022 they have an address and the allocator's totals. `Device Type` counts as PyTorch's `DeviceType`:
0 is the CPU, 1 CUDA, 6 HIP, 12 XPU, 20 what registers itself (c10/core/DeviceType.h).
"""

from __future__ import annotations

import numpy as np

from daydream.collect.importers.kineto.events import Args, Event
from daydream.collect.importers.kineto.values import Numbers, start_ns
from daydream.collect.importers.memory_table import events_of
from daydream.text import counted
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import UNKNOWN

MEMORY_ROW = "[memory]"
CPU_TYPE = 0
LAST_TYPE = 20  # PrivateUse1
NONE = -(2**62)  # a number that no row has
NO_ARGS = Args()


class MemoryRows:
    """The `[memory]` rows of a file, gathered while it is read; `notes` says what was odd about them."""

    def __init__(self) -> None:
        self._parts: list[dict[str, np.ndarray]] = []
        self.notes: list[str] = []

    def add(self, rows: list[Event], threads: Numbers, *, exact: bool) -> None:
        """Keep some rows."""
        args = [row.args or NO_ARGS for row in rows]
        numbers, signed = Numbers(UNKNOWN), Numbers(NONE)
        time, bad = start_ns([row.ts for row in rows], exact=exact)
        self._parts.append({
            "bad": bad,
            "kind": numbers.of([each.device_type for each in args]),
            "device": numbers.of([each.device_id for each in args]),
            "time_ns": time,
            "pid": threads.of([row.pid for row in rows]),
            "tid": threads.of([row.tid for row in rows]),
            "address": numbers.of([each.address for each in args]),
            "bytes": signed.of([each.memory_bytes for each in args]),
            "allocated_bytes": signed.of([each.allocated for each in args]),
            "reserved_bytes": signed.of([each.reserved for each in args]),
        })  # fmt: skip

    def join(self, other: MemoryRows) -> None:
        """Append the rows of the part of the file that follows."""
        self._parts += other._parts

    def events(self, first_ns: int) -> MemoryEvents | None:
        """Return the rows as a table in order of time, None if there are none; times count from `first_ns`.

        Rows without a time, a device or a number of bytes are left out.
        """
        if not self._parts:
            return None
        parts, self._parts = self._parts, []
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        del parts
        bad, kind = columns.pop("bad"), columns.pop("kind")
        columns = {name: column.astype(np.int64) for name, column in columns.items()}
        bad |= (kind < CPU_TYPE) | (kind > LAST_TYPE) | ((kind != CPU_TYPE) & (columns["device"] < 0))
        columns["time_ns"] = np.where(bad, 0, columns["time_ns"] - first_ns)
        columns["device"] = np.where(kind == CPU_TYPE, HOST, columns["device"])
        own = ~self._of_another_kind(kind, bad)
        return events_of({name: column[own] for name, column in columns.items()}, bad[own], self.notes)

    def _of_another_kind(self, kind: np.ndarray, bad: np.ndarray) -> np.ndarray:
        """Return the rows that are neither the CPU's nor of the kind of device with most rows: bool, (rows,).

        Devices of two kinds have the same numbers, and a process trains on one kind.
        """
        on_device = kind[~bad & (kind != CPU_TYPE)]
        if not len(on_device):
            return np.zeros(len(kind), bool)
        most = int(np.bincount(on_device).argmax())
        other = ~bad & (kind != CPU_TYPE) & (kind != most)
        if found := int(other.sum()):
            were = "was" if found == 1 else "were"
            self.notes.append(
                f"{counted(found, 'row', 'rows')} of memory of a second kind of device {were} left out."
            )
        return other
