"""Is the simulation right? Replays of public traces, the machine model's true answers, and what each rule is worth.

The machine model (`tests/machine`) is an exact model of a training machine that runs again with the change, so the
true answer is known. Tables of `evaluate.py`.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from machine import Machine
from machine.blocked import LOADERS
from machine.harder import HARDER
from machine.programs import PROGRAMS

import daydream
from daydream.graph.build import RULES
from daydream.simulate.steady_state import settle

TRAINING = {
    "a100_resnet_ddp_rank0of2", "v100_recsys_rank1of2_copy_waits", "mi300x_resnet_ddp_checkpoint_rank0of8",
    "v100_resnet50_loader_workers_0", "v100_resnet50_loader_workers_4", "rtx2080ti_linear_40_iterations",
    "rtx2080ti_resnet_30_iterations", "gpu_user_annotation", "mi250_toy_training", "v100_dlrm_4_of_8_ranks",
}  # fmt: skip
REPLAYED = ("kineto/*", "nsys/*.sqlite.gz", "odd/cpu_only.json.gz")
CHANGES = {
    "GPU x 0": ("gpu", 0.0), "GPU x 0.5": ("gpu", 0.5), "GPU x 2": ("gpu", 2.0), "CPU x 0": ("cpu", 0.0),
    "CPU x 0.5": ("cpu", 0.5),
}  # fmt: skip
WINDOWS = {"settled": (24, 27), "cold start": (0, 3)}
ALWAYS = {"threads", "streams", "typical", "latencies", "fused"}  # no answer without them, or no heuristics
ABLATED = (
    "kineto/*.json.gz", "kineto/v100_dlrm_4_of_8_ranks", "nsys*/*.gz", "pairs/*/*.gz", "cases/*.gz",
    "cases/h100_modded_nanogpt_2025_12_8ranks", "rocprof/*.gz", "formats/kineto_*/*.json.gz",
    "formats/kineto_distributed/mi300_ddp_4ranks_unfused", "formats/jax/*.pb.gz",
)  # fmt: skip
Table = tuple[str, list[dict[str, str]]]
Machines = dict[tuple[str, str], tuple[daydream.Trace, dict[str, float]]]


def replays(traces: Path | None) -> Iterator[Table]:
    """Yield replays of public traces, as they are and with all latencies typical, and how steady a what-if is."""
    if traces is None:
        return
    rows: list[dict[str, str]] = []
    steady: list[dict[str, str]] = []
    for path in (path for pattern in REPLAYED for path in sorted(traces.glob(pattern))):
        name = path.name.partition(".")[0]
        if path.is_dir() and name not in TRAINING:
            continue
        name = name if path.parent.name == "kineto" else f"{path.parent.name}/{name}"
        try:
            trace = daydream.load(path)
            result = daydream.replay(trace)
            typical = daydream.replay(daydream.build(trace, without=["latencies"]))
        except daydream.DaydreamError as error:
            rows.append({"trace": name, "steps": f"refused: {' '.join(str(error).split('. ')[0].split())}"})
            continue
        row = {
            "trace": name,
            "steps": str(len(result.steps)),
            "measured ms": f"{result.measured_ns / 1e6:.2f}",
        }
        row |= {"replay median": f"{result.error:+.3%}", "worst": f"{result.max_error:.3%}"}
        row["typical costs: median"] = f"{typical.error:+.2%}"
        row["typical costs: worst"] = f"{typical.max_error:.2%}"
        rows.append(row)
        if name in TRAINING or name.startswith("nsys/"):
            steady += _steady(name, result)
    rows.sort(key=lambda row: len(row) == 2)  # columns are those of the first row
    yield "replays", rows
    yield "steady_steps", steady


def _steady(name: str, before: daydream.Replay) -> Iterator[dict[str, str]]:
    """Yield the least and most that twice as fast a GPU gives of the steps of usual length."""
    with contextlib.suppress(daydream.DaydreamError):
        after = daydream.whatif(before, "scale", on="gpu", factor=0.5)
        ratios = [
            one["replayed_ns"] / one["predicted_ns"]
            for one in after.to_json()["steps"]
            if one["predicted_ns"] and abs(one["replayed_ns"] / before.basis_ns - 1) <= 0.25
        ]
        if len(ratios) > 1:
            ends = {"lowest": f"{min(ratios):.3f}x", "highest": f"{max(ratios):.3f}x"}
            yield {"trace": name, "steps": str(len(ratios)), **ends}


def machine_model(_traces: Path | None) -> Iterator[Table]:
    """Yield the errors on programs of the machine model, common ones and hard ones."""
    with tempfile.TemporaryDirectory() as folder:
        for name, programs in (("machine_model", PROGRAMS), ("hard_machines", {**HARDER, **LOADERS})):
            yield name, [
                {"machine": program, "window": window}
                | {change: f"{error:+.2%}" for change, error in _errors(*known).items()}
                for (program, window), known in _machines(Path(folder), programs).items()
            ]  # fmt: skip


def _machines(folder: Path, programs: Mapping[str, Callable[[], Machine]]) -> Machines:
    """Return, by program and window, its trace and the true step of each change, in ns."""
    machines = {}
    for program, make in programs.items():
        machine = make()
        truths = {title: machine.run(**{on: by}).steady_step_ns() for title, (on, by) in CHANGES.items()}
        for window, (first, last) in WINDOWS.items():
            path = machine.run(steps=last + 2).write(folder / f"{program}.json.gz", first, last)
            machines[program, window] = daydream.load(path), truths
    return machines


def _errors(trace: daydream.Trace, truths: dict[str, float], without: Sequence[str] = ()) -> dict[str, float]:
    graph = daydream.build(trace, without=list(without))
    before = daydream.replay(graph).recording  # the machine has no profiler
    asked = {title: daydream.whatif(before, "scale", on=on, factor=by) for title, (on, by) in CHANGES.items()}
    return {title: one.simulated_ns / truths[title] - 1 for title, one in asked.items()}


def ablation(traces: Path | None) -> Iterator[Table]:
    """Yield what each rule of the graph is worth: replays, what-ifs and the machine model without it."""
    if traces is None:
        return
    judged = {}
    paths = [path for pattern in ABLATED for path in sorted(traces.glob(pattern))]
    for path in [*paths, *sorted((ROOT / "validation").glob("h[12]00/*.parquet"))]:
        with contextlib.suppress(daydream.DaydreamError):
            judged[path.name] = daydream.load(path)
            daydream.replay(judged[path.name])
    late = daydream.load(ROOT / "validation/gloo/late.parquet")
    with tempfile.TemporaryDirectory() as folder:
        machines = _machines(Path(folder), {**PROGRAMS, **LOADERS, **HARDER})
    known: dict[tuple[str, int], Sequence[float]] = {}
    usual: dict[str, Sequence[float]] = {}
    rows = []
    named = dict.fromkeys(part for name, _ in RULES for part in (name.split(".")[0], name))
    for rule in ("nothing", *(name for name in named if name not in ALWAYS)):
        without = [rule] * (rule != "nothing")
        found = {name: _once(known, name, trace, without, _figures) for name, trace in judged.items()}
        usual = usual or {name: each for name, each in found.items() if not np.isnan(each).any()}
        moved = sum(not abs(found[name][1] / gain - 1) < 0.01 for name, (_, gain) in usual.items())
        errors: list[float] = []
        for program, (trace, truths) in machines.items():
            errors += _once(known, repr(program), trace, without, partial(_machine_errors, truths))
        step = daydream.whatif(daydream.build(late, without=without), "scale", name="^late$", factor=0)
        missed = [found[name][0] for name in usual]
        rows.append({
            "left out": rule, "replay, mean": f"{mean(missed):.2%}", "worst": f"{np.nanmax(missed):.2%}",
            "moved": str(moved), "recordings": str(len(usual)), "machine model, mean": f"{mean(errors):.2%}",
            "machine model, worst": f"{max(errors):.2%}", "late rank, ms": f"{step.simulated_ns / 1e6:.1f}",
        })  # fmt: skip
    yield "ablation", rows


def _once(
    known: dict[tuple[str, int], Sequence[float]], name: str, trace: daydream.Trace, without: list[str],
    figures: Callable[[daydream.Trace, list[str]], Sequence[float]],
) -> Sequence[float]:  # fmt: skip
    """Return figures of a trace without some rules; of equal graphs they are computed once."""
    graph = daydream.build(trace, without=without)
    tables = (graph.columns, graph.links, graph.waits, graph.syncs)
    columns = [np.asarray(table[name]).tobytes() for table in tables for name in table]
    key = name, hash((*columns, repr(graph.lanes), repr(graph.queue_depth)))
    if key not in known:
        known[key] = figures(trace, without)
    return known[key]


def _machine_errors(truths: dict[str, float], trace: daydream.Trace, without: list[str]) -> Sequence[float]:
    return [abs(error) for error in _errors(trace, truths, without).values()]


def _figures(trace: daydream.Trace, without: list[str]) -> Sequence[float]:
    """Return the replay's error with typical costs, and what twice as fast a device gives."""
    try:
        replay = daydream.replay(daydream.build(trace, without=without))
        typical = daydream.replay(daydream.build(trace, without=[*without, "latencies"]))
        changed = replay.graph.copy()
        changed.select(on="gpu").scale(0.5)
        return abs(typical.error), replay.settled.step_ns / settle(changed).step_ns
    except daydream.DaydreamError:
        return np.nan, np.nan


TABLES: dict[str, Callable[[Path | None], Iterator[Table]]] = {
    "replays": replays, "machine_model": machine_model, "ablation": ablation,
}  # fmt: skip
