"""Texts: what is told of a column of texts, where each distinct one is looked at once, as they are few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from daydream.graph.query.columns import coded

if TYPE_CHECKING:
    from daydream.graph.selection import Selection


def for_each(texts: np.ndarray, tell: Callable[[str | None], object], dtype: npt.DTypeLike) -> np.ndarray:
    """Return what `tell` gives for each of some texts (object, None for unknown): of `dtype`, their shape."""
    listed = texts.tolist()
    known = {text: tell(text) for text in set(listed)}
    return np.fromiter(map(known.__getitem__, listed), dtype, len(listed))


def is_among(texts: np.ndarray, wanted: Iterable[str]) -> np.ndarray:
    """Return a mask of the texts (object, None for unknown) that are among some: bool, their shape."""
    return for_each(texts, frozenset(wanted).__contains__, bool)


def of_tasks(
    tasks: Selection, column: str, tell: Callable[[str | None], object], dtype: npt.DTypeLike
) -> np.ndarray:
    """Return what `for_each` does for a column of texts of some tasks, without making these texts."""
    codes, texts = coded(tasks.graph, column, tasks.ids)
    used = np.flatnonzero(np.bincount(codes + 1, minlength=len(texts) + 1)).tolist()
    told = np.zeros(len(texts) + 1, dtype)
    for each in used:
        told[each] = tell(texts[each - 1] if each else None)
    found: np.ndarray = told[codes + 1]
    return found
