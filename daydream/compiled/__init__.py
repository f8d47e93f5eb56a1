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
INTERFACE = 6  # a checkout may still hold loops that were built for other arguments


def engine() -> ModuleType | None:
    """Return the module of the compiled loops, or None where it is not there or not wanted.

    `pull(lane, duration_ns, gap_ns, release_ns, edge_ptr, edge_src, edge_latency_ns, edge_from_start,
    progress, start, end)` takes the arrays of a plan and fills the last two with its timeline, in ns;
    `progress` has room for an int64 a lane. False: times are so long that int64 may not hold them, and
    nothing is answered.

    `nest(order, start, end, depth, thread, parent, open, rounding)` is the loop of
    `daydream.collect.derive.nesting`: it fills `parent`, cuts `end` and returns the crossings. `open` has
    room for an int32 a row of `order`.

    `scan(names, how, top, words, kinds, blank, text, rows, spans, hashes, slots, exact)` reads a JSON list
    of objects, or what stands in one, for `daydream.collect.importers.kineto.scanned`. `names` are the
    fields: phase, category, name and others of an object itself, of these `top`, the last its arguments;
    then those in the arguments. `how` says what becomes of each: `t` the number of a text, `i` an integer,
    or -2**62 less the number of the text that is there instead, `s` and `d` ns of microseconds. A row
    begins as `blank`. Its first two places and the last of `top` tell which fields it has, which of its
    numbers are texts, and its kind; the two behind its fields where its object begins, and its size. Kept
    are objects whose phase is the first of `words`, with what `kinds` has for their category, and those
    whose name is the second; the third is a category that makes it refuse. `spans` gets begin and size of
    each text, words first. `exact` reads starts by their digits; else one for which a float is too coarse
    becomes 2**63 - 1. It returns how many rows and texts there are, and whether a string is beyond ASCII;
    None where something is not strict JSON, or of another form: nothing of it may be used then.

    `by_kind(rows, width, at, always, columns, edges, fields)` puts such rows, of so many int64, in order of
    the kind that stands in place `at`, a column a field. `columns` gets those of the fields that any row has
    and of the bits in `always`, the others stay as they are. `edges` gets where the rows of each kind begin
    and end, and `fields` the bits of the fields that rows of each kind have, then of those that are texts.

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
