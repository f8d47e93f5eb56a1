"""An opcode histogram of a kernel: instructions by class, and the FLOP where the opcodes determine them.

NVIDIA's opcodes are SASS, AMD's those of LLVM; classes, FLOP a lane and shapes are in `opcodes.tsv`. A vector
instruction counts for all lanes of its warp or wave, also those that are off: what comes of it is an upper
bound. An instruction of matrix units has its shape in its name (`sass shape`: M, N, K by the digits of PTX's
`mma`; `amd blocks`: products side by side in one instruction whose name does not count them, by type, M and K,
"AMD Instinct MI200 Instruction Set Architecture"). Of those that several warps issue together (HGMMA), or
whose shape is not in the name, FLOP are unknown, and so are the kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path

from daydream.lazy import regex

WARP, WAVE = 32, 64
# Volta's HMMA.884 is a step of four (16-bit sums: of two) of a warp's 16x16x16 product, which takes four sets
# ("Modeling Deep Learning Accelerator Enabled GPUs", Raihan, Goli and Aamodt, ISPASS 2019, section III).
VOLTA_STEPS = {"F32": 16, "F16": 8}
AMD_VECTOR = regex(
    r"V_(PK_)?(?:ADD|SUB|SUBREV|MUL|(FMA|FMAC|MAC|MAD|FMAAK|FMAMK)|RCP|RSQ|SQRT|EXP|LOG|SIN|COS)"
    r"_F(16|32|64)(_|$)"
)
AMD_MATRIX = regex(
    r"V_S?MFMA_(?:F32|F64)_(\d+)X(\d+)X(\d+)(?:_(\d+)B)?_?((?:F16|BF16|F32|F64|XF32|FP8|BF8)(?:_1K)?)"
)
LARGEST_SIDE = 256  # of a product in one instruction: larger is no shape
# Compilers move constants with 16-bit instructions: of a larger part of the FLOP nobody can tell.
MOST_DOUBTFUL = 0.05


@cache
def _table(title: str) -> dict[str, str]:
    lines = Path(__file__).with_name("opcodes.tsv").read_text("utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    return {key: value for table, key, value in rows if table == title}


def amounts_of_sass(counts: Mapping[str, float]) -> dict[str, float]:
    """Return instructions by class and FLOP of a kernel of NVIDIA, by the names of `quantities.tsv`.

    Args:
        counts: how often each opcode (`FFMA.FTZ`) was executed by a warp.

    Returns:
        `flop` is absent where it is not determined.
    """
    return _amounts(counts, "sass")


def amounts_of_amd(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the same of AMD: opcodes as LLVM spells them (`V_FMA_F32_e64`), each executed by a wave."""
    return _amounts({opcode.upper(): count for opcode, count in counts.items()}, "amd")


def _amounts(counts: Mapping[str, float], maker: str) -> dict[str, float]:
    classes = [(name, regex(pattern)) for name, pattern in _table(f"{maker} class").items()]
    found: dict[str, float] = {"instructions": sum(counts.values())}
    flop = dict.fromkeys(("float16", "float32", "float64", "matrix"), 0.0)
    unknown = False
    for opcode, count in counts.items():
        name = next(
            (name for name, pattern in classes if pattern.match(opcode.split(".")[0])), "other"
        )
        found[f"{name}_instructions"] = found.get(f"{name}_instructions", 0.0) + count
        kind, each = (_of_sass if maker == "sass" else _of_amd)(opcode, in_matrix=name == "matrix")
        unknown |= each is None and count > 0
        flop[kind] += (each or 0) * count
    doubt = flop["float16"] if maker == "sass" else 0.0
    total = sum(flop.values()) - doubt
    for kind, value in flop.items():
        if value or kind in ("float32", "float64"):
            found[f"{kind}_flop"] = value
    if unknown:
        found.pop("matrix_flop", None)
    elif doubt <= MOST_DOUBTFUL * total or not doubt:
        found["flop"] = total
    return found


def _of_sass(opcode: str, *, in_matrix: bool) -> tuple[str, int | None]:
    """Return what kind of FLOP an instruction of a warp does, and how many; None if its name does not tell."""
    first, *more = opcode.split(".")
    lane = _table("sass flop").get(first)
    if lane is not None and not (first == "HADD2" and more[:1] == ["F32"]):  # HADD2.F32 converts
        each, kind = lane.split()
        return kind, WARP * int(each)
    if not in_matrix or first.startswith(("I", "B", "WARPGROUP")):
        return "matrix", 0
    if first not in ("HMMA", "DMMA", "QMMA") or not more or "SP" in more:
        return "matrix", None
    if first == "HMMA" and more[0] == "884":
        steps = VOLTA_STEPS.get("".join(more[1:2]))
        known = steps and any(part.startswith("STEP") for part in more)
        return "matrix", 2 * 16**3 // steps if steps and known else None
    shape = _table("sass shape").get(more[0])
    return "matrix", None if shape is None else 2 * prod(map(int, shape.split()))


def _of_amd(opcode: str, *, in_matrix: bool) -> tuple[str, int | None]:
    """Return the same of a wave's instruction."""
    if one := AMD_VECTOR.match(opcode):
        return f"float{one[3]}", WAVE * (2 if one[1] else 1) * (2 if one[2] else 1)
    if not in_matrix or "_I32_" in opcode:
        return "matrix", 0
    product = AMD_MATRIX.match(opcode)
    if product is None or "SMFMAC" in opcode:
        return "matrix", None
    m, n, k = map(int, product.groups()[:3])
    if max(m, n, k) > LARGEST_SIDE:
        return "matrix", None
    blocks = product[4] or _table("amd blocks").get(f"{product[5]} {m} {k}", "1")
    return "matrix", 2 * m * n * k * int(blocks)
