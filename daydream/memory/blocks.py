"""Blocks of device memory and the pools of free ones, as PyTorch's allocator keeps them."""

from __future__ import annotations

from bisect import bisect_left, insort


class Block:
    """A piece of a segment: in use, free, or address space without memory.

    Attributes:
        start: of its expandable segment, whose pages are counted from there.
        requested: bytes that the program asked for.
        mapped: whether there is memory; always, but in expandable segments.
        grows: whether it belongs to an expandable segment.
        born: how often the pool had been searched when the block became free.

    """

    __slots__ = (
        "address",
        "born",
        "grows",
        "in_use",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested",
        "size",
        "start",
        "stream",
    )
    prev: Block | None
    next: Block | None

    def __init__(self, pool: Pool, stream: int, address: int, size: int, start: int = 0) -> None:
        self.pool, self.stream, self.address, self.size, self.start = (
            pool,
            stream,
            address,
            size,
            start,
        )
        self.prev = self.next = None
        self.in_use, self.mapped, self.grows = False, True, False
        self.requested = self.born = 0

    @property
    def extent(self) -> int:
        """The size with the address space behind it."""
        after = self.next
        return self.size + (after.size if after is not None and not after.mapped else 0)

    def split(self, size: int) -> Block:
        """Shorten the block to its first bytes and return the rest, its neighbour, in no pool yet."""
        rest = Block(self.pool, self.stream, self.address + size, self.size - size, self.start)
        rest.grows, rest.mapped = self.grows, self.mapped
        rest.prev, rest.next = self, self.next
        if rest.next is not None:
            rest.next.prev = rest
        self.next, self.size = rest, size
        return rest

    def merge(self) -> None:
        """Join the block, which is in no pool, with neighbours not in use that are mapped as it is."""
        before, after = self.prev, self.next
        if before is not None and not before.in_use and before.mapped == self.mapped:
            self.pool.take(before)
            self.address, self.size, self.prev = (
                before.address,
                before.size + self.size,
                before.prev,
            )
            if self.prev is not None:
                self.prev.next = self
        if after is not None and not after.in_use and after.mapped == self.mapped:
            self.pool.take(after)
            self.size, self.next = self.size + after.size, after.next
            if self.next is not None:
                self.next.prev = self

    def extend(self, end: int) -> Block:
        """Add address space from the end of the block to an address; return the last block of the segment."""
        address = self.address + self.size
        if end <= address:
            return self
        block = Block(self.pool, self.stream, address, end - address, self.start)
        block.grows, block.mapped, block.prev = True, False, self
        self.next = block
        self.pool.add(block)
        return block


class Pool:
    """The blocks that requests of one kind may share, per stream.

    Attributes:
        private: the private pool that it is part of, 0 for none.
        small: whether it serves requests of up to 1 MiB.
        page: bytes by which its expandable segments grow.
        searched: how often a free block was looked for.
        at: what is not in use, by address.
        free: for each stream size, address and block of what is free, in this order.
        unmapped: for each stream address and block of what has no memory, in this order.

    """

    __slots__ = ("at", "free", "page", "private", "searched", "small", "unmapped")

    def __init__(self, private: int, *, small: bool, page: int) -> None:
        self.private, self.small, self.page, self.searched = private, small, page, 0
        self.at: dict[int, Block] = {}
        self.free: dict[int, list[tuple[int, int, Block]]] = {}
        self.unmapped: dict[int, list[tuple[int, Block]]] = {}

    def add(self, block: Block) -> None:
        """Enter a block that is not in use."""
        self.at[block.address] = block
        if block.mapped:
            block.born = self.searched
            insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))
        else:
            insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def take(self, block: Block) -> None:
        """Remove a block that is not in use."""
        del self.at[block.address]
        if block.mapped:
            free = self.free[block.stream]
            del free[bisect_left(free, (block.size, block.address))]
        else:
            unmapped = self.unmapped[block.stream]
            del unmapped[bisect_left(unmapped, (block.address,))]

    def blocks(self) -> list[Block]:
        """Return the free blocks in order of stream, size and address."""
        return [each[2] for stream in sorted(self.free) for each in self.free[stream]]
