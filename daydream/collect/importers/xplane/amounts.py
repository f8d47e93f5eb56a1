"""What operators of a compiled program calculate and move: type, shapes, FLOP and bytes, from its HLO.

Of a product the type is that of what it multiplies, also inside a fusion; of all others that of the result.
FLOP are two for a multiply-add, one for each element of other arithmetic. Bytes are each operand and the
result once: what a fusion reads only slices of counts as those, what it updates in place as the update. An
operator whose inside is not in the program (a library's call that is no product) has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from daydream.collect.importers.xplane.programs import Instruction, Program
from daydream.lazy import regex
from daydream.trace.valid import LARGEST_AMOUNT

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
DEEPEST = 3  # fusions in fusions
FUSION = "fusion"
PARAMETER = "parameter"
IN_PLACE = "dynamic-update-slice"
GEMM = regex(r"^__cublas\$|\$lt\$matmul")
CONVOLUTION = regex(r"^__cudnn\$conv(\w*)")
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
    if any(found is None for found in products) or not kinds & {*PRODUCTS, *REDUCTIONS, *ARITHMETIC, *MOVES}:
        return Told(dtype, shapes)
    flop = sum(found[1] for found in products if found is not None)
    arithmetic = sum(_arithmetic(one, around) for one, around in inside)
    family = next((found[0] for found in products if found is not None), None)
    family = family or ("reduction" if kinds & {*REDUCTIONS} else "element-wise" if arithmetic else "copy")
    return Told(dtype, shapes, family, _sane(flop + arithmetic), _sane(_moved(each, operands, program)))


def _operands(each: Instruction, by_id: Mapping[int, Instruction]) -> list[Instruction]:
    return [by_id[one] for one in each.operands if one in by_id]


def _sane(amount: int | None) -> int | None:
    return amount if amount is not None and 0 <= amount <= LARGEST_AMOUNT else None


def _inside(
    each: Instruction, by_id: Mapping[int, Instruction], program: Program, seen: frozenset[int] = frozenset()
) -> Iterator[tuple[Instruction, Mapping[int, Instruction]]]:
    """Yield an operator, or what a fusion is made of; each with the operators around it by their ids."""
    if each.opcode != FUSION:
        yield each, by_id
        return
    for called in each.called:
        instructions = program.computations.get(called, []) if called not in seen else []
        inner = {one.id: one for one in instructions}
        for one in instructions if len(seen) < DEEPEST else []:
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
            contracted = [int(one) for one in regex(r"\d{1,4}").findall(found.group(1))] if found else []
        if not contracted or max(contracted) >= len(first) or min(contracted) < 0:
            return None
        return "matmul", 2 * prod(result) * prod(first[one] for one in contracted)
    library = CONVOLUTION.match(each.target)
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
        return "convolution", 2 * prod(output) * prod(kernel) // kernel[each.output_feature] // empty
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
