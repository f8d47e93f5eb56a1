"""Predicted peak memory against what was measured: real changes on a CPU, public pairs of a GPU.

    python validation/memory_accuracy.py --traces ../shared/traces                             the table on stdout
    python validation/memory_accuracy.py --traces ../shared/traces --write docs/evaluation     as CSV

`memory_peaks/peaks.json` holds what was measured (`memory_pairs.py`), the traces beside it are all that a
prediction may know. A refusal counts as a miss of 100 %.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpu_recordings import CHANGES as ON_GPUS
from memory_changes import CHANGES, UNCHANGED
from tables import keep

import daydream
from daydream.errors import DaydreamError
from daydream.memory.allocations import Allocations
from daydream.memory.prediction import MemoryPrediction, changed, memory_after
from daydream.predict.memory import held_now
from daydream.trace.schema import PHASES
from daydream.transforms.compose import memory_changes, parse

HERE = Path(__file__).parent / "memory_peaks"
MIB = 2**20
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
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    options = parser.parse_args()
    found = [row for row in rows() if row.title != UNCHANGED]
    groups = {
        "one process": [row for row in found if not row.steps],
        "two ranks": [row for row in found if row.steps],
        "GPUs": list(on_gpus()),
        "public pairs": list(of_gpus(options.traces)),
    }
    keep(options.write, "memory", table(groups))


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


COLUMNS = (
    "group", "role", "of", "change", "before MiB", "measured MiB", "of the steps", "measured in", "predicted MiB",
    "predicted in", "low MiB", "high MiB", "error", "inside", "refused",
)  # fmt: skip


def table(groups: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Yield the lines of the table: a row a change, group by group."""
    yield f"| {' | '.join(COLUMNS)} |"
    yield "|---" * len(COLUMNS) + "|"
    for group, row in ((group, row) for group, rows in groups.items() for row in rows):
        steps = f"{_mib(row.steps[0])} to {_mib(row.steps[1])}" if len(set(row.steps)) > 1 else ""
        cells = [group, row.role, row.of, row.title, _mib(row.before), _mib(row.measured), steps, row.phase]
        if row.predicted is None:
            cells += ["", "", "", "", f"{row.error:+.2%}", "no", row.refused]
        else:
            cells += [_mib(row.predicted), row.predicted_phase, _mib(row.low), _mib(row.high)]
            cells += [f"{row.error:+.2%}", "yes" if row.holds else "no", ""]
        yield f"| {' | '.join(cells)} |"


def _mib(nbytes: int) -> str:
    return f"{nbytes / MIB:,.2f}" if nbytes < 1000 * MIB else f"{nbytes / MIB:,.1f}"


if __name__ == "__main__":
    main()
