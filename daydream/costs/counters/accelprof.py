"""AccelProf's logs (PASTA): app_metric, roofline_flops and roofline_size; what they say of time is not read.

The roofline tools write a line for each launch in no order (by where an object lies in memory): launches of a
name cannot be told apart, and each has their mean. Formats: AccelProf/sanalyzer, src/tools.
"""

from __future__ import annotations

import re
from itertools import islice

from daydream.costs.counters.amounts import FLOP, CountedKernel
from daydream.costs.counters.totals import Totals
from daydream.errors import FileError
from daydream.lazy import regex

TIMES = regex(r"\d{1,12}\.\d{6}\|")
SIZES = regex(r"(\d{1,18})\|(\d{1,18})\|([^|\s].*)")
FLOPS = regex(r"(\d{1,18})\|([^|\s].*)")
KERNEL = regex(
    r"Kernel (\d{1,18}) \(refs=(\d{1,18}), objs=(\d{1,18}), obj_size=(\d{1,18}),[^)]*\):\t(.+)"
)
ACCESSES = regex(r"^Total memory accesses: (\d{1,18}) ", re.MULTILINE)
MARKS = ("memory accesses per kernel:", "Kernel 0 (refs=")


def of_accelprof(text: str, file: str) -> list[CountedKernel] | Totals | None:
    """Return the launches of a log, or its sums where it lists none; None if it is no log of AccelProf.

    Raises `FileError` where it tells times alone, or is cut.
    """
    lines = [line for line in islice(text.splitlines(), 3) if line.strip()]
    if lines and all(TIMES.match(line) for line in lines):
        raise FileError(
            f"{file} holds AccelProf's times of kernels, which it slowed down: nothing is taken"
        )
    if lines and FLOPS.fullmatch(lines[0]):
        return _roofline(text, file, SIZES if SIZES.fullmatch(lines[0]) else FLOPS)
    if not any(mark in text for mark in MARKS):
        return None
    return _app_metric(text, file)


def _roofline(text: str, file: str, pattern: re.Pattern[str]) -> list[CountedKernel]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        fields = pattern.fullmatch(line)
        if fields is None or (pattern is FLOPS and SIZES.fullmatch(line)):
            raise FileError(
                f"{file}, line {number}: {line!r:.60} is no line of AccelProf's; it is cut or mixed"
            )
        if pattern is SIZES:
            metrics = {"accesses": float(fields[1]), "accessed_bytes": float(fields[2])}
        else:
            metrics = {FLOP: float(fields[1])}
        found.append(CountedKernel(fields[len(fields.groups())], None, metrics, ordered=False))
    return found


def _app_metric(text: str, file: str) -> list[CountedKernel] | Totals:
    found = [
        (int(line[1]), CountedKernel(
            line[5], None, {"accesses": float(line[2]), "touched_bytes": float(line[4])}
        ))
        for line in map(KERNEL.fullmatch, text.splitlines()) if line
    ]  # fmt: skip
    if found:
        kernels = [kernel for _, kernel in sorted(found, key=lambda each: each[0])]
        told = re.search(r"^Number of kernels: (\d{1,18})\s*$", text, re.MULTILINE)
        if told is not None and int(told[1]) != len(kernels):
            raise FileError(f"{file} lists {len(kernels):,} of {int(told[1]):,} kernels; it is cut")
        return kernels
    whole = ACCESSES.search(text)
    if whole is None:
        raise FileError(f"{file}: AccelProf's app_metric is cut before its kernels and its sums")
    return Totals("AccelProf", {"accesses": float(whole[1])})
