"""Compiled programs: the HLO that a profile keeps in `/host:metadata`, operator by operator.

Field numbers are those of `hlo.proto` and `xla_data.proto` of OpenXLA.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from daydream.collect.importers.xplane.space import STAT_BYTES, WHICH, Plane
from daydream.collect.importers.xplane.wire import (
    BYTES,
    VARINT,
    DamagedError,
    Place,
    fields,
    number,
    place,
    text,
    varint,
)

PROGRAMS = "/host:metadata"
PROTO = "Hlo Proto"
MODULE = 1  # of HloProto
MODULE_NAME = 1
COMPUTATIONS = 3
INSTRUCTIONS = 2
COMPUTATION_ID = 5
SHAPE = 3
WINDOW = 15
CONVOLUTION = 16
DOT = 30
NUMBERS = {9: "parameter", 35: "id"}
LISTS = {36: "operands", 38: "called"}
TEXTS = {1: "name", 2: "opcode", 28: "target", 43: "settings"}  # of a custom call: its target and settings
ELEMENT_TYPE = 2
SIZES = 3
TUPLE_SHAPES = 4
LEFT_CONTRACTED = 1
KERNEL_OUTPUT_FEATURE = 4
WINDOW_DIMENSIONS = 1
BASE_DILATION = 6
DEEPEST, MOST_DIMENSIONS = 4, 64  # tuples in tuples; sizes of an array
TYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 10: "float16", 11: "float32",
    12: "float64", 16: "bfloat16", 19: "float8_e5m2", 20: "float8_e4m3fn", 24: "float8_e5m2fnuz",
    25: "float8_e4m3fnuz",
}  # fmt: skip
ITEM_BYTES = {
    1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 17: 0, 18: 16,
    19: 1, 20: 1, 23: 1, 24: 1, 25: 1,
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes of an array and its element type; of a tuple its parts."""

    code: int = 0  # of `xla_data.proto`
    sizes: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()

    @property
    def type(self) -> str | None:
        """The element type as torch names it; of a tuple that of its first part."""
        return self.parts[0].type if self.parts else TYPES.get(self.code)

    @property
    def elements(self) -> int:
        """Elements of an array, of a tuple of all its parts."""
        return sum(part.elements for part in self.parts) if self.parts else prod(self.sizes)

    @property
    def nbytes(self) -> int | None:
        """Bytes, None where a type is of no known size."""
        if self.parts:
            held = [part.nbytes for part in self.parts]
            return None if None in held else sum(one for one in held if one is not None)
        return ITEM_BYTES[self.code] * prod(self.sizes) if self.code in ITEM_BYTES else None


class Instruction:
    """One operator of a program: what it is called, does, returns, takes and calls."""

    def __init__(self, data: bytes, where: Place) -> None:
        self.name = self.opcode = self.target = self.settings = ""
        self.id = 0
        self.shape = Shape()
        self.operands: list[int] = []
        self.called: list[int] = []
        self.contracted: list[int] = []  # dimensions of a dot's first operand
        self.parameter = 0  # which of its computation it is
        self.output_feature = 0  # dimension of a convolution's kernel
        self.dilated = 1  # so many times the positions of a convolution's input, of which most are empty
        for which, sort, value in fields(data, *where):
            if which in LISTS:
                getattr(self, LISTS[which]).extend(_numbers(data, sort, value))
            elif sort == VARINT and which in NUMBERS:
                setattr(self, NUMBERS[which], number(value))
            elif sort == BYTES and which in TEXTS:
                setattr(self, TEXTS[which], text(data, value))
            elif sort == BYTES and which in (SHAPE, WINDOW, CONVOLUTION, DOT):
                self._take(data, which, place(value))

    def _take(self, data: bytes, which: int, where: Place) -> None:
        """Read a message inside."""
        if which == SHAPE:
            self.shape = _shape(data, where)
        elif which == WINDOW:
            self.dilated = _dilated(data, where)
        else:
            for one, sort, value in fields(data, *where):
                if which == DOT and one == LEFT_CONTRACTED:
                    self.contracted.extend(_numbers(data, sort, value))
                elif which == CONVOLUTION and one == KERNEL_OUTPUT_FEATURE and sort == VARINT:
                    self.output_feature = number(value)

    @property
    def type(self) -> str | None:
        """The element type of what it returns."""
        return self.shape.type


@dataclass
class Program:
    """Computations of a compiled program by their numbers, each a list of operators."""

    name: str
    computations: dict[int, list[Instruction]]


def kernel_of(operator: str) -> str:
    """Return what XLA calls the kernel of an operator: `gemm_fusion_dot_1` for `gemm_fusion_dot.1`."""
    return operator.replace(".", "_").replace("-", "_")


def programs_of(data: bytes, plane: Plane) -> Iterator[Program]:
    """Yield the compiled programs of a plane, without those that cannot be read."""
    wanted = {key for key, name in plane.stat_names.items() if name == PROTO}
    for places in plane.event_stats.values():
        for where in places:
            try:
                found = [one for proto in _protos(data, where, wanted) for one in _of_proto(data, proto)]
            except DamagedError:
                continue
            yield from found


def _protos(data: bytes, where: Place, wanted: set[int]) -> Iterator[Place]:
    """Yield where a stat's bytes lie, if it is one of the wanted ones."""
    ident = 0
    held = []
    for which, sort, value in fields(data, *where):
        if which == WHICH and sort == VARINT:
            ident = number(value)
        elif which == STAT_BYTES and sort == BYTES:
            held.append(place(value))
    if ident in wanted:
        yield from held


def _of_proto(data: bytes, where: Place) -> Iterator[Program]:
    for which, sort, value in fields(data, *where):
        if which != MODULE or sort != BYTES:
            continue
        program = Program("", {})
        for one, kind, held in fields(data, *place(value)):
            if one == MODULE_NAME and kind == BYTES:
                program.name = text(data, held)
            elif one == COMPUTATIONS and kind == BYTES:
                key, instructions = _computation(data, place(held))
                program.computations[key] = instructions
        yield program


def _computation(data: bytes, where: Place) -> tuple[int, list[Instruction]]:
    key = 0
    found = []
    for which, sort, value in fields(data, *where):
        if which == COMPUTATION_ID and sort == VARINT:
            key = number(value)
        elif which == INSTRUCTIONS and sort == BYTES:
            found.append(Instruction(data, place(value)))
    return key, found


def _shape(data: bytes, where: Place, depth: int = 0) -> Shape:
    code = 0
    sizes: list[int] = []
    parts: list[Shape] = []
    for which, sort, value in fields(data, *where):
        if which == ELEMENT_TYPE and sort == VARINT:
            code = number(value)
        elif which == SIZES:
            sizes.extend(_numbers(data, sort, value))
        elif which == TUPLE_SHAPES and sort == BYTES and depth < DEEPEST:
            parts.append(_shape(data, place(value), depth + 1))
    if any(size < 0 for size in sizes) or len(sizes) > MOST_DIMENSIONS:
        raise DamagedError
    return Shape(code, tuple(sizes), tuple(parts))


def _dilated(data: bytes, where: Place) -> int:
    found = 1
    for which, sort, value in fields(data, *where):
        if which == WINDOW_DIMENSIONS and sort == BYTES:
            for one, kind, inner in fields(data, *place(value)):
                if one == BASE_DILATION and kind == VARINT:
                    found *= max(number(inner), 1)
    return found


def _numbers(data: bytes, sort: int, value: int | Place) -> list[int]:
    """Return repeated numbers, packed or one by one."""
    if sort == VARINT:
        return [number(value)]
    if sort != BYTES:
        return []
    found = []
    at, end = place(value)
    while at < end:
        one, at = varint(data, at)
        found.append(one)
    return found
