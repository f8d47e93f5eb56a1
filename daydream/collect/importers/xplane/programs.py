"""Compiled programs: the HLO that a profile keeps in `/host:metadata`, operator by operator.

Field numbers are those of `hlo.proto` and `xla_data.proto` of OpenXLA.

Layers and phases from what JAX calls an operator: `jit(step)/transpose(jvp(MLP))/Dense_0/dot_general`.

JAX writes the transformations and named scopes that an operation was traced in. A backward pass is the
transpose of a derivative (`transpose(jvp(...))`), a forward pass that is differentiated has `jvp(...)` alone.

What operators of a compiled program calculate and move: type, shapes, FLOP and bytes, from its HLO.

Of a product the type is that of what it multiplies, also inside a fusion; of all others that of the result.
FLOP are two for a multiply-add, one for each element of other arithmetic. Bytes are each operand and the
result once: what a fusion reads only slices of counts as those, what it updates in place as the update. An
operator whose inside is not in the program (a library's call that is no product) has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from daydream.collect.importers.xplane.space import (
    INT,
    INTS,
    PLACES,
    STAT,
    TEXT,
    DamagedError,
    Place,
    Plane,
    Schema,
    decode,
)
from daydream.lazy import regex
from daydream.trace.valid import LARGEST_AMOUNT

WRAPPED = regex(r"^(jvp|transpose|vmap|pmap|remat|checkpoint|rematted_computation|custom_jvp_call|"
                     r"custom_vjp_call|named)\((.*)\)$")  # fmt: skip
CALLS = regex(
    r"^(jit|pjit|xla_call|shard_map|pmap|xla_pmap|core_call|closed_call)\(|^(jit|pjit|main)$"
)
CONTROL = frozenset({
    "while", "body", "cond", "scan", "checkpoint", "remat", "remat2", "rematted_computation", "closed_call",
    "custom_jvp_call", "custom_vjp_call", "pjit", "shard_map",
})  # fmt: skip
BRANCH = regex(r"^branch_\d+_fun$")
EQUATION = "->"  # `jnp.einsum` names a scope after its equation, which is no layer: `bsd,de->bse`


def phase_of(path: str) -> str | None:
    """Return `backward` or `forward` where an operator's path tells, else None."""
    if "transpose(" in path:
        return "backward"
    return "forward" if "jvp(" in path else None


@lru_cache(maxsize=1 << 14)
def layer_of(path: str) -> str | None:
    """Return the named scopes of an operator's path, joined by dots; None if there are none."""
    parts = _split(path)[:-1]  # the last one is the operation itself
    kept = []
    for part in parts:
        inner = part
        while wrapped := WRAPPED.match(inner):
            inner = wrapped.group(2)
        called = CALLS.match(inner) or BRANCH.match(inner) or EQUATION in inner
        if inner and inner not in CONTROL and not called:
            kept.append(inner)
    return ".".join(kept)[:200] or None


def _split(path: str) -> list[str]:
    """Return the parts of a path; slashes in parentheses part nothing."""
    parts = [""]
    depth = 0
    for letter in path:
        depth += (letter == "(") - (letter == ")")
        if letter == "/" and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


PROGRAMS = "/host:metadata"
PROTO = "Hlo Proto"
# Messages of `hlo.proto` and `xla_data.proto`.
PROTO_OF: Schema = {1: ("modules", PLACES)}
MODULE: Schema = {1: ("name", TEXT), 3: ("computations", PLACES)}
COMPUTATION: Schema = {2: ("instructions", PLACES), 5: ("id", INT)}
INSTRUCTION: Schema = {
    1: ("name", TEXT), 2: ("opcode", TEXT), 3: ("shape", PLACES), 9: ("parameter", INT), 15: ("window", PLACES),
    16: ("convolution", PLACES), 28: ("target", TEXT), 30: ("dot", PLACES), 35: ("id", INT),
    36: ("operands", INTS), 38: ("called", INTS), 43: ("settings", TEXT),
}  # fmt: skip
SHAPE: Schema = {2: ("type", INT), 3: ("sizes", INTS), 4: ("parts", PLACES)}
WINDOW: Schema = {1: ("dimensions", PLACES)}
DIMENSION: Schema = {6: ("base_dilation", INT)}
DOT: Schema = {1: ("contracted", INTS)}  # dimensions of the left operand
CONVOLUTION: Schema = {4: ("output_feature", INT)}  # dimension of the kernel
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
        given = decode(data, where, INSTRUCTION)
        self.name, self.opcode, self.target, self.settings = (
            given.get(name, "") for name in ("name", "opcode", "target", "settings")
        )
        self.id = given.get("id", 0)
        self.parameter = given.get("parameter", 0)  # which of its computation it is
        self.operands: list[int] = given.get("operands", [])
        self.called: list[int] = given.get("called", [])
        self.shape = _shape(data, given["shape"][-1]) if "shape" in given else Shape()
        dots = [decode(data, place, DOT) for place in given.get("dot", ())]
        self.contracted = [one for dot in dots for one in dot.get("contracted", ())]
        kernels = [decode(data, place, CONVOLUTION) for place in given.get("convolution", ())]
        self.output_feature = kernels[-1].get("output_feature", 0) if kernels else 0
        # So many times the positions of a convolution's input, of which most are empty.
        windows = [decode(data, place, WINDOW) for place in given.get("window", ())[-1:]]
        places = [place for window in windows for place in window.get("dimensions", ())]
        self.dilated = prod(
            max(decode(data, one, DIMENSION).get("base_dilation", 1), 1) for one in places
        )

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
                stat = decode(data, where, STAT)
                protos = stat.get("bytes", ()) if stat.get("of", 0) in wanted else ()
                found = [_program(data, one) for proto in protos
                         for one in decode(data, proto, PROTO_OF).get("modules", ())]  # fmt: skip
            except DamagedError:
                continue
            yield from found


def _program(data: bytes, where: Place) -> Program:
    given = decode(data, where, MODULE)
    computations = {}
    for place in given.get("computations", ()):
        found = decode(data, place, COMPUTATION)
        instructions = [Instruction(data, one) for one in found.get("instructions", ())]
        computations[found.get("id", 0)] = instructions
    return Program(given.get("name", ""), computations)


def _shape(data: bytes, where: Place, depth: int = 0) -> Shape:
    given = decode(data, where, SHAPE)
    sizes = given.get("sizes", [])
    if any(size < 0 for size in sizes) or len(sizes) > MOST_DIMENSIONS:
        raise DamagedError
    parts = given.get("parts", []) if depth < DEEPEST else []
    return Shape(
        given.get("type", 0), tuple(sizes), tuple(_shape(data, part, depth + 1) for part in parts)
    )


PRODUCTS = ("dot", "convolution", "custom-call")
COLLECTIVES = regex(
    r"^(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)(-start)?$"
)
ARITHMETIC = frozenset({
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "cosine", "divide", "erf",
    "exponential", "exponential-minus-one", "floor", "log", "log-plus-one", "logistic", "maximum", "minimum",
    "multiply", "negate", "not", "or", "popcnt", "power", "remainder", "round-nearest-afz",
    "round-nearest-even", "rsqrt", "select", "shift-left", "shift-right-arithmetic", "shift-right-logical",
    "sign", "sine", "sqrt", "subtract", "tan", "tanh", "xor",
})  # fmt: skip
REDUCTIONS = ("reduce", "reduce-window")
MOVES = frozenset({
    "broadcast", "concatenate", "convert", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "iota",
    "pad", "reverse", "slice", "transpose",
})  # fmt: skip
PARTS = ("dynamic-slice", "slice", "gather")  # read as much as they return
MOST_FUSIONS = 3  # fusions in fusions
FUSION = "fusion"
PARAMETER = "parameter"
IN_PLACE = "dynamic-update-slice"
GEMM = regex(r"^__cublas\$|\$lt\$matmul")
CUDNN_CONVOLUTION = regex(r"^__cudnn\$conv(\w*)")
CONTRACTED = regex(r'"lhs_contracting_dimensions":\s*\[([^\]]*)\]')


@dataclass(frozen=True)
class Told:
    """What a program tells of an operator; None where it does not.

    Attributes:
        dtype: the element type that it calculates in.
        shapes: those of its operands as JSON text, sizes alone.
        family: matmul, convolution, reduction, element-wise or copy.
        flop: floating-point operations.
        nbytes: bytes read and written.
        elements: of a collective, the elements that go in.
    """

    dtype: str | None
    shapes: str | None = None
    family: str | None = None
    flop: int | None = None
    nbytes: int | None = None
    elements: int | None = None


def told_by(program: Program) -> dict[str, Told]:
    """Return what a program tells of each of its operators, by name."""
    return {
        each.name: _told(each, {one.id: one for one in instructions}, program)
        for instructions in program.computations.values()
        for each in instructions
    }


def _told(each: Instruction, by_id: Mapping[int, Instruction], program: Program) -> Told:
    operands = _operands(each, by_id)
    dtype = _type(each, by_id, program)
    if not operands:
        return Told(dtype)
    shapes = json.dumps([list(one.shape.sizes) for one in operands])
    if COLLECTIVES.match(each.opcode):
        return Told(dtype, shapes, elements=_sane(sum(one.shape.elements for one in operands)))
    inside = list(_inside(each, by_id, program))
    kinds = {one.opcode for one, _ in inside}
    products = [_product(one, around) for one, around in inside if one.opcode in PRODUCTS]
    if any(found is None for found in products) or not kinds & {
        *PRODUCTS,
        *REDUCTIONS,
        *ARITHMETIC,
        *MOVES,
    }:
        return Told(dtype, shapes)
    flop = sum(found[1] for found in products if found is not None)
    arithmetic = sum(_arithmetic(one, around) for one, around in inside)
    family = next((found[0] for found in products if found is not None), None)
    family = family or (
        "reduction" if kinds & {*REDUCTIONS} else "element-wise" if arithmetic else "copy"
    )
    return Told(
        dtype, shapes, family, _sane(flop + arithmetic), _sane(_moved(each, operands, program))
    )


def _operands(each: Instruction, by_id: Mapping[int, Instruction]) -> list[Instruction]:
    return [by_id[one] for one in each.operands if one in by_id]


def _sane(amount: int | None) -> int | None:
    return amount if amount is not None and 0 <= amount <= LARGEST_AMOUNT else None


def _inside(
    each: Instruction,
    by_id: Mapping[int, Instruction],
    program: Program,
    seen: frozenset[int] = frozenset(),
) -> Iterator[tuple[Instruction, Mapping[int, Instruction]]]:
    """Yield an operator, or what a fusion is made of; each with the operators around it by their ids."""
    if each.opcode != FUSION:
        yield each, by_id
        return
    for called in each.called:
        instructions = program.computations.get(called, []) if called not in seen else []
        inner = {one.id: one for one in instructions}
        for one in instructions if len(seen) < MOST_FUSIONS else []:
            yield from _inside(one, inner, program, seen | {called})


def _type(each: Instruction, by_id: Mapping[int, Instruction], program: Program) -> str | None:
    for one, around in _inside(each, by_id, program):
        if one.opcode in PRODUCTS:
            taken = [operand.type for operand in _operands(one, around)]
            return next((told for told in taken if told is not None), one.type)
    return each.type


def _product(each: Instruction, by_id: Mapping[int, Instruction]) -> tuple[str, int] | None:
    """Return a product's family and FLOP, None where they are not known."""
    operands = _operands(each, by_id)
    if len(operands) < 2:
        return None
    first = operands[0].shape.sizes
    second = operands[1].shape.sizes
    result = each.shape.parts[0].sizes if each.shape.parts else each.shape.sizes
    if each.opcode == "dot" or GEMM.search(each.target):
        contracted = each.contracted
        if each.opcode != "dot":
            found = CONTRACTED.search(each.settings)
            contracted = (
                [int(one) for one in regex(r"\d{1,4}").findall(found.group(1))] if found else []
            )
        if not contracted or max(contracted) >= len(first) or min(contracted) < 0:
            return None
        return "matmul", 2 * prod(result) * prod(first[one] for one in contracted)
    library = CUDNN_CONVOLUTION.match(each.target)
    if each.opcode == "convolution" or library:
        kind = library.group(1) if library else ""
        # The library's calls keep the dimensions of the forward pass, whichever of the three is returned.
        output = result
        kernel = second
        if kind == "BackwardInput":
            output = first
        elif kind == "BackwardFilter":
            output = second
            kernel = result
        if not 0 <= each.output_feature < len(kernel) or not kernel[each.output_feature]:
            return None
        empty = 1 if library else each.dilated
        return "convolution", 2 * prod(output) * prod(kernel) // kernel[
            each.output_feature
        ] // empty
    return None


def _arithmetic(each: Instruction, by_id: Mapping[int, Instruction]) -> int:
    if each.opcode in ARITHMETIC:
        return each.shape.elements
    if each.opcode in REDUCTIONS:
        operands = _operands(each, by_id)
        return sum(one.shape.elements for one in operands[: max(len(operands) // 2, 1)])
    return 0


def _moved(each: Instruction, operands: list[Instruction], program: Program) -> int | None:
    """Return the bytes of an operator's operands and result, in parts where it takes parts."""
    whole = [one.shape.nbytes for one in operands]
    written = each.shape.nbytes
    if each.opcode == "custom-call" and each.shape.parts:
        written = each.shape.parts[0].nbytes  # the others are workspace
    elif each.opcode in PARTS:
        whole = [each.shape.nbytes]
    elif each.opcode == IN_PLACE and len(operands) > 1:
        whole, written = [whole[1]], whole[1]
    elif each.opcode == FUSION and each.called:
        instructions = program.computations.get(each.called[0], [])
        whole, written = _of_fusion(instructions, whole, written)
    total = 0
    for part in (*whole, written):
        if part is None:
            return None
        total += part
    return total


def _of_fusion(
    instructions: list[Instruction], whole: list[int | None], written: int | None
) -> tuple[list[int | None], int | None]:
    """Return what a fusion reads of each operand, and what it writes."""
    by_id = {one.id: one for one in instructions}
    users: dict[int, list[Instruction]] = {}
    for one in instructions:
        for operand in one.operands:
            users.setdefault(operand, []).append(one)
    reads = list(whole)
    parameters = [one for one in instructions if one.opcode == PARAMETER]
    for one in parameters:
        mine = users.get(one.id, [])
        if not 0 <= one.parameter < len(reads) or not mine:
            continue
        if all(user.opcode in PARTS and user.operands[:1] == [one.id] for user in mine):
            parts = [user.shape.nbytes for user in mine]
            held = None if None in parts else sum(part for part in parts if part is not None)
            known = whole[one.parameter]
            reads[one.parameter] = held if held is None or known is None else min(held, known)
        elif all(user.opcode == IN_PLACE and user.operands[:1] == [one.id] for user in mine):
            update = by_id.get(mine[0].operands[1]) if len(mine[0].operands) > 1 else None
            # What it returns besides, in a tuple, is written as a whole.
            if update is not None and len(mine) == 1 and mine[0].shape.nbytes == written:
                reads[one.parameter] = 0
                written = update.shape.nbytes
    return reads, written
