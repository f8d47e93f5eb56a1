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
from typing import Any

import numpy as np

from daydream.collect.importers.row_builder import NO_TIME
from daydream.errors import TraceError
from daydream.trace.schema import UNKNOWN

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


def decode(data: bytes, where: Place, schema: Schema, deepest: int = 9) -> dict[str, Any]:
    """Return what stands in a message, by the names of its schema: lists, or the last one; the others lack.

    Numbers are int64, texts are cut where they are longer than any name, messages that lie too deep are empty.
    """
    found: dict[str, Any] = {}
    for number, sort, value in fields(data, *where) if deepest else ():
        if number not in schema:
            continue
        name, kind = schema[number]
        if isinstance(value, int):
            if kind == INT:
                found[name] = signed(value)
            elif kind == INTS:
                found.setdefault(name, []).append(signed(value))
        elif sort == BYTES:
            begin, end = value
            if kind == TEXT:
                found[name] = data[begin : min(end, begin + LONGEST_TEXT)].decode(
                    "utf-8", "replace"
                )
            elif kind == PLACES:
                found.setdefault(name, []).append(value)
            elif kind == INTS:
                while begin < end:
                    one, begin = varint(data, begin)
                    found.setdefault(name, []).append(one)
            elif isinstance(kind, dict):
                found[name] = decode(data, value, kind, deepest - 1)
            elif isinstance(kind, list):
                found.setdefault(name, []).append(decode(data, value, kind[0], deepest - 1))
    return found


def damaged(path: object) -> TraceError:
    """Return the error of a file whose fields do not fit together."""
    return TraceError(
        f"{path} is cut off or damaged: it is not a whole XSpace. Copy it again, or record again."
    )


INT, TEXT, INTS, PLACES = range(4)
Schema = dict[
    int, tuple[str, Any]
]  # by number: a name, and one of these, a schema, or a list of one
# Messages of `xplane.proto`: what stands in each field, by its number.
META: Schema = {2: ("name", TEXT), 5: ("stats", PLACES)}
ENTRY: Schema = {1: ("key", INT), 2: ("value", META)}  # of a map
SPACE: Schema = {1: ("planes", PLACES)}
PLANE: Schema = {
    2: ("name", TEXT),
    3: ("lines", PLACES),
    4: ("events", [ENTRY]),
    5: ("stat_names", [ENTRY]),
    6: ("stats", PLACES),
}
LINE: Schema = {
    1: ("id", INT),
    2: ("name", TEXT),
    3: ("begin_ns", INT),
    4: ("events", PLACES),
    11: ("display_name", TEXT),
}
EVENT: Schema = {
    1: ("of", INT),
    2: ("offset_ps", INT),
    3: ("duration_ps", INT),
    4: ("stats", PLACES),
    5: ("occurrences", INT),
}
STAT: Schema = {
    1: ("of", INT),
    3: ("unsigned", INT),
    4: ("signed", INT),
    5: ("text", TEXT),
    6: ("bytes", PLACES),
    7: ("text_id", INT),
}
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
    for where in decode(data, (0, len(data)), SPACE).get("planes", ()):
        given = decode(data, where, PLANE)
        plane = Plane(given.get("name", ""), given.get("lines", []), stats=given.get("stats", []))
        for name in ("events", "stat_names"):
            names = plane.event_names if name == "events" else plane.stat_names
            for entry in given.get(name, ()):
                key, meta = entry.get("key", 0), entry.get("value", {})
                if "name" in meta:
                    names[key] = meta["name"]
                if "stats" in meta and name == "events":
                    plane.event_stats.setdefault(key, []).extend(meta["stats"])
        yield plane


def stats_of(
    data: bytes, plane: Plane, places: list[Place], wanted: Mapping[int, str]
) -> dict[str, Value]:
    """Return the stats whose ids are wanted, by the names that `wanted` gives them."""
    found: dict[str, Value] = {}
    for begin, end in places:
        key, at = varint(data, begin)
        if key == 1 << 3:  # the id comes first: most stats are skipped here
            ident, at = varint(data, at)
            if ident not in wanted:
                continue
        given = decode(data, (begin, end), STAT)
        ident = given.get("of", 0)
        told = plane.stat_names.get(given.get("text_id", UNKNOWN))
        for name in ("unsigned", "signed", "text"):
            told = given.get(name, told)
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
        given = decode(data, where, LINE)
        begin_ns = given.get("begin_ns", 0)
        rows: list[tuple[int, int, int]] = []
        stats: list[dict[str, Value]] = []
        events = given.get("events", ())
        for place in events:
            event = decode(data, place, EVENT)
            if "occurrences" in event:
                continue  # a sum
            of = event.get("of", 0)
            if abs(begin_ns) > LARGEST_NS:
                rows.append((of, NO_TIME, NO_TIME))
            else:
                offset = event.get("offset_ps", 0)
                end = begin_ns + (offset + event.get("duration_ps", 0)) // 1000
                rows.append((of, begin_ns + offset // 1000, end))
            found = stats_of(data, plane, event.get("stats", []), wanted) if wanted else {}
            common = shared.get(of)
            stats.append({**common, **found} if common else found)
        table = np.array(rows, np.int64).reshape(-1, 3)
        name = given.get("name") or given.get("display_name", "")
        line = Line(name, given.get("id", 0), table[:, 0], table[:, 1], table[:, 2], stats)
        yield line, len(events) - len(rows)
