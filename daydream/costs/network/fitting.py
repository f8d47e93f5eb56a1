"""A cluster's figures fitted to measured collectives, of a benchmark or of a trace.

Measurements come from what nccl-tests (or rccl-tests) prints, as a log or as CSV.

A log names its columns in comment lines: `size count type redop root time algbw busbw #wrong time
...`, times in us, out of place before in place. The CSV form has the size and times in its header
with their units, such as `size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)`; header
names repeat, so columns go by position.

They give a latency and a bandwidth of the links; what NCCL makes of these is its choice (`nccl`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np

from daydream.costs.network.clusters import Cluster
from daydream.costs.network.nccl import RINGS, SIMPLE, Link
from daydream.errors import DaydreamError
from daydream.files.input_files import check_regular
from daydream.lazy import regex
from daydream.text import counted

LEAST_BYTES = 1 << 20  # bandwidth decides what longer messages take
TELLING = 8  # sizes a factor apart that tells latency from bandwidth
LEAST_SHARE = 0.1  # of a time is its transfer, however short
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
NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
WORDS_OF_HEADER = {"size", "time", "busbw"}
LEAST_DIFFERENCE = 0.05


@dataclass(frozen=True)
class Measurement:
    """One measured collective: bytes as in `collectives.py`, members, transfer in ns."""

    collective: str
    nbytes: int
    world_size: int
    time_ns: float


def calibrate(
    cluster: Cluster,
    measurements: Sequence[Measurement],
    origin: str,
    *,
    upper_bounds: bool = False,
) -> Cluster:
    """Return a cluster whose figures are fitted to measurements; `origin` says whose these are.

    Those of groups that fit in a node give `intra`, larger ones `inter`; what was not measured stays
    as described. With `upper_bounds`, times may hold waiting for a late member: the fit then stays
    below all of them. Raises `DaydreamError` if nothing can be learned from them.
    """
    useful = [
        one for one in measurements if one.world_size > 1 and one.time_ns > 0 and one.nbytes > 0
    ]
    inside = [one for one in useful if one.world_size <= cluster.gpus_per_node]
    across = [one for one in useful if one.world_size > cluster.gpus_per_node]
    fitted = cluster
    if inside:
        fitted = replace(fitted, intra=_fit(inside, cluster, upper_bounds=upper_bounds))
    if across:
        fitted = replace(fitted, inter=_fit(across, fitted, upper_bounds=upper_bounds))
    if fitted is cluster:
        raise DaydreamError(
            f"{origin} holds no collective of two or more members with a known size; "
            "a link cannot be fitted to it"
        )
    groups = ", ".join(str(size) for size in sorted({one.world_size for one in useful}))
    kept = "" if across or cluster.nodes == 1 else f"; beyond a node {cluster.source}"
    return replace(
        fitted,
        source=f"fitted to {counted(len(useful), 'measurement')} of {groups} GPUs in {origin}{kept}",
    )


def _fit(measurements: list[Measurement], cluster: Cluster, *, upper_bounds: bool) -> Link:
    """Return the link that explains the times best, each counted by its relative error.

    The least time of each size counts, of sizes that bandwidth decides where there are any. Sizes that
    hardly differ cannot tell latency from bandwidth: the latency is then the described one.
    """
    best: dict[tuple[str, int, int], float] = {}
    for one in measurements:
        key = (one.collective, one.nbytes, one.world_size)
        best[key] = min(one.time_ns, best.get(key, one.time_ns))
    long = {key: time for key, time in best.items() if key[1] >= LEAST_BYTES} or best
    terms = np.array([_terms(*key, cluster) for key in long])
    times = np.array(list(long.values()))
    within = next(iter(long))[2] <= cluster.gpus_per_node
    given = (cluster.intra if within else cluster.inter).latency_ns
    target = np.maximum(times - SIMPLE.base_ns - terms[:, 2], LEAST_SHARE * times)
    if np.ptp(np.log(terms[:, 1])) >= np.log(TELLING):
        weighted = terms[:, :2] / target[:, None]
        if upper_bounds:
            latency, slope = _highest_below(weighted)
        else:
            ones = np.ones(len(target))
            latency, slope = np.linalg.lstsq(weighted, ones, rcond=None)[0].tolist()
        if latency >= 0 and slope > 0:
            return Link(1 / slope, latency)
    left = np.maximum(target - given * terms[:, 0], LEAST_SHARE * target)
    slopes = left / terms[:, 1]
    return Link(1 / float(slopes.min() if upper_bounds else np.median(slopes)), given)


def _highest_below(rows: np.ndarray) -> tuple[float, float]:
    """Return x >= 0 with rows @ x <= 1 and the largest sum of rows @ x: a vertex of the bounds."""
    bounds = np.concatenate([rows, np.eye(2)])
    sides = np.concatenate([np.ones(len(rows)), np.zeros(2)])
    pairs = np.stack(np.triu_indices(len(bounds), 1), axis=1)
    meet = pairs[np.abs(np.linalg.det(bounds[pairs])) > 0]
    found = np.linalg.solve(bounds[meet], sides[meet][:, :, None])[:, :, 0]
    allowed = (found >= -1e-12).all(axis=1) & (rows @ found.T <= 1 + 1e-9).all(axis=0)
    latency, slope = max(
        np.maximum(found[allowed], 0).tolist(), key=lambda x: float((rows @ x).sum())
    )
    return latency, slope


def _terms(
    collective: str, nbytes: int, members: int, cluster: Cluster
) -> tuple[float, float, float]:
    """Return what multiplies the latency and the time for a byte in a formula, and what else it takes."""
    nodes = ceil(members / cluster.gpus_per_node)
    if collective in RINGS:
        rounds = RINGS[collective]
        moved = (rounds * (members - 1) + SIMPLE.tail) * nbytes / members
        if nodes == 1:
            return rounds * (members - 1) + 1, moved, 0.0
        return (
            rounds * (nodes - 1),
            moved,
            (rounds * (members - nodes) + 1) * cluster.intra.latency_ns,
        )
    if collective == "all_to_all":
        if nodes == 1:
            return 1, (members - 1) / members * nbytes, 0.0
        return 1, (nodes - 1) / nodes * (members / nodes) * nbytes, 0.0
    return max((nodes if nodes > 1 else members) - 1, 1), float(nbytes), 0.0


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
    names = [_named(word) for word in header]
    size_at = names.index("size")
    time_at = [place for place, name in enumerate(names) if name == "time"]
    scale = NS.get(header[time_at[0]].partition("(")[2].rstrip(")"), 1e3)
    collective = collective or _test_of(text) or _test_of(path.name)
    if collective is None:
        raise DaydreamError(
            f"{path} does not say which collective it measured; name it, as in all_reduce"
        )
    members = world_size or _members(text, path.name, names, rows, collective)
    if members is None:
        raise DaydreamError(f"{path} does not say how many GPUs took part; give the number")
    found = [
        Measurement(collective, int(row[size_at]), members, row[place] * scale)
        for row in rows
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
        if {_named(word.lower()) for word in words} >= WORDS_OF_HEADER:
            header = [word.lower().lstrip("#") for word in words]
        elif header and len(words) == len(header) and words[0].isdigit():
            rows.append([_number(word) for word in words])
    return header, rows


def _named(word: str) -> str:
    """Return a word of a header without its unit."""
    return word.partition("(")[0].rstrip()


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
    if ranks := RANK_LINE.findall(text):
        return max(map(int, ranks)) + 1
    if match := COUNT_IN_NAME.search(name):
        return int(match.group(1))
    if collective != "all_reduce" or not {"algbw", "busbw"} <= set(names):
        return None
    # busbw / algbw is 2(n-1)/n; the largest size has the most digits.
    algorithm, bus = rows[-1][names.index("algbw")], rows[-1][names.index("busbw")]
    if not algorithm > 0 or not 1 - LEAST_DIFFERENCE < bus / algorithm < 2 - LEAST_DIFFERENCE:
        return None
    return round(2 / (2 - bus / algorithm))
