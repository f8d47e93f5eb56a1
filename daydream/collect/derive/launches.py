"""What launched device work: the calls in their order, by correlation alone, before anything is derived."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.trace.schema import DEVICE_KINDS


@dataclass(frozen=True)
class Launches:
    """Launch calls in the order they began: what each launched (a code), when, and its device time."""

    symbols: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    work_ns: np.ndarray
    thread: np.ndarray

    def of(self, thread: int) -> Launches:
        """Return the calls of one thread."""
        mine = self.thread == thread
        symbols = np.unique(self.symbols[mine], return_inverse=True)[1].astype(np.int32)
        return Launches(
            symbols, self.start_ns[mine], self.end_ns[mine], self.work_ns[mine], self.thread[mine]
        )


def linked_calls(recording: Recording, *kinds: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the device rows of some kinds whose launch call is known, and the calls, in the same order."""
    host = np.flatnonzero(recording.is_kind("runtime") & (recording["correlation"] >= 0))
    device = np.flatnonzero(recording.is_kind(*kinds) & (recording["correlation"] >= 0))
    if len(host) == 0 or len(device) == 0:
        return device[:0], host[:0]
    host = host[np.argsort(recording["correlation"][host], kind="stable")]
    known = recording["correlation"][host]
    at = np.minimum(np.searchsorted(known, recording["correlation"][device]), len(known) - 1)
    linked = known[at] == recording["correlation"][device]
    return device[linked], host[at[linked]]


def is_device_alone(recording: Recording) -> bool:
    """Return whether a recording holds device work, but no operator and no call that could launch it."""
    return bool(recording.is_kind(*DEVICE_KINDS).any()) and not bool(
        recording.is_kind("operator", "runtime").any()
    )


def read_launches(recording: Recording) -> Launches:
    """Return the launch calls of a recording; where it has no calls at all, the device work itself.

    A call with several device rows, a graph launch, counts once under the call's own
    name: profilers record a varying part of a graph's nodes. Of several ranks, the one
    with most launches is taken.
    """
    if is_device_alone(recording):
        return _as_launched(recording)
    device, host = linked_calls(recording, *DEVICE_KINDS)
    calls, position, which, rows = np.unique(host, return_index=True, return_inverse=True, return_counts=True)
    work_ns = np.zeros(len(calls), np.int64)
    np.add.at(work_ns, which, recording["duration_ns"][device])
    names = recording["name"].astype(np.int64)
    codes = np.where(rows == 1, names[device[position]], len(recording.text("name")) + names[calls])
    if len(calls):
        _, rank, counts = np.unique(recording["rank"][calls], return_inverse=True, return_counts=True)
        mine = rank == counts.argmax()
        calls, codes, work_ns = calls[mine], codes[mine], work_ns[mine]
    start_ns = recording["start_ns"][calls].astype(np.int64)
    order = np.argsort(start_ns, kind="stable")
    end_ns = start_ns + recording["duration_ns"][calls]
    symbols = np.unique(codes, return_inverse=True)[1].astype(np.int32)
    thread = recording.threads[calls]
    return Launches(symbols[order], start_ns[order], end_ns[order], work_ns[order], thread[order])


def _as_launched(recording: Recording) -> Launches:
    """Return device work as if it had launched itself, each stream a thread; of ranks that with most."""
    device = np.flatnonzero(recording.is_kind(*DEVICE_KINDS))
    _, rank, counts = np.unique(recording["rank"][device], return_inverse=True, return_counts=True)
    device = device[rank.reshape(-1) == counts.argmax()]
    device = device[np.argsort(recording["start_ns"][device], kind="stable")]
    start_ns = recording["start_ns"][device].astype(np.int64)
    work_ns = recording["duration_ns"][device].astype(np.int64)
    lanes = np.stack([recording["device"][device], recording["stream"][device]])
    _, lane = np.unique(lanes, axis=1, return_inverse=True)
    symbols = np.unique(recording["name"][device], return_inverse=True)[1].astype(np.int32)
    return Launches(symbols, start_ns, start_ns + work_ns, work_ns, lane.reshape(-1))
