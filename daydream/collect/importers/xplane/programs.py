"""Element types of a compiled program's operators, from the HLO that a profile keeps in `/host:metadata`.

Field numbers are those of `hlo.proto` and `xla_data.proto` of OpenXLA. A product's type is that of what it
multiplies, also inside a fusion; of all others it is the type of the result.
"""

from __future__ import annotations

from collections.abc import Iterator

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

PROGRAMS, PROTO = "/host:metadata", "Hlo Proto"
MODULE = 1  # of HloProto
MODULE_NAME, COMPUTATIONS = 1, 3
INSTRUCTIONS, COMPUTATION_ID = 2, 5
NAME, OPCODE, SHAPE, ID, OPERANDS, CALLED = 1, 2, 3, 35, 36, 38
ELEMENT_TYPE, TUPLE_SHAPES = 2, 4
TYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 10: "float16", 11: "float32",
    12: "float64", 16: "bfloat16", 19: "float8_e5m2", 20: "float8_e4m3fn", 24: "float8_e5m2fnuz",
    25: "float8_e4m3fnuz",
}  # fmt: skip
PRODUCTS = ("dot", "convolution", "custom-call")
FUSION = "fusion"


class _Instruction:
    """One operator of a program: what it is called, does, returns, takes and calls."""

    def __init__(self, data: bytes, where: Place) -> None:
        self.name = self.opcode = ""
        self.id = 0
        self.type: str | None = None
        self.operands: list[int] = []
        self.called: list[int] = []
        for which, sort, value in fields(data, *where):
            if which == NAME and sort == BYTES:
                self.name = text(data, value)
            elif which == OPCODE and sort == BYTES:
                self.opcode = text(data, value)
            elif which == SHAPE and sort == BYTES:
                self.type = _type(data, place(value))
            elif which == ID and sort == VARINT:
                self.id = number(value)
            elif which in (OPERANDS, CALLED):
                (self.operands if which == OPERANDS else self.called).extend(_numbers(data, sort, value))


def kernel_of(operator: str) -> str:
    """Return what XLA calls the kernel of an operator: `gemm_fusion_dot_1` for `gemm_fusion_dot.1`."""
    return operator.replace(".", "_").replace("-", "_")


def types_of(data: bytes, plane: Plane) -> dict[tuple[str, str], str]:
    """Return (program, operator) -> element type; of a program that cannot be read nothing is known."""
    found: dict[tuple[str, str], str] = {}
    wanted = {key for key, name in plane.stat_names.items() if name == PROTO}
    for places in plane.event_stats.values():
        for where in places:
            try:
                for proto in _protos(data, where, wanted):
                    found |= _of_proto(data, proto)
            except DamagedError:
                continue
    return found


def _protos(data: bytes, where: Place, wanted: set[int]) -> Iterator[Place]:
    """Yield where a stat's bytes lie, if it is one of the wanted ones."""
    ident, held = 0, []
    for which, sort, value in fields(data, *where):
        if which == WHICH and sort == VARINT:
            ident = number(value)
        elif which == STAT_BYTES and sort == BYTES:
            held.append(place(value))
    if ident in wanted:
        yield from held


def _of_proto(data: bytes, where: Place) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for which, sort, value in fields(data, *where):
        if which != MODULE or sort != BYTES:
            continue
        name, computations = "", {}
        for one, kind, held in fields(data, *place(value)):
            if one == MODULE_NAME and kind == BYTES:
                name = text(data, held)
            elif one == COMPUTATIONS and kind == BYTES:
                key, instructions = _computation(data, place(held))
                computations[key] = instructions
        for instructions in computations.values():
            by_id = {each.id: each for each in instructions}
            for each in instructions:
                told = _computed_in(each, by_id, computations)
                if told is not None:
                    found[name, each.name] = told
    return found


def _computation(data: bytes, where: Place) -> tuple[int, list[_Instruction]]:
    key, found = 0, []
    for which, sort, value in fields(data, *where):
        if which == COMPUTATION_ID and sort == VARINT:
            key = number(value)
        elif which == INSTRUCTIONS and sort == BYTES:
            found.append(_Instruction(data, place(value)))
    return key, found


def _computed_in(
    each: _Instruction, by_id: dict[int, _Instruction], computations: dict[int, list[_Instruction]]
) -> str | None:
    """Return the type that an operator calculates in: of a product, what it multiplies."""
    if each.opcode in PRODUCTS:
        taken = [by_id[one].type for one in each.operands if one in by_id]
        return next((told for told in taken if told is not None), each.type)
    if each.opcode == FUSION:
        for called in each.called:
            inside = computations.get(called, [])
            inner = {one.id: one for one in inside}
            for one in inside:
                if one.opcode in PRODUCTS:
                    return _computed_in(one, inner, computations)
    return each.type


def _type(data: bytes, where: Place, *, inside: bool = False) -> str | None:
    """Return the element type of a shape; of a tuple that of its first part, if that is none itself."""
    for which, sort, value in fields(data, *where):
        if which == ELEMENT_TYPE and sort == VARINT and number(value) in TYPES:
            return TYPES[number(value)]
        if which == TUPLE_SHAPES and sort == BYTES and not inside:
            return _type(data, place(value), inside=True)
    return None


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
