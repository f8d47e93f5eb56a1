"""Write the rows of docs/accuracy.md to docs/evaluation: every trace and every failure, as CSV.

    python validation/accuracy.py --traces ../shared/traces --write docs/evaluation
    python validation/accuracy.py --traces ../shared/traces --ablation docs/evaluation     what each rule is worth

Without `--traces` the tables that need them are left out. `evaluation.py` makes the page's tables of the rows. The
machine model is in tests/machine: an exact model of a training machine that is run
again with the change, so the true answer is known.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import gpu_pairs
import ledger
import ledger_plot
import numpy as np
import own_changes
import ranges
import thresholds
from machine import Machine
from machine.blocked import LOADERS
from machine.harder import HARDER
from machine.programs import PROGRAMS
from tables import keep

import daydream
from daydream.graph.build import RULES
from daydream.simulate.steady_state import settle

TRAINING = (
    "a100_resnet_ddp_rank0of2",
    "v100_recsys_rank1of2_copy_waits",
    "mi300x_resnet_ddp_checkpoint_rank0of8",
    "v100_resnet50_loader_workers_0",
    "v100_resnet50_loader_workers_4",
    "rtx2080ti_linear_40_iterations",
    "rtx2080ti_resnet_30_iterations",
    "gpu_user_annotation",
    "mi250_toy_training",
    "v100_dlrm_4_of_8_ranks",
)
CHANGES = {
    "GPU x 0": {"gpu": 0.0},
    "GPU x 0.5": {"gpu": 0.5},
    "GPU x 2": {"gpu": 2.0},
    "CPU x 0": {"cpu": 0.0},
    "CPU x 0.5": {"cpu": 0.5},
}
WINDOWS = {"settled": (24, 27), "cold start": (0, 3)}


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, help="folder with kineto/, nsys/ and odd/ of public traces")
    parser.add_argument("--write", type=Path, help="the folder of CSV files; standard output without it")
    parser.add_argument("--ablation", type=Path, help="the folder that gets the table of rules alone")
    options = parser.parse_args()
    if options.ablation:
        keep(options.ablation, "ablation", _ablation(options.traces))
        return
    found = ledger.predicted(options.traces)
    for name, lines in _parts(options.traces, found):
        keep(options.write, name, lines)
    if options.write:
        ledger_plot.write(found, options.write.parent / "accuracy.svg")


def _parts(traces: Path | None, found: ledger.Ledger) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the tables with their names."""
    loaded = {} if traces is None else dict(_load(traces))
    if loaded:
        yield "replays", _replays(loaded)
    with tempfile.TemporaryDirectory() as folder:
        if loaded:
            yield "steady steps", _steady(loaded)
        yield "machine model", _table(_machines(Path(folder), PROGRAMS))
        yield "hard machines", _table(_machines(Path(folder), {**HARDER, **LOADERS}))
        if traces is not None:
            yield "ablation", _ablation(traces)
            yield "thresholds", thresholds.part(traces, Path(folder) / "answers.json")
            yield "gpu pairs", gpu_pairs.page(list(gpu_pairs.rows(traces)))
    yield from ledger.tables(found)
    yield "ranges", ranges.table(found.pairs())
    yield "own changes", own_changes.table(json.loads(own_changes.MEASURED.read_text()))


def _load(traces: Path) -> Iterator[tuple[str, daydream.Trace]]:
    for name in TRAINING:
        path = traces / "kineto" / f"{name}.json.gz"
        source = path if path.exists() else traces / "kineto" / name
        if source.exists():
            yield name, daydream.load(source)
    for path in sorted((traces / "nsys").glob("*.sqlite.gz")):
        yield f"nsys/{path.name.removesuffix('.sqlite.gz')}", daydream.load(path)
    for path in sorted((traces / "kineto").glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        if name not in TRAINING:
            yield name, daydream.load(path)
    for path in sorted((traces / "odd").glob("cpu_only.json.gz")):
        yield "odd/cpu_only", daydream.load(path)


def _replays(loaded: dict[str, daydream.Trace]) -> Iterator[str]:
    yield "| trace | steps | measured ms | replay median | worst | kernel start p50, p95 us | typical costs: median | worst | waits | queue |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name, trace in loaded.items():
        try:
            result = daydream.replay(trace)
            typical = daydream.replay(daydream.build(trace, without=["latencies"]))
        except daydream.GraphError as error:
            yield f"| `{name}` | refused: {' '.join(str(error).split('. ')[0].split())} |" + " |" * 8
            continue
        facts = result.graph.facts
        waits = facts.event_waits
        depth = (
            ""
            if facts.queue_depth is None
            else f"{facts.queue_depth:,}{'' if facts.queue_learned else ' assumed'}"
        )
        start = result.start_error_ns
        yield (
            f"| `{name}` | {len(result.steps)} | {result.measured_ns / 1e6:,.2f} | {result.error:+.3%} "
            f"| {result.max_error:.3%} | {start['p50'] / 1e3:.1f}, {start['p95'] / 1e3:.1f} "
            f"| {typical.error:+.2%} | {typical.max_error:.2%} "
            f"| {waits['recorded']} / {waits['inferred']} / {waits['unresolved']} | {depth} |"
        )


def _steady(loaded: dict[str, daydream.Trace]) -> Iterator[str]:
    yield "| trace | steps | lowest | highest |"
    yield "|---|---|---|---|"
    for name, trace in loaded.items():
        if not (name in TRAINING or name.startswith("nsys/")):
            continue
        try:
            before = daydream.replay(trace)
            after = daydream.whatif(before, "scale", on="gpu", factor=0.5)
        except daydream.DaydreamError:
            continue
        usual = before.basis_ns
        rows = [row for row in after.to_json()["steps"] if row["predicted_ns"]]
        ratios = [
            row["replayed_ns"] / row["predicted_ns"]
            for row in rows
            if abs(row["replayed_ns"] / usual - 1) <= 0.25
        ]
        if len(ratios) > 1:
            yield f"| `{name}` | {len(ratios)} | {min(ratios):.3f}x | {max(ratios):.3f}x |"


ALWAYS = {"threads", "streams", "typical", "latencies", "fused"}  # no answer without them, or no heuristics
ABLATED = (
    "kineto/*.json.gz", "kineto/v100_dlrm_4_of_8_ranks", "nsys*/*.gz", "pairs/*/*.gz", "cases/*.gz",
    "cases/h100_modded_nanogpt_2025_12_8ranks", "rocprof/*.gz", "formats/kineto_*/*.json.gz",
    "formats/kineto_distributed/mi300_ddp_4ranks_unfused", "formats/jax/*.pb.gz",
)  # fmt: skip
SHOWN = {
    "ViT": "dali.sqlite.gz", "MoE": "h800_deepseek_train_dualpipe_rank0of64.json.gz", "8 ranks":
    "h100_modded_nanogpt_2025_12_8ranks", "no launches": "mi350x_rocprofv3_results.json.gz",
}  # fmt: skip
Machines = dict[tuple[str, str], tuple[daydream.Trace, dict[str, float]]]


def _machines(folder: Path, programs: Mapping[str, Callable[[], Machine]]) -> Machines:
    """Return, by program and window, its trace and the true step of each change, in ns."""
    machines = {}
    for program, make in programs.items():
        machine = make()
        truths = {change: machine.run(**knobs).steady_step_ns() for change, knobs in CHANGES.items()}
        for window, (first, last) in WINDOWS.items():
            path = machine.run(steps=last + 2).write(folder / f"{program}.json.gz", first, last)
            machines[program, window] = daydream.load(path), truths
    return machines


def _errors(trace: daydream.Trace, truths: dict[str, float], without: Iterable[str] = ()) -> dict[str, float]:
    graph = daydream.build(trace, without=list(without))
    before = daydream.replay(graph).recording  # the machine has no profiler
    errors = {}
    for change, knobs in CHANGES.items():
        ((on, factor),) = knobs.items()
        predicted = daydream.whatif(before, "scale", on=on, factor=factor).simulated_ns
        errors[change] = predicted / truths[change] - 1
    return errors


def _table(machines: Machines) -> Iterator[str]:
    yield "| machine | window | " + " | ".join(CHANGES) + " |"
    yield "|---|---|" + "---|" * len(CHANGES)
    for (program, window), (trace, truths) in machines.items():
        errors = _errors(trace, truths)
        yield f"| {program} | {window} | " + " | ".join(f"{error:+.2%}" for error in errors.values()) + " |"


def _ablation(traces: Path) -> Iterator[str]:
    paths = [path for pattern in ABLATED for path in sorted(traces.glob(pattern))]
    paths += sorted((ROOT / "validation").glob("h[12]00/*.parquet"))
    judged = {}
    for path in paths:
        with contextlib.suppress(daydream.DaydreamError):
            judged[path.name] = daydream.load(path)
            daydream.replay(judged[path.name])
    late, even = (daydream.load(ROOT / f"validation/gloo/{name}.parquet") for name in ("late", "even"))
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
        replays = [found[name][0] for name in usual]
        moved = sum(not abs(found[name][1] / gain - 1) < 0.01 for name, (_, gain) in usual.items())
        errors: list[float] = []
        for program, (trace, truths) in machines.items():
            errors += _once(known, repr(program), trace, without, partial(_machine_errors, truths))
        step = daydream.whatif(daydream.build(late, without=without), "scale", name="^late$", factor=0)
        cells = [f"{statistics.mean(replays):.2%}", f"{np.nanmax(replays):.2%}", f"{moved}"]
        cells += [f"{statistics.mean(errors):.2%}", f"{max(errors):.2%}"]
        cells += [f"{found[name][1]:.2f}x" for name in SHOWN.values()]
        rows.append(f"|{'|'.join([rule, *cells, f'{step.simulated_ns / 1e6:,.1f}'])}|")
    yield f"{len(usual)} recordings.\n"
    titles = ["left out", "replay, mean", "worst", "moved", "machine model, mean", "worst", *SHOWN]
    yield f"| {' | '.join(titles)} | late rank, of {daydream.replay(even).basis_ns / 1e6:,.1f} ms |"
    yield "|---" * (len(titles) + 1) + "|"
    yield from rows


def _once(
    known: dict[tuple[str, int], Sequence[float]], name: str, trace: daydream.Trace,
    without: list[str], figures: Callable[[daydream.Trace, list[str]], Sequence[float]],
) -> Sequence[float]:  # fmt: skip
    """Return figures of a trace without some rules; of equal graphs they are worked out once."""
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


if __name__ == "__main__":
    main()
