"""Columns of a table of events, as `rows` gathers them: numbers, and texts as codes.

Which rows have which columns, and what stands in for what, is as in `Rows`, which reads events as objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from daydream.arrays import unique
from daydream.collect.importers.kineto.kinds import DEVICE, HOST, KINDS, NAMED
from daydream.collect.importers.kineto.scanned import ODD_NUMBER, PLACE, Table, value_of
from daydream.collect.importers.kineto.values import Codes, Names, Numbers
from daydream.trace.schema import NO_ID, UNKNOWN

NEW = -2
MOST_ODD = 2**40


OPERATOR, ANNOTATION, RUNTIME, PYTHON, KERNEL, MEMCPY, MEMSET, SYNC = range(len(KINDS))
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
        self._codes, self._read = codes, read
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
        self._ids, self._threads = ids, threads
        self._names = TextCodes(names, value_of)
        self._codes = {name: TextCodes(found) for name, found in codes.items()}

    def names_of(self, table: Table, kind: int) -> np.ndarray:
        """Return the codes of the names of the rows of a kind."""
        return self._names.of(table.columns[PLACE["name"], table.rows(kind)], table)

    def chunk(self, table: Table) -> dict[str, np.ndarray]:
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
        group, ranks = table.column("group", kinds), table.column("group_ranks", kinds)
        if group is None:
            group = ranks
        elif ranks is not None:
            empty = [number for number in unique(group).tolist()
                     if number >= 0 and table.text(number) in Codes.nothing]  # fmt: skip
            group = np.where((group < 0) | np.isin(group, empty), ranks, group)
        found["group"] = None if group is None else self._codes["group"].of(group, table)
