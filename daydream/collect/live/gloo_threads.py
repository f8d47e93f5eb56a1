"""Threads of gloo are given the time to finish before Python ends.

torch's runners of collectives on CPUs let go of Python objects when a collective is done, for which they
need the interpreter. One that asks for it while Python shuts down, before 3.14, aborts the process
("terminate called without an active exception"). It takes a busy machine and a script that ends right
behind its last collective; it happens without daydream, too (measured with torch 2.13).
"""

from __future__ import annotations

import time
from pathlib import Path

RUNNER = "pt_gloo_runloop"  # what torch calls them; the kernel keeps 15 characters
TASKS = Path("/proc/self/task")  # Linux only, as the names are
LONGEST_S = 2.0
PAUSE_S = 0.001  # the interpreter is free meanwhile


def let_gloo_finish() -> None:
    """Return when gloo's threads sleep, at the latest after `LONGEST_S`; at once where there are none."""
    runners = [task for task in _tasks() if _read(task / "comm").strip() == RUNNER[:15]]
    end = time.monotonic() + LONGEST_S
    while runners and time.monotonic() < end:
        time.sleep(PAUSE_S)
        # One that waits for the interpreter got it in the pause; of one that has ended nothing is read.
        runners = [task for task in runners if _read(task / "stat").rpartition(")")[2].split()[:1] == ["R"]]


def _tasks() -> list[Path]:
    return list(TASKS.iterdir()) if TASKS.is_dir() else []


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread has ended
        return ""
