"""Texts: what is told of a column of texts, where each distinct one is looked at once, as they are few."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt


def for_each(texts: np.ndarray, tell: Callable[[str | None], object], dtype: npt.DTypeLike) -> np.ndarray:
    """Return what `tell` gives for each of some texts (object, None for unknown): of `dtype`, their shape."""
    listed = texts.tolist()
    known = {text: tell(text) for text in set(listed)}
    return np.fromiter(map(known.__getitem__, listed), dtype, len(listed))


def is_among(texts: np.ndarray, wanted: Iterable[str]) -> np.ndarray:
    """Return a mask of the texts (object, None for unknown) that are among some: bool, their shape."""
    return for_each(texts, frozenset(wanted).__contains__, bool)
