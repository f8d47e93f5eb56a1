"""Sweeps and imports of many ranks on other engines, against this one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from results import Aim, Part, Settings, Table, alone, control, say
from timing import take_turns, times_faster
from traces import REPOSITORY, SHARED, sources

import daydream
from daydream.parallel import keep_freed_memory
from daydream.trace.trace import Trace

MATRIX = [1 + number / 4 for number in range(20)]
MEMORY = [1 + number / 4 for number in range(10)]
OPTIMIZATION = "amp"
EXAMPLE = REPOSITORY / "examples" / "synthetic_gpt_gpu.json.gz"
RANKS = SHARED / "v100_dlrm_4_of_8_ranks"
COPIES = 8  # of one large file, as ranks of a job
PROCESSES, DASK = "processes:2", "dask:2"

METHOD = f"""\
A sweep of `{OPTIMIZATION}` over {len(MATRIX)} x {len(MEMORY)} values of its factors: `daydream.sweep` on a
loaded trace with each engine, everything included: graph and replay, starting the workers, sending the trace,
building its graph again in each of them, collecting the answers, ending the workers. This process keeps
freed memory, as the command and the workers do. Imports are
`daydream.load` of the files of several ranks. Answers are checked to be equal first. *Start-up* is a sweep
of two scenarios less what one process takes for it. Two workers on two cores: 2 would be perfect. A/A is
one process against itself."""

SWEEP = {
    "name": "trace",
    "rows": "rows",
    "scenarios": "scenarios",
    "each_ms": "one scenario, ms",
    "local_s": "one process, s",
    "processes_s": f"{PROCESSES}, s",
    "processes_start_s": "of it start-up, s",
    "processes": "times faster",
    "dask_s": f"{DASK}, s",
    "dask_start_s": "of it start-up, s",
    "dask": "times faster",
    "control": "A/A",
}
IMPORT = {
    "name": "files",
    "ranks": "ranks",
    "rows": "rows",
    "local_s": "one process, s",
    "processes_s": f"{PROCESSES}, s",
    "processes": "times faster",
    "dask_s": f"{DASK}, s",
    "dask": "times faster",
    "control": "A/A",
}


def measure(settings: Settings) -> Part:
    """Return the benchmark of the engines."""
    keep_freed_memory()
    part = Part("Sweeps and engines", METHOD)
    sweeps, imports = Table("A sweep", SWEEP), Table("Import of many ranks", IMPORT)
    part.tables += [sweeps, imports]
    part.aims.append(Aim(f"a sweep with {PROCESSES}, against one process", 1.5, {}))
    part.aims.append(Aim(f"a sweep with {DASK}, against one process", 1.5, {}))
    part.aims.append(Aim("a sweep of 200 scenarios, one process", 5, {}, least=False, unit="s"))
    others = [PROCESSES]
    try:
        import distributed  # noqa: F401 - whether it is there

        others.append(DASK)
    except ImportError:
        part.left_out.append("Dask: the package distributed is not installed")
    with sources(quick=settings.quick) as chosen:
        for name, path in {"the example": EXAMPLE, chosen[0].name: chosen[0].path}.items():
            say(f"sweep of {name}")
            row = _sweep(settings, name, daydream.load(path), others)
            sweeps.rows.append(row)
            if path != EXAMPLE:  # the small one is there to show when it does not pay
                part.aims[0].cases[name] = row["processes_ratio"]
                part.aims[2].cases[name] = row["local_s"]
                if DASK in others:
                    part.aims[1].cases[name] = row["dask_ratio"]
        with TemporaryDirectory(prefix="daydream-benchmark-") as folder:
            for number in range(2 if settings.quick else COPIES):
                shutil.copy(chosen[0].path, Path(folder) / f"rank{number}.json.gz")
            for name, path in {RANKS.name: RANKS, f"{chosen[0].name}, again and again": Path(folder)}.items():
                if path.exists():
                    say(f"import of {name}")
                    imports.rows.append(_import(settings, name, path, others))
    return part


def _sweep(settings: Settings, name: str, trace: Trace, others: list[str]) -> dict[str, Any]:
    values = {"math_speedup": MATRIX, "memory_speedup": MEMORY[: 1 if settings.quick else None]}

    def ask(engine: str) -> daydream.Sweep:
        return daydream.sweep(trace, OPTIMIZATION, values, engine=engine)

    def ask_two(engine: str) -> daydream.Sweep:
        return daydream.sweep(trace, OPTIMIZATION, {"math_speedup": MATRIX[1:3]}, engine=engine)

    here = ask("local")
    row: dict[str, Any] = {"name": name, "rows": len(trace), "scenarios": len(here)}
    row |= _race(
        settings, ask, others, {engine: ask(engine).to_json() == here.to_json() for engine in others}
    )
    two = {engine: _job(ask_two, engine) for engine in ("local", *others)}
    seconds = take_turns(two, settings.rounds(3))
    for engine in others:
        start = float(np.median(seconds[engine]) - np.median(seconds["local"]))
        row[f"{engine.partition(':')[0]}_start_s"] = start
    row["each_ms"] = row["local_s"] / len(here) * 1e3
    return row


def _import(settings: Settings, name: str, path: Path, others: list[str]) -> dict[str, Any]:
    def read(engine: str) -> Trace:
        return daydream.load(path, engine=engine)

    here = read("local")
    row: dict[str, Any] = {"name": name, "rows": len(here), "ranks": len(here.metadata["ranks"])}
    return row | _race(settings, read, others, {engine: _same(here, read(engine)) for engine in others})


def _same(one: Trace, other: Trace) -> bool:
    return one.metadata == other.metadata and all(
        np.array_equal(one[name], other[name]) and one.text(name) == other.text(name) for name in one.columns
    )


def _race(
    settings: Settings, function: Callable[[str], object], others: list[str], same: dict[str, bool]
) -> dict[str, Any]:
    for engine, alike in same.items():
        if not alike:
            raise ValueError(f"{engine} and one process disagree")
    jobs = {engine: _job(function, engine) for engine in ("local", *others)}
    seconds = take_turns({**jobs, "again": _job(function, "local")}, settings.rounds(3))
    row: dict[str, Any] = {
        "local_s": float(np.median(seconds["local"])),
        "control": control(times_faster(seconds, "local", "again")),
        "seconds": seconds,
    }
    for engine in others:
        faster, kind = times_faster(seconds, engine, "local"), engine.partition(":")[0]
        row |= {
            f"{kind}_s": float(np.median(seconds[engine])),
            kind: str(faster),
            f"{kind}_ratio": faster.value,
        }
    return row


def _job(function: Callable[[str], object], engine: str) -> Callable[[], float]:
    def job() -> float:
        begin = perf_counter()
        function(engine)
        return perf_counter() - begin

    return job


if __name__ == "__main__":
    alone(measure)
