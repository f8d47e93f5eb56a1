"""Processes of an Nsight Systems export: several may be in one file, each with correlation ids of its own.

Nsight packs machine, process and thread into one number, `globalTid`: the thread in the
low 24 bits, the process in the next 24; `globalPid` is the same with thread 0.
"""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.text import counted
from daydream.trace.schema import NO_ID, UNKNOWN


def process_of(packed: np.ndarray) -> np.ndarray:
    """Return machine and process in one number, unknown where the owner is."""
    return np.where(packed >= 0, packed >> 24, UNKNOWN)


def pid_and_tid(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return process and thread ids as the operating system numbers them."""
    known = packed >= 0
    return np.where(known, packed >> 24 & 0xFFFFFF, NO_ID), np.where(known, packed & 0xFFFFFF, NO_ID)


class Processes:
    """The processes of one export in the order of their ranks, those without device work last."""

    def __init__(self, processes: np.ndarray, on_device: np.ndarray, device: np.ndarray) -> None:
        lowest: dict[int, int] = {}
        at_work = on_device & (processes >= 0)
        pairs = np.unique(np.stack([processes[at_work], device[at_work]]), axis=1)
        for process, number in pairs.T.tolist():
            lowest.setdefault(process, number)
        ranked = sorted(lowest, key=lambda process: (lowest[process], process))
        others = np.setdiff1d(processes, [UNKNOWN, *ranked]).tolist()
        self.ranks = max(len(ranked), 1)
        self.order = np.array([*ranked, *others] or [UNKNOWN], np.int64)

    def index(self, processes: np.ndarray) -> np.ndarray:
        """Return each process's position; rows of old tables that name no process belong to the first."""
        by_id = np.argsort(self.order, kind="stable")
        at = by_id[np.minimum(np.searchsorted(self.order[by_id], processes), len(by_id) - 1)]
        return np.where(self.order[at] == processes, at, 0)

    def rank(self, processes: np.ndarray) -> np.ndarray:
        """Return each row's rank, unknown for processes without device work."""
        index = self.index(processes)
        return np.where(index < self.ranks, index, UNKNOWN)

    def correlation(self, correlation: np.ndarray, processes: np.ndarray) -> np.ndarray:
        """Return correlation ids (32 bits, counted per process) with the process's position above them."""
        return np.where(correlation >= 0, correlation | self.index(processes) << 32, UNKNOWN)


def split_ranks(recording: Recording) -> list[Recording]:
    """Return a recording per rank; notes on the file go with the first.

    Rows of processes without device work are left out and counted.
    """
    ranks = np.asarray(recording["rank"])
    present = np.unique(ranks[ranks >= 0]).tolist()
    if len(present) <= 1:
        return [recording]
    parts: list[Recording] = []
    for rank in present:
        columns = {name: column[ranks == rank] for name, column in recording.columns.items()}
        del columns["rank"]
        texts = {name: list(words) for name, words in recording.texts.items()}
        notes = [] if parts else list(recording.metadata["notes"])
        metadata = {**recording.metadata, "rank": rank, "notes": notes}
        memory = recording.memory
        if memory is not None:
            memory = memory.take(memory["rank"] == rank)
        parts.append(Recording(columns, texts, metadata, memory))
    outside = int((ranks < 0).sum())
    if outside:
        parts[0].note(f"{counted(outside, 'row', 'rows')} of processes without device work left out.")
    return parts
