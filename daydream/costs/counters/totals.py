"""What was counted of many kernels together: Luthier's tools and AccelProf's app_metric print sums at exit.

They belong to the kernels that ran meanwhile as a whole: of all of the program, or of those from `first` to
`last`, as a window that was given to the tool. Nobody knows what each has of it, and nothing here says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.costs.counters.opcodes import amounts_of_amd
from daydream.costs.counters.quantities import QUANTITIES
from daydream.errors import FileError
from daydream.lazy import regex
from daydream.text import counted
from daydream.trace.trace import Trace

INSTRUCTIONS = regex(r"^Total instructions executed: (\S+)\s*$", re.MULTILINE)
LDS = regex(
    r"^Total number of LDS instructions: (\d{1,18})"
    r"(?: \(single-address: \d{1,18}, double-address: \d{1,18}\))?\s*$",
    re.MULTILINE,
)
CONFLICTS = regex(r"^Total number of bank conflicts detected: (\S+)\s*$", re.MULTILINE)
HISTOGRAM = regex(r"^Instruction Opcode Results:\s*$", re.MULTILINE)
OPCODE = regex(r"^  (\w{1,200}) = (\d{1,18})\s*$", re.MULTILINE)
OPCODES_TOTAL = regex(r"^Total number of instructions counted: (\d{1,18})\s*$", re.MULTILINE)
LUTHIER = regex(
    r"^(Total instructions executed:|Total number of LDS instructions:|Instruction Opcode Results:"
    r"|Total number of bank conflicts)",
    re.MULTILINE,
)
MOST = 2.0**63
WINDOW = regex(r"(.+)@(\d{1,15})-(\d{1,15})")
MOST_SAID = 6


@dataclass(frozen=True)
class Totals:
    """Sums over kernels: amounts by the names of `quantities.py`, and who counted them."""

    source: str
    amounts: dict[str, float]


def totals_of_luthier(text: str, file: str) -> Totals | None:
    """Return what Luthier's InstrCount, OpcodeHistogram or LDSBankConflict printed; None if they did not.

    Raises `FileError` where a sum is no number, comes twice (of several runs) or is cut off.
    """
    if LUTHIER.search(text) is None:
        return None
    found: dict[str, float] = {}
    for name, pattern in (
        ("instructions", INSTRUCTIONS), ("shared_instructions", LDS), ("shared_conflicts", CONFLICTS),
    ):  # fmt: skip
        values = pattern.findall(text)
        if len(values) > 1:
            raise FileError(
                f"{file} has {len(values)} sums of one sort: several runs; give one file a run"
            )
        if values:
            found[name] = _number(values[0], file)
    begins = HISTOGRAM.search(text)
    if begins is not None:
        found |= _histogram(text, begins.end(), file)
    if "shared_instructions" in found and "shared_conflicts" not in found and begins is None:
        raise FileError(f"{file} ends before Luthier's bank conflicts: it is cut")
    if not found:
        raise FileError(f"{file}: Luthier's sums are cut or of another version")
    return Totals("Luthier", found)


def _histogram(text: str, begin: int, file: str) -> dict[str, float]:
    ends = OPCODES_TOTAL.search(text, begin)
    if ends is None:
        raise FileError(f"{file} ends before the total of Luthier's opcodes: it is cut")
    counts: dict[str, float] = {}
    for opcode in OPCODE.finditer(text, begin, ends.start()):
        counts[opcode[1]] = counts.get(opcode[1], 0.0) + int(opcode[2])
    if sum(counts.values()) != int(ends[1]):
        raise FileError(
            f"{file}: Luthier's opcodes are {sum(counts.values()):,.0f} of {int(ends[1]):,} instructions"
        )
    return amounts_of_amd(counts)


def _number(text: str, file: str) -> float:
    """Return a count that may be printed as a floating-point number, such as 1.2e+06."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < MOST:
        raise FileError(f"{file}: {text!r:.40} is no count")
    return value


def window_of(file: str) -> tuple[str, tuple[int, int] | None]:
    """Return the path and the kernels, first and last, of `FILE@100-200`; all of them are None."""
    found = WINDOW.fullmatch(file)
    if found is None:
        return file, None
    first, last = int(found[2]), int(found[3])
    if first > last:
        raise FileError(f"{file}: a window such as @100-200 begins with its first kernel")
    return found[1], (first, last)


def attach_totals(
    trace: Trace, totals: Totals, window: tuple[int, int] | None, label: str
) -> tuple[dict[str, Any], str]:
    """Return the metadata of sums over a window of a trace's kernels, and what is to be said of them.

    Raises `FileError` where the recording has fewer kernels.
    """
    rows = np.flatnonzero(trace.is_kind("kernel"))
    rows = rows[np.argsort(trace["correlation"][rows], kind="stable")]
    first, last = window or (0, len(rows) - 1)
    if last >= len(rows) or not len(rows):
        raise FileError(
            f"{label}: the recording has {counted(len(rows), 'kernel')}, the first is number 0"
        )
    time = int(trace["duration_ns"][rows[first : last + 1]].sum())
    share = time / max(int(trace["duration_ns"][rows].sum()), 1)
    which = (
        f"kernels {first} to {last} of the recording"
        if window
        else "the whole program that was counted"
    )
    beyond = "" if window else " It may be more than what this recording has."
    said = ", ".join(
        f"{name.replace('_', ' ')} {value:,.0f}"
        for name, value in list(totals.amounts.items())[:MOST_SAID]
    )
    note = (
        f"{totals.source} ({label}) counted {said}: sums of {which} ({counted(last - first + 1, 'kernel')}, "
        f"{share:.1%} of the kernels' time). No kernel is given a part of them.{beyond}"
    )
    amounts = {name: round(value) for name, value in totals.amounts.items() if name in QUANTITIES}
    entry = {
        "file": label,
        "source": totals.source,
        "first": first,
        "last": last,
        "amounts": amounts,
    }
    return entry, note
