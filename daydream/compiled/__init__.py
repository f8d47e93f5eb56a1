"""The compiled loops, where they were built and nothing forbids them.

`pip install` builds `_engine.c` beside this file if there is a compiler; wheels bring it. Without it the same
answers come from NumPy and Python, later. `DAYDREAM_COMPILED=0` in the environment turns it off.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

VARIABLE = "DAYDREAM_COMPILED"
INTERFACE = 7  # a checkout may still hold loops that were built for other arguments


def engine() -> ModuleType | None:
    """Return the module of the compiled loops, or None where it is not there or not wanted.

    `pull(lane, duration_ns, gap_ns, release_ns, edge_ptr, edge_src, edge_latency_ns, edge_from_start,
    progress, start, end)` takes the arrays of a plan and fills the last two with its timeline, in ns;
    `progress` has room for an int64 a lane. False: times are so long that int64 may not hold them, and
    nothing is answered.

    `nest(order, start, end, depth, thread, parent, open, rounding)` is the loop of
    `daydream.collect.derive.nesting`: it fills `parent`, cuts `end` and returns the crossings. `open` has
    room for an int32 a row of `order`.

    All raise `ValueError` for arrays that do not fit each other and for indices out of range, before
    they are used. Arrays are contiguous, with the types of a plan and of that module.
    """
    return None if os.environ.get(VARIABLE) == "0" else _built()


@cache
def _built() -> ModuleType | None:
    try:
        found = import_module("daydream.compiled._engine")
    except ImportError:  # not built, or for another system
        return None
    return found if found.INTERFACE == INTERFACE else None
