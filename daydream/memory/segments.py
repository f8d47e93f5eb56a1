"""What an allocator holds at one moment: segments, and the blocks that they are divided into."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """A block of a segment.

    Attributes:
        size: bytes.
        requested: bytes that the program asked for, None where the block is free.
        id: what the events call it, -1 where it is free.
        pending: whether the program has freed it, and another stream still uses it.

    """

    size: int
    requested: int | None = None
    id: int = -1
    pending: bool = False


class Segment(NamedTuple):
    """Memory that the device gave in one piece, or a range of an expandable segment that has memory.

    Attributes:
        address: where it starts.
        stream: whose requests it serves.
        small: whether it serves requests of up to 1 MiB.
        blocks: the whole of it, in order of address.
        expandable: whether it may grow in place.
        private: the private pool that it belongs to, 0 for none.

    """

    address: int
    stream: int
    small: bool
    blocks: tuple[Part, ...]
    expandable: bool = False
    private: int = 0

    @property
    def size(self) -> int:
        """Bytes of the segment."""
        return sum(part.size for part in self.blocks)
