"""The columns of a graph's tasks: arrays that copies of the graph share until one of them is written to.

A what-if changes a few columns of a copy, so a copy holds only what was changed. Appended tasks are
kept as pieces, and written behind a column when it is read next, into room that is left there: many
insertions cost one copy of the columns that they look at.

    graph      lane  order  ...          copied     lane and order are shared, read-only
    its copy   lane  order* ...          own()      order* is its own since it was written to
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from daydream.graph.tables import COLUMNS, DEFAULTS

OWN = ("duration_ns", "gap_ns")  # never shared: what edits change most, and those of users in place
ROOM = 16  # for this part of an array room is left behind


def grown(room: np.ndarray, held: int, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return an array that begins with the `held` first values of `room` and goes on with the parts.

    It is `room` itself where they fit in, else a longer array of its type with room of its own.
    """
    count = held + sum(map(len, parts))
    whole = room
    if len(room) < count:
        whole = np.empty(count + count // ROOM, room.dtype)
        np.copyto(whole[:held], room[:held])
    for part in parts:
        np.copyto(whole[held : held + len(part)], part, casting="same_kind")
        held += len(part)
    return whole


class Columns(MutableMapping[str, np.ndarray]):
    """Columns by name, arrays of one length; each is of the type that `COLUMNS` says.

    A column that copies share is read-only: write to `own(name)`. `duration_ns` and `gap_ns` never are.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        given = {name: np.empty(0, dtype) for name, dtype in COLUMNS.items()} if arrays is None else arrays
        self._arrays = dict(given)
        self._more: dict[str, list[np.ndarray]] = {}  # by column, what was appended since it was read
        self._room: dict[str, np.ndarray] = {}  # what a column is the begin of, where it is no other graph's
        self._shared: set[str] = set()
        self._copied: dict[str, np.ndarray] = {}  # the arrays that those of `OWN` were copied of

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_copied": {}}

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self._more:
            self._join(name, self._more.pop(name))
        return self._arrays[name]

    def _join(self, name: str, more: Sequence[np.ndarray]) -> None:
        held = self._arrays[name]
        room = self._room.get(name, held)
        whole = grown(room, len(held), more)
        if whole is not room:
            self._room[name] = whole
            self._shared.discard(name)
        self._arrays[name] = whole[: len(held) + sum(map(len, more))]

    def __setitem__(self, name: str, values: np.ndarray) -> None:
        self._more.pop(name, None)
        self._room.pop(name, None)
        self._shared.discard(name)
        self._arrays[name] = values

    def __delitem__(self, name: str) -> None:
        raise TypeError("a graph keeps all of its columns")

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def own(self, name: str) -> np.ndarray:
        """Return a column to write to, shared no more: the column's dtype, shape (ids,)."""
        values = self[name]
        if name in self._shared or not values.flags.writeable:
            values = self[name] = values.copy()
        return values

    def reserve(self, count: int) -> None:
        """Make room for so many tasks, where none are yet.

        One array holds all of it, widest columns first: NumPy asks the system for large pages then.
        """
        sizes = {name: np.dtype(dtype).itemsize for name, dtype in COLUMNS.items()}
        whole, begin = np.empty((sum(sizes.values()), count), np.uint8), 0
        for name in sorted(sizes, key=lambda name: -sizes[name]):
            end = begin + sizes[name]
            self._room[name], begin = whole[begin:end].reshape(-1).view(COLUMNS[name]), end

    def append(self, count: int, given: Mapping[str, Any]) -> None:
        """Append tasks: a value for all or one for each; columns that are not given take their defaults."""
        for name, dtype in COLUMNS.items():
            value = given.get(name, DEFAULTS.get(name, 0))
            held, room = len(self._arrays[name]), self._room.get(name)
            if name not in self._more and room is not None and len(room) >= held + count:
                room[held : held + count] = value
                self._arrays[name] = room[: held + count]
                continue
            # A value for each is copied: whoever gave it may write to it before the column is read.
            new = np.array(value, dtype) if np.ndim(value) else np.asarray(value, dtype)
            self._more.setdefault(name, []).append(np.broadcast_to(new, count))

    def join(self) -> None:
        """Join what was appended, so that no reader has to: several may read at once."""
        for name in list(self._more):
            self[name]

    def copy(self) -> Columns:
        """Return columns that are independent of these; what neither writes to is held once."""
        twin = Columns({name: self[name] for name in self})
        for name in OWN:
            twin._copied[name] = twin[name]
            twin[name] = twin[name].copy()
        self._room.clear()  # both might write to it
        twin._shared = set(self) - set(OWN)
        self._shared |= twin._shared
        for name in twin._shared:
            self._arrays[name].flags.writeable = False
        return twin

    def as_is(self, name: str) -> np.ndarray:
        """Return a copy of a column, or what it was copied of where they are equal: to read only."""
        values, copied = self[name], self._copied.get(name)
        return copied if copied is not None and np.array_equal(copied, values) else values.copy()

    def share(self, other: Columns) -> None:
        """Hold the columns of another graph's that are equal to these, all but `OWN`, instead of these."""
        for name in set(self) - set(OWN):
            self[name] = other[name]
            other._room.pop(name, None)  # both might write to it
            for each in (self, other):
                each._shared.add(name)
            self._arrays[name].flags.writeable = False

    def same(self, other: Mapping[str, np.ndarray], name: str) -> bool:
        """Tell, without looking at values, whether both hold one array: unequal ones may be equal yet."""
        return self[name] is other[name]
