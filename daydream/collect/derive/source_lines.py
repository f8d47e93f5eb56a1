"""Which function of the program called what: the innermost Python frame that is neither torch's nor Python's.

Profilers write frames as `folder/file.py(12): function`, with the line at which the function begins. Of the
path the last folder and the file are kept: a longer one may say whose machine it was.
"""

from __future__ import annotations

import itertools
import re
import sys
from functools import cache

import numpy as np

from daydream.arrays import innermost
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN

FRAME = regex(r"^(.+\.py)\((\d+)\): (.+)$")
LIBRARIES = {"torch", "daydream", *sys.stdlib_module_names}
OURSELVES = ("daydream", "collect")
PLACES = ("site-packages", "dist-packages", "lib")  # what follows them is how a module is imported
KEPT = 2  # parts of a path
# Python's functions that do nothing but wait, by what they wait with.
WAITS = regex(
    r"(?i)^(?:.*python[\d.]*[/\\](?:lib[/\\])?)?(?:multiprocessing[/\\])?"
    r"(threading|queue|selectors|connection|subprocess|popen_\w+)\.py\(\d+\): "
    r"(wait|join|get|put|select|_?poll|_?recv\w*)$"
    r"|^<built-in function (sleep|select|read|waitpid)>$"
    r"|^<built-in method (acquire|poll|recv\w*|accept|get|wait) of "
    r"(_thread\.R?[lL]ock|select\.\w*poll|socket|_queue\.SimpleQueue|(?:[\w.]+\.)?Work) object\b"
)
LEAST_BLOCKED_NS = 50_000  # shorter is the scheduler's, and no wait


@cache
def own_frame(name: str) -> str | None:
    """Return a frame's name as it is kept: `train.py(12): step`; None if it is no one's own code."""
    match = FRAME.match(name)
    if match is None:
        return None
    parts = [part for part in re.split(r"[/\\]", match[1]) if part]
    for place in PLACES:
        if place in parts[:-1]:
            parts = parts[len(parts) - parts[::-1].index(place) :]
    if parts and re.fullmatch(r"python\d[\d.]*", parts[0]):
        parts = parts[1:]
    if not parts or parts[0].startswith("<") or parts[0].removesuffix(".py") in LIBRARIES:
        return None
    # Not installed: run from their sources.
    if "torch" in parts[:-1] or OURSELVES in itertools.pairwise(parts):
        return None
    return f"{'/'.join(parts[-KEPT:])}({match[2]}): {match[3]}"


@cache
def blocking_call(name: str) -> str | None:
    """Return the call, such as `queue.get`, whose frame does nothing but wait; None of other frames."""
    match = WAITS.search(name)
    if match is None:
        return None
    python, its, function, call, owner = match.groups()
    return function or f"{python or owner}.{its or call}"


class SourceLines:
    """Frames of a recording as they come in, and which of them calls what."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._frames: list[tuple[int, int, int, int]] = []  # thread, start, -end, code

    @property
    def texts(self) -> list[str]:
        """The names of the frames, by code."""
        return list(self._codes)

    def add(
        self, names: list[str], start_ns: np.ndarray, duration_ns: np.ndarray, tid: np.ndarray
    ) -> None:
        """Take frames in; what is not someone's own is left out."""
        times = zip(names, start_ns.tolist(), duration_ns.tolist(), tid.tolist(), strict=True)
        for name, start, duration, thread in times:
            kept = own_frame(name)
            if kept is not None and duration >= 0:
                kept = kept.encode(
                    "utf-8", "replace"
                ).decode()  # half a surrogate pair cannot be written
                code = self._codes.setdefault(kept, len(self._codes))
                self._frames.append((thread, start, -(start + duration), code))

    def of(self, start_ns: np.ndarray, tid: np.ndarray) -> np.ndarray:
        """Return the code of the innermost frame around each start on its thread, unknown where none is."""
        if not self._frames:
            return np.full(len(start_ns), UNKNOWN, np.int32)
        thread, start, end, code = np.array(sorted(self._frames), np.int64).T
        frame = innermost(thread, start, -end, _around(self._frames), tid, start_ns)
        return np.where(frame >= 0, code[frame], UNKNOWN).astype(np.int32)


def _around(frames: list[tuple[int, int, int, int]]) -> np.ndarray:
    """Return which frame, in the order of threads and starts, is around each; unknown for the outermost."""
    around = np.full(len(frames), UNKNOWN, np.int64)
    entered: list[int] = []
    ordered = sorted(frames)
    for place, (thread, start, _, _) in enumerate(ordered):
        while entered and (ordered[entered[-1]][0] != thread or -ordered[entered[-1]][2] <= start):
            entered.pop()
        if entered:
            around[place] = entered[-1]
        entered.append(place)
    return around
