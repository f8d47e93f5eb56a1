"""How much memory torch's allocator for CPUs holds, counted below torch (`memory_count.c`)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def library(folder: Path) -> Path:
    """Compile the counter into a folder; processes count that have it in `LD_PRELOAD`."""
    path = folder / "memory_count.so"
    asked = ["cc", "-O2", "-shared", "-fPIC", "-o", str(path), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(asked, check=True)
    return path


class Count:
    """Bytes held, and the most since `restart`, by phase; of this process, all its threads."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        for name in ("counted_held", "counted_most"):
            getattr(self.library, name).restype = ctypes.c_int64
        self.first = [self.held(all_of_it=which) for which in (False, True)]
        self.restart()

    def held(self, *, all_of_it: bool = False) -> int:
        """Return the bytes held now by torch's allocator, or by oneDNN too."""
        return int(self.library.counted_held(int(all_of_it)))

    def restart(self) -> None:
        """Forget the most so far."""
        self.library.counted_restart()
        self.most, self.most_of_all, self.phase = 0, 0, ""

    @contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        """Count a phase of a step."""
        self.library.counted_restart()
        yield
        most, of_all = (int(self.library.counted_most(which)) - self.first[which] for which in (0, 1))
        if most > self.most:
            self.most, self.phase = most, phase
        self.most_of_all = max(self.most_of_all, of_all)
