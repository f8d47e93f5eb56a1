"""The wire format of protocol buffers: fields of a message by their number, every place checked.

Of https://protobuf.dev/programming-guides/encoding: a field is a varint of its number and type, then its
value. Messages inside are (begin, end) places in the same bytes, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator

from daydream.errors import TraceError

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
LONGEST_TEXT = 4_096
Place = tuple[int, int]


class DamagedError(Exception):
    """The bytes do not lead where they should."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number of up to 64 bits and the place behind it."""
    number = shift = 0
    while True:
        try:
            byte = data[at]
        except IndexError:
            raise DamagedError from None
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFF_FFFF_FFFF_FFFF, at
        shift += 7
        if shift > 63:
            raise DamagedError


def signed(number: int) -> int:
    """Return a varint as int64."""
    return number - (1 << 64) if number >> 63 else number


def fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int | Place]]:
    """Yield (number, type, value) of a message's fields; of bytes the value is their place."""
    at = begin
    while at < end:
        key, at = varint(data, at)
        number = key >> 3
        sort = key & 7
        value: int | Place
        if sort == VARINT:
            value, at = varint(data, at)
        elif sort == BYTES:
            size, at = varint(data, at)
            value = (at, at + size)
            at += size
        elif sort == FIXED64:
            value = (at, at + 8)
            at += 8
        elif sort == FIXED32:
            value = (at, at + 4)
            at += 4
        else:
            raise DamagedError
        if at > end or not number:
            raise DamagedError
        yield number, sort, value


def text(data: bytes, value: int | Place) -> str:
    """Return a field as text, cut where it is longer than any name."""
    if isinstance(value, int):
        raise DamagedError
    begin, end = value
    return data[begin : min(end, begin + LONGEST_TEXT)].decode("utf-8", "replace")


def place(value: int | Place) -> Place:
    """Return the place of a message inside. Raises `DamagedError` if the field is a number."""
    if isinstance(value, int):
        raise DamagedError
    return value


def number(value: int | Place) -> int:
    """Return a field as int64. Raises `DamagedError` if it is no number."""
    if not isinstance(value, int):
        raise DamagedError
    return signed(value)


def damaged(path: object) -> TraceError:
    """Return the error of a file whose fields do not fit together."""
    return TraceError(
        f"{path} is cut off or damaged: it is not a whole XSpace. Copy it again, or record again."
    )
