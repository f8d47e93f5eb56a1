"""Entries of the cache that were damaged: bytes, lengths, headers and whole files that are not what was written.

Where the digest fits what was edited, only somebody who may write in the user's own folder can have made it.
"""

import json

from daydream.files.cache import HEAD, MARK, ROW

DTYPES = ("bool", "int8", "int16", "int32", "int64", "float64", "object", "<U8", "", None, 7)
NUMBERS = (-1, 0, 1, 7, ROW, ROW + 1, 2**28, 2**28 + 1, 2**62, 2**70, 1.5, True, None, "1", [])


def bytes_flipped(choice, data, _):
    """Return the file with up to eight bytes changed."""
    changed = bytearray(data)
    for _ in range(choice.randint(1, 8)):
        changed[choice.randrange(len(data))] ^= choice.randint(1, 255)
    return bytes(changed)


def truncated(choice, data, _):
    """Return the beginning of the file, or more than it."""
    if choice.random() < 0.2:
        return data + bytes(choice.choice((1, 8, ROW, 3 * ROW)))
    return data[: choice.randrange(len(data))]


def mixed(choice, data, other):
    """Return the beginning of one entry and the end of another, or rows of the other in the midst of it."""
    at = choice.randrange(0, min(len(data), len(other)), choice.choice((1, 8, ROW)))
    if choice.random() < 0.5:
        return data[:at] + other[at:]
    size = choice.choice((1, 8, ROW))
    return data[:at] + other[at : at + size] + data[at + size :]


def moved(choice, data, _):
    """Return the file with two of its rows, or words, in each other's place."""
    size = choice.choice((8, ROW))
    a, b = sorted(choice.sample(range(len(data) // size), 2))
    first, second = data[size * a : size * a + size], data[size * b : size * b + size]
    return data[: size * a] + second + data[size * a + size : size * b] + first + data[size * b + size :]


def replaced(choice, data, other):
    """Return the entry of another trace, or no entry at all."""
    return choice.choice((other, b"", bytes(len(data)), choice.randbytes(2 * ROW), MARK + data))


def header(choice, data, _):
    """Return the file with another dtype, length, place or value of some arrays, with the old digest."""
    _, digest, size, _ = HEAD.unpack_from(data)
    fields = json.loads(data[HEAD.size : HEAD.size + size])
    for _ in range(choice.randint(1, 3)):
        entry = choice.choice(fields["arrays"])
        place = choice.randrange(1, 5)
        entry[place] = choice.choice(DTYPES if place == 1 else (*NUMBERS, choice.randrange(len(data))))
    text = json.dumps(fields).encode()
    text += b" " * (-(HEAD.size + len(text)) % ROW)
    arrays = data[HEAD.size + size :]
    whole = HEAD.size + len(text) + len(arrays)
    return HEAD.pack(MARK, digest, len(text), whole) + text + arrays


DAMAGES = (bytes_flipped, truncated, mixed, moved, replaced, header)
