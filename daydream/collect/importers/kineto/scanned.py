"""Events of a Kineto file as a table of integers, by the compiled scanner: no object is made for an event.

It takes what profilers usually write. Where a list of events holds anything else (a number with an exponent,
a category that only some devices have), nothing is taken, and `blocks` reads the list as objects.

Columns of a table of events, as `rows` gathers them: numbers, and texts as codes.

Which rows have which columns, and what stands in for what, is as in `Rows`, which reads events as objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from daydream.arrays import unique
from daydream.collect.importers.kineto.events import (
    ARGUMENTS,
    CATEGORIES,
    DEVICE,
    HOST,
    KINDS,
    NAMED,
    NPU_FLOW,
    RAW,
    SILENT,
    XPU_COPY,
    Event,
    ExactEvent,
    other_row,
)
from daydream.collect.importers.kineto.values import MEMORY_ROW, Codes, Names, NeedsDigitsError, Numbers
from daydream.compiled import engine
from daydream.trace.schema import NO_ID, UNKNOWN, Columns

if TYPE_CHECKING:
    from types import ModuleType

OUTER = {"ph": "t", "cat": "t", "name": "t", "pid": "i", "tid": "i", "ts": "s", "dur": "d", "args": "a"}
INNER = (
    "external",
    "sequence",
    "forward_thread",
    "external_2021",
    "dims",
    "types",
    "hierarchy",
    "device",
    "stream",
    "correlation",
    "bytes",
    "grid",
    "block",
    "size",
    "graph_id",
    "graph_node",
    "collective",
    "elements_in",
    "elements_out",
    "dtype",
    "group",
    "group_ranks",
    "wait_stream",
    "sycl_queue",
    "wait_correlation",
)
PLACE = {name: place for place, name in enumerate((*OUTER, *INNER))}
WIDTH = len(PLACE) + 2  # where an event stands is behind its fields
KIND = PLACE["args"]
BEGIN = WIDTH - 2
SIZE = WIDTH - 1
ODD_NUMBER = -(2**62)  # less the number of the text that stands for a number
NEEDS_DIGITS = 2**63 - 1
OTHER = len(KINDS)
MEMORY = len(KINDS) + 1
NO_KIND = -1
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
        self.columns = columns
        self.edges = edges
        self.numbers = numbers
        self.texts = texts
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
        rest.memory = self.memory
        rest.categories = self.categories
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
        self.there = loops is not None
        self._loops = loops

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
        columns = np.empty((WIDTH, count), np.int64)
        edges = np.empty(MEMORY + 2, np.int64)
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


NEW = -2
MOST_ODD = 2**40


OPERATOR, ANNOTATION, RUNTIME, PYTHON, BLOCKED, KERNEL, MEMCPY, MEMSET, SYNC = range(len(KINDS))
ON_HOST, NAMED_KINDS, ON_DEVICE = (
    tuple(KINDS.index(kind) for kind in kinds) for kinds in (HOST, NAMED, DEVICE)
)
CALLS = (RUNTIME, *ON_DEVICE)
# Column of a trace: the field, and the kinds of rows that have it.
TEXTS = {
    "shapes": ("dims", NAMED_KINDS), "types": ("types", NAMED_KINDS), "layer": ("hierarchy", NAMED_KINDS),
    "grid": ("grid", (KERNEL, RUNTIME)), "block": ("block", (KERNEL, RUNTIME)),
}  # fmt: skip
NUMBERS = {
    "sequence": ("sequence", NAMED_KINDS), "forward_thread": ("forward_thread", NAMED_KINDS),
    "correlation": ("correlation", CALLS), "graph_id": ("graph_id", ON_DEVICE),
    "graph_node": ("graph_node", ON_DEVICE), "wait_stream": ("wait_stream", (SYNC,)),
    "wait_correlation": ("wait_correlation", (SYNC,)),
}  # fmt: skip
# Column: the fields that say it, the first that does; and the kinds.
FIRST_OF = {
    "external_id": (("external", "external_2021"), (*NAMED_KINDS, *CALLS)),
    "bytes": (("bytes", "size"), (MEMCPY, MEMSET, RUNTIME)),
    "device": (("device", "pid"), ON_DEVICE),
    "stream": (("stream", "sycl_queue", "tid"), ON_DEVICE),
}


class TextCodes:
    """The codes of a column's texts, looked up once a text."""

    def __init__(self, codes: Codes, read: Callable[[bytes], Any] = bytes) -> None:
        self._codes = codes
        self._read = read
        self._code_of = np.zeros(0, np.int32)  # by the number of a text

    def of(self, column: np.ndarray, table: Table) -> np.ndarray:
        """Return the codes of a column of a table; they are given in order of appearance."""
        if len(self._code_of) < len(table.texts):
            more = np.full(2 * len(table.texts) - len(self._code_of), NEW, np.int32)
            self._code_of = np.concatenate([self._code_of, more])
        while True:
            codes = np.append(self._code_of[table.numbers], np.int32(UNKNOWN))[column]
            if not len(codes) or int(codes.min()) > NEW:
                return codes
            for number in dict.fromkeys(column[codes == NEW].tolist()):
                self._code_of[table.numbers[number]] = self._codes[self._read(table.text(number))]


def numbers_of(
    table: Table, name: str, kinds: Collection[int], numbers: Numbers, blank: int = UNKNOWN
) -> np.ndarray | None:
    """Return a column of numbers, unknown in rows of other kinds; None if no row of these kinds has it."""
    column = table.column(name, kinds, blank)
    if column is None:
        return None
    if table.is_odd(name, kinds):
        column = column.copy()
        odd = np.flatnonzero((column <= ODD_NUMBER) & (column > ODD_NUMBER - MOST_ODD))
        column[odd] = [numbers[value_of(table.text(ODD_NUMBER - one))] for one in column[odd].tolist()]
    return column


class TableColumns:
    """Makes chunks of tables; codes, names and numbers are those of the rows that they go to."""

    def __init__(self, names: Names, codes: dict[str, Codes], ids: Numbers, threads: Numbers) -> None:
        self._ids = ids
        self._threads = threads
        self._names = TextCodes(names, value_of)
        self._codes = {name: TextCodes(found) for name, found in codes.items()}

    def names_of(self, table: Table, kind: int) -> np.ndarray:
        """Return the codes of the names of the rows of a kind."""
        return self._names.of(table.columns[PLACE["name"], table.rows(kind)], table)

    def chunk(self, table: Table) -> Columns:
        """Return the columns of a table but for its names and times, those that hold anything."""
        found: dict[str, np.ndarray | None] = {}
        for name, (field, kinds) in TEXTS.items():
            column = table.column(field, kinds)
            found[name] = None if column is None else self._codes[name].of(column, table)
        for name, (field, kinds) in NUMBERS.items():
            found[name] = numbers_of(table, field, kinds, self._ids)
        for name, (fields, kinds) in FIRST_OF.items():
            found[name] = self._first_of(table, fields, kinds)
        for name in ("pid", "tid"):
            found[name] = numbers_of(table, name, ON_HOST, self._threads, NO_ID)
        self._add_collectives(table, found)
        return {name: column for name, column in found.items() if column is not None}

    def on_queues(self, table: Table) -> bool:
        """Return whether a row of a device names its queue, as Intel's XPUs do, which have no streams."""
        queue = numbers_of(table, "sycl_queue", ON_DEVICE, self._ids)
        return queue is not None and bool((queue >= 0).any())

    def _first_of(self, table: Table, fields: tuple[str, ...], kinds: tuple[int, ...]) -> np.ndarray | None:
        column = numbers_of(table, fields[0], kinds, self._ids)
        for field in fields[1:]:
            if column is not None and int(column.min()) >= 0:
                break
            other = numbers_of(table, field, kinds, self._ids)
            if other is not None:
                other = np.where(other == NO_ID, UNKNOWN, other)
                column = other if column is None else np.where(column < 0, other, column)
            elif column is not None:
                column = np.maximum(column, UNKNOWN)
        return column

    def _add_collectives(self, table: Table, found: dict[str, np.ndarray | None]) -> None:
        """Add what collectives say of themselves, for the kinds of rows of which any is one."""
        column = table.column("collective", (OPERATOR, KERNEL))
        if column is None:
            return
        found["collective"] = codes = self._codes["collective"].of(column, table)
        kinds = [kind for kind in (OPERATOR, KERNEL) if (codes[table.rows(kind)] >= 0).any()]
        sent, received = (
            numbers_of(table, name, kinds, self._ids) for name in ("elements_in", "elements_out")
        )
        if sent is None or received is None:
            found["elements"] = received if sent is None else np.where(sent > 0, sent, UNKNOWN)
        else:
            found["elements"] = np.where(sent > 0, sent, received)
        word = table.column("dtype", kinds)
        found["word"] = None if word is None else self._codes["word"].of(word, table)
        group = table.column("group", kinds)
        ranks = table.column("group_ranks", kinds)
        if group is None:
            group = ranks
        elif ranks is not None:
            empty = [number for number in unique(group).tolist()
                     if number >= 0 and table.text(number) in Codes.nothing]  # fmt: skip
            group = np.where((group < 0) | np.isin(group, empty), ranks, group)
        found["group"] = None if group is None else self._codes["group"].of(group, table)
