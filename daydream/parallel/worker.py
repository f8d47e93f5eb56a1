"""What a worker runs: its state is made for its first item and kept."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from daydream.errors import DaydreamError

_LOCK = threading.Lock()  # a Dask worker may have several threads; a graph is no thing to share
_MADE: dict[str, Callable[[Any], Any]] = {}


def work(key: str, packed: bytes | Path, items: Sequence[Any]) -> list[Any]:
    """Return the answers to some items; the state, in bytes or a file, is made for the first and kept."""
    # stdout is this process's parent's, and carries its result.
    with _LOCK, contextlib.redirect_stdout(sys.stderr):
        if key not in _MADE:
            _MADE.clear()
            packed = packed.read_bytes() if isinstance(packed, Path) else packed
            try:
                function, shared, folder = pickle.loads(packed)  # noqa: S301 - made by `map_on`
            except (ImportError, AttributeError, pickle.UnpicklingError) as error:
                raise DaydreamError(
                    f"a worker cannot load what it is sent ({error}).\n"
                    "It needs the packages that are installed here; an optimization of your own goes into a "
                    "file."
                ) from error
            if folder is not None:
                os.chdir(folder)
            _MADE[key] = function(shared)
        answer = _MADE[key]
        return [answer(item) for item in items]


def forget(key: str) -> None:
    """Let go of a state, in a worker that lives on."""
    _MADE.pop(key, None)
