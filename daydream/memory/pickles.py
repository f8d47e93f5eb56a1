"""Pickles of strangers: plain dicts, lists, tuples, numbers and text come out of them, nothing else happens.

A pickle is a program for a small machine. One that imports or calls something is refused before it is run;
so is one whose memory would not be in proportion to its size.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
from typing import Any, NoReturn

from daydream.errors import TraceError

MAGIC = b"\x80"  # protocol 2 or later: torch writes 4, other tools 2
WITHOUT_ARGUMENT = (
    "MARK", "POP", "POP_MARK", "NONE", "NEWTRUE", "NEWFALSE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT",
    "SETITEM", "SETITEMS", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "MEMOIZE",
)  # fmt: skip
BYTES = {  # opcodes with an argument of so many bytes
    "PROTO": 1, "BININT1": 1, "BINGET": 1, "BINPUT": 1, "BININT2": 2, "BININT": 4, "LONG_BINGET": 4,
    "BINFLOAT": 8, "FRAME": 8,
}  # fmt: skip
SIZED = {  # opcodes whose argument begins with its own size, in so many bytes
    "LONG1": 1, "SHORT_BINUNICODE": 1, "BINUNICODE": 4, "BINUNICODE8": 8, "SHORT_BINBYTES": 1, "BINBYTES": 4,
}  # fmt: skip
NAMES = {ord(each.code): each.name for each in pickletools.opcodes}
CODES = {each.name: each.code.encode("latin-1") for each in pickletools.opcodes}
DAMAGED = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError,
    RecursionError,
)  # fmt: skip


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse: `check` has found no opcode that could ask for it."""
        raise pickle.UnpicklingError(f"{module}.{name}")


def plain_pickle(data: bytes, path: str | os.PathLike[str]) -> Any:
    """Return what a pickle of plain containers holds.

    Args:
        data: the whole pickle.
        path: where it is from, for the error.

    Raises:
        TraceError: it is damaged, or asks for anything but plain dicts, lists, tuples, numbers and text.

    """
    check(data, path)
    try:
        return _Plain(io.BytesIO(data)).load()
    except DAMAGED as error:
        raise TraceError(f"{path}: the pickle is damaged ({error})") from None


def check(data: bytes, path: str | os.PathLike[str]) -> None:
    """Raise `TraceError` unless all opcodes of a pickle make plain values and keep them close together."""
    at = 0
    while True:
        run = FIXED.match(data, at)
        at = run.end() if run else at
        name = NAMES.get(data[at], hex(data[at])) if at < len(data) else ""
        if name == "STOP":
            return
        if name in SIZED:
            start = at + 1 + SIZED[name]
            at = min(start + int.from_bytes(data[at + 1 : start], "little"), len(data))
        elif name == "LONG_BINPUT":  # keeps a value at a place: the list of places grows that far
            if int.from_bytes(data[at + 1 : at + 5], "little") > at:
                raise TraceError(f"{path}: the pickle is damaged (it skips places at byte {at:,})")
            at += 5
        elif not name or (not run and name in BYTES):
            raise TraceError(f"{path}: the pickle is damaged (it is cut off at byte {at:,})")
        elif not run:
            raise TraceError(
                f"{path}: refused, since its pickle has the opcode {name} at byte {at:,}. A memory snapshot "
                "is made of dicts, lists, numbers and text; nothing else in it is run."
            )


def _fixed() -> re.Pattern[bytes]:
    """Return the pattern of opcodes, one after another, whose length is known: nearly all of a snapshot."""
    alone = b"".join(re.escape(CODES[name]) for name in WITHOUT_ARGUMENT)
    others = [re.escape(CODES[name]) + b".{%d}" % length for name, length in BYTES.items()]
    numbers = [
        re.escape(CODES["LONG1"]) + re.escape(bytes([length])) + b".{%d}" % length
        for length in range(9)
    ]
    return re.compile(b"(?:[%s]|%s){1,4096}" % (alone, b"|".join(others + numbers)), re.DOTALL)


FIXED = _fixed()
