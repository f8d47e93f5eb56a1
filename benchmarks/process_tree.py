"""The memory of a process and of those it started, looked at while they run (Linux)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVERY_S = 0.02


@contextmanager
def watched(pid: int) -> Iterator[list[int]]:
    """Give a list whose only item becomes the largest sum of resident bytes that was seen."""
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(EVERY_S):
            most[0] = max(most[0], sum(map(_resident, [pid, *_descendants(pid)])))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:  # it has ended
            continue
        found += [one for child in children for one in (child, *_descendants(child))]
    return found


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        return 0
