"""Planes, lines and events of an XSpace, the message that `xplane.pb` holds.

Field numbers are those of `xplane.proto` of OpenXLA. A plane is a device or the host, a line a stream or a
thread; an event has its name and its stats by ids into tables of its plane, its times in ps from its
line's begin.

The wire format of protocol buffers: fields of a message by their number, every place checked.

Of https://protobuf.dev/programming-guides/encoding: a field is a varint of its number and type, then its
value. Messages inside are (begin, end) places in the same bytes, so that nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

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


PLANES = 1  # of XSpace
PLANE_NAME = 2
LINES = 3
EVENT_NAMES = 4
STAT_NAMES = 5
PLANE_STATS = 6
LINE_ID = 1
LINE_NAME = 2
BEGIN_NS = 3
EVENTS = 4
DISPLAY_NAME = 11
WHICH = 1
OFFSET_PS = 2
DURATION_PS = 3
EVENT_STATS = 4
OCCURRENCES = 5
STAT_DOUBLE = 2
STAT_UNSIGNED = 3
STAT_SIGNED = 4
STAT_TEXT = 5
STAT_BYTES = 6
STAT_TEXT_ID = 7
KEY, VALUE = 1, 2  # of an entry of a map
META_NAME = 2
META_STATS = 5
LARGEST_NS = 2**62 - 2**54  # with an offset of 63 bits of ps it fits 63 bits
Value = int | str


@dataclass
class Plane:
    """A plane: its name, where its lines lie, and its tables."""

    name: str = ""
    lines: list[Place] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)
    event_stats: dict[int, list[Place]] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    stats: list[Place] = field(default_factory=list)


@dataclass
class Head:
    """What a line says of itself."""

    name: str = ""
    id: int = 0
    begin_ns: int = 0


@dataclass
class Line:
    """Events of a line as columns: ids of names, begin and end in ns, and the stats asked for, by event."""

    name: str
    id: int
    which: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    stats: list[dict[str, Value]]


def planes(data: bytes) -> Iterator[Plane]:
    """Yield the planes of an XSpace. Raises `DamagedError` where it is none."""
    for which, sort, value in fields(data, 0, len(data)):
        if which == PLANES and sort == BYTES:
            yield _plane(data, place(value))


def _plane(data: bytes, where: Place) -> Plane:
    plane = Plane()
    for which, sort, value in fields(data, *where):
        if which == PLANE_NAME and sort == BYTES:
            plane.name = text(data, value)
        elif which == LINES and sort == BYTES:
            plane.lines.append(place(value))
        elif which == PLANE_STATS and sort == BYTES:
            plane.stats.append(place(value))
        elif which in (EVENT_NAMES, STAT_NAMES) and sort == BYTES:
            key, inner = _entry(data, place(value))
            names = plane.event_names if which == EVENT_NAMES else plane.stat_names
            for one, kind, held in fields(data, *inner):
                if one == META_NAME and kind == BYTES:
                    names[key] = text(data, held)
                elif one == META_STATS and kind == BYTES and which == EVENT_NAMES:
                    plane.event_stats.setdefault(key, []).append(place(held))
    return plane


def _entry(data: bytes, where: Place) -> tuple[int, Place]:
    key = 0
    inner = (where[1], where[1])
    for which, sort, value in fields(data, *where):
        if which == KEY and sort == VARINT:
            key = number(value)
        elif which == VALUE and sort == BYTES:
            inner = place(value)
    return key, inner


def stats_of(
    data: bytes, plane: Plane, places: list[Place], wanted: Mapping[int, str]
) -> dict[str, Value]:
    """Return the stats whose ids are wanted, by the names that `wanted` gives them."""
    found: dict[str, Value] = {}
    for begin, end in places:
        key, at = varint(data, begin)
        if key == WHICH << 3:  # the id comes first: most stats are skipped here
            ident, at = varint(data, at)
            if ident not in wanted:
                continue
        ident = 0
        told: Value | None = None
        for which, sort, value in fields(data, begin, end):
            if which == WHICH and sort == VARINT:
                ident = number(value)
            elif which in (STAT_UNSIGNED, STAT_SIGNED) and sort == VARINT:
                told = number(value)
            elif which == STAT_TEXT and sort == BYTES:
                told = text(data, value)
            elif which == STAT_TEXT_ID and sort == VARINT:
                told = plane.stat_names.get(number(value))
        if ident in wanted and told is not None:
            found[wanted[ident]] = told
    return found


def lines(data: bytes, plane: Plane, names: frozenset[str]) -> Iterator[tuple[Line, int]]:
    """Yield the lines of a plane, and how many of its events are sums without a time.

    Args:
        data: the file.
        plane: one of its planes.
        names: the stats to read of the events, and of what the events are.

    """
    wanted = {key: name for key, name in plane.stat_names.items() if name in names}
    shared = {
        key: stats_of(data, plane, places, wanted) for key, places in plane.event_stats.items()
    }
    for where in plane.lines:
        head = Head()
        events: list[Place] = []
        for which, sort, value in fields(data, *where):
            if which == EVENTS and sort == BYTES:
                events.append(place(value))
            elif sort == BYTES and which in (LINE_NAME, DISPLAY_NAME):
                head.name = head.name or text(data, value)
            elif sort == VARINT and which == LINE_ID:
                head.id = number(value)
            elif sort == VARINT and which == BEGIN_NS:
                head.begin_ns = number(value)
        rows: list[tuple[int, int, int]] = []
        stats: list[dict[str, Value]] = []
        for event in events:
            times, inner = _event(data, event, head.begin_ns)
            if times is None:
                continue
            rows.append(times)
            found = stats_of(data, plane, inner, wanted) if wanted else {}
            of = shared.get(times[0])
            stats.append({**of, **found} if of else found)
        table = np.array(rows, np.int64).reshape(-1, 3)
        line = Line(head.name, head.id, table[:, 0], table[:, 1], table[:, 2], stats)
        yield line, len(events) - len(rows)


def _event(
    data: bytes, where: Place, begin_ns: int
) -> tuple[tuple[int, int, int] | None, list[Place]]:
    """Return the id of an event's name, its begin and end in ns (None for a sum), and where its stats lie."""
    of = offset = duration = 0
    inner: list[Place] = []
    summed = False
    for which, sort, value in fields(data, *where):
        if which == EVENT_STATS and sort == BYTES:
            inner.append(place(value))
        elif sort == VARINT:
            told = number(value)
            of = told if which == WHICH else of
            offset = told if which == OFFSET_PS else offset
            duration = told if which == DURATION_PS else duration
            summed |= which == OCCURRENCES
    if summed:
        return None, inner
    if abs(begin_ns) > LARGEST_NS:
        return (of, -1, -1), inner  # a time that is none
    return (of, begin_ns + offset // 1000, begin_ns + (offset + duration) // 1000), inner
