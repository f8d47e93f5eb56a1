"""The elements of a long JSON array, portion by portion, so that they are never all there as objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from daydream.lazy import regex

PORTION_BYTES = 1 << 20
BETWEEN = regex(rb'\}\s*,\s*(?=\{\s*"[\w ]{1,40}"\s*:)')
CUTS_TRIED = 4
Element = TypeVar("Element")


def portions(
    array: msgspec.Raw, kind: type[Element], portion_bytes: int = PORTION_BYTES
) -> Iterator[list[Element]]:
    """Yield lists of an array's elements, each decoded as `kind`.

    A cut is looked for at `}, {"key":`, which cannot occur inside a JSON string, and is proved by
    decoding: where none proves right, the portion grows, at worst to the end of the array.

    Raises `msgspec.DecodeError` if an element is not of that kind.
    """
    text = memoryview(array)
    decoder: Any = msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]
    begin = 0
    size = portion_bytes
    first = True
    while len(text) - begin > size:
        window = bytes(text[begin : begin + size])
        cuts = list(BETWEEN.finditer(window, max(0, len(window) - (1 << 15))))[-CUTS_TRIED:]
        for cut in reversed(cuts):
            part = window[: cut.start() + 1] + b"]"
            try:
                found = decoder.decode(part if first else b"[" + part)
            except msgspec.ValidationError:
                raise
            except msgspec.DecodeError:
                continue
            yield found
            begin += cut.end()
            size = portion_bytes
            first = False
            break
        else:
            size *= 2
    rest = bytes(text[begin:])
    yield decoder.decode(rest if first else b"[" + rest)
