"""Events of a Kineto JSON file, block by block.

The file is read in blocks and cut between two events of `traceEvents`, so memory
does not grow with the file. A cut is looked for at `}, {"key":`, which cannot occur
inside a JSON string (its quotes would be escaped), and is proved by decoding: where
that fails (an array of objects inside an event, the end of the events), the block
grows until it decodes, at worst to the end of the file.

What is not strict JSON (NaN, text where a number belongs, bytes that are not UTF-8)
is decoded again by slower and more patient means; an event that still makes no
sense is counted. What is no JSON at all, though profilers write it, is mended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

import msgspec

from daydream.collect.importers.kineto.events import Event, Header, patient_event
from daydream.errors import TraceError
from daydream.files.input_files import StrPath, opened
from daydream.lazy import regex

EVENTS_KEY = regex(rb'(?<!\\)"traceEvents"\s*:\s*\[')
BETWEEN_EVENTS = regex(rb'\}\s*,\s*(?=\{\s*"[\w ]{1,40}"\s*:)')


# Texts, and what is no JSON outside of them. A text that is a value ends before the next field or the end of
# its object, whatever quotes it holds; other texts before what may stand between two of them.
NUMBER = rb"[-+]?(?:1\.#)?\b(?:nan|inf(?:inity)?|ind|qnan)\b(?:\(\w*\))?"
TOKEN = regex(rb'(:\s*)?"|' + NUMBER + rb"|,(?=\s*[\]}])", re.IGNORECASE)
# A number of a field: where these are all that is wrong, to replace them takes a fiftieth of the time.
VALUE = regex(rb'"(?<!\\")(\s*:\s*)' + NUMBER + rb"(?=\s*[,}])", re.IGNORECASE)
END = rb'(?<!\\)(?:\\\\)*"(?=\s*'
VALUE_ENDS = regex(END + rb'(?:\}\s*(?:[\]},]|\Z)|,\s*"[^"\n]+"\s*:))')
ENDS = regex(END + rb"[:,\]}])")
FIELD = regex(
    rb'"(?:ph|cat|pid|tid|ts|dur|args)"\s*:'
)  # of an event: a text that holds one has not ended
ESCAPES = regex(rb'\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})|[\x00-\x1f"\\]')


def mended(text: bytes) -> tuple[bytes, int]:
    """Return JSON for what profilers have written as JSON, and how many places had to be changed.

    Numbers that JSON does not have (`inf`, `-nan(ind)`) become null; quotes, line ends and backslashes
    in texts are escaped; commas before a bracket go. PyTorch and Kineto have written all of these.
    """
    parts: list[bytes] = []
    at = count = 0
    while found := TOKEN.search(text, at):
        old = found.group()
        new = b"null"
        parts.append(text[at : found.start()])
        at = found.end()
        if old == b",":
            new = b""
        elif old.endswith(b'"'):
            end = (VALUE_ENDS if found[1] else ENDS).search(text, at)
            if end is None or FIELD.search(text, at, end.start()):
                return text, 0
            old += text[at : end.end()]
            new = found.group() + ESCAPES.sub(_escaped, text[at : end.end() - 1]) + b'"'
            at = end.end()
        count += new != old
        parts.append(new)
    return b"".join([*parts, text[at:]]), count


def _escaped(found: re.Match[bytes]) -> bytes:
    text = found.group()
    return text if len(text) > 1 else b"\\u%04x" % text[0]


BLOCK_BYTES = 1 << 20
LARGEST_BLOCK_BYTES = 1 << 26
CUTS_TRIED = 4
Events = list[Event]
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class EventReader:
    """Iterate over lists of events; `header`, `unreadable` and `mended` are complete when the iteration is.

    `share` is how much of the file was read so far. Raises `TraceError` if the file is no Kineto trace.
    """

    def __init__(
        self, path: StrPath, *, block_bytes: int = BLOCK_BYTES, max_unpacked: int | None = None
    ) -> None:
        self.path = Path(path)
        self.max_unpacked = max_unpacked
        self.header = Header()
        self.unreadable = 0
        self.mended = 0  # places that were no JSON
        self.block_bytes = block_bytes
        self.share = 0.0
        self._decoder = msgspec.json.Decoder(Events)

    def __iter__(self) -> Iterator[Events]:
        with opened(self.path, self.max_unpacked) as (file, position, size):
            yield from self._blocks(file, position, max(size, 1))

    def _blocks(self, file: IO[bytes], position: Callable[[], int], size: int) -> Iterator[Events]:
        buffer = file.read(self.block_bytes)
        encoding = json.detect_encoding(buffer)
        if encoding != "utf-8":  # and without a mark
            buffer = (buffer + file.read()).decode(encoding, "replace").encode()
        if not buffer.strip():
            raise TraceError(f"{self.path} is empty; a Kineto trace (JSON) was needed")
        prefix = b""
        if buffer.lstrip()[:1] == b"[":
            buffer = buffer.lstrip()[1:]
        else:
            while (key := EVENTS_KEY.search(buffer)) is None:
                more = file.read(max(self.block_bytes, len(buffer)))
                if not more:
                    self._explain_no_events(buffer)
                buffer += more
            prefix = buffer[: key.end()]
            buffer = buffer[key.end() :]
        following = iter(lambda: file.read(self.block_bytes), b"")
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
        text = (prefix or b"[") + buffer  # the remaining events and what stands behind them
        found = self._whole(text)
        if found is None:
            found = self._mended(text, self._whole)
        yield self._explain_broken(text) if found is None else found

    def _cut(self, buffer: bytes) -> tuple[Events, bytes, bool]:
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
            text = b"".join((b"[", memoryview(buffer)[: cut.start() + 1], b"]"))
            events = self._decode(text)
            if events is not None:
                return events, buffer[cut.end() :], False
        if cuts:
            text = b"[" + buffer[: cuts[-1].start() + 1] + b"]"
            events = self._mended(text, self._decode)
            if events is not None:
                return events, buffer[cuts[-1].end() :], False
        return [], buffer, bool(cuts) or len(buffer) > LARGEST_BLOCK_BYTES

    def _decode(self, text: bytes) -> Events | None:
        """Return the events of a JSON array; None if it is not one."""
        try:
            return self._decoder.decode(text)
        except (msgspec.ValidationError, UnicodeDecodeError):
            pass
        except RecursionError:
            return None
        except msgspec.DecodeError:
            if b"NaN" not in text and b"Infinity" not in text:
                return None
        rows = patient_json(text)
        return self._patiently(rows) if isinstance(rows, list) else None

    def _patiently(self, rows: list[Any]) -> Events:
        events = [event for event in map(patient_event, rows) if event is not None]
        self.unreadable += len(rows) - len(events)
        return events

    def _mended(self, text: bytes, decode: Callable[[bytes], Events | None]) -> Events | None:
        for mend in (partial(VALUE.subn, rb'"\1null'), mended):
            better, places = mend(text)
            events = decode(better) if places else None
            if events is not None:
                self.mended += places
                return events
        return None

    def _whole(self, text: bytes) -> Events | None:
        """Return the events of a document or list, and keep the header; None if it is not JSON."""
        if text[:1] == b"[":
            return self._decode(text)
        try:
            self.header = msgspec.json.decode(text, type=Header)
            events = self._decode(bytes(self.header.traceEvents))
            if events is not None:
                return events
        except UNDECODABLE:
            pass
        whole = patient_json(text)
        if whole is None:
            return None
        if not isinstance(whole, dict) or not isinstance(whole.get("traceEvents"), list):
            raise TraceError(
                f"{self.path}: `traceEvents` is not a list; this is not a Kineto trace"
            )
        fields = {name: whole.get(name) for name in Header.__struct_fields__}
        self.header = Header(**fields)  # type: ignore[arg-type]
        return self._patiently(whole["traceEvents"])

    def _explain_no_events(self, text: bytes) -> NoReturn:
        document = patient_json(text)
        if document is None:
            self._explain_broken(text)
        if isinstance(document, dict) and "nodes" in document:
            raise TraceError(
                f"{self.path} is a PyTorch execution trace (it has `nodes`), which holds no times of "
                "device work. Give the trace that torch.profiler writes with export_chrome_trace."
            )
        raise TraceError(
            f"{self.path} is JSON without a `traceEvents` list; a Kineto trace was needed. "
            "Record one: `daydream collect SCRIPT`."
        )

    def _explain_broken(self, text: bytes) -> NoReturn:
        if text.lstrip()[:1] not in (b"{", b"["):
            raise TraceError(
                f"{self.path} is not JSON, SQLite or parquet; a profiler trace was needed. "
                "Record one: `daydream collect SCRIPT`."
            )
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


def patient_json(text: bytes) -> Any:
    """Return what a text holds by Python's own decoder, numbers with all their digits; None if it fails."""
    try:
        return json.loads(text.decode("utf-8", "replace"), parse_float=Decimal)
    except (ValueError, RecursionError):
        return None


def launched_kernels(path: Path, max_unpacked: int | None = None) -> dict[int, str]:
    """Return correlation -> name of the kernel that the call launches, as ROCm writes it beside the call.

    Empty where the file has none, or is none of Kineto's.
    """
    reader = EventReader(path, max_unpacked=max_unpacked)
    found = {}
    try:
        for events in reader:
            for args in (event.args for event in events if event.args):
                if (
                    args.kernel
                    and isinstance(args.kernel, str)
                    and isinstance(args.correlation, int)
                ):
                    found[args.correlation] = args.kernel
    except TraceError:
        return {}
    return found
