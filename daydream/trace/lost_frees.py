"""Frees that a recording lost, put back where its totals say that something went.

torch's tree of events, which `collect` reads as it alone has addresses, can lack frees that happen between
two operators: a tensor that goes when a function returns, all gradients at `zero_grad` (2.11 on a GPU; what
the same torch writes as JSON has them). The next total that is recorded is then lower than the events add up
to, and sooner or later the address is given out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import UNKNOWN

FEW = 12  # blocks of which every selection is added up
MOST, ROUNDS = 300_000, 20  # gaps times blocks that are looked at (a few steps have thousands), and how often


@dataclass
class _Block:
    """An allocation that no event frees, until at latest its address is given out again."""

    begin: int  # event; -1 if it was held before the first
    until: int  # event; one behind the last if its address is never given out again
    address: int
    size: int
    lost: bool = True

    def fits(self, gap: _Gap) -> bool:
        """Return whether it may have gone in this gap."""
        return self.lost and self.begin < gap.at <= self.until and self.size <= gap.missing


@dataclass
class _Gap:
    """The time before event `at`, in which `missing` bytes went that no event tells."""

    at: int
    missing: int
    went: list[_Block] = field(default_factory=list)

    def take(self, block: _Block) -> None:
        """Let the block go here."""
        self.went.append(block)
        self.missing -= block.size
        block.lost = False


def with_lost_frees(
    events: MemoryEvents, held_before: Mapping[int, Mapping[int, int]] | None = None
) -> MemoryEvents:
    """Return the events with a free for each lost one that can be told; the same table if there is none.

    `held_before` tells of each device what it held before the first event: bytes by address. A free is put
    right before the event with the lower total. What went is told in this order: what is as large as what is
    missing, what fits nowhere else, and what is held for the longest time. The last only where every other
    total is right, as it is not where threads allocate that the profiler does not hear.
    """
    at, blocks = [], []
    for rank, device in sorted(set(zip(events["rank"].tolist(), events["device"].tolist(), strict=True))):
        if device < 0:
            continue
        own = np.flatnonzero((events["rank"] == rank) & (events["device"] == device))
        for gap in _filled(events.take(own), (held_before or {}).get(device, {})):
            at += [int(own[gap.at])] * len(gap.went)
            blocks += gap.went
    if not blocks:
        return events
    before = np.array(at)
    order = np.argsort(before, kind="stable")
    before = before[order]
    size = -np.array([block.size for block in blocks])[order]
    # Of several in one gap each leaves what those behind it take away.
    left = np.cumsum(size)
    behind = left[np.searchsorted(before, before, side="right") - 1] - left
    added = {name: column[before] for name, column in events.columns.items()}
    added["allocated_bytes"] = added["allocated_bytes"] - added["bytes"] - behind
    added |= {"address": np.array([block.address for block in blocks])[order], "bytes": size}
    return MemoryEvents(
        {name: np.insert(column, before, added[name]) for name, column in events.columns.items()}
    )


def _filled(events: MemoryEvents, held: Mapping[int, int]) -> list[_Gap]:
    """Return the gaps in the totals of one device, with what went in them."""
    total, nbytes, address = events["allocated_bytes"], events["bytes"], events["address"]
    known = (total[1:] >= 0) & (total[:-1] >= 0)
    went = np.where(known, total[:-1] + nbytes[1:] - total[1:], 0)
    gaps = [_Gap(int(at) + 1, int(went[at])) for at in np.flatnonzero(went > 0)]
    if not gaps or (address == UNKNOWN).any():
        return []
    again, never = _unfreed(nbytes.tolist(), address.tolist(), held)
    if len(gaps) * (len(again) + len(never)) > MOST:
        return []
    _fit(gaps, again)
    if not (went < 0).any():
        for gap in gaps:
            for block in sorted(never, key=lambda block: (block.size != gap.missing, block.begin)):
                if block.fits(gap):
                    gap.take(block)
    return gaps


def _unfreed(
    nbytes: list[int], address: list[int], before: Mapping[int, int]
) -> tuple[list[_Block], list[_Block]]:
    """Return the allocations that no event frees: those whose address is given out again, and the others.

    Of what was held before the first event only the former: most of it stays.
    """
    held = {at: (-1, size) for at, size in before.items()}
    again = []
    for event, (size, at) in enumerate(zip(nbytes, address, strict=True)):
        if size > 0:
            if at in held:
                again.append(_Block(held[at][0], event, at, held[at][1]))
            held[at] = (event, size)
        elif size < 0:
            held.pop(at, None)
    never = [_Block(begin, len(nbytes), at, size) for at, (begin, size) in held.items() if begin >= 0]
    return again, never


def _fit(gaps: list[_Gap], blocks: list[_Block]) -> None:
    """Give each gap what went in it: of its very size, else what adds up to it, else what fits."""
    for gap in gaps:
        alike = [block for block in blocks if block.size == gap.missing and block.fits(gap)]
        if alike:
            gap.take(min(alike, key=lambda block: block.until))
    by_size = sorted(blocks, key=lambda block: -block.size)
    for _ in range(ROUNDS):
        if not _take_what_fits_once(gaps, by_size) and not any(_take_sum(gap, by_size) for gap in gaps):
            break
    for block in by_size:
        for gap in reversed(gaps):  # of several that would do, the last
            if block.fits(gap):
                gap.take(block)
                break


def _take_what_fits_once(gaps: list[_Gap], blocks: list[_Block]) -> bool:
    """Let blocks go in the only gap that they fit; return whether there were any."""
    found = False
    for block in blocks:
        fitting = [gap for gap in gaps if block.fits(gap)] if block.lost else []
        if len(fitting) == 1:
            fitting[0].take(block)
            found = True
    return found


def _take_sum(gap: _Gap, blocks: list[_Block]) -> bool:
    """Let the fewest blocks go that add up to what is missing; return whether any do."""
    fitting = [block for block in blocks if block.fits(gap)] if gap.missing else []
    for count in range(2, len(fitting) + 1 if len(fitting) <= FEW else 2):
        for some in combinations(fitting, count):
            if sum(block.size for block in some) == gap.missing:
                for block in some:
                    gap.take(block)
                return True
    return False
