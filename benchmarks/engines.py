"""Engines: ours against a C++ pass over the same arrays and against networkx + heapq."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from plain_networkx import simulate, to_digraph
from results import Aim, Part, Settings, Table, alone, control, say
from synthetic import synthetic
from timing import take_turns, timed, times_faster
from traces import sources
from workers import HERE

from daydream.collect.importers import import_trace
from daydream.graph.build import build
from daydream.graph.lower import lower
from daydream.graph.plan import Plan
from daydream.simulate import engine

Pull = Callable[[], "np.ndarray"]
MANY = 500_000  # tasks: networkx then takes many seconds a round
SYNTHETIC = "synthetic"
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")

METHOD = f"""\
All engines run in one process on the same plan, in turn; their starts are checked to be equal, task by
task. C++ is one pass in topological order over the same arrays (`g++ {" ".join(FLAGS[:2])}`, called
through ctypes, its memory given). "ours" is daydream's default engine, a compiled loop. "Python" is
what runs without a compiler, "reference" the readable Algorithm 1, networkx + heapq what most people would
write. Mtask/s are medians. A/A is our engine against itself."""

COLUMNS = {
    "graph": "graph",
    "tasks": "tasks",
    "edges": "edges/task",
    "cpp": "C++",
    "ours": "ours",
    "python": "Python",
    "reference": "reference",
    "networkx": "networkx + heapq",
    "below_cpp": "C++ / ours",
    "over_networkx": "ours / networkx",
    "control": "A/A",
}


def measure(settings: Settings) -> Part:
    """Return the engine benchmark."""
    part = Part("Engines", METHOD)
    table = Table("Mtask/s", COLUMNS)
    part.tables.append(table)
    part.aims += [
        Aim("the default engine against networkx + heapq", 25, {}),
        Aim("time of the default engine against C++", round(1 / 0.7, 2), {}, least=False),
    ]
    with TemporaryDirectory(prefix="daydream-benchmark-") as folder:
        library = _compiled(part, Path(folder))
        sizes = (10_000, 100_000) if settings.quick else (10_000, 100_000, 1_000_000)
        for tasks in sizes:
            for sync_every in (2000,) if settings.quick else (2000, 100):
                name = f"{SYNTHETIC}, {tasks // 1000:,}k, sync every {sync_every}"
                table.rows.append(_race(part, settings, name, synthetic(tasks, sync_every), library))
    with sources(quick=settings.quick) as chosen:
        for source in chosen[:2]:
            plan = lower(build(import_trace([source.path]))).plan
            table.rows.append(_race(part, settings, source.name, plan, library))
    return part


def _race(
    part: Part, settings: Settings, name: str, plan: Plan, library: ctypes.CDLL | None
) -> dict[str, Any]:
    say(f"engines on {name}")
    digraph = to_digraph(plan)
    expected, _ = engine.run(plan)
    engines: dict[str, Callable[[], Any]] = {
        "ours": lambda: engine.run(plan)[0],
        "python": lambda: engine.in_python(plan),
        "reference": lambda: engine.algorithm_1(plan)[0],
        "networkx": lambda: np.fromiter(
            map(simulate(digraph).__getitem__, range(len(plan))), np.int64, len(plan)
        ),
    }
    if library is not None:
        engines["cpp"] = _bind(library, plan)
    for which, starts in engines.items():
        if not np.array_equal(starts(), expected):
            raise ValueError(f"{which} and our engine disagree on {name}")
    engines["networkx"] = lambda: simulate(digraph)
    engines["ours again"] = engines["ours"]
    seconds = take_turns(
        {which: timed(starts) for which, starts in engines.items()},
        settings.rounds(9 if len(plan) < MANY else 3),
    )
    row: dict[str, Any] = {
        "graph": name,
        "tasks": len(plan),
        "edges": len(plan.edge_src) / len(plan),
        "control": control(times_faster(seconds, "ours", "ours again")),
        "seconds": seconds,
        **{which: len(plan) / median(seconds[which]) / 1e6 for which in engines},
    }
    over = times_faster(seconds, "ours", "networkx")
    row["over_networkx"] = str(over)
    part.aims[0].cases[name] = over.value
    if library is not None:
        below = times_faster(seconds, "cpp", "ours")
        row["below_cpp"] = str(below)
        part.aims[1].cases[name] = below.value
    return row


def _compiled(part: Part, folder: Path) -> ctypes.CDLL | None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        part.left_out.append("C++: no g++ or clang++ was found")
        return None
    target = folder / "engines.so"
    try:
        subprocess.run(
            [compiler, *FLAGS, "-o", str(target), str(HERE / "engines.cpp")], check=True, capture_output=True
        )
    except subprocess.CalledProcessError as error:
        part.left_out.append(f"C++: it did not compile ({error.stderr.decode().strip().splitlines()[0]})")
        return None
    return ctypes.CDLL(str(target))


def _bind(library: ctypes.CDLL, plan: Plan) -> Pull:
    """Return the C++ pass over a plan, with its memory taken beforehand."""
    progress, start, end = (np.zeros(size, np.int64) for size in (plan.lanes, len(plan), len(plan)))
    arrays = [
        plan.lane, plan.duration_ns, plan.gap_ns, plan.release_ns, plan.edge_ptr, plan.edge_src,
        plan.edge_latency_ns, plan.edge_from_start, progress, start, end,
    ]  # fmt: skip
    arguments = [
        ctypes.c_int64(len(plan)),
        ctypes.c_int64(plan.lanes),
        *(ctypes.c_void_p(a.ctypes.data) for a in arrays),
    ]

    def pull(_kept: list[np.ndarray] = arrays) -> np.ndarray:
        library.pull(*arguments)
        return start

    return pull


if __name__ == "__main__":
    alone(measure)
