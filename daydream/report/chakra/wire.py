"""Protobuf's wire format, as far as a Chakra file needs it, so that writing one needs no library.

A field is a tag (its number and how it is written) and a value: a varint, or a length and bytes
("Encoding", Protocol Buffers documentation). Signed values of an attribute are written as `sint64`.
"""

from __future__ import annotations

from collections.abc import Iterable

VARINT, BYTES = 0, 2
# Fields of `AttributeProto` by what they hold; a list is a message whose field 1 are its values.
UINT64_LIST, SINT64, SINT64_LIST, BOOL, BOOL_LIST, TEXT, TEXT_LIST = 14, 17, 18, 27, 28, 29, 30
INT64, INT64_LIST, UINT64 = 9, 10, 13


def varint(value: int) -> bytes:
    """Return a number from 0 to 2**64 - 1 as seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field that holds a number from 0."""
    return varint(field << 3 | VARINT) + varint(value)


def block(field: int, value: bytes) -> bytes:
    """Return a field that holds bytes: a text, a message, packed numbers."""
    return varint(field << 3 | BYTES) + varint(len(value)) + value


def packed(field: int, values: Iterable[int]) -> bytes:
    """Return a field that holds a list of numbers from 0."""
    return block(field, b"".join(map(varint, values)))


def zigzag(value: int) -> int:
    """Return a signed number of 64 bits as protobuf's `sint64` writes it: 0, -1, 1, -2 as 0, 1, 2, 3."""
    return value << 1 if value >= 0 else (-value << 1) - 1


def text_of(name: str) -> bytes:
    """Return a text as UTF-8; what is no Unicode (half of a surrogate pair) becomes `?`."""
    return name.encode("utf-8", "replace")


def delimited(message: bytes) -> bytes:
    """Return a message with its length before it, as Chakra files hold them."""
    return varint(len(message)) + message


def text(name: str, value: str) -> bytes:
    """Return an attribute that is a text, as a field of `Node` or `GlobalMetadata`."""
    return _attribute(name, block(TEXT, text_of(value)))


def flag(name: str, *, value: bool) -> bytes:
    """Return an attribute that is true or false."""
    return _attribute(name, number(BOOL, int(value)))


def whole(name: str, value: int) -> bytes:
    """Return an attribute that is a whole number from 0 (`int64`, which all readers of the format know)."""
    return _attribute(name, number(INT64, value))


def signed_list(name: str, values: Iterable[int]) -> bytes:
    """Return an attribute that is a list of signed numbers."""
    return _attribute(name, block(SINT64_LIST, packed(1, map(zigzag, values))))


def flag_list(name: str, values: Iterable[bool]) -> bytes:
    """Return an attribute that is a list of flags."""
    return _attribute(name, block(BOOL_LIST, packed(1, map(int, values))))


def text_list(name: str, values: Iterable[str]) -> bytes:
    """Return an attribute that is a list of texts."""
    return _attribute(name, block(TEXT_LIST, b"".join(block(1, text_of(each)) for each in values)))


def _attribute(name: str, value: bytes) -> bytes:
    return block(ATTRIBUTE, block(1, text_of(name)) + value)


ATTRIBUTE = 10  # `Node.attr`; `GlobalMetadata.attr` is 2


def of_metadata(attribute: bytes) -> bytes:
    """Return an attribute of a node as one of `GlobalMetadata`, whose field has another number."""
    return varint(2 << 3 | BYTES) + attribute[1:]
