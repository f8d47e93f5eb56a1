"""Events of a Kineto file as a table of integers, by the compiled scanner: no object is made for an event.

It takes what profilers usually write. Where a list of events holds anything else (a number with an exponent,
a category that only some devices have), nothing is taken, and `blocks` reads the list as objects.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from daydream.collect.importers.kineto.devices import NPU_FLOW, XPU_COPY, other_row
from daydream.collect.importers.kineto.events import ARGUMENTS, RAW, Event, ExactEvent
from daydream.collect.importers.kineto.kinds import CATEGORIES, KINDS, SILENT
from daydream.collect.importers.kineto.memory_rows import MEMORY_ROW
from daydream.collect.importers.kineto.values import NeedsDigitsError
from daydream.compiled import engine
from daydream.trace.schema import NO_ID, UNKNOWN

if TYPE_CHECKING:
    from types import ModuleType

OUTER = {"ph": "t", "cat": "t", "name": "t", "pid": "i", "tid": "i", "ts": "s", "dur": "d", "args": "a"}
INNER = (
    "external", "sequence", "forward_thread", "external_2021", "dims", "types", "hierarchy", "device",
    "stream", "correlation", "bytes", "grid", "block", "size", "graph_id", "graph_node", "collective",
    "elements_in", "elements_out", "dtype", "group", "group_ranks", "wait_stream", "sycl_queue",
    "wait_correlation",
)  # fmt: skip
PLACE = {name: place for place, name in enumerate((*OUTER, *INNER))}
WIDTH = len(PLACE) + 2  # where an event stands is behind its fields
KIND, BEGIN, SIZE = PLACE["args"], WIDTH - 2, WIDTH - 1
ODD_NUMBER = -(2**62)  # less the number of the text that stands for a number
NEEDS_DIGITS = 2**63 - 1
OTHER, MEMORY, NO_KIND = len(KINDS), len(KINDS) + 1, -1
ALWAYS = sum(1 << place for place in (PLACE["name"], PLACE["ts"], PLACE["dur"], BEGIN, SIZE))
KIND_OF = {"X": OTHER, MEMORY_ROW: MEMORY, NPU_FLOW: NO_KIND}  # the words that the scanner asks for, in order
KIND_OF |= {category: KINDS.index(kind) for category, kind in CATEGORIES.items()}
KIND_OF |= {category: NO_KIND for category in SILENT if category is not None}
WORDS = [json.dumps(word).encode() for word in KIND_OF]
LEAST_EVENT = 64  # bytes that an event takes at least, in the mean
MOST_BYTES = 1 << 26
MOST_TEXTS = 1 << 15  # in a list
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@cache
def _fields() -> tuple[tuple[bytes, ...], bytes, int, bytes, bytes, np.ndarray]:
    """Return what the scanner wants to know of the fields: see `daydream.compiled.engine`."""
    names = [*OUTER, *(ARGUMENTS[name] for name in INNER)]
    how = [*OUTER.values(), *("t" if name in RAW else "i" for name in INNER)]
    blank = np.full(WIDTH, UNKNOWN, np.int64)
    for name in ("pid", "tid", "ts", "dur"):
        blank[PLACE[name]] = NO_ID
    kinds = np.array(list(KIND_OF.values()), np.int8)
    encoded = tuple(name.encode() for name in names)
    return encoded, "".join(how).encode(), len(OUTER), b"".join(WORDS), kinds.tobytes(), blank


class Table:
    """Rows of a list of events in order of their kinds, a column a field: int64, shape (fields, rows).

    Only the columns of names, of times and of fields that a row has hold anything: see `column`. Rows of a
    kind lie between its two `edges`. A text is a number into `numbers`, which leads to the scanner's
    `texts`. `memory` are rows of memory, and `categories` those of rows that are left out.
    """

    def __init__(
        self,
        columns: np.ndarray,
        edges: list[int],
        fields: list[list[int]],
        numbers: np.ndarray,
        texts: list[bytes],
    ) -> None:
        self.columns, self.edges, self.numbers, self.texts = columns, edges, numbers, texts
        self.memory: list[Event] = []
        self.categories: list[str] = []
        self._fields = fields
        self._seen, self._odd = fields

    def rows(self, kind: int) -> slice:
        """Return the rows of a kind."""
        return slice(self.edges[kind], self.edges[kind + 1])

    def column(self, name: str, kinds: Collection[int], blank: int = UNKNOWN) -> np.ndarray | None:
        """Return a column, blank in rows of other kinds than these; None if no row of these has it."""
        place = PLACE[name]
        seen = [kind for kind, fields in enumerate(self._seen) if fields >> place & 1]
        if not any(kind in kinds for kind in seen):
            return None
        column = self.columns[place]
        without = [kind for kind in seen if kind not in kinds]
        if without:
            column = column.copy()
            for kind in without:
                column[self.rows(kind)] = blank
        return column

    def is_odd(self, name: str, kinds: Collection[int]) -> bool:
        """Return whether a number of these kinds is a text."""
        return any(self._odd[kind] >> PLACE[name] & 1 for kind in kinds)

    def without(self, rows: np.ndarray) -> Table:
        """Return the table without some rows: bool, shape (rows,)."""
        edges = np.append(0, np.cumsum(~rows))[np.minimum(self.edges, len(rows))].tolist()
        rest = Table(self.columns[:, ~rows], edges, self._fields, self.numbers, self.texts)
        rest.memory, rest.categories = self.memory, self.categories
        return rest

    def text(self, number: int) -> bytes:
        """Return the JSON of a text."""
        return self.texts[self.numbers[number]]


class Scanner:
    """Makes tables of lists of events; `texts` are all texts so far."""

    def __init__(self, *, exact: bool) -> None:
        self._exact = exact
        self._known = {word: number for number, word in enumerate(WORDS)}
        self.texts = list(WORDS)
        self._rows = np.empty((0, WIDTH), np.int64)
        self._spans = np.empty((MOST_TEXTS, 2), np.int64)
        self._hashes = np.empty(MOST_TEXTS, np.int64)
        self._slots = np.empty(2 * MOST_TEXTS, np.int32)
        loops = engine()
        self.there, self._loops = loops is not None, loops

    def table(self, text: bytes, stop: int | None = None) -> Table | None:
        """Return the table of a JSON list, or of what stands in one up to `stop`; None if it is not as usual.

        Raises `NeedsDigitsError` where starts need more digits than a float holds.
        """
        size = len(text)
        if self._loops is None or size > MOST_BYTES:
            return None
        if len(self._rows) < size // LEAST_EVENT + 1:
            self._rows = np.empty((size // LEAST_EVENT + 1, WIDTH), np.int64)
        room = self._rows, self._spans, self._hashes, self._slots
        found = self._loops.scan(*_fields(), memoryview(text)[:stop], *room, self._exact)
        return None if found is None else self._checked(self._loops, text, stop, *found)

    def _checked(
        self, loops: ModuleType, text: bytes, stop: int | None, count: int, texts: int, high: int
    ) -> Table | None:
        """Return the table of the rows found, None if something in them is not as usual."""
        if high:
            try:
                str(memoryview(text)[:stop], "utf-8")
            except UnicodeDecodeError:
                return None
        spans = self._spans[len(WORDS) : texts].tolist()
        numbers = self._numbers([text[begin : begin + size] for begin, size in spans])
        if numbers is None:
            return None
        columns, edges = np.empty((WIDTH, count), np.int64), np.empty(MEMORY + 2, np.int64)
        fields = np.empty((2, MEMORY + 1), np.int64)
        loops.by_kind(self._rows[:count], WIDTH, KIND, ALWAYS, columns, edges, fields)
        table = Table(columns, edges.tolist(), fields.tolist(), numbers, self.texts)
        known = table.edges[OTHER]
        if known and int(table.columns[PLACE["name"], :known].min()) < 0:
            return None
        if known and int(table.columns[PLACE["ts"], :known].max()) == NEEDS_DIGITS:
            raise NeedsDigitsError
        try:
            others, table.memory = (self._events(text, table, kind) for kind in (OTHER, MEMORY))
        except UNDECODABLE:
            return None
        for event in others:
            row = other_row(event)
            if row is not None and row[0]:
                return None  # work of a device whose rows are told as objects
            if row is None and event.cat not in SILENT:
                table.categories.append(str(event.cat))
        table.columns = table.columns[:, :known]
        return table

    def _numbers(self, texts: list[bytes]) -> np.ndarray | None:
        """Return the number of each text of a list, which it keeps in the next; None if one is renamed."""
        numbers = list(range(len(WORDS)))
        known = self._known
        for text in texts:
            number = known.get(text)
            if number is None:
                if text.startswith(b'"Memcpy ') and XPU_COPY.match(text[1:].decode()):
                    return None
                number = known[text] = len(known)
                self.texts.append(text)
            numbers.append(number)
        return np.array(numbers, np.int64)

    def _events(self, text: bytes, table: Table, kind: int) -> list[Event]:
        rows = table.columns[BEGIN:, table.rows(kind)].T.tolist()
        if not rows:
            return []
        some = b"[%b]" % b",".join([text[begin : begin + size] for begin, size in rows])
        return msgspec.json.decode(some, type=list[ExactEvent] if self._exact else list[Event])


def value_of(text: bytes) -> Any:
    """Return the text, number or nothing that a text of a table says."""
    try:
        value = msgspec.json.decode(text)
    except UNDECODABLE:
        value = json.loads(text)
    return value if isinstance(value, (str, int, float)) else None
