"""Parts of a large Kineto file, which several processes read side by side.

A reader of the whole file reads block after block and cuts each behind its last whole event. Parts begin and
end at such cuts, so that the blocks in them are the same. Where a cut will be is seen from the bytes before
it, and proved by who reads the part before: if it ends elsewhere, the file is read as a whole instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from daydream.lazy import regex

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
EVENTS_KEY = regex(rb'(?<!\\)"traceEvents"\s*:\s*\[')
BETWEEN_EVENTS = regex(rb'\}\s*,\s*(?=\{\s*"[\w ]{1,40}"\s*:)')
GZIP_MAGIC = b"\x1f\x8b"
PART_BLOCKS = 8
WINDOW = 1 << 18  # bytes before the end of a part in which its last event begins
LEAST_BYTES = 96 << 20  # of JSON; below, starting processes takes longer than they save
PACKED = 12  # times as large as its gzip a file is taken to be


class NotCutError(Exception):
    """The file, or a part of it, cannot be read in parts."""


@dataclass(frozen=True)
class Part:
    """A part of a file: its `text`, or where in the file at `path` that stands.

    The first block in it has `head` bytes. Behind its last whole event `left` bytes stand, which the next
    part begins with; `prefix` are the bytes before the events, which the last part needs.
    """

    path: Path
    begin: int
    end: int
    head: int
    share: float
    text: bytes | None = None
    left: int = 0
    last: bool = False
    prefix: bytes = b""

    def read(self) -> bytes:
        """Return its text."""
        if self.text is not None:
            return self.text
        with self.path.open("rb") as file:
            file.seek(self.begin)
            return file.read(self.end - self.begin)


def parts_of_plain(path: Path, file: IO[bytes], size: int, block_bytes: int) -> Iterator[Part]:
    """Yield the parts of a file that is not packed; who reads them opens it. Raises `NotCutError`."""
    at = block_bytes
    begin, prefix = _begin(file.read(at))
    head = at - begin
    while (stop := at + PART_BLOCKS * block_bytes) < size:
        first = max(begin, stop - WINDOW)
        file.seek(first)
        left = _left(file.read(stop - first))
        yield Part(path, begin, stop, head, begin / size, left=left)
        begin, at = stop - left, stop
        head = at + block_bytes - begin
    yield Part(path, begin, size, head, begin / size, last=True, prefix=prefix)


def parts_of_packed(
    path: Path, file: IO[bytes], share: Callable[[], float], block_bytes: int
) -> Iterator[Part]:
    """Yield the parts of a file that is unpacked while it is read, with their text. Raises `NotCutError`."""
    rest = file.read(block_bytes)
    begin, prefix = _begin(rest)
    rest = rest[begin:]
    head = len(rest)
    more = file.read(PART_BLOCKS * block_bytes)
    while following := file.read(PART_BLOCKS * block_bytes):
        left = _left(more)
        yield Part(path, 0, 0, head, share(), text=rest + more, left=left)
        rest = more[len(more) - left :]
        head = block_bytes + left
        more = following
    yield Part(path, 0, 0, head, share(), text=rest + more, last=True, prefix=prefix)


def _begin(block: bytes) -> tuple[int, bytes]:
    """Return where in the first block of a file the events begin, and what stands before them if not `[`."""
    text = block.removeprefix(BYTE_ORDER_MARK)
    mark = len(block) - len(text)
    if text.lstrip()[:1] == b"[":
        return mark + len(text) - len(text.lstrip()) + 1, b""
    key = EVENTS_KEY.search(text)
    if key is None:
        raise NotCutError
    return mark + key.end(), text[: key.end()]


def _left(text: bytes) -> int:
    """Return how many bytes stand behind the last boundary between two events."""
    ends = [found.end() for found in BETWEEN_EVENTS.finditer(text, max(0, len(text) - WINDOW))]
    if not ends:
        raise NotCutError
    return len(text) - ends[-1]


def is_packed(path: Path) -> bool:
    """Return whether a file is gzip."""
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def json_bytes(path: Path) -> int:
    """Return about how many bytes of JSON a file holds, 0 if it cannot be read."""
    try:
        return path.stat().st_size * (PACKED if is_packed(path) else 1)
    except OSError:
        return 0
