"""Ranges that are steps by their own names: `step 12`, `train_iter_3`, an engine's `execute_model`.

People and inference engines put one range around each step. A number in its name counts
up, or the name says that it is a step. Layers, buckets and phases have numbered ranges,
too; they are told apart by what they are called, and since they hold part of the work only.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from daydream.collect.derive.launches import linked_calls
from daydream.collect.derive.recording import Recording
from daydream.lazy import regex
from daydream.trace.schema import DEVICE_KINDS

NUMBER = regex(r"\d+")
CAMEL = regex(r"(?<=[a-z])(?=[A-Z])")
DETAILS = regex(r"(?<=[\w ])[\[({].*")
"""What an engine says of a step behind its name: `step[DECODE bs=32]`, `execute_context_1(128)`."""
STEP_WORD = regex(
    r"(?<![a-z])(step|iter|iteration|batch|minibatch|run_batch|execute_(model|new|context|\W*#_context))(?![a-z])"
)
PART_WORD = regex(
    r"(?<![a-z])(optim\w*|opt|adam\w*|sgd|scheduler|lr|forward|fwd|backward|bwd|loss|zero|grad\w*|data\w*"
    r"|load\w*|copy\w*|get|next|fetch|wait\w*|read\w*|prefetch\w*|prepare|h#d|d#h|d#d|all\w*reduce|sync\w*"
    r"|micro\w*|mb|mbs|sub\w*|layer\w*|block\w*|stage\w*|head\w*|expert\w*|bucket\w*|chunk\w*|epoch\w*|\w*norm"
    r"|conv\w*|linear|attention|attn|mlp|ffn|\w*coder|transformer\w*|module\w*|rank\w*|gpu|device|worker\w*"
    r"|thread\w*|stream\w*|tower|stack|phase|trial|fold|sample|save|checkpoint\w*|capture\w*|compile\w*)(?![a-z])"
)
"""What holds a part of a step, or many of them."""
COUNTER = regex(r"(^|[ #=:_-])#(?![a-z])")
"""A number that stands for itself, not the end of a module's name (`conv1`)."""
LEAST, LEAST_UNNAMED = 0.5, 0.8
"""Share of the device time that steps launch; with start-up and evaluation beside them it is not all."""
FEWEST_UNNAMED = 3  # ranges whose name does not say that they are steps
AS_MUCH = 0.9  # of what the best ranges hold: those that hold it too are around them, or in them


def find_numbered_ranges(recording: Recording) -> np.ndarray:
    """Return the annotation rows that are steps by their names, in order of time; empty if none are.

    They lie on one thread, one after another, and most of the device's work is launched in
    them. Where such ranges lie in others, the outer ones are the steps if there are several.
    """
    moments, work_ns = _work(recording)
    total = work_ns[-1]
    if not total:
        return np.empty(0, np.int64)
    found = []
    for (_, text), rows in _families(recording).items():
        start = recording["start_ns"][rows]
        end = start + recording["duration_ns"][rows]
        if not _one_after_another(start, end):
            continue
        first, last = np.searchsorted(moments, start), np.searchsorted(moments, end)
        share = float((work_ns[last] - work_ns[first]).sum() / total)
        if share >= _least_share(recording, text, rows):
            found.append((share, rows))
    if not found:
        return np.empty(0, np.int64)
    most = max(share for share, _ in found)
    alike = [rows for share, rows in found if share >= AS_MUCH * most]
    several = [rows for rows in alike if len(rows) >= FEWEST_UNNAMED] or alike
    return min(several, key=len)


def _families(recording: Recording) -> dict[tuple[int, str], np.ndarray]:
    """Return the annotation rows of each thread whose names are equal but for numbers and details."""
    texts = [_stem(text) for text in recording.text("name")]
    useful = [bool(STEP_WORD.search(text) or COUNTER.search(text)) for text in texts]
    useful = [use and not PART_WORD.search(text) for use, text in zip(useful, texts, strict=True)]
    chosen = np.flatnonzero(recording.is_kind("annotation") & np.append(useful, False)[recording["name"]])
    chosen = chosen[np.argsort(recording["start_ns"][chosen], kind="stable")]
    families: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, code, thread in zip(
        chosen.tolist(), recording["name"][chosen].tolist(), recording.threads[chosen].tolist(), strict=True
    ):
        families[thread, texts[code]].append(row)
    return {family: np.array(rows) for family, rows in families.items()}


def _stem(text: str) -> str:
    """Return a name without its numbers and details; empty for C++ names and paths of modules."""
    short = DETAILS.sub("", text)
    if "::" in short or re.search(r"\w\.\w", short):
        return ""
    return NUMBER.sub("#", CAMEL.sub("_", short).lower()).strip()


def _least_share(recording: Recording, text: str, rows: np.ndarray) -> float:
    """Return what share of the device time these ranges must hold to be steps; above 1: they are none."""
    if STEP_WORD.search(text):
        return LEAST
    if len(rows) < FEWEST_UNNAMED or not _counts_up(recording.texts_of("name", rows)):
        return np.inf
    return LEAST_UNNAMED


def _counts_up(names: list[str | None]) -> bool:
    """Return whether one number in the names grows by the same amount from each to the next."""
    numbers = [[int(each) for each in NUMBER.findall(DETAILS.sub("", name or ""))] for name in names]
    steps = np.diff(np.array(numbers, np.float64), axis=0)
    grows = (steps == steps[0]).all(axis=0) & (steps[0] > 0)
    return bool(grows.sum() == 1 and (steps[:, ~grows] == 0).all())


def _one_after_another(start: np.ndarray, end: np.ndarray) -> bool:
    return bool((start[1:] >= end[:-1]).all())


def _work(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Return when device work was launched, and the kernels' time launched before each moment and after all.

    Copies do not count where there are kernels: the upload of a model's weights can take
    longer than the steps. Without any launches each operator of the CPU counts alike.
    """
    for kinds in (("kernel", "collective"), DEVICE_KINDS):
        device, calls = linked_calls(recording, *kinds)
        if len(calls):
            moments = recording["start_ns"][calls].astype(np.int64)
            return _summed(moments, recording["duration_ns"][device].astype(np.int64))
    operators = np.flatnonzero(recording.is_kind("operator"))
    return _summed(recording["start_ns"][operators].astype(np.int64), np.ones(len(operators), np.int64))


def _summed(moments: np.ndarray, amounts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(moments, kind="stable")
    return moments[order], np.concatenate(([0], np.cumsum(amounts[order])))
