"""Memory for what the profiler will write, touched before it starts.

The profiler files one to two kilobytes an event away, in memory that it takes as it goes. Fresh
memory costs a page fault every second event, and a fault costs as much as the event. Worse, each event
takes a few small blocks: where no free block is that small, the allocator cuts one off the place that a
tensor had a step ago, and the tensor goes to fresh memory. On a perceptron of 4 x 256 x 256 that is 900
faults a step, half of what recording adds. So there are free blocks of these sizes, and more memory that
was used before and given back to the allocator; and more of it whenever a step took page faults all the same.
"""

from __future__ import annotations

import time

import numpy as np

NBYTES = 64 << 20
CHUNK = 64 << 10  # below the size for which the C library asks the system for memory of its own
LARGEST_BLOCK = 1 << 20  # the profiler's blocks are smaller; freed once, such blocks are reused
# What it takes most (a perceptron's faults went with blocks of these sizes; those of 56 and 72 did nothing).
SMALL = (24, 40)
NBYTES_A_SMALL_BLOCK = 1 << 10  # of each size, there is one for so many bytes
PAGE = 4096
FEW_FAULTS = 64  # a step without a profiler takes some, too
LONG_STEP_NS = 30_000_000  # a hundred times what touching the memory takes


class WarmMemory:
    """Memory that the allocator can hand out without asking the system; it is let go with this object."""

    def __init__(self, nbytes: int = NBYTES) -> None:
        self._between = [_every_other(size, nbytes // NBYTES_A_SMALL_BLOCK) for size in SMALL]
        block = bytearray(LARGEST_BLOCK)
        del block
        chunks = [bytearray(CHUNK) for _ in range(nbytes // CHUNK)]
        # Behind the others: keeps the allocator from giving them to the system.
        self._last: list[object] = [bytearray(CHUNK)]
        del chunks
        self._faults = _page_faults()
        self._at_ns = time.perf_counter_ns()

    def add_if_used_up(self) -> None:
        """Between two steps: add memory if the step took page faults, or was long enough to hide the work.

        For twice as many faults, and at least as much as at first.
        """
        faults = _page_faults()
        now_ns = time.perf_counter_ns()
        more = faults - self._faults
        if more > FEW_FAULTS or now_ns - self._at_ns > LONG_STEP_NS:
            count = max(NBYTES, 2 * more * PAGE) // LARGEST_BLOCK
            # A touch of each page, as what is written over would push the script's data out of the caches.
            blocks = [np.empty(LARGEST_BLOCK, np.uint8) for _ in range(count)]
            for block in blocks:
                block[::PAGE] = 0
            self._last.append(bytearray(CHUNK))
            faults = _page_faults()
        self._faults = faults
        self._at_ns = time.perf_counter_ns()


def _every_other(nbytes: int, count: int) -> list[np.ndarray]:
    """Return blocks with a free one between any two, which cannot become part of a larger one."""
    blocks = [np.empty(nbytes, np.uint8) for _ in range(2 * count)]
    return blocks[::2]


def _page_faults() -> int:
    """Return how many pages the system has given this process so far, 0 where that is not known."""
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
