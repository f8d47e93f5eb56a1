"""Thresholds of waits: answers with half to twice of each, and each series judged by what the others leave open.

A table of `evaluate.py`; it takes half an hour.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from answer_truths import machines
from held_out import set_to

import daydream
from daydream.collect.importers import nsys_waits as waits
from daydream.graph import rules
from daydream.graph.rules import thresholds

NAMES = (
    "WOKEN_NS", "COVERED_SHARE", "IDLE_SHARE", "PAUSE_NS", "FAR_NS", "PAUSES_SHARE", "PAUSE_CHANCE",
    "WAKE_NS", "SPIN_NS",
)  # fmt: skip
SHIPPED = {name: getattr(thresholds, name) for name in NAMES}
FACTORS = (0.5, 0.7, 1.0, 1.4, 2.0)
RECORDINGS = (
    "pairs/vit_a100/*", "pairs/unet3d_a100/*", "pairs/a10_gpt_small/small_128*", "nsys/*", "nsys_osrt/*",
    "formats/kineto_distributed/h800*", "kineto/v100_resnet50*0.*", "kineto/rtx2080ti_res*",
)  # fmt: skip
UNTOLD = ", untold"
OFF = 0.01
# By threshold and factor: step, low, high and truth of each change, in ns.
Answers = dict[str, list[list[Any]]]


def judged(traces: Path) -> Iterator[tuple[str, list[tuple[str, float, float | None]], Path]]:
    """Yield what is asked of: its name, the changes (on what, factor, true step in ns), its place."""
    for path in machines(Path(tempfile.gettempdir()) / "daydream-answers"):
        name = path.name.partition(".")[0]
        yield f"machine/{name}", json.loads(path.with_name(f"{name}.truth").read_text()), path
    for path in (path for pattern in RECORDINGS for path in sorted(traces.glob(pattern))):
        name = re.split(r"\.(?:json|sqlite)", str(path.relative_to(traces)).removeprefix("pairs/"))[0]
        yield name, [("gpu", 0.5, None)], path


def ask(path: Path, changes: list[tuple[str, float, float | None]], *, told: bool) -> Answers:
    """Return the answers about a recording with each value of each threshold."""
    with set_to({} if told else {(waits, "BLOCKED_QUERIES"): {}}):
        trace = daydream.load(path)
    modules = [
        importlib.import_module(f"{rules.__name__}.{each.name}")
        for each in pkgutil.iter_modules(rules.__path__)
    ]
    found: Answers = {}
    known: dict[int, list[Any]] = {}  # answers of equal graphs
    for name, shipped in SHIPPED.items():
        for factor in FACTORS:
            value = factor * shipped
            value = round(value) if name.endswith("NS") else min(value, 0.99)
            with set_to({(module, name): value for module in modules if hasattr(module, name)}):
                graph = daydream.build(trace)
            tables = [table[name] for table in (graph.columns, graph.links, graph.doubtful) for name in table]
            key = hash((*(np.asarray(column).tobytes() for column in tables),))
            if key not in known:
                before = daydream.replay(graph).recording
                asked = [daydream.whatif(before, "scale", on=on, factor=times) for on, times, _ in changes]
                known[key] = [
                    [each.simulated_ns, each.predicted_low_ns, each.predicted_high_ns, change[2]]
                    for each, change in zip(asked, changes, strict=True)
                ]
            found[f"{name} {factor}"] = known[key]
    return found


def right(found: Answers, value: str) -> tuple[bool, bool]:
    """Tell whether a value's answers are the true ones, and whether their intervals hold those.

    Of recordings nobody knows the truth: what is answered as shipped stands for it.
    """
    same = holds = True
    for now, shipped in zip(found[value], found[f"{NAMES[0]} 1.0"], strict=True):
        step, low, high, truth = now
        truth = truth or shipped[0]
        same &= abs(step - truth) <= max(OFF * truth, abs(shipped[0] - truth) + OFF * truth)
        holds &= low is None or low <= truth <= high
    return same, holds


def tables(traces: Path | None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield two tables: each series judged by what the others leave open, and where each threshold moves an answer."""
    series: dict[str, list[Answers]] = {}
    for name, changes, path in judged(traces) if traces is not None else []:
        for told in (True, False) if "nsys" in name or "_a100" in name else (True,):
            found = ask(path, changes, told=told)
            series.setdefault(name.split("/")[0] + UNTOLD * (not told), []).append(found)
    verdict = {
        (name, value): [all(two) for two in zip(*(right(one, value) for one in each), strict=True)]
        for name, each in series.items() for value in each[0]
    }  # fmt: skip
    rows = []
    for name, some in series.items():
        values = [f"{each} {factor}" for each in NAMES for factor in FACTORS]
        others = [value for value in values if all(verdict[one, value][0] for one in series if one != name)]
        counts = [
            len(some),
            len(others),
            *(sum(verdict[name, value][place] for value in others) for place in (0, 1)),
        ]
        titles = ("recordings", "values right on all others", "right here", "the interval holds")
        rows.append({"series": name, **dict(zip(titles, map(str, counts), strict=True))})
    moved = []
    for name in NAMES if rows else ():
        places = {one: [f"{by:g}" for by in FACTORS if not verdict[one, f"{name} {by}"][0]] for one in series}
        where = "; ".join(f"{one} x {', '.join(by)}" for one, by in places.items() if by)
        moved.append({"threshold": name, "shipped": f"{SHIPPED[name]:,}", "moves an answer at": where})
    if rows:
        yield "thresholds", rows
        yield "thresholds_2", moved
