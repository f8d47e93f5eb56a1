"""Memory for what the profiler will write, touched before it starts.

The profiler files half a kilobyte an event away, in memory that it takes as it goes. Fresh
memory costs a page fault every eighth event, and a fault costs more than the event: on a
virtual machine recorded steps were 40 % slower for it. Memory that was used before and
given back to the allocator costs nothing more.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys

NBYTES = 64 << 20  # 120,000 events
CHUNK = 64 << 10  # below the size for which the C library asks the system for memory of its own
LARGEST_BLOCK = 1 << 20  # the profiler's blocks are smaller; freed once, such blocks are reused


class WarmMemory:
    """Memory that the allocator can hand out without asking the system; it is let go with this object."""

    def __init__(self, nbytes: int = NBYTES) -> None:
        block = bytearray(LARGEST_BLOCK)
        del block
        chunks = [bytearray(CHUNK) for _ in range(nbytes // CHUNK)]
        self._last = bytearray(CHUNK)  # behind the others: keeps the allocator from giving them to the system
        del chunks


def give_back() -> None:
    """Let the C library hand its free memory to the system, behind the last step that counts.

    What the recording and the measuring of its cost took stays with the process else, 100 MB of it.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)
