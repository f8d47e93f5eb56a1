"""Tables of a FlatBuffers file that need no generated code: fields by their number, every place checked."""

from __future__ import annotations

import struct

from daydream.errors import TraceError

LONGEST_TEXT = 4_096


class Buffer:
    """The bytes of a file; what is read beyond their end raises `TraceError`."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data = data
        self.path = path
        self._texts: dict[int, str] = {}

    def number(self, code: str, at: int) -> int:
        """Return the little-endian number of a struct code that lies at a place."""
        if at < 0:
            raise self.damaged()
        try:
            found: int = struct.unpack_from("<" + code, self.data, at)[0]
        except struct.error:
            raise self.damaged() from None
        return found

    def text(self, at: int) -> str:
        """Return the text whose length lies at a place, cut where it is longer than any name."""
        if at not in self._texts:  # names are shared by the events that have them
            size = self.number("I", at)
            if at + 4 + size > len(self.data):
                raise self.damaged()
            part = self.data[at + 4 : at + 4 + min(size, LONGEST_TEXT)]
            self._texts[at] = part.decode(errors="replace")
        return self._texts[at]

    def damaged(self) -> TraceError:
        """Return the error of a file whose places do not lead where they should."""
        return TraceError(f"{self.path} is cut off or damaged: it points beyond its end. Record it again.")


class Table:
    """A table of a buffer at a place; fields are told by their number in the schema."""

    def __init__(self, buffer: Buffer, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields = at - buffer.number("i", at)
        self._size = buffer.number("H", self._fields)

    def _place(self, field: int) -> int:
        """Return where a field lies, 0 if the table has none."""
        slot = 4 + 2 * field
        offset = self._buffer.number("H", self._fields + slot) if slot + 2 <= self._size else 0
        return self._at + offset if offset else 0

    def number(self, field: int, code: str, default: int) -> int:
        """Return a number; a field that is absent has its default."""
        place = self._place(field)
        return self._buffer.number(code, place) if place else default

    def text(self, field: int) -> str:
        """Return a text, empty if it is absent."""
        place = self._place(field)
        return self._buffer.text(place + self._buffer.number("I", place)) if place else ""

    def table(self, field: int) -> Table | None:
        """Return the table that a field leads to."""
        place = self._place(field)
        return Table(self._buffer, place + self._buffer.number("I", place)) if place else None

    def tables(self, field: int) -> list[Table]:
        """Return the tables of a vector, none if it is absent."""
        place = self._place(field)
        if not place:
            return []
        begin = place + self._buffer.number("I", place)
        count = self._buffer.number("I", begin)
        if begin + 4 + 4 * count > len(self._buffer.data):
            raise self._buffer.damaged()
        places = [begin + 4 + 4 * index for index in range(count)]
        return [Table(self._buffer, each + self._buffer.number("I", each)) for each in places]
