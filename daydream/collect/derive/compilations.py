"""Steps in which the program's compiler compiled: a new shape came, say.

Compiled code is kept and used from then on, so a run pays for it once. torch wraps what its compiler does in
ranges of their own.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.text import counted

COMPILES = re.compile(r"^\S.* \(dynamo_timed\)$", re.DOTALL)
FUNCTION = re.compile(r"^_compile\.compile_inner \(dynamo_timed\)$")
WORTH = 0.25
"""Of a step's time; less is not worth a step."""


def compilations(
    recording: Recording, step: np.ndarray, parent: np.ndarray, steps: list[dict[str, Any]]
) -> dict[int, str]:
    """Return why steps that were spent compiling are not like the others, by their number.

    Where half of the covered steps or more are so, compiling is what the program does, and they count.

    Args:
        recording: the rows.
        step: of each row its step, -1 for none; int, shape (rows,).
        parent: of each host row the row around it, -1 for none; int, shape (rows,).
        steps: the steps with their measured times.
    """
    rows = np.flatnonzero(recording.named(COMPILES) & (step >= 0))
    if not len(rows):
        return {}
    compiles = np.zeros(len(recording) + 1, bool)
    compiles[rows] = True
    outermost = rows[~_within(parent, compiles, rows)]
    spent = np.bincount(step[outermost], np.asarray(recording["duration_ns"])[outermost], len(steps))
    functions = np.bincount(step[rows[recording.named(FUNCTION)[rows]]], minlength=len(steps))
    covered = [number for number, each in enumerate(steps) if each["covered"] and each["measured_ns"]]
    found = [number for number in covered if spent[number] > WORTH * steps[number]["measured_ns"]]
    if 2 * len(found) >= len(covered):
        return {}
    return {
        number: f"the program compiled {counted(int(functions[number]), 'function')} anew in it, "
        f"{spent[number] / 1e6:,.0f} ms of {steps[number]['measured_ns'] / 1e6:,.0f} ms"
        for number in found
    }


def _within(parent: np.ndarray, wanted: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that have a wanted row around them."""
    found, up = np.zeros(len(rows), bool), np.asarray(parent, np.int64)[rows]
    while (up >= 0).any():
        found |= wanted[up] & (up >= 0)
        up = np.where(up >= 0, parent[up], -1)
    return found
