"""Evaluate predictions: each change that was made and measured is predicted again from the recording before it.

    python validation/evaluate.py changes --traces ../shared/traces --write docs/evaluation   one table; without names all
    python validation/evaluate.py page                        docs/accuracy.md from the rows in docs/evaluation
    python validation/evaluate.py judge                       every published figure beside the same from today's code

`cases.toml` and `*/measured.json` list the cases. A prediction knows the recording before the change alone. Without
`--traces` (a folder of public traces, no part of the project) their rows are left out; without `--write` all is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import held_out
import numpy as np
import ranges

import daydream
from daydream.errors import DaydreamError
from daydream.graph.tables import KERNEL
from daydream.memory.prediction import memory_after
from daydream.predict.memory import held_now
from daydream.transforms.compose import memory_changes, parse

_toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # which comes with pytest there

HERE = Path(__file__).resolve().parent
ROWS = HERE.parent / "docs" / "evaluation"
CASES: dict[str, Any] = _toml.loads((HERE / "cases.toml").read_text(encoding="utf-8"))
STEP, KERNELS, MEMORY = "step", "kernels", "memory"
DEVELOPED, JUDGED, ASKED = "development", "judgement", "asked as a person would"
PUBLIC = "public pairs"
FOUND_HERE = {"convnext"}  # of the H100: what a factor of 32 bits does to the types after it was seen there
CPU = 0  # the device type of a row of memory
UNITS = {STEP: 1e6, KERNELS: 1e6, MEMORY: 2**20}  # of a public recording: ms, ms, MiB
COLUMNS = (
    "source", "role", "model", "change", "recording", "judged", "before", "measured", "predicted", "low", "high",
    "error", "inside", "left out", "refused",
)  # fmt: skip
Row = dict[str, str]


@dataclass(frozen=True)
class Case:
    """A change that was made: what is asked of which recording, and what was measured.

    Attributes:
        measured: of a device of ours a ratio of steps, of a public recording ns, of memory bytes.
        before: the same before the change; 1 of a ratio.
        marker: by which the steps of a public recording are judged; None: it is one pass.
    """

    source: str
    role: str
    model: str
    change: str
    name: str
    options: dict[str, Any]
    trace: Path
    judged: str
    measured: float
    before: float = 1.0
    recording: str = ""
    marker: str | None = None

    @property
    def is_ratio(self) -> bool:
        """Whether `measured` is a ratio of steps."""
        return self.source in CASES["devices"] and self.judged == STEP


@dataclass(frozen=True)
class Answer:
    """What is predicted, in the unit of the case, with the interval; or why nothing is."""

    case: Case
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    refused: str = ""
    pair: ranges.Pair | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        return None if self.predicted is None else self.predicted / self.case.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the printed interval holds what was measured; None where none was printed."""
        return None if self.low is None or self.high is None else self.low <= self.case.measured <= self.high


def typed(asked: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a change as it is typed: `batch-size --factor 2`."""
    name, *words = asked.split()
    return name, {
        key[2:].replace("-", "_"): _value(text) for key, text in zip(words[::2], words[1::2], strict=True)
    }


def typed_as(name: str, options: dict[str, Any]) -> str:
    """Return a change as it is typed."""
    words = [f"--{key.replace('_', '-')} {value:g}" if isinstance(value, float) else f"--{key.replace('_', '-')} {value}"
             for key, value in options.items()]  # fmt: skip
    return " ".join([name, *words])


def _value(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


# The cases ----------------------------------------------------------------------------------------


def of_devices() -> Iterator[Case]:
    """Yield every change of a step that was measured on a device of ours."""
    for device in CASES["devices"]:
        document = _read(device, "measured.json")
        for model, recordings in document["recordings"].items():
            for one in recordings:
                role = JUDGED if one.get("judges", document.get("judges")) else DEVELOPED
                for title, change in one["changes"].items():
                    asked, trace = (change["optimization"], change["options"]), HERE / device / one["trace"]
                    what, ratio = (device, role, model, title, *asked, trace), change["measured"]
                    yield Case(*what, STEP, ratio, recording=trace.name)


def of_memory() -> Iterator[Case]:
    """Yield every change of ours whose peak memory was measured, but CUDA graphs, whose replays allocate nothing."""
    for model, one in _read("memory_peaks", "peaks.json")["recordings"].items():
        before = one["peaks"]["unchanged"]["peak_bytes"]
        for title, peak in one["peaks"].items():
            if "optimization" in peak:
                group = "two ranks" if peak["options"].get("workers", 1) > 1 else "one process"
                yield Case(
                    group, one["role"], model, title, peak["optimization"], peak["options"],
                    HERE / "memory_peaks" / one["trace"], MEMORY, peak["peak_bytes"], before,
                )  # fmt: skip
    for model, peaks in _read("h200/after", "steps.json").items():
        for variant, (title, asked) in CASES["h200_peaks"].items():
            if variant in peaks:
                before, after = (peaks[each]["peak_allocated_bytes"] for each in ("base", variant))
                trace = HERE / "h200" / "after" / f"{model}-base_memory.parquet"
                yield Case(
                    "GPUs", DEVELOPED, f"H200 {model}", title, *typed(asked), trace, MEMORY, after, before
                )
    document = _read("h100", "measured.json")
    for model, recordings in {**document["recordings"], **document["unsteady"]}.items():
        role = DEVELOPED if model in FOUND_HERE else JUDGED
        for one in recordings:
            for title, change in one["changes"].items():
                if "peak_bytes" in change and change["optimization"] != "cuda-graphs":
                    yield Case(
                        "GPUs", role, f"H100 {model}", title, change["optimization"], change["options"],
                        HERE / "h100" / one["trace"], MEMORY, change["peak_bytes"], one["peak_bytes"],
                    )  # fmt: skip


def of_public(traces: Path | None, judged: Sequence[str]) -> Iterator[Case]:
    """Yield the cases of public recordings that are at hand, by what is judged."""
    for series in CASES["series"] if traces is not None else []:
        for before, after, asked in series["cases"]:
            paths = [traces / series["files"].format(each) for each in (before, after)]
            for measure in [
                one for one in series["judged"] if one in judged and all(map(Path.exists, paths))
            ]:
                marker, group = series.get("marker"), series["name"] if "title" in series else PUBLIC
                was, truth = (_truth(path, marker, measure) for path in paths)
                is_new = {before, after} & {*series.get("memory_judges", ())}
                role = ASKED if "title" in series else DEVELOPED
                if measure == MEMORY:
                    group, role = PUBLIC, JUDGED if is_new else DEVELOPED
                model = before.partition("_")[2] if series["name"] == "devices" else series["name"]
                recording = f"{before} → {after}"
                yield Case(
                    group, role, model, asked, *typed(asked), paths[0], measure, truth, was, recording, marker
                )  # fmt: skip


def _read(folder: str, name: str) -> Any:
    return json.loads((HERE / folder / name).read_text(encoding="utf-8"))


@cache
def _truth(path: Path, marker: str | None, measure: str) -> float:
    """Return the mean step or the kernels' time in it, in ns, by its authors' marker; or the most bytes allocated."""
    if measure == MEMORY:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [row["args"] for row in json.load(file)["traceEvents"] if row.get("name") == "[memory]"]
        return float(max(row["Total Allocated"] for row in rows if row["Device Type"] != CPU))
    trace = daydream.load(path) if marker is None else daydream.load(path, step_marker=marker)
    covered = [n for n, step in enumerate(trace.metadata["steps"]) if step["covered"]]
    if measure == STEP:
        return float(np.mean([trace.metadata["steps"][n]["measured_ns"] for n in covered]))
    kernels = trace.is_kind("kernel")
    if marker is None:
        return float(trace["duration_ns"][kernels].sum())
    return float(trace["duration_ns"][kernels & np.isin(trace["step"], covered)].sum()) / len(covered)


# The evaluation -----------------------------------------------------------------------------------


def answer(case: Case) -> Answer:
    """Return what is predicted for a case."""
    try:
        if case.judged == MEMORY:
            held = held_now(_trace(case.trace))
            found = memory_after(held, memory_changes(parse(case.name), case.options))
            return Answer(case, found.after_bytes, found.low_bytes, found.high_bytes)
        replay = _replay(case.trace)
        before = replay if case.is_ratio else replay.recording  # as the truth was recorded
        asked = daydream.whatif(before, case.name, **case.options)
    except DaydreamError as error:
        return Answer(case, refused=" ".join(str(error).split()))
    if case.judged == KERNELS:
        return _kernels(case, asked)
    if asked.predicted_ns is None:
        return Answer(case, refused=asked.reason or "cannot be predicted")
    per, before_ns = (asked.replayed_ns, 1.0) if case.is_ratio else (1, asked.replayed_ns)
    ends = (asked.predicted_ns, asked.predicted_low_ns or 0, asked.predicted_high_ns or 0)
    pair = ranges.of_comparison(case.source, case.model, asked, case.measured / before_ns)
    step, low, high = (ns / per for ns in ends)
    return Answer(case, step, low, high, pair=pair)


def _kernels(case: Case, asked: daydream.Prediction) -> Answer:
    """Return the kernels' time of a step of the changed graph; no interval is printed for it."""
    graph, old = asked.graph, asked.replay.graph
    chosen = graph.alive & (graph.columns["kind"] == KERNEL)
    steps = 1
    if case.marker is not None:
        covered = [n for n, step in enumerate(graph.steps) if step["covered"]]
        chosen &= np.isin(graph.columns["step"], covered)
        steps = len(covered)
    duration = graph.columns["duration_ns"]
    both = chosen[: old.size]
    touched = duration[: old.size][both & (duration[: old.size] != old.columns["duration_ns"])].sum()
    predicted = float(duration[chosen].sum())
    affected = {"kernels": float(touched) / predicted}
    pair = ranges.Pair(case.source, case.model, case.measured * steps / predicted - 1, affected, 0.0)
    return Answer(case, predicted / steps, pair=pair)


@cache
def _trace(path: Path) -> daydream.Trace:
    return daydream.load(path)


@cache
def _replay(path: Path) -> daydream.Replay:
    return daydream.replay(_trace(path))


def row(found: Answer, left_out: Answer | None = None) -> Row:
    """Return an answer as the columns of the table."""
    case = found.case
    unit = 1.0 if case.is_ratio else UNITS[case.judged]
    cells = [case.source, case.role, case.model, case.change, case.recording, case.judged]
    figures = (case.before, case.measured, found.predicted, found.low, found.high)
    cells += ["" if value is None else _figure(value / unit) for value in figures]
    cells += [_error(found), "" if found.inside is None else "yes" if found.inside else "no"]
    refitted = "" if left_out is None else f"{_error(left_out)}{', outside' * (left_out.inside is False)}"
    cells += [refitted, found.refused]
    return dict(zip(COLUMNS, cells, strict=True))


def _figure(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.3f}" if value < 1000 else f"{value:.1f}"


def _error(found: Answer) -> str:
    return "" if found.error is None else f"{found.error:+.2%}"


# The tables ---------------------------------------------------------------------------------------


def changes(traces: Path | None) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of steps and kernels after a change, and those of the errors that intervals are made of."""
    found = [answer(case) for case in of_devices()]
    rows = [row(one) for one in found]
    for case in of_public(traces, (STEP, KERNELS)):
        found.append(shipped := answer(case))
        refitted = held_out.without(traces, case.source) if traces and case.role == ASKED else {}
        with held_out.set_to(refitted):
            rows.append(row(shipped, answer(case) if refitted else shipped if case.role == ASKED else None))
    yield "changes", rows
    blind = {device for device in CASES["devices"] if _read(device, "measured.json").get("blind")}
    fitted = [
        one.pair for one in found if one.pair and one.case.source not in blind and one.case.role != ASKED
    ]
    yield from ranges.tables(fitted)


def memory(traces: Path | None) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of peaks of memory after a change; on GPUs of changes that change memory at all."""
    found = [answer(case) for case in (*of_memory(), *of_public(traces, [MEMORY]))]
    yield (
        "memory",
        [row(one) for one in found if one.case.source != "GPUs" or one.refused or one.low != one.high],
    )


def own_changes(_traces: Path | None) -> Iterator[tuple[str, list[Row]]]:
    """Yield the table of changes by tool or by hand that `confirm` measured: a row each run."""
    rows = [
        {
            "machine": "at rest" if one["at_rest"] else "busy",
            "role": DEVELOPED if one["model"] == "train_gpt" else JUDGED,
            "model": one["model"], "change": one["change"],
            "predicted": f"{one['predicted_speedup']:.2f}x", "measured": f"{one['confirmed_speedup']:.2f}x",
            "error of the step": f"{one['error']:+.1%}", "step against itself": f"{one['control'] - 1:+.1%}",
        }
        for one in _read("own_changes", "found.json")
    ]  # fmt: skip
    yield "own_changes", rows


def write(folder: Path | None, name: str, rows: Sequence[Row]) -> None:
    """Write rows to FOLDER/NAME.csv; without a folder print them."""
    path = folder and folder / f"{name}.csv"
    with path.open("w", newline="") if path else contextlib.nullcontext(sys.stdout) as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def renew(name: str, keys: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows to a table beside the page; those it has of other keys stay."""
    path = ROWS / f"{name}.csv"
    old: list[Row] = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            old = list(csv.DictReader(file))
    found = {tuple(str(row[key]) for key in keys): row for row in [*old, *rows]}
    columns = {column: "" for row in found.values() for column in row}
    write(ROWS, name, [columns | row for row in found.values()])


def recomputed(names: Iterable[str], traces: Path | None) -> Iterator[tuple[str, list[Row]]]:
    """Yield tables by name, made anew."""
    import parts
    import simulation

    own = {"changes": changes, "memory": memory, "own_changes": own_changes}
    tables = {**own, **simulation.TABLES, **parts.TABLES}
    for name in names or tables:
        yield from tables[name](traces)


def main() -> int:
    """Evaluate, write, and return 1 where a judged figure differs."""
    import page

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "tables", nargs="*", help="tables to make anew, `page` or `judge`; all tables without"
    )
    parser.add_argument("--traces", type=Path, help="the folder of public traces")
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    options = parser.parse_args()
    if options.tables == ["judge"]:
        return page.judge(options.traces)
    if options.tables == ["page"]:
        page.write()
        return 0
    for name, rows in recomputed(options.tables, options.traces):
        write(options.write, name, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
