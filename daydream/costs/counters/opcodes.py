"""An opcode histogram of a kernel: instructions by class, and the FLOP where the opcodes determine them.

NVIDIA's opcodes are SASS, AMD's those of LLVM. A vector instruction counts for all lanes of its warp or wave,
also those that are off: what comes of it is an upper bound. An instruction of matrix units has its shape in
its name. Of those that several warps issue together (HGMMA), or whose shape is not in the name, FLOP are
unknown, and so are the kernel's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from daydream.lazy import regex

WARP, WAVE = 32, 64
# FLOP of a lane. Packed instructions (FFMA2 since Blackwell, the halves of H...2) do two.
SASS_FLOP = {
    "FADD": (1, "float32"), "FADD32I": (1, "float32"), "FMUL": (1, "float32"), "FMUL32I": (1, "float32"),
    "FFMA": (2, "float32"), "FFMA32I": (2, "float32"), "FADD2": (2, "float32"), "FMUL2": (2, "float32"),
    "FFMA2": (4, "float32"), "DADD": (1, "float64"), "DMUL": (1, "float64"), "DFMA": (2, "float64"),
    "HADD2": (2, "float16"), "HMUL2": (2, "float16"), "HFMA2": (4, "float16"),
}  # fmt: skip
# M, N, K of a warp's instruction by the digits in its name (PTX ISA, shapes of `mma`): 16816 is m16n8k16.
SASS_SHAPES = {
    "16816": (16, 8, 16), "1688": (16, 8, 8), "1684": (16, 8, 4), "16832": (16, 8, 32), "884": (8, 8, 4),
}  # fmt: skip
# Volta's HMMA.884 is a step of four (16-bit sums: of two) of a warp's 16x16x16 product, which takes four sets
# ("Modeling Deep Learning Accelerator Enabled GPUs", Raihan, Goli and Aamodt, ISPASS 2019, section III).
VOLTA_STEPS = {"F32": 16, "F16": 8}
VOLTA_PRODUCT = 2 * 16 * 16 * 16
SASS_CLASSES = (
    ("matrix", regex(r"(H|I|D|B|Q|O)G?MMA|UTC\w*MMA|WARPGROUP")),
    ("shared", regex(r"(LDS|STS|ATOMS|LDSM|STSM)$")),
    ("memory", regex(r"(LD|ST|ATOM|RED|TEX|TLD|SULD|SUST|UBLK|UTMA|CCTL|MEMBAR|ULDC)")),
    (
        "control",
        regex(r"(BRA|BRX|JMP|JMX|CALL|RET|EXIT|BSSY|BSYNC|BREAK|BAR|WARPSYNC|DEPBAR|YIELD|KILL)"),
    ),
    ("float", regex(r"([FDH](ADD|MUL|FMA|MNMX|SET|SEL|CHK|SWZ)|MUFU|FRND)")),
    (
        "integer",
        regex(
            r"(U?(I(?!PA)|LEA|LOP|SHF|SHL|SHR|POPC|FLO|BREV|PRMT|BMSK|SGXT|VABS|VIADD|VIMNMX)|[FI]2[FI])"
        ),
    ),
)
AMD_CLASSES = (
    ("matrix", regex(r"V_S?MFMA|V_S?WMMA")),
    ("shared", regex(r"DS_")),
    ("memory", regex(r"(GLOBAL|FLAT|BUFFER|SCRATCH|IMAGE|S_LOAD|S_BUFFER|S_STORE|S_ATOMIC)_?")),
    ("control", regex(r"S_(C?BRANCH|ENDPGM|BARRIER|SETPC|SWAPPC|CALL|WAITCNT|SLEEP)")),
    ("float", regex(r"V_(PK_|DUAL_)?\w+_(F16|F32|F64|BF16)(_|$)")),
    ("integer", regex(r"(V|S)_\w+_(I|U|B)(8|16|24|32|64)")),
)
AMD_VECTOR = regex(
    r"V_(PK_)?(ADD|SUB|SUBREV|MUL|FMA|FMAC|MAC|MAD|FMAAK|FMAMK|RCP|RSQ|SQRT|EXP|LOG|SIN|COS)_(F16|F32|F64)(_|$)"
)
AMD_TWICE = ("FMA", "FMAC", "MAC", "MAD", "FMAAK", "FMAMK")
AMD_MATRIX = regex(
    r"V_S?MFMA_(?:F32|F64)_(\d+)X(\d+)X(\d+)(?:_(\d+)B)?_?(F16|BF16|F32|F64|XF32|FP8|BF8)(_1K)?"
)
# Products side by side in one instruction, where its name does not count them ("AMD Instinct MI200
# Instruction Set Architecture", matrix instructions): by M and K. Others do one.
AMD_BLOCKS = {
    "F32": {(32, 1): 2, (16, 1): 4, (4, 1): 16}, "F16": {(32, 4): 2, (16, 4): 4, (4, 4): 16},
    "BF16": {(32, 2): 2, (16, 2): 4, (4, 2): 16}, "BF16_1K": {(32, 4): 2, (16, 4): 4, (4, 4): 16},
    "F64": {(4, 4): 4},
}  # fmt: skip
LARGEST_SIDE = 256  # of a product in one instruction: larger is no shape
# Compilers move constants with 16-bit instructions: of a larger part of the FLOP nobody can tell.
MOST_DOUBTFUL = 0.05


def amounts_of_sass(counts: Mapping[str, float]) -> dict[str, float]:
    """Return instructions by class and FLOP of a kernel of NVIDIA, by the names of `quantities.py`.

    Args:
        counts: how often each opcode (`FFMA.FTZ`) was executed by a warp.

    Returns:
        `flop` is absent where it is not determined.
    """
    flop = dict.fromkeys(("float16", "float32", "float64", "matrix"), 0.0)
    known = True
    for opcode, count in counts.items():
        first, *more = opcode.split(".")
        each, kind = SASS_FLOP.get(first, (0, ""))
        if each and not (first == "HADD2" and more[:1] == ["F32"]):  # HADD2.F32 converts
            flop[kind] += WARP * each * count
        elif SASS_CLASSES[0][1].match(first) and not first.startswith(("I", "B", "WARPGROUP")):
            product = _of_sass_product(first, more)
            known &= product is not None or not count
            flop["matrix"] += (product or 0) * count
    return _amounts(counts, SASS_CLASSES, flop, known=known)


def amounts_of_amd(counts: Mapping[str, float]) -> dict[str, float]:
    """Return the same of AMD: opcodes as LLVM spells them (`V_FMA_F32_e64`), each executed by a wave."""
    flop = dict.fromkeys(("float16", "float32", "float64", "matrix"), 0.0)
    known = True
    upper = {opcode.upper(): count for opcode, count in counts.items()}
    for opcode, count in upper.items():
        if found := AMD_VECTOR.match(opcode):
            lanes = WAVE * (2 if found[1] else 1) * (2 if found[2] in AMD_TWICE else 1)
            flop[f"float{found[3][1:]}"] += lanes * count
        elif AMD_CLASSES[0][1].match(opcode) and "_I32_" not in opcode:
            product = _of_amd_product(opcode)
            known &= product is not None or not count
            flop["matrix"] += (product or 0) * count
    return _amounts(upper, AMD_CLASSES, flop, known=known, doubtful="")


def _amounts(
    counts: Mapping[str, float],
    classes: tuple[tuple[str, re.Pattern[str]], ...],
    flop: Mapping[str, float],
    *,
    known: bool,
    doubtful: str = "float16",
) -> dict[str, float]:
    found: dict[str, float] = {"instructions": sum(counts.values())}
    for opcode, count in counts.items():
        first = opcode.split(".")[0]
        name = next((name for name, pattern in classes if pattern.match(first)), "other")
        found[f"{name}_instructions"] = found.get(f"{name}_instructions", 0.0) + count
    found |= {
        f"{kind}_flop": value
        for kind, value in flop.items()
        if value or kind in ("float32", "float64")
    }
    doubt = flop.get(doubtful, 0.0)
    total = sum(flop.values()) - doubt
    if not known:
        found.pop("matrix_flop", None)
    elif doubt <= MOST_DOUBTFUL * total or not doubt:
        found["flop"] = total
    return found


def _of_sass_product(first: str, more: list[str]) -> int | None:
    """Return the FLOP of one warp's matrix instruction; None if its name does not tell."""
    if first not in ("HMMA", "DMMA", "QMMA") or not more:
        return None
    if first == "HMMA" and more[0] == "884":
        steps = VOLTA_STEPS.get(more[1] if len(more) > 1 else "")
        return (
            VOLTA_PRODUCT // steps
            if steps and any(part.startswith("STEP") for part in more)
            else None
        )
    shape = SASS_SHAPES.get(more[0])
    return None if shape is None or "SP" in more else 2 * shape[0] * shape[1] * shape[2]


def _of_amd_product(opcode: str) -> int | None:
    found = AMD_MATRIX.match(opcode)
    if found is None or "SMFMAC" in opcode:
        return None
    m, n, k = (int(side) for side in found.groups()[:3])
    if max(m, n, k) > LARGEST_SIDE:
        return None
    blocks = (
        int(found[4])
        if found[4]
        else AMD_BLOCKS.get(found[5] + (found[6] or ""), {}).get((m, k), 1)
    )
    return 2 * m * n * k * blocks
