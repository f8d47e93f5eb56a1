"""Predicted peak memory against what was measured: real changes on a CPU, public pairs of a GPU.

    python validation/memory_accuracy.py --traces ../shared/traces                                     the page on stdout
    python validation/memory_accuracy.py --traces ../shared/traces --write docs/memory_accuracy.md     on the page

`memory_peaks/peaks.json` holds what was measured (`memory_pairs.py`), the traces beside it are all that a
prediction may know. A refusal counts as a miss of 100 %.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gpu_recordings import CHANGES as ON_GPUS
from memory_changes import CHANGES, UNCHANGED
from parts_of_pages import put

import daydream
from daydream.errors import DaydreamError
from daydream.memory.allocations import Allocations
from daydream.memory.prediction import MemoryPrediction, changed, memory_after
from daydream.predict.memory import held_now
from daydream.trace.schema import PHASES
from daydream.transforms.compose import memory_changes, parse

HERE = Path(__file__).parent / "memory_peaks"
MIB = 2**20
MOVED = 0.05
DEVELOPED, JUDGED = "development", "judgement"  # looked at while models were made, or not
FOUND_HERE = {"convnext"}  # of the H100: what a factor of 32 bits does to the types behind it was seen there
CPU = 0  # the device type of a row
T4, MOE, HOPPER = "pairs/t4_mlp_amp", "pairs/a100_switch_moe", "pairs/hopper_tf32"
PARTICLES = "kineto/a100_particle_transformer_forward_batch"


@dataclass(frozen=True)
class Row:
    """A change of a model or of a public recording: bytes before, measured after, predicted after."""

    of: str
    title: str
    role: str
    before: int
    measured: int
    phase: str
    predicted: int | None = None
    predicted_phase: str = ""
    low: int = 0
    high: int = 0
    refused: str = ""
    steps: tuple[int, ...] = ()  # the least and most of steps that differ

    @property
    def error(self) -> float:
        """Relative error of the predicted peak; a refusal is 100 % off."""
        return 1.0 if self.predicted is None else self.predicted / self.measured - 1

    @property
    def holds(self) -> bool:
        """Whether the range holds what was measured, to the byte."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Measured:
    """One change of one model: the trace before it, the question, peaks in bytes."""

    model: str
    title: str
    role: str
    trace: Path
    optimization: str
    options: dict[str, Any]
    before: int
    after: int


def measured_on_gpus() -> Iterator[Measured]:
    """Yield every change whose peak was measured, but for graphs whose replays allocate nothing."""
    folder = HERE.parent / "h200" / "after"
    for model, peaks in json.loads((folder / "steps.json").read_text(encoding="utf-8")).items():
        for variant, (title, name, options) in ON_GPUS.items():
            if variant in peaks:
                before, after = (peaks[each]["peak_allocated_bytes"] for each in ("base", variant))
                trace = folder / f"{model}-base_memory.parquet"
                yield Measured(f"H200 {model}", title, DEVELOPED, trace, name, options, before, after)
    folder = HERE.parent / "h100"
    document = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    for model, recordings in {**document["recordings"], **document["unsteady"]}.items():
        role = DEVELOPED if model in FOUND_HERE else JUDGED
        for one in recordings:
            for title, change in one["changes"].items():
                if "peak_bytes" in change and change["optimization"] != "cuda-graphs":
                    yield Measured(
                        f"H100 {model}", title, role, folder / one["trace"], change["optimization"],
                        change["options"], one["peak_bytes"], change["peak_bytes"],
                    )  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """Two recordings, what was changed between them, and the question that a person would ask."""

    before: str
    after: str
    optimization: str
    options: dict[str, Any]
    role: str

    @property
    def title(self) -> str:
        """Both recordings, short."""
        names = [Path(path).name.removesuffix(".json.gz") for path in (self.before, self.after)]
        return f"{Path(self.before).parent.name} {names[0]} → {names[1]}"

    @property
    def asked(self) -> str:
        """The question as it is typed."""
        return " ".join([self.optimization, *(f"--{name} {value:g}" for name, value in self.options.items())])


def pairs() -> Iterator[Pair]:
    """Yield every pair and direction."""
    for name in ("autocast+grad-scaler", "amp"):
        yield Pair(f"{T4}/fp32.json.gz", f"{T4}/amp.json.gz", name, {}, DEVELOPED)
    small, large, long = (f"{MOE}/{name}.json.gz" for name in ("b4_s128", "b8_s128", "b8_s1024"))
    yield Pair(small, large, "batch-size", {"factor": 2.0}, DEVELOPED)
    yield Pair(large, small, "batch-size", {"factor": 0.5}, DEVELOPED)
    yield Pair(large, long, "sequence-length", {"length": 1024}, JUDGED)
    yield Pair(long, large, "sequence-length", {"length": 128}, JUDGED)
    yield Pair(small, long, "sequence-length+batch-size", {"factor": 2.0, "length": 1024}, JUDGED)
    # Events are padded to the longest of the batch: 43 particles among 8 events, 128 among 128.
    few, many = (f"{PARTICLES}{batch}.json.gz" for batch in (8, 128))
    both = "sequence-length+batch-size"
    yield Pair(few, many, both, {"factor": 16.0, "length": 128}, DEVELOPED)
    yield Pair(many, few, both, {"factor": 1 / 16, "length": 43}, DEVELOPED)
    yield Pair(f"{HOPPER}/gh200_fp32.json.gz", f"{HOPPER}/h100_tf32_1.json.gz", "tf32", {}, JUDGED)


def peak_bytes(path: Path) -> int:
    """Return the most of what a recording says is allocated on a GPU at once."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = json.load(file)["traceEvents"]
    rows = [row["args"] for row in found if row.get("name") == "[memory]"]
    return int(max(row["Total Allocated"] for row in rows if row["Device Type"] != CPU))


def main() -> None:
    """Print the page, or write its part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, help="folder with pairs/ and kineto/ of public traces")
    parser.add_argument("--write", type=Path, help="the page whose part between the markers is replaced")
    options = parser.parse_args()
    for name, lines in parts(list(rows()), list(of_gpus(options.traces)), list(on_gpus())):
        put(options.write, name, lines)


def measured() -> dict[str, Any]:
    """Return the document of what was measured."""
    document: dict[str, Any] = json.loads((HERE / "peaks.json").read_text(encoding="utf-8"))
    return document


def rows() -> Iterator[Row]:
    """Yield every measured change, predicted from the trace of the unchanged step; that step itself first."""
    for model, recording in measured()["recordings"].items():
        path = HERE / recording["trace"]
        peaks = recording["peaks"]
        for title, one in peaks.items():
            row = Row(
                model,
                title,
                recording["role"],
                peaks[UNCHANGED]["peak_bytes"],
                one["peak_bytes"],
                one["phase"],
            )
            if title in CHANGES and CHANGES[title].ranks > 1:
                row = _with(row, steps=tuple(one["steps_bytes"]))
            yield _predicted(row, path, one.get("optimization"), one.get("options", {}))


def on_gpus() -> Iterator[Row]:
    """Yield the changes made on GPUs of ours that change memory at all."""
    for one in measured_on_gpus():
        row = Row(one.model, one.title, one.role, one.before, one.after, "")
        row = _predicted(row, one.trace, one.optimization, one.options)
        if row.refused or row.low != row.high:
            yield row


def of_gpus(traces: Path | None) -> Iterator[Row]:
    """Yield the public pairs that are at hand."""
    for pair in pairs():
        paths = [] if traces is None else [traces / pair.before, traces / pair.after]
        if paths and all(path.exists() for path in paths):
            before, after = (peak_bytes(path) for path in paths)
            row = Row(pair.title, pair.asked, pair.role, before, after, "")
            yield _predicted(row, paths[0], pair.optimization, pair.options)


def _predicted(row: Row, path: Path, name: str | None, options: dict[str, Any]) -> Row:
    """Return the row with what is predicted; without a name the recorded step as it is."""
    try:
        held = held_now(_trace(path))
        changes = [] if name is None else memory_changes(parse(name), options)
        found: MemoryPrediction = memory_after(held, changes)
        return _with(
            row, predicted=found.after_bytes, low=found.low_bytes, high=found.high_bytes,
            predicted_phase=_phase(changed(held, changes), found),
        )  # fmt: skip
    except DaydreamError as error:
        return _with(row, refused=" ".join(str(error).split()))


def _phase(held: Allocations, found: MemoryPrediction) -> str:
    """Return the phase in which the most is held of the device that a prediction is of."""
    names = ["cpu" if device < 0 else f"cuda:{device}" for _, device in held.devices()]
    rank, device = held.devices()[names.index(found.device)]
    begun = held["phase"][held["begin"] == held.peak(rank, device)[1]]
    return str(PHASES[begun[0]]) if len(begun) and begun[0] >= 0 else ""


def _with(row: Row, **fields: Any) -> Row:
    return Row(**{**vars(row), **fields})


@cache
def _trace(path: Path) -> daydream.Trace:
    return daydream.load(path)


def parts(found: list[Row], public: list[Row], on_gpu: list[Row]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the parts of the page with their names."""
    changes = [row for row in found if row.title != UNCHANGED]
    alone = [row for row in changes if not row.steps]
    ranks = [row for row in changes if row.steps]
    yield (
        "memory",
        [
            _checked(),
            _where(alone),
            "## How far off\n",
            *_summaries(alone, "one process", lambda row: row.role),
            *_summaries(alone, "change", lambda row: row.title, by_role=True),
            *_summaries(alone, "model", lambda row: f"{row.of} ({row.role})"),
            "## Rows that judge\n",
            *_table([row for row in found if row.role == "judgement" and not row.steps]),
            "## Rows for development\n",
            *_table([row for row in found if row.role == "development" and not row.steps]),
        ],
    )
    yield "memory of two ranks", [*_summaries(ranks, "two ranks", lambda row: row.role), *_table(ranks)]
    yield (
        "memory on GPUs",
        [
            *_summaries(on_gpu, "GPUs", lambda row: row.role),
            *_summaries(on_gpu, "change", lambda row: row.title, by_role=True),
            *_table(on_gpu),
        ],
    )
    yield "memory of public pairs", [*_summaries(public, "pairs", lambda row: row.role), *_table(public)]


def _table(found: Sequence[Row]) -> Iterator[str]:
    yield "| of | change | before MiB | measured MiB, in | predicted MiB, in | range MiB | error |"
    yield "|---|---|---:|---|---|---|---:|"
    for row in found:
        measured = _mib(row.measured)
        if len(set(row.steps)) > 1:
            measured += f" ({_mib(row.steps[0])} to {_mib(row.steps[1])})"
        head = f"| {row.of} | {row.title} | {_mib(row.before)} | {measured} {row.phase} |"
        if row.predicted is None:
            yield f"{head} refused: {row.refused} | | miss |"
            continue
        band = "" if _mib(row.low) == _mib(row.high) else f"{_mib(row.low)} to {_mib(row.high)}"
        outside = "" if row.holds else f"{band and ', '}outside"
        yield f"{head} {_mib(row.predicted)} {row.predicted_phase} | {band}{outside} | {row.error:+.1%} |"
    yield ""


def _summaries(
    found: Sequence[Row], head: str, of: Callable[[Row], str], *, by_role: bool = False
) -> Iterator[str]:
    for role in (JUDGED, DEVELOPED) if by_role else ("",):
        said = f" ({role})" if role else ""
        chosen = [row for row in found if role in {"", row.role}]
        yield f"| {head}{said} | rows | refused | median | 90th percentile | worst | inside the range |"
        yield "|---|---:|---:|---:|---:|---:|---:|"
        for group in dict.fromkeys(map(of, chosen)):
            yield _summary(group, [row for row in chosen if of(row) == group])
        yield ""


def _summary(group: str, found: Sequence[Row]) -> str:
    errors = [abs(row.error) for row in found]
    refused = sum(row.predicted is None for row in found)
    worst = max(found, key=lambda row: abs(row.error))
    inside = sum(row.holds for row in found)
    return (
        f"| {group} | {len(found)} | {refused} | {median(errors):.1%} | {float(np.quantile(errors, 0.9)):.1%} "
        f"| {worst.error:+.1%} ({worst.of}, {worst.title}) | {inside} of {len(found)} |"
    )


def _checked() -> str:
    """Return what says how sure the truth is: A/A, tensors, and the count below torch."""
    found = [
        (one, title in CHANGES and CHANGES[title].ranks > 1)
        for recording in measured()["recordings"].values() for title, one in recording["peaks"].items()
    ]  # fmt: skip
    again = [abs(one["again_bytes"] / one["peak_bytes"] - 1) for one, _ in found]
    alone = [one for one, ranks in found if not ranks]
    same = sum(one["counted_bytes"] == one["peak_bytes"] for one in alone)
    off = max(abs(one["counted_bytes"] / one["peak_bytes"] - 1) for one in alone)
    beyond = [one["with_onednn_bytes"] / one["peak_bytes"] - 1 for one in alone]
    untold = max(abs(one["held_by_no_tensor_bytes"]) for one in alone)
    return (
        f"How sure is the truth? A second recording differs by {max(again):.2%} at most, over {len(again)} rows. "
        f"Counted below torch, without a profiler, {same} of {len(alone)} peaks of one process are the same to "
        f"the byte, none is more than {off:.2%} off. Between steps {untold:,} bytes at most are held by anything but "
        f"parameters, buffers, gradients and optimizer state. What oneDNN takes for itself is in no figure: "
        f"{median(beyond):.1%} of the peak in the median, {max(beyond):.1%} at most.\n"
    )


def _where(found: Sequence[Row]) -> str:
    """Return how far off rows are that move, and in how many the peak is in the phase where it was measured."""
    known = [row for row in found if row.predicted is not None]
    same = sum(row.phase == row.predicted_phase for row in known)
    moved = [row for row in found if abs(row.measured / row.before - 1) > MOVED]
    errors = [abs(row.error) for row in moved]
    stays = [abs(row.before / row.measured - 1) for row in moved]
    return (
        f"Rows in which nothing moves are easy. In {len(moved)} of the {len(found)} rows of one process the measured peak moves by "
        f"more than {MOVED:.0%}: over these the median error is {median(errors):.1%}, the 90th percentile "
        f"{float(np.quantile(errors, 0.9)):.1%}, the worst {max(errors):.1%}; who says that the peak stays is "
        f"{median(stays):.0%} off in the median. The peak is predicted in the phase where it was measured in "
        f"{same} of {len(known)} rows.\n"
    )


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.2f}" if nbytes < 1000 * MIB else f"{nbytes / MIB:,.1f}"


if __name__ == "__main__":
    main()
