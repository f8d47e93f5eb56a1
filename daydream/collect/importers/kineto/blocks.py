"""Parts of a large Kineto file, which several processes read side by side.

A reader of the whole file reads block after block and cuts each behind its last whole event. Parts begin and
end at such cuts, so that the blocks in them are the same. Where a cut will be is seen from the bytes before
it, and proved by who reads the part before: if it ends elsewhere, the file is read as a whole instead.

Events of a Kineto JSON file, block by block.

The file is read in blocks and cut between two events of `traceEvents`, so memory
does not grow with the file. A cut is looked for at `}, {"key":`, which cannot occur
inside a JSON string (its quotes would be escaped), and is proved by decoding: where
that fails (an array of objects inside an event, the end of the events), the block
grows until it decodes, at worst to the end of the file.

What is not strict JSON (NaN, text where a number belongs, bytes that are not UTF-8)
is decoded again by slower and more patient means; an event that still makes no
sense is counted.

Names of the kernels that calls of a recording launch: ROCm writes them beside the call.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import msgspec

from daydream.collect.importers.kineto.events import Event, ExactEvent, Header, patient_event
from daydream.collect.importers.kineto.scanned import Scanner, Table
from daydream.errors import TraceError
from daydream.files.input_files import Counted, check_regular, most_unpacked
from daydream.lazy import regex
from daydream.parallel.engines import ahead

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


BLOCK_BYTES = 1 << 20
LARGEST_BLOCK_BYTES = 1 << 26
CUTS_TRIED = 4
WORTH_A_THREAD = 1 << 26  # bytes of a file that is not packed
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EventReader:
    """Iterate over lists of events; `header` and `unreadable` are complete when the iteration is.

    `share` is how much of the file was read so far.

    `exact_times` keeps the digits of start times. Raises `TraceError` if the file is no Kineto trace.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        exact_times: bool = False,
        block_bytes: int = BLOCK_BYTES,
        max_unpacked: int | None = None,
    ) -> None:
        self.path = Path(path)
        self.max_unpacked = max_unpacked
        self.exact_times = exact_times
        self.header = Header()
        self.unreadable = 0
        self.block_bytes = block_bytes
        self.share = 0.0
        self._scanner = Scanner(exact=exact_times)

    @property
    def scans(self) -> bool:
        """Whether the compiled scanner is there, which leaves the interpreter to others."""
        return self._scanner.there

    @cached_property
    def _one(self) -> msgspec.json.Decoder[Event]:
        return msgspec.json.Decoder(ExactEvent if self.exact_times else Event)

    @cached_property
    def _many(self) -> msgspec.json.Decoder[list[Event]]:
        return msgspec.json.Decoder(list[ExactEvent] if self.exact_times else list[Event])

    def __iter__(self) -> Iterator[list[Event] | Table]:
        try:
            with opened(self.path, self.max_unpacked) as (file, position, size):
                yield from self._blocks(file, position, max(size, 1))
        except FileNotFoundError:
            raise TraceError(f"{self.path}: no such file") from None
        except IsADirectoryError:
            raise TraceError(f"{self.path} is a folder") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"{self.path}: the gzip data is cut off or damaged ({error})") from None
        except OSError as error:
            raise TraceError(f"cannot read {self.path}: {error.strerror or error}") from None

    def of_part(self, part: Part) -> Iterator[list[Event] | Table]:
        """Iterate over the lists of events of a part: the same lists that the whole file would give there.

        `header` is complete behind the last part. Raises `NotCutError` if it cannot be read by itself.
        """
        text, at, ended = part.read(), part.head, False
        buffer = text[:at]
        while not ended and at < len(text):
            events, buffer, ended = self._cut(buffer)
            if events:
                yield events
                del events
            buffer += text[at : at + self.block_bytes]
            at += self.block_bytes
        if part.last:
            yield self._last(part.prefix, buffer + text[at:])
            return
        events, buffer, failed = self._cut(buffer)
        if ended or failed or len(buffer) != part.left:
            raise NotCutError
        if events:
            yield events

    def _blocks(
        self, file: IO[bytes], position: Callable[[], int], size: int
    ) -> Iterator[list[Event] | Table]:
        buffer = file.read(self.block_bytes).removeprefix(BYTE_ORDER_MARK)
        if not buffer.strip():
            raise TraceError(f"{self.path} is empty; a Kineto trace (JSON) was needed")
        if buffer.lstrip()[:1] == b"[":
            prefix, buffer = b"", buffer.lstrip()[1:]
        else:
            while (key := EVENTS_KEY.search(buffer)) is None:
                more = file.read(max(self.block_bytes, len(buffer)))
                if not more:
                    self._explain_no_events(buffer)
                buffer += more
            prefix, buffer = buffer[: key.end()], buffer[key.end() :]
        following = iter(lambda: file.read(self.block_bytes), b"")
        if isinstance(file, Counted) or size >= WORTH_A_THREAD:
            following = ahead(following)
        for more in following:
            self.share = min(position() / size, 1.0)
            events, buffer, ended = self._cut(buffer)
            if events:
                yield events
                del events
            buffer += more
            if ended:
                buffer += b"".join(following)
        self.share = 1.0
        yield self._last(prefix, buffer)

    def _cut(self, buffer: bytes) -> tuple[list[Event] | Table, bytes, bool]:
        """Decode up to the last boundary that proves right.

        Returns the events, what is left, and whether cutting has failed for good: behind the end of
        the events no boundary proves right, and the rest of the file is then decoded at once.
        """
        cuts: list[re.Match[bytes]] = []
        window = 1 << 15
        while not cuts and window < 16 * len(buffer):
            cuts = list(BETWEEN_EVENTS.finditer(buffer, max(0, len(buffer) - window)))
            window *= 8
        for cut in reversed(cuts[-CUTS_TRIED:]):
            events = self._decode(buffer, cut.start() + 1)
            if events is not None:
                return events, buffer[cut.end() :], False
        return [], buffer, bool(cuts) or len(buffer) > LARGEST_BLOCK_BYTES

    def _decode(self, text: bytes, stop: int | None = None) -> list[Event] | Table | None:
        """Return the events of a JSON array, or of what stands in one up to `stop`; None if it is not one."""
        table = self._scanner.table(text, stop)
        if table is not None:
            return table
        return self._objects(text if stop is None else b"".join((b"[", memoryview(text)[:stop], b"]")))

    def _objects(self, text: bytes) -> list[Event] | None:
        try:
            return self._many.decode(text)
        except (msgspec.ValidationError, UnicodeDecodeError):
            pass
        except RecursionError:
            return None
        except msgspec.DecodeError:
            if b"NaN" not in text and b"Infinity" not in text:
                return None
        try:
            raws = msgspec.json.decode(text, type=list[msgspec.Raw])
        except UNDECODABLE:
            try:
                return self._patiently(json.loads(text.decode("utf-8", "replace")))
            except (ValueError, RecursionError):
                return None
        events = []
        for raw in raws:
            try:
                events.append(self._one.decode(raw))
            except UNDECODABLE:
                try:
                    row = json.loads(bytes(raw).decode("utf-8", "replace"))
                except (ValueError, RecursionError):
                    row = None
                events += self._patiently([row])
        return events

    def _patiently(self, rows: list[Any]) -> list[Event]:
        events = []
        for row in rows:
            event = patient_event(row)
            if event is None:
                self.unreadable += 1
            else:
                events.append(event)
        return events

    def _last(self, prefix: bytes, buffer: bytes) -> list[Event] | Table:
        """Decode the end of the file: the remaining events and what stands behind them."""
        text = prefix + buffer if prefix else b"[" + buffer
        if not prefix:
            events = self._decode(text)
            if events is None:
                self._explain_broken(text)
            return events
        try:
            document = msgspec.json.decode(text, type=Document)
            self.header = msgspec.json.decode(text, type=Header)
            events = self._decode(bytes(document.traceEvents))
            if events is not None:
                return events
        except UNDECODABLE:
            pass
        try:
            whole = json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            self._explain_broken(text)
        if not isinstance(whole, dict) or not isinstance(whole.get("traceEvents"), list):
            raise TraceError(f"{self.path}: `traceEvents` is not a list; this is not a Kineto trace")
        self.header = Header(**{name: whole.get(name) for name in Header.__struct_fields__})
        return self._patiently(whole["traceEvents"])

    def _explain_no_events(self, text: bytes) -> NoReturn:
        try:
            document = json.loads(text.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            self._explain_broken(text)
        if isinstance(document, dict) and "nodes" in document:
            raise TraceError(
                f"{self.path} is a PyTorch execution trace (it has `nodes`), which holds no times of "
                "device work. Give the trace that torch.profiler writes with export_chrome_trace."
            )
        raise TraceError(f"{self.path} is JSON without a `traceEvents` list; a Kineto trace was needed")

    def _explain_broken(self, text: bytes) -> NoReturn:
        if text.lstrip()[:1] not in (b"{", b"["):
            raise TraceError(f"{self.path} is not JSON, SQLite or parquet; a profiler trace was needed")
        whole = text.decode("utf-8", "replace").rstrip()
        try:
            json.loads(whole)
        except RecursionError:
            raise TraceError(f"{self.path}: the JSON is nested too deeply to be a trace") from None
        except json.JSONDecodeError as error:
            if error.pos >= len(whole) - 1 or "Unterminated string" in error.msg:
                raise TraceError(
                    f"{self.path}: the JSON ends in the middle; the file was cut off. Export it again."
                ) from None
            raise TraceError(
                f"{self.path} is not valid JSON ({error.msg} near {whole[error.pos : error.pos + 20]!r}). "
                "Export it again."
            ) from None
        except ValueError as error:
            raise TraceError(f"{self.path} is not valid JSON ({error}). Export it again.") from None
        raise TraceError(f"{self.path}: its events cannot be read as a Kineto trace")


class Document(msgspec.Struct, gc=False):
    """The events of a file, undecoded."""

    traceEvents: msgspec.Raw  # noqa: N815 - Kineto's spelling


@contextmanager
def opened(path: Path, max_unpacked: int | None = None) -> Iterator[tuple[IO[bytes], Callable[[], int], int]]:
    """Open a file for reading, unpacked if it is gzip: (file, position in the packed file, packed size)."""
    check_regular(path)
    with path.open("rb") as raw:
        magic = raw.read(2)
        raw.seek(0)
        size = os.fstat(raw.fileno()).st_size
        if magic == GZIP_MAGIC:
            with gzip.GzipFile(fileobj=raw) as unpacked:
                counted = Counted(cast("IO[bytes]", unpacked), path, most_unpacked(path, max_unpacked))
                yield cast("IO[bytes]", counted), raw.tell, size
        else:
            yield raw, raw.tell, size


LARGEST = 1 << 30  # bytes of a capture's file whose names are read


class _Args(msgspec.Struct):
    correlation: int = -1
    kernel: str = ""


class _Event(msgspec.Struct):
    args: _Args | None = None


class _Document(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - the file's own name


def launched_kernels(path: Path, max_unpacked: int | None = None) -> dict[int, str]:
    """Return correlation -> name of the kernel that the call launches; empty where the file has none."""
    with opened(path, max_unpacked) as (file, _, _):
        text = file.read(LARGEST + 1)
    if len(text) > LARGEST:
        return {}
    try:
        events = msgspec.json.decode(text, type=_Document).traceEvents
    except (msgspec.DecodeError, UnicodeError):
        return {}
    return {event.args.correlation: event.args.kernel for event in events if event.args and event.args.kernel}
