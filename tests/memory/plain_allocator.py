"""PyTorch's allocator again, written to be read and not to be fast: lists of cells, searched from end to end.

It keeps no pools, no order and no links: each search looks at every cell, and neighbours are merged by
going over the segment. What `daydream.memory.allocator` does must agree with it in every byte.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from daydream.memory.settings import Settings

MIB = 1 << 20
SPACE = 1 << 40


class Full(Exception):  # noqa: N818 - a test's own
    pass


@dataclass(eq=False)
class Cell:
    size: int
    state: str  # used, waiting (freed, a stream still uses it), free, empty (no memory)
    name: int = -1
    requested: int = 0
    born: int = 0


@dataclass(eq=False)
class Seg:
    address: int
    stream: int
    private: int
    small: bool
    grows: bool
    cells: list[Cell] = field(default_factory=list)

    def at(self, cell: Cell) -> int:
        address = self.address
        for each in self.cells:
            if each is cell:
                return address
            address += each.size
        raise AssertionError


class PlainAllocator:
    def __init__(self, settings: Settings, capacity: int | None) -> None:
        self.settings, self.capacity = settings, capacity
        self.segs: list[Seg] = []
        self.searched: dict[tuple[int, bool], int] = {}
        self.next = 1 << 40
        self.retries = 0

    # What is counted ---------------------------------------------------------------------------

    def cells(self):
        return [(seg, cell) for seg in self.segs for cell in seg.cells]

    @property
    def reserved(self):
        return sum(cell.size for _, cell in self.cells() if cell.state != "empty")

    @property
    def allocated(self):
        return sum(cell.size for _, cell in self.cells() if cell.state == "used")

    @property
    def requested(self):
        return sum(cell.requested for _, cell in self.cells() if cell.state in {"used", "waiting"})

    def addresses(self):
        return {cell.name: seg.at(cell) for seg, cell in self.cells() if cell.state == "used"}

    # What a program asks -------------------------------------------------------------------------

    def allocate(self, name: int, requested: int, stream: int, private: int) -> None:
        size = self.rounded(requested)
        small = size <= MIB
        key = (private, small)
        self.searched[key] = self.searched.get(key, 0) + 1
        found = self.best(key, stream, size)
        if found is None:
            self.collect()
            found = self.new(key, stream, size)
        if found is None and self.give_oversized(key, stream, size):
            found = self.new(key, stream, size)
        if found is None:
            self.retries += 1
            self.give_all()
            found = self.new(key, stream, size)
        if found is None:
            raise Full
        seg, cell = found
        rest = cell.size - size
        limit = self.settings.max_split_bytes
        if small or self.settings.expandable_segments:
            splits = rest >= 512
        else:
            splits = rest > MIB and (limit is None or size < limit)
        if splits:
            other = Cell(rest, "free", born=self.searched[key])
            seg.cells.insert(seg.cells.index(cell) + 1, other)
            cell.size = size
        cell.state, cell.name, cell.requested = "used", name, requested

    def free(self, name: int) -> None:
        for seg, cell in self.cells():
            if cell.name == name and cell.state in {"used", "waiting"}:
                self.release(seg, cell)
                return

    def defer(self, name: int) -> None:
        for _, cell in self.cells():
            if cell.name == name and cell.state == "used":
                cell.state = "waiting"

    def release(self, seg: Seg, cell: Cell) -> None:
        cell.state, cell.name, cell.requested = "free", -1, 0
        cell.born = -1  # the newest of what is merged
        self.merge(seg)

    def merge(self, seg: Seg) -> None:
        cells: list[Cell] = []
        now = self.searched.get((seg.private, seg.small), 0)
        for cell in seg.cells:
            if cells and cells[-1].state == cell.state and cell.state in {"free", "empty"}:
                cells[-1].size += cell.size
                cells[-1].born = now
            else:
                cells.append(cell)
            if cells[-1].born < 0:
                cells[-1].born = now
        seg.cells = cells

    # Searching -----------------------------------------------------------------------------------

    def rounded(self, requested: int) -> int:
        for at, steps in enumerate(self.settings.roundup_divisions):
            last = at == len(self.settings.roundup_divisions) - 1
            inside = (requested < 2 * MIB << at or last) and (requested >= MIB << at or at == 0)
            if inside and steps > 1 and requested > 512 * steps:
                power = 1
                while power * 2 <= requested:
                    power *= 2
                size = power
                while size < requested:
                    size += power // steps
                return size
        return (requested + 511) // 512 * 512

    def best(self, key: tuple[int, bool], stream: int, size: int):
        fits = [
            (seg, cell) for seg, cell in self.of(key, stream) if cell.state == "free" and cell.size >= size
        ]
        fits.sort(key=lambda each: (each[1].size, each[0].at(each[1])))
        if self.settings.expandable_segments:
            while len(fits) > 1 and fits[0][0].grows and self.extent(*fits[1]) < self.extent(*fits[0]):
                fits = fits[1:]
        else:
            fits = [each for each in fits if not each[0].grows]
        if not fits:
            return None
        limit, found = self.settings.max_split_bytes, fits[0][1].size
        if limit is not None and size < limit <= found:
            return None
        if limit is not None and size >= limit and found >= size + self.settings.non_split_rounding_bytes:
            return None
        return fits[0]

    def of(self, key: tuple[int, bool], stream: int):
        return [(s, c) for s, c in self.cells() if (s.private, s.small) == key and s.stream == stream]

    def extent(self, seg: Seg, cell: Cell) -> int:
        at = seg.cells.index(cell) + 1
        more = seg.cells[at].size if at < len(seg.cells) and seg.cells[at].state == "empty" else 0
        return cell.size + more

    # The device ----------------------------------------------------------------------------------

    def room(self, size: int) -> bool:
        return self.capacity is None or self.reserved + size <= self.capacity

    def new(self, key: tuple[int, bool], stream: int, size: int):
        private, small = key
        large = self.settings.large_segment_bytes
        if self.settings.expandable_segments:
            return self.expand(key, stream, size, 2 * MIB if small else large)
        if small:
            given = 2 * MIB
        else:
            given = large if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
        if not self.room(given):
            return None
        seg = Seg(self.place(given), stream, private, small, False, [Cell(given, "free")])
        self.segs.append(seg)
        return seg, seg.cells[0]

    def place(self, size: int) -> int:
        end = max(
            [seg.address + sum(cell.size for cell in seg.cells) for seg in self.segs], default=self.next
        )
        return (end + 2 * MIB - 1) // (2 * MIB) * 2 * MIB

    def expand(self, key: tuple[int, bool], stream: int, size: int, page: int):
        """Take the lowest place where free cells and cells without memory, in a row, are large enough."""
        private, small = key
        segs = [s for s in self.segs if s.grows and (s.private, s.small) == key and s.stream == stream]
        for seg in sorted(segs, key=lambda each: each.address):
            for at, cell in enumerate(seg.cells):
                if cell.state != "empty":
                    continue
                first = at - 1 if at and seg.cells[at - 1].state == "free" else at
                room = 0
                for each in seg.cells[first:]:
                    if each.state in {"used", "waiting"}:
                        break
                    room += each.size
                if room >= size:
                    return self.grow(seg, first, size, page)
        space = max(SPACE, size) // page * page + page
        seg = Seg(self.place(space), stream, private, small, True, [Cell(space, "empty")])
        self.segs.append(seg)
        return self.grow(seg, 0, size, page)

    def grow(self, seg: Seg, at: int, size: int, page: int):
        while seg.cells[at].state == "empty" or seg.cells[at].size < size:
            have = 0 if seg.cells[at].state == "empty" else seg.cells[at].size
            gap = at if seg.cells[at].state == "empty" else at + 1
            mapped = min(
                (min(size - have, seg.cells[gap].size) + page - 1) // page * page, seg.cells[gap].size
            )
            if not self.room(mapped):
                return None
            rest = seg.cells[gap].size - mapped
            seg.cells[gap : gap + 1] = [
                Cell(mapped, "free", born=-1),
                *([Cell(rest, "empty")] if rest else []),
            ]
            self.merge(seg)
        return seg, seg.cells[at]

    def give_all(self) -> None:
        for _, cell in self.cells():
            if cell.state == "waiting":
                cell.state, cell.name, cell.requested, cell.born = "free", -1, 0, -1
        for seg in self.segs:
            self.merge(seg)
        for seg in list(self.segs):
            if seg.private:
                continue
            if seg.grows and any(cell.state == "free" for cell in seg.cells):
                self.unmap(seg, 2 * MIB if seg.small else self.settings.large_segment_bytes)
                if [cell.state for cell in seg.cells] == ["empty"]:
                    self.segs.remove(seg)
            elif [cell.state for cell in seg.cells] == ["free"]:
                self.segs.remove(seg)

    def unmap(self, seg: Seg, page: int) -> None:
        cells: list[Cell] = []
        start = 0
        for cell in seg.cells:
            first, last = (start + page - 1) // page * page, (start + cell.size) // page * page
            if cell.state == "free" and first < last:
                parts = [(first - start, "free"), (last - first, "empty"), (start + cell.size - last, "free")]
                cells += [Cell(size, state, born=-1) for size, state in parts if size]
            else:
                cells.append(cell)
            start += cell.size
        seg.cells = cells
        self.merge(seg)

    def whole(self, key: tuple[int, bool]):
        return [
            seg
            for seg in self.segs
            if (seg.private, seg.small) == key
            and [cell.state for cell in seg.cells] == ["free"]
            and not seg.grows
        ]

    def give_oversized(self, key: tuple[int, bool], stream: int, size: int) -> bool:
        limit = self.settings.max_split_bytes
        if limit is None:
            return False
        least = max(size, limit)
        segs = [seg for seg in self.whole(key) if seg.stream == stream]
        segs.sort(key=lambda seg: (seg.cells[0].size, seg.address))
        enough = [seg for seg in segs if seg.cells[0].size >= least]
        if enough:
            self.segs.remove(enough[0])
            return True
        given = 0
        for seg in reversed(segs):
            if given >= least or seg.cells[0].size < limit:
                break
            given += seg.cells[0].size
            self.segs.remove(seg)
        return given >= least

    def collect(self) -> None:
        threshold = self.settings.garbage_collection_threshold
        if self.capacity is None or not threshold:
            return
        target = self.reserved - int(threshold * self.capacity)
        now = self.searched.get((0, False), 0)
        while target > 0:
            segs = self.whole((0, False))
            if not segs:
                return
            mean = sum(now - seg.cells[0].born for seg in segs) / len(segs)
            for seg in [seg for seg in segs if now - seg.cells[0].born >= mean]:
                target -= seg.cells[0].size
                self.segs.remove(seg)
