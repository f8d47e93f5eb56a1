"""Parts of a program, in its order: where they begin and end, and to run one of them once more.

A part is some allocations with one key: the forward pass of a block in a step, say. It lasts from its first
allocation to the first of anything else behind its last one: what the program frees between the two
belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.graph.query.numbering import distinct_rows
from daydream.memory.allocations import BEFORE, Allocations
from daydream.trace.schema import UNKNOWN


@dataclass(frozen=True)
class Parts:
    """Parts of the program that some allocations make up.

    Attributes:
        keys: what tells the parts apart, int64, shape (parts, columns).
        of: the part that each allocation is made in, -1 for none; int64, shape (rows,).
        first: place of a part's first allocation, float64, shape (parts,).
        until: place behind its last, where something else begins; float64, shape (parts,).
    """

    keys: np.ndarray
    of: np.ndarray
    first: np.ndarray
    until: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return which part has each of these keys, shape (n, columns): int64, -1 for none."""
        number = {tuple(key): place for place, key in enumerate(self.keys.tolist())}
        return np.array([number.get(tuple(key), UNKNOWN) for key in keys.tolist()], np.int64)


def parts_of(held: Allocations, which: np.ndarray, *columns: np.ndarray) -> Parts:
    """Return the parts that some allocations (bool, shape (rows,)) make up.

    Args:
        held: all allocations.
        which: those that count; none that was there before the recording does.
        columns: what tells parts of a rank apart, each int64, of shape (rows,): the step, the block.

    Returns:
        `Parts`; their keys are the rank, the repetition and these columns.
    """
    mine = np.flatnonzero(which & (held["begin"] > BEFORE))
    rows = np.stack([each[mine] for each in (held["rank"], held["repeat"], *columns)])
    found, part = distinct_rows(rows)
    keys, of = rows.T[found], np.full(len(held), UNKNOWN, np.int64)
    of[mine] = part
    begin = held["begin"][mine]
    first, last = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
    np.minimum.at(first, of[mine], begin)
    np.maximum.at(last, of[mine], begin)
    until = np.full(len(keys), np.inf)
    for rank in np.unique(keys[:, 0]).tolist() if len(keys) else []:
        theirs = np.flatnonzero(keys[:, 0] == rank)
        begins = np.sort(held["begin"][held["rank"] == rank])
        at = np.searchsorted(begins, last[theirs], side="right")
        until[theirs] = np.append(begins, begins[-1:] + 1)[at]
    return Parts(keys, of, first, until)


class Moved:
    """Where parts are when they run once more, right before some places (float64, shape (parts,)), in turns.

    Call it with places and parts, each of shape (n,), and the turn, from 0.
    """

    def __init__(self, held: Allocations, parts: Parts, before: np.ndarray, turns: int = 1) -> None:
        self.parts, self.before, self.turns = parts, before, turns
        self.gap = before - place_before(held, before)

    def __call__(self, place: np.ndarray, part: np.ndarray, turn: int = 0) -> np.ndarray:
        """Return where places of parts are in a turn: float64, shape (n,)."""
        share = (place - self.parts.first[part]) / (self.parts.until[part] - self.parts.first[part])
        found: np.ndarray = self.before[part] - self.gap[part] * (1 - (turn + 0.1 + 0.8 * share) / self.turns)
        return found


def repeat(held: Allocations, rows: np.ndarray, moved: Moved, *, turn: int = 0, **columns: Any) -> np.ndarray:
    """Let the program make some allocations once more, in their order.

    What ends in its part does so in the copy, too; what ends behind it ends there, or where the column `end`
    says.

    Args:
        held: the allocations.
        rows: which of them, all of some part; int64, shape (n,).
        moved: where the parts run once more; of several repetitions before one place the same for all.
        turn: which of these this is, from 0.
        **columns: what else the copies have of their own, of shape (n,) or for all.

    Returns:
        the new rows, int64, shape (n,). Call `renumber` when all parts are repeated.
    """
    parts = moved.parts
    part, end = parts.of[rows], held["end"][rows]
    inside = end < parts.until[part]
    ends = moved(np.where(inside, end, 0), part, turn)
    count = len(held)
    columns = {
        **columns,
        "begin": moved(held["begin"][rows], part, turn),
        "end": np.where(inside, ends, columns.get("end", end)),
    }
    held.add(rows, **columns)
    return np.arange(count, count + len(rows))


def place_before(held: Allocations, places: np.ndarray) -> np.ndarray:
    """Return the last place before each of these where anything begins or ends.

    Args:
        held: the allocations.
        places: float64, shape (n,).

    Returns:
        places, float64, shape (n,).
    """
    known = np.concatenate([held["begin"], held["end"]])
    known = np.sort(known[np.isfinite(known)])
    found: np.ndarray = np.append(known[:1] - 1, known)[np.searchsorted(known, places)]
    return found


def put_away(
    held: Allocations, rows: np.ndarray, gone: np.ndarray, back: np.ndarray, left: float = 0.0
) -> None:
    """Let allocations (int64, shape (n,)) be gone from one place to another, but for a part that stays there.

    Args:
        held: the allocations.
        rows: which of them.
        gone: places where they go, float64, shape (n,).
        back: places where they come again, float64, shape (n,); where that is not behind, nothing changes.
        left: the part of the bytes that is held between.

    Returns:
        None; `held` is changed.
    """
    away = (gone < back) & (gone > held["begin"][rows]) & (back < held["end"][rows])
    rows, gone, back = rows[away], gone[away], back[away]
    if left:
        held.add(rows, bytes=np.rint(held["bytes"][rows] * left), begin=gone, end=back)
    held.add(rows, begin=back, phase="backward")
    held["end"][rows] = gone


def renumber(held: Allocations) -> None:
    """Give places whole numbers again, in the same order."""
    places = np.concatenate([held["begin"], held["end"]])
    inside = np.isfinite(places)
    _, order = np.unique(places[inside], return_inverse=True)
    places[inside] = order.reshape(-1)
    held.columns["begin"], held.columns["end"] = places[: len(held)].copy(), places[len(held) :].copy()
