"""Real changes on real GPUs: public recordings made before and after a change, each after predicted from its before.

    python validation/gpu_pairs.py --traces ../shared/traces                           the tables on stdout
    python validation/gpu_pairs.py --traces ../shared/traces --write docs/evaluation    as CSV
    python validation/gpu_pairs.py --traces ../shared/traces --only vit                 one series, while working

Every question is asked as a person would type it, without a step marker. The truth is read off the file recorded
after the change, with the marker that its authors wrote, so that a mistake in finding steps cannot hide in
both. Two things are judged: the step, and the kernels' time in it, since a step can hide its kernels' error
behind a loader.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import held_out
import numpy as np
from tables import keep

import daydream
from daydream.errors import DaydreamError
from daydream.graph.tables import KERNEL

STEP, KERNELS = "step", "kernels"


@dataclass(frozen=True)
class Series:
    """Recordings of one program, and how its authors marked steps; None: one pass, judged by its kernels."""

    folder: str
    marker: str | None
    suffix: str = ".sqlite.gz"


@dataclass(frozen=True)
class Question:
    """A change that was made, and what a person would ask before making it."""

    series: Series
    before: str
    after: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    judged: tuple[str, ...] = (STEP, KERNELS)

    @property
    def asked(self) -> str:
        """The question as it is typed."""
        flags = [f"--{key.replace('_', '-')} {value}" for key, value in self.options.items()]
        return " ".join([self.name, *flags])


VIT = Series("vit_a100", r"^step \d+")
UNET = Series("unet3d_a100", r"^step \d+")
GPT = Series("a10_gpt_small", r"^step_\d+")
T4 = Series("t4_mlp_amp", r"^ProfilerStep", ".json.gz")
MOE = Series("a100_switch_moe", None, ".json.gz")
HOPPER = Series("hopper_tf32", r"^ProfilerStep", ".json.gz")
LENGTHS = (128, 256, 512, 1024)


def questions() -> Iterator[Question]:
    """Yield every pair and direction that a person would ask about."""
    for before in ("4workers", "dali"):
        yield Question(VIT, before, "dali_amp_bf16", "amp")
        yield Question(VIT, before, "dali_amp_bf16", "autocast", {"dtype": "bfloat16"})
    yield Question(VIT, "dali_amp_bf16", "dali_amp_bf16_fused_jit", "fused-optimizer+compile")
    yield Question(VIT, "dali", "dali_amp_bf16_fused_jit", "autocast+fused-optimizer", {"dtype": "bfloat16"})
    yield Question(VIT, "4workers", "dali", "prefetch")
    yield Question(UNET, "baseline", "16workers", "dataloader", {"workers": 16}, judged=(STEP,))
    one, two = "4gpu_nobroadcast", "4gpu_bucketcap100mb"
    yield Question(UNET, one, two, "bucket-size", {"bucket_mb": 100}, judged=(STEP,))
    yield Question(UNET, two, one, "bucket-size", {"bucket_mb": 25}, judged=(STEP,))
    yield Question(T4, "fp32", "amp", "autocast+grad-scaler", judged=(KERNELS,))
    yield Question(T4, "fp32", "amp", "amp", judged=(KERNELS,))
    for before, after, factor in (("b4_s128", "b8_s128", 2), ("b8_s128", "b4_s128", 0.5)):
        yield Question(MOE, before, after, "batch-size", {"factor": factor}, judged=(KERNELS,))
    for before, after, length in (("b8_s128", "b8_s1024", 1024), ("b8_s1024", "b8_s128", 128)):
        yield Question(MOE, before, after, "sequence-length", {"length": length}, judged=(KERNELS,))
    both = {"factor": 2, "length": 1024}
    yield Question(MOE, "b4_s128", "b8_s1024", "sequence-length+batch-size", both, judged=(KERNELS,))
    for here in LENGTHS:
        for there in LENGTHS:
            longer = {"length": there}
            if here != there:
                yield Question(GPT, f"small_{here}", f"small_{there}", "sequence-length", longer)
    yield Question(HOPPER, "gh200_fp32", "h100_tf32_1", "tf32")


@dataclass(frozen=True)
class Row:
    """One question, judged by one measure; times in ns, of a step."""

    question: Question
    measure: str
    before_ns: float
    measured_ns: float
    predicted_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    refused: str = ""

    @property
    def error(self) -> float | None:
        """Relative error of the prediction."""
        return None if self.predicted_ns is None else self.predicted_ns / self.measured_ns - 1

    @property
    def holds(self) -> bool | None:
        """Whether the printed range holds the truth; None where no range was printed for this measure."""
        if self.low_ns is None or self.high_ns is None:
            return None
        return self.low_ns <= self.measured_ns <= self.high_ns

    @property
    def interval(self) -> str:
        """The printed range in ms, or why there is none."""
        return self.refused or " to ".join(_ms(ns) for ns in (self.low_ns, self.high_ns) if ns is not None)


def rows(traces: Path, only: str = "") -> Iterator[tuple[Row, Row]]:
    """Yield every question whose recordings are at hand, as shipped and without what its series was fitted to."""
    for question in questions():
        paths = [_path(traces, question.series, name) for name in (question.before, question.after)]
        if only in f"{question.series.folder}/{question.before} {question.asked}" and all(
            path.exists() for path in paths
        ):
            shipped = [*_judge(question, *paths)]
            refitted = held_out.without(traces, question.series.folder)
            with held_out.set_to(refitted):
                left_out = [*_judge(question, *paths)] if refitted else shipped
            yield from zip(shipped, left_out, strict=True)


def _path(traces: Path, series: Series, name: str) -> Path:
    return traces / "pairs" / series.folder / f"{name}{series.suffix}"


def _judge(question: Question, before: Path, after: Path) -> Iterator[Row]:
    truth = _truth(after, question.series.marker)
    was = _truth(before, question.series.marker)
    try:
        asked = daydream.whatif(_replay(before), question.name, **question.options)
    except DaydreamError as error:
        reason = " ".join(str(error).split())
        for measure in question.judged:
            yield Row(question, measure, was[measure], truth[measure], refused=reason)
        return
    for measure in question.judged:
        if measure == STEP:
            answer = asked.to_json()
            predicted, low, high = (
                answer[key] for key in ("predicted_ns", "predicted_low_ns", "predicted_high_ns")
            )
            reason = "" if predicted is not None else str(answer.get("reason") or "cannot be predicted")
            yield Row(question, STEP, was[STEP], truth[STEP], predicted, low, high, reason)
        else:
            yield Row(question, KERNELS, was[KERNELS], truth[KERNELS], _kernels(asked.graph, question))


@cache
def _replay(path: Path) -> Any:
    return daydream.replay(path).recording  # the truth was recorded with the profiler, too


@cache
def _truth(path: Path, marker: str | None) -> dict[str, float]:
    """Return the mean step and the kernels' time of a step, by the marker that the recording's authors wrote."""
    trace = daydream.load(path) if marker is None else daydream.load(path, step_marker=marker)
    covered = [n for n, step in enumerate(trace.metadata["steps"]) if step["covered"]]
    kernels = trace.is_kind("kernel")
    if marker is None:
        return {KERNELS: float(trace["duration_ns"][kernels].sum()), STEP: np.nan}
    mine = kernels & np.isin(trace["step"], covered)
    return {
        STEP: float(np.mean([trace.metadata["steps"][n]["measured_ns"] for n in covered])),
        KERNELS: float(trace["duration_ns"][mine].sum()) / len(covered),
    }


def _kernels(graph: Any, question: Question) -> float:
    """Return the kernels' time of a step of a changed graph, in ns."""
    chosen = graph.alive & (graph.columns["kind"] == KERNEL)
    if question.series.marker is None:
        return float(graph.columns["duration_ns"][chosen].sum())
    covered = [n for n, step in enumerate(graph.steps) if step["covered"]]
    chosen &= np.isin(graph.columns["step"], covered)
    return float(graph.columns["duration_ns"][chosen].sum()) / len(covered)


COLUMNS = (
    "series", "recorded", "asked", "judged", "before ms", "measured ms", "predicted ms", "90% interval", "error",
    "left out",
)  # fmt: skip


def page(found: list[tuple[Row, Row]]) -> Iterator[str]:
    """Yield the table; `left out` is the error without what the series was fitted to."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for row, left_out in found:
        question = row.question
        cells = [question.series.folder, f"{question.before} → {question.after}", question.asked, row.measure]
        cells += [_ms(ns) for ns in (row.before_ns, row.measured_ns, row.predicted_ns)]
        yield f"| {' | '.join([*cells, row.interval, _error(row), _error(left_out)])} |"


def _error(row: Row) -> str:
    return "miss" if row.error is None else f"{row.error:+.1%}{'' if row.holds is not False else ', outside'}"


def _ms(ns: float | None) -> str:
    return "" if ns is None or np.isnan(ns) else f"{ns / 1e6:,.3f}" if ns < 10e6 else f"{ns / 1e6:,.1f}"


def main() -> None:
    """Print the tables, or put them in their place on a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder with pairs/ of public traces")
    parser.add_argument(
        "--only", default="", help="only questions whose series, trace or words hold this text"
    )
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    options = parser.parse_args()
    keep(options.write, "gpu pairs", page(list(rows(options.traces, options.only))))


if __name__ == "__main__":
    main()
