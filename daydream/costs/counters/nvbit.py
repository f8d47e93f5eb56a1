"""NVBit's instr_count and opcode_hist: a line for each launch, its opcodes below, among the program's output.

    kernel 0 - axpy(float*) - #thread-blocks 98,  kernel instructions 28, total instructions 28
      FFMA = 20

By default instructions of warps are counted; `COUNT_WARP_LEVEL = 0` in the banner says of threads, of which
32 count here as one of a warp. Format: NVlabs/NVBit, README and tools.
"""

from __future__ import annotations

import re

from daydream.costs.counters.amounts import CountedKernel
from daydream.costs.counters.opcodes import WARP, amounts_of_sass
from daydream.errors import FileError
from daydream.lazy import regex

LAUNCH = "#thread-blocks "
COUNTS = regex(
    r"(\d{1,18}),\s{1,4}kernel instructions (\d{1,18}), total instructions (\d{1,18})\s*"
)
NUMBERED = regex(r"kernel (\d{1,18})\s?-\s")
OPCODE = regex(r"\s+([A-Z][A-Z0-9]*(?:\.[A-Za-z0-9_.]+)?) = (\d{1,18})\s*")
BY_THREADS = regex(r"COUNT_WARP_LEVEL = 0\b")
LONGEST_LINE = 1 << 16


def is_nvbit(text: str) -> bool:
    """Tell whether a text has a launch that NVBit counted, or opcodes that lack theirs."""
    return LAUNCH in text or (re.match(r"\s+[A-Z0-9.]+ = \d+\n", text) is not None)


def kernels_of_nvbit(text: str, file: str) -> list[CountedKernel]:
    """Return the launches of NVBit's output, in order.

    Raises `FileError` where a launch is cut or its opcodes do not add up to its instructions.
    """
    lanes = WARP if BY_THREADS.search(text) else 1
    found: list[CountedKernel] = []
    opcodes: dict[str, int] = {}
    whole = before = 0
    for number, line in enumerate(text.splitlines(), 1):
        if LAUNCH in line and line.startswith("kernel "):
            _finish(found, opcodes, whole, lanes, file)
            name, blocks, whole, total = _launch(line, file, number)
            if total < whole or (found and total < before):
                raise FileError(
                    f"{file}, line {number}: the total is less than its parts; several runs are mixed"
                )
            before, opcodes = total, {}
            found.append(CountedKernel(name, blocks, {"instructions": whole / lanes}))
        elif (opcode := OPCODE.fullmatch(line[:LONGEST_LINE])) is not None:
            if not found:
                raise FileError(
                    f"{file}, line {number}: opcodes of no kernel; keep NVBit's kernel lines, too"
                )
            opcodes[opcode[1]] = opcodes.get(opcode[1], 0) + int(opcode[2])
    _finish(found, opcodes, whole, lanes, file)
    return found


def _launch(line: str, file: str, number: int) -> tuple[str, int, int, int]:
    """Return name, blocks, instructions and the running total of a launch."""
    head, _, counts = line.rpartition(LAUNCH)
    begins, numbers = NUMBERED.match(head), COUNTS.fullmatch(counts)
    if begins is None or numbers is None or not head.rstrip().endswith("-"):
        raise FileError(
            f"{file}, line {number}: NVBit's launch is cut or of another version: {line!r:.80}"
        )
    name = head[begins.end() :].rstrip().removesuffix("-").rstrip()
    blocks, whole, total = map(int, numbers.groups())
    return name, blocks, whole, total


def _finish(
    found: list[CountedKernel], opcodes: dict[str, int], whole: int, lanes: int, file: str
) -> None:
    """Give the last launch its opcodes; instr_count has none."""
    if not opcodes or not found:
        return
    counted = sum(opcodes.values())
    if counted != whole:
        raise FileError(
            f"{file}: the opcodes of launch {len(found) - 1} are {counted:,} of {whole:,} instructions: "
            "it is cut, or its opcodes are edited"
        )
    amounts = amounts_of_sass({opcode: count / lanes for opcode, count in opcodes.items()})
    found[-1].metrics.update(amounts)
