"""Measured collectives from what nccl-tests (or rccl-tests) prints, as a log or as CSV.

A log names its columns in comment lines: `size count type redop root time algbw busbw #wrong time
...`, times in us, out of place before in place. The CSV form has the size and times in its header
with their units, such as `size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)`; header
names repeat, so columns go by position.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from daydream.costs.network.fitting import Measurement
from daydream.errors import DaydreamError
from daydream.files.input_files import check_regular
from daydream.lazy import regex

TESTS = (
    ("all_reduce", regex(r"all_?reduce", re.IGNORECASE)),
    ("reduce_scatter", regex(r"reduce_?scatter", re.IGNORECASE)),
    ("all_gather", regex(r"all_?gather", re.IGNORECASE)),
    ("all_to_all", regex(r"all_?to_?all", re.IGNORECASE)),
    ("send_recv", regex(r"send_?recv", re.IGNORECASE)),
    ("broadcast", regex(r"broadcast", re.IGNORECASE)),
    ("reduce", regex(r"(?<![a-z])reduce", re.IGNORECASE)),
)
RANK_LINE = regex(r"#\s*Rank\s+(\d+)\s", re.IGNORECASE)
COUNT_IN_NAME = regex(r"(\d+)[_-]?(?:gpus?|ranks?)", re.IGNORECASE)
UNIT = regex(r"^(\w+)\s*\((\w+(?:/s)?)\)$")
NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
WORDS_OF_HEADER = {"size", "time", "busbw"}
LEAST_DIFFERENCE = 0.05


def read_nccl_tests(
    path: str | os.PathLike[str], *, collective: str | None = None, world_size: int | None = None
) -> list[Measurement]:
    """Return the measurements in an nccl-tests log or CSV, both runs of each size.

    The collective is taken from the text or the file's name if not given; the number of GPUs from the
    log's list of ranks, from bus and algorithm bandwidth, or from the file's name (`..._8gpus.csv`).
    Raises `DaydreamError` if the file is no such table or does not say what it measured.
    """
    path = Path(path)
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DaydreamError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise DaydreamError(f"{path} is not text; a log or CSV of nccl-tests was needed") from None
    header, rows = _table(text)
    if not header or not rows:
        raise DaydreamError(
            f"{path} holds no table of nccl-tests: a header with size, time and busbw, and rows of numbers "
            "below it, were looked for. Save what `all_reduce_perf` prints."
        )
    units = [UNIT.match(word) for word in header]
    names = [match.group(1) if match else word for match, word in zip(units, header, strict=True)]
    scale = next(
        (
            NS.get(m.group(2), 1e3)
            for m, name in zip(units, names, strict=True)
            if m and name == "time"
        ),
        1e3,
    )
    size_at = names.index("size")
    time_at = [place for place, name in enumerate(names) if name == "time"]
    collective = collective or _test_of(text) or _test_of(path.name)
    if collective is None:
        raise DaydreamError(
            f"{path} does not say which collective it measured; name it, as in all_reduce"
        )
    members = world_size or _members(text, path.name, names, rows, collective)
    if members is None:
        raise DaydreamError(f"{path} does not say how many GPUs took part; give the number")
    found = []
    for row in rows:
        found += [
            Measurement(collective, int(row[size_at]), members, row[place] * scale)
            for place in time_at
            if row[place] > 0 and row[size_at] > 0
        ]
    if not found:
        raise DaydreamError(f"{path}: every size or time in its table is 0")
    return found


def _table(text: str) -> tuple[list[str], list[list[float]]]:
    """Return the header's words and the rows below it, words that are no numbers as NaN."""
    header: list[str] = []
    rows: list[list[float]] = []
    for line in text.splitlines():
        split = line.split(",") if "," in line else line.split()
        words = [word.strip() for word in split]
        words = [word for word in words if word and word != "#"]
        bare = {(match.group(1) if (match := UNIT.match(word)) else word).lower() for word in words}
        if bare >= WORDS_OF_HEADER:
            header = [word.lower().lstrip("#") for word in words]
        elif header and len(words) == len(header) and words[0].isdigit():
            rows.append([_number(word) for word in words])
    return header, rows


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


def _test_of(text: str) -> str | None:
    """Return the collective a log names first, in its command line or its title."""
    for line in text.splitlines():
        for collective, pattern in TESTS:
            if pattern.search(line):
                return collective
    return None


def _members(
    text: str, name: str, names: list[str], rows: list[list[float]], collective: str
) -> int | None:
    ranks = [int(match.group(1)) for match in RANK_LINE.finditer(text)]
    if ranks:
        return max(ranks) + 1
    if match := COUNT_IN_NAME.search(name):
        return int(match.group(1))
    if collective != "all_reduce" or not {"algbw", "busbw"} <= set(names):
        return None
    # busbw / algbw is 2(n-1)/n; the largest size has the most digits.
    algorithm, bus = rows[-1][names.index("algbw")], rows[-1][names.index("busbw")]
    if not algorithm > 0 or not 1 - LEAST_DIFFERENCE < bus / algorithm < 2 - LEAST_DIFFERENCE:
        return None
    return round(2 / (2 - bus / algorithm))
