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
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod

import msgspec
from msgspec import Struct

from daydream.collect.importers.row_builder import parts_of
from daydream.collect.importers.xspace import (
    INT,
    INTS,
    STAT,
    TEXT,
    DamagedError,
    Plane,
    Schema,
    decode,
)
from daydream.lazy import regex
from daydream.trace.schema import LARGEST_AMOUNT

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
    parts = parts_of(path, "/")[:-1]  # the last one is the operation itself
    kept = []
    for part in parts:
        inner = part
        while wrapped := WRAPPED.match(inner):
            inner = wrapped.group(2)
        called = CALLS.match(inner) or BRANCH.match(inner) or EQUATION in inner
        if inner and inner not in CONTROL and not called:
            kept.append(inner)
    return ".".join(kept)[:200] or None


PROGRAMS = "/host:metadata"
PROTO = "Hlo Proto"
# Messages of `hlo.proto` and `xla_data.proto`.
SHAPE: Schema = {2: ("code", INT), 3: ("sizes", INTS)}
SHAPE |= {4: ("parts", [SHAPE])}
INSTRUCTION: Schema = {
    1: ("name", TEXT),
    2: ("opcode", TEXT),
    3: ("shape", SHAPE),
    9: ("parameter", INT),
    15: ("window", {1: ("dimensions", [{6: ("base_dilation", INT)}])}),
    16: ("convolution", {4: ("output_feature", INT)}),
    28: ("target", TEXT),
    30: ("dot", {1: ("contracted", INTS)}),
    35: ("id", INT),
    36: ("operands", INTS),
    38: ("called", INTS),
    43: ("settings", TEXT),
}
COMPUTATION: Schema = {2: ("instructions", [INSTRUCTION]), 5: ("id", INT)}
PROTO_OF: Schema = {1: ("modules", [{1: ("name", TEXT), 3: ("computations", [COMPUTATION])}])}
MOST_DIMENSIONS = 64  # sizes of an array
TYPES = {
    1: "bool",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "uint8",
    10: "float16",
    11: "float32",
    12: "float64",
    16: "bfloat16",
    19: "float8_e5m2",
    20: "float8_e4m3fn",
    24: "float8_e5m2fnuz",
    25: "float8_e4m3fnuz",
}
ITEM_BYTES = {
    1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 2, 8: 4, 9: 8, 10: 2, 11: 4, 12: 8, 15: 8, 16: 2, 17: 0, 18: 16,
    19: 1, 20: 1, 23: 1, 24: 1, 25: 1,
}  # fmt: skip


class Shape(Struct):
    """Sizes of an array and its element type, a code of `xla_data.proto`; of a tuple its parts."""

    code: int = 0
    sizes: list[int] = []
    parts: list[Shape] = []

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.sizes) or len(self.sizes) > MOST_DIMENSIONS:
            raise DamagedError

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
            return added(part.nbytes for part in self.parts)
        return ITEM_BYTES[self.code] * prod(self.sizes) if self.code in ITEM_BYTES else None


class _Dot(Struct):
    contracted: list[int] = []  # dimensions of the left operand


class _Convolution(Struct):
    output_feature: int = 0  # dimension of the kernel


class _Dimension(Struct):
    base_dilation: int = 1


class _Window(Struct):
    dimensions: list[_Dimension] = []


class Instruction(Struct):
    """One operator of a program: what it is called, does, returns, takes and calls."""

    name: str = ""
    opcode: str = ""
    target: str = ""
    settings: str = ""
    id: int = 0
    parameter: int = 0  # which of its computation it is
    operands: list[int] = []
    called: list[int] = []
    shape: Shape = msgspec.field(default_factory=Shape)
    dot: _Dot = msgspec.field(default_factory=_Dot)
    convolution: _Convolution = msgspec.field(default_factory=_Convolution)
    window: _Window = msgspec.field(default_factory=_Window)
    takes: list[Instruction] = []
    bodies: list[list[Instruction]] = []


class _Computation(Struct):
    id: int = 0
    instructions: list[Instruction] = []


class Program(Struct):
    """A compiled program; operators know those that they take and call."""

    name: str = ""
    computations: list[_Computation] = []

    def __post_init__(self) -> None:
        bodies = {one.id: one.instructions for one in self.computations}
        for instructions in bodies.values():
            by_id = {one.id: one for one in instructions}
            for one in instructions:
                one.takes = [by_id[each] for each in one.operands if each in by_id]
                one.bodies = [bodies.get(each, []) for each in one.called]


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
                found = [
                    msgspec.convert(module, Program)
                    for proto in protos
                    for module in decode(data, proto, PROTO_OF).get("modules", ())
                ]
            except DamagedError:
                continue
            yield from found


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
KNOWN = {*PRODUCTS, *REDUCTIONS, *ARITHMETIC, *MOVES}
PARTS = ("dynamic-slice", "slice", "gather")  # read as much as they return
MOST_FUSIONS = 3  # fusions in fusions
IN_PLACE = "dynamic-update-slice"
GEMM = regex(r"^__cublas\$|\$lt\$matmul")
CUDNN_CONVOLUTION = regex(r"^__cudnn\$conv(\w*)")
CONTRACTED = regex(r'"lhs_contracting_dimensions":\s*\[([^\]]*)\]')


class Told(Struct, frozen=True):
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
    return {each.name: _told(each) for one in program.computations for each in one.instructions}


def _told(each: Instruction) -> Told:
    inside = list(_inside(each))
    products = [one for one in inside if one.opcode in PRODUCTS]
    dtype = each.shape.type
    if products:
        types = [operand.shape.type for operand in products[0].takes]
        dtype = next((one for one in types if one is not None), products[0].shape.type)
    if not each.takes:
        return Told(dtype)
    shapes = json.dumps([one.shape.sizes for one in each.takes])
    if COLLECTIVES.match(each.opcode):
        return Told(dtype, shapes, elements=_sane(sum(one.shape.elements for one in each.takes)))
    kinds = {one.opcode for one in inside}
    known = [_product(one) for one in products]
    flop = added(known)
    if flop is None or not kinds & KNOWN:
        return Told(dtype, shapes)
    arithmetic = sum(map(_arithmetic, inside))
    if products:
        family = "convolution" if _is_convolution(products[0]) else "matmul"
    elif kinds & {*REDUCTIONS}:
        family = "reduction"
    else:
        family = "element-wise" if arithmetic else "copy"
    return Told(dtype, shapes, family, _sane(flop + arithmetic), _sane(_moved(each)))


def added(amounts: Iterable[int | None]) -> int | None:
    """Return the sum of amounts, None where one is not known."""
    total = 0
    for amount in amounts:
        if amount is None:
            return None
        total += amount
    return total


def _sane(amount: int | None) -> int | None:
    return amount if amount is not None and 0 <= amount <= LARGEST_AMOUNT else None


def _inside(each: Instruction, around: tuple[int, ...] = ()) -> Iterator[Instruction]:
    """Yield an operator, or what a fusion is made of."""
    if each.opcode != "fusion":
        yield each
        return
    for called, body in zip(each.called, each.bodies, strict=True):
        if called not in around and len(around) < MOST_FUSIONS:
            for one in body:
                yield from _inside(one, (*around, called))


def _is_convolution(each: Instruction) -> bool:
    return each.opcode == "convolution" or CUDNN_CONVOLUTION.match(each.target) is not None


def _product(each: Instruction) -> int | None:
    """Return a product's FLOP, None where they are not known."""
    if len(each.takes) < 2:
        return None
    first, second = (one.shape.sizes for one in each.takes[:2])
    result = (each.shape.parts or [each.shape])[0].sizes
    if _is_convolution(each):
        library = CUDNN_CONVOLUTION.match(each.target)
        # The library's calls keep the dimensions of the forward pass, whichever of the three is returned.
        of = {"BackwardInput": (first, second), "BackwardFilter": (second, result)}
        output, kernel = of.get(library.group(1) if library else "", (result, second))
        feature = each.convolution.output_feature
        if not 0 <= feature < len(kernel) or not kernel[feature]:
            return None
        # So many times the positions of a convolution's input, of which most are empty.
        dilated = prod(max(one.base_dilation, 1) for one in each.window.dimensions)
        return 2 * prod(output) * prod(kernel) // kernel[feature] // (1 if library else dilated)
    contracted = each.dot.contracted
    if each.opcode != "dot":
        said = CONTRACTED.search(each.settings) if GEMM.search(each.target) else None
        contracted = [int(one) for one in regex(r"\d{1,4}").findall(said.group(1))] if said else []
    if not contracted or max(contracted) >= len(first) or min(contracted) < 0:
        return None
    return 2 * prod(result) * prod(first[one] for one in contracted)


def _arithmetic(each: Instruction) -> int:
    if each.opcode in ARITHMETIC:
        return each.shape.elements
    if each.opcode in REDUCTIONS:
        return sum(one.shape.elements for one in each.takes[: max(len(each.takes) // 2, 1)])
    return 0


def _moved(each: Instruction) -> int | None:
    """Return the bytes of an operator's operands and result, in parts where it takes parts."""
    reads = [one.shape.nbytes for one in each.takes]
    written = each.shape.nbytes
    if each.opcode == "custom-call" and each.shape.parts:
        written = each.shape.parts[0].nbytes  # the others are workspace
    elif each.opcode in PARTS:
        reads = [written]
    elif each.opcode == IN_PLACE and len(reads) > 1:
        reads, written = [reads[1]], reads[1]
    elif each.opcode == "fusion" and each.bodies:
        reads, written = _of_fusion(each.bodies[0], reads, written)
    return added([*reads, written])


def _of_fusion(
    body: list[Instruction], whole: list[int | None], written: int | None
) -> tuple[list[int | None], int | None]:
    """Return what a fusion reads of each operand, and what it writes."""
    users: dict[int, list[Instruction]] = {}
    for one in body:
        for operand in one.operands:
            users.setdefault(operand, []).append(one)
    reads = list(whole)
    for one in body:
        mine = users.get(one.id, [])
        if one.opcode != "parameter" or not 0 <= one.parameter < len(reads) or not mine:
            continue
        first = all(user.operands[0] == one.id for user in mine)
        if first and all(user.opcode in PARTS for user in mine):
            held, known = added(user.shape.nbytes for user in mine), whole[one.parameter]
            reads[one.parameter] = held if held is None or known is None else min(held, known)
        elif (
            first
            and [user.opcode for user in mine] == [IN_PLACE]
            and len(mine[0].takes) > 1
            and mine[0].shape.nbytes == written  # what it returns besides is written as a whole
        ):
            reads[one.parameter] = 0
            written = mine[0].takes[1].shape.nbytes
    return reads, written
