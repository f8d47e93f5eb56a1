"""Draw the call path of one `whatif` from the code that runs it.

`python tools/call_path.py` prints the drawing that docs/architecture.md holds: the public functions of
modules below which several others run, each where it is first called. It exits with 1 if they are more
than 40, or if a function calls one of a higher floor by its name; what a caller hands over to be called
back is no such call.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ASKED = ("whatif", "amp", "examples/synthetic_gpt_gpu.json.gz")
MOST = 40
FLOORS = {
    "cli": 10, "report": 8, "predict": 7, "transforms": 6, "optimizations": 6, "memory": 6, "costs": 5,
    "model": 5, "simulate": 4, "graph": 3, "collect": 2, "trace": 1,
}  # fmt: skip
DRAWN = {"cli", "predict", "transforms", "simulate", "graph"}
ENTERED = {"collect", "report", "optimizations"}  # of these what is called from another room is drawn
SUGGESTION = "suggestion"  # makes other predictions, along the same path
RULES = "daydream/graph/rules/"  # the page has a table of them
LEAST, DEEPEST = 4, 4  # functions below one that is drawn; functions above it


class Function(NamedTuple):
    """A function of ours; the name of a method is without its class."""

    room: str
    file: str
    name: str


Calls = dict[tuple[Function, Function], bool]  # caller and callee, in order; whether by name, ever


@cache
def function(code: CodeType) -> Function | None:
    """Return the function that code is of; None of others than ours, and of parts of functions."""
    path = Path(code.co_filename)
    if ROOT not in path.parents or not code.co_flags & CO_OPTIMIZED or code.co_name.startswith("<"):
        return None
    room, *rest = path.relative_to(ROOT).parts
    room = rest[0] if room == "daydream" else room
    return Function(room, str(path.relative_to(ROOT)), code.co_name) if room in FLOORS else None


class Recorded:
    """The calls between functions of ours that were made, and those of them outside of the suggestion."""

    def __init__(self) -> None:
        self.calls: Calls = {}
        self.path: Calls = {}
        self.of_modules: set[Function] = set()
        self._suggestion: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take a call, or the end of one: see `sys.setprofile`."""
        code, above = frame.f_code, frame.f_back
        callee = function(code) if event == "call" else None
        if event == "return" and frame is self._suggestion:
            self._suggestion = None
        while callee and above is not None and above.f_code.co_name != "<module>":
            if caller := function(above.f_code):
                by_name = code.co_name in above.f_code.co_names
                for calls in [self.calls] if self._suggestion else [self.calls, self.path]:
                    calls[caller, callee] = calls.get((caller, callee), False) or by_name
                named = frame.f_globals.get(code.co_name)
                if getattr(getattr(named, "__wrapped__", named), "__code__", None) is code:
                    self.of_modules.add(callee)
                if callee.name == SUGGESTION:
                    self._suggestion = frame
                return
            above = above.f_back


def recorded(words: Sequence[str] = ASKED) -> Recorded:
    """Return the calls that a command makes."""
    from daydream.cli import daydream

    found = Recorded()
    os.chdir(ROOT)
    os.environ["DAYDREAM_CACHE"] = "off"
    sys.setprofile(found)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            daydream.main([*words], standalone_mode=False)
    finally:
        sys.setprofile(None)
    return found


def upward(found: Recorded) -> list[str]:
    """Return the calls of a function of a higher floor by its name."""
    return [
        f"{caller.file} {caller.name} calls {callee.file} {callee.name}"
        for (caller, callee), by_name in found.calls.items()
        if by_name and FLOORS[callee.room] > FLOORS[caller.room]
    ]


def drawing(found: Recorded) -> list[str]:
    """Return a line for each function that is drawn, below the one that calls it first."""
    callees: dict[Function, list[Function]] = {}
    for caller, callee in found.path:
        callees.setdefault(caller, []).append(callee)
    first = Function("cli", "daydream/cli/whatif.py", "whatif")
    seen: set[Function] = set()

    def is_drawn(callee: Function, drawn: Function) -> bool:
        if callee not in found.of_modules or callee.name.startswith("_") or callee.room == first.room:
            return False
        if callee.room not in DRAWN and (callee.room not in ENTERED or callee.room == drawn.room):
            return False
        below = [callee]
        for each in below:
            below += [other for other in callees.get(each, ()) if other not in below]
        return len(below) > LEAST or callee.name == SUGGESTION

    def lines(caller: Function, drawn: Function, depth: int) -> Iterator[str]:
        for callee in callees.get(caller, ()):
            if callee in seen or callee.file.startswith(RULES):
                continue
            seen.add(callee)
            if not is_drawn(callee, drawn):
                if callee.room in DRAWN:
                    yield from lines(callee, drawn, depth)
            elif depth <= DEEPEST:
                yield f"{'  ' * depth}{callee.name:<{36 - 2 * depth}}{callee.file}"
                if callee.room in DRAWN:
                    yield from lines(callee, callee, depth + 1)

    return ["daydream whatif amp", *lines(first, first, 1)]


def main() -> None:
    """Print the drawing."""
    found = recorded()
    lines, wrong = drawing(found), upward(found)
    print(*lines, *wrong, sep="\n")
    sys.exit(bool(wrong) or len(lines) - 1 > MOST)


if __name__ == "__main__":
    main()
