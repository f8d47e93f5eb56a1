"""Time daydream beside what else there is, with an A/A control.

    python benchmarks/bench.py                               all cases, ten minutes or more, as a table
    python benchmarks/bench.py --only "graph build" --quick  cases whose name has this text, two rounds
    python benchmarks/bench.py --write docs/evaluation       keeps the table as speed_aims.csv

What is compared takes turns, A B A B, every other round backwards, so that other programs on the machine slow down
both. A figure is a ratio of medians or, where nothing is beside it, a median; our side runs twice, and A/A is its ratio
to itself: where it is more than 15% from 1, the machine was too busy and the figure says little. HolisticTraceAnalysis
needs an environment of its own (`--hta PYTHON`, made by `pip install HolisticTraceAnalysis==0.5.0 'pandas<3'`).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SHARED = ROOT.parent / "shared" / "traces" / "kineto"
PUBLIC = ("rtx2080ti_resnet_30_iterations", "v100_recsys_rank1of2_copy_waits")
MACHINES = {
    "machine model": (120, 16),
    "a million rows": (120, 170),
}  # layers and steps; also without public traces
ROUNDS, CONTROL_OFF = 7, 0.15
FLAGS = ("-O3", "-march=native", "-shared", "-fPIC")

# A process that runs statements: after each it prints seconds, the divisor `per`, and its peak memory in MB.
SERVER = """
import json, resource, sys, time
out, sys.stdout = sys.stdout, sys.stderr
space = {}
for line in sys.stdin:
    code, least = json.loads(line)
    code, runs, begin = compile(code, "benchmark", "exec"), 0, time.perf_counter()
    while runs == 0 or (time.perf_counter() - begin < least and runs < 1000):
        exec(code, space)
        runs += 1
    seconds = (time.perf_counter() - begin) / runs
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(json.dumps([seconds, float(space.get("per", 1)), peak]), file=out, flush=True)
"""


class Cost(NamedTuple):
    """What a run took: seconds (of a whole process those of its CPU time), what they are divided by, peak memory."""

    seconds: float
    per: float
    megabytes: float


@dataclass(frozen=True)
class Code:
    """A statement that is timed in a process of its own, as `timeit` has it; `per` is a number it sets."""

    run: str
    setup: str = ""
    python: str = "ours"


@dataclass(frozen=True)
class Command:
    """A whole process; TRACE, PARQUET and FOLDER stand for places."""

    words: str


@dataclass(frozen=True)
class Case:
    """A bar that was set before measuring: of `ours`, or of the ratio to what is `beside`.

    Attributes:
        least: whether the figure is to be at least the bar: how many times faster ours is.
        what: `seconds`, `megabytes`, or `per`, a figure that the statement sets.
        traces: on which traces; none where the case makes its own input.
    """

    name: str
    bar: float
    ours: Code | Command
    beside: Code | Command | None = None
    least: bool = False
    what: str = "seconds"
    unit: str = ""
    traces: tuple[str, ...] = PUBLIC


LOAD = "import daydream, numpy, tempfile; from daydream.collect.importers import import_trace; trace = import_trace([TRACE])"
GRAPH = (
    f"{LOAD}; graph = daydream.build(trace); from daydream.graph.lower import lower; plan = lower(graph).plan"
)
REPLAY = f"{LOAD}; before = daydream.replay(trace); per = len(before.graph)"
ENGINE = f"{GRAPH}; from daydream.simulate import engine; per = len(plan)"
NETWORKX = f"{ENGINE}; from plain_networkx import simulate, to_digraph"
HTA = (
    "import logging, warnings; warnings.simplefilter('ignore'); logging.disable(logging.CRITICAL); "
    "from hta.analyzers.critical_path_analysis import CPGraph; from hta.trace_analysis import TraceAnalysis"
)
HTA_LOAD = "analysis = TraceAnalysis(trace_files={0: TRACE}, trace_dir='/', include_last_profiler_step=True)"
HTA_BUILD = "graph, _ = analysis.critical_path_analysis(rank=0, annotation='', instance_id=None); per = len(graph.nodes)"
HTA_WHATIF = """
for edge in device:
    graph.edges[edge]["weight"] = graph.edges[edge]["object"].weight * 0.5
assert graph.critical_path()
"""
HTA_DEVICE = """
stream = graph.trace_df["stream"]
device = [edge for edge, event in graph.edge_to_event_map.items() if stream.get(event, -1) != -1]
"""
CPP = f"""
{ENGINE}
import ctypes
library = ctypes.CDLL(FOLDER + "/engines.so")
progress, start, end = (numpy.zeros(size, numpy.int64) for size in (plan.lanes, len(plan), len(plan)))
arrays = [plan.lane, plan.duration_ns, plan.gap_ns, plan.release_ns, plan.edge_ptr, plan.edge_src, plan.edge_latency_ns]
arrays += [plan.edge_from_start, progress, start, end]
given = [ctypes.c_int64(len(plan)), ctypes.c_int64(plan.lanes), *(ctypes.c_void_p(a.ctypes.data) for a in arrays)]
library.pull(*given)
assert (start == engine.run(plan)[0]).all()
"""
RANKS = """
import numpy, daydream
from daydream.graph.lower import lower
from daydream.simulate.ranks import ALL_MEET, ends
graph = daydream.build(daydream.load(TRACE))
plan = lower(graph).plan
factors = 1 + 0.02 * numpy.random.default_rng(0).standard_normal((1, 16_384))
meet = numpy.where(numpy.array([lane.name for lane in graph.lanes])[plan.lane] == graph.lanes[-1].name, ALL_MEET, 0)
"""
SWEEP = "daydream.sweep(trace, 'amp', {'math_speedup': [1 + n / 4 for n in range(20)], 'memory_speedup': [1 + n / 4 for n in range(10)]}"
BYTES = """
def bytes_of(arrays):
    owned = {id(each): each for each in arrays if isinstance(each, numpy.ndarray)}
    return sum(0 if each.strides == (0,) else each.nbytes for each in owned.values())
"""
STEP = """
import time, torch
from torch import nn
from daydream.instrument import Tool, apply
torch.manual_seed(0); torch.set_num_threads(1)
parts = lambda: (nn.LayerNorm(512), nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 512))
net, x = nn.Sequential(*(nn.Sequential(*parts()) for _ in range(6))), torch.randn(384, 512)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
def step():
    optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()
tool = Tool()
tool.add_inst_for_op(lambda op: op.insert_after_op(lambda _: None) if op["type"] == "gelu" else None)
"""
JOB = "import runpy, sys; sys.argv = ['train_gpt.py', '--steps', '60', '--layers', '2']; runpy.run_path('ROOT/examples/train_gpt.py', run_name='__main__')"
BARE = Command("-c 'import click, numpy, pyarrow.parquet'")
DAYDREAM = "-m daydream"
LARGE = ("a million rows",)

CASES = (
    Case("import and save, against HTA's load", 4, Code(
        f"{LOAD}; trace.save(tempfile.mkdtemp() + '/t.parquet')", "import daydream"), Code(HTA_LOAD, HTA, "hta"), least=True),
    Case("time of import and save, against json.load alone", 0.45, Command(f"{DAYDREAM} import TRACE -o FOLDER/large.parquet --force"),
         Command("-c 'import gzip, json; json.load(gzip.open(\"TRACE\"))'"), traces=LARGE),
    Case("its peak memory, against json.load's", 0.12, Command(f"{DAYDREAM} import TRACE -o FOLDER/large.parquet --force"),
         Command("-c 'import gzip, json; json.load(gzip.open(\"TRACE\"))'"), what="megabytes", traces=LARGE),
    Case("graph build per node, against HTA's", 60, Code("plan = lower(daydream.build(trace)).plan", f"{GRAPH}; per = len(graph)"),
         Code(HTA_BUILD, f"{HTA}\n{HTA_LOAD}\nCPGraph.critical_path = lambda _: True", "hta"), least=True),
    Case("what-if on a loaded graph per node, against HTA's", 500, Code("engine.run(plan.with_costs(plan.duration_ns // 2))", ENGINE),
         Code(HTA_WHATIF, f"{HTA}\n{HTA_LOAD}\n{HTA_BUILD}\n{HTA_DEVICE}", "hta"), least=True),
    Case("the whole whatif per node, against HTA's", 200, Code("daydream.whatif(before, 'scale', on='gpu', factor=0.5)", REPLAY),
         Code(HTA_WHATIF, f"{HTA}\n{HTA_LOAD}\n{HTA_BUILD}\n{HTA_DEVICE}", "hta"), least=True),
    Case("the default engine against networkx + heapq", 25, Code("engine.run(plan)", ENGINE),
         Code("simulate(digraph)", f"{NETWORKX}; digraph = to_digraph(plan); found = simulate(digraph); "
              "assert [found[n] for n in range(len(plan))] == engine.run(plan)[0].tolist()"), least=True),
    Case("time of the default engine against C++", 1.43, Code("engine.run(plan)", ENGINE), Code("library.pull(*given)", CPP)),
    Case("time of the engine without a compiler against C++", 40, Code("engine.in_python(plan)", ENGINE), Code("library.pull(*given)", CPP)),
    Case("16,384 ranks as lanes", 1, Code("ends(plan, factors, meet, numpy.arange(len(plan))[-64:])", RANKS), unit="s",
         traces=("the example",)),
    Case("a sweep with processes:2, against one process", 1.5, Code(f"{SWEEP}, engine='processes:2')", LOAD), Code(f"{SWEEP})", LOAD),
         least=True, traces=PUBLIC[:1]),
    Case("a sweep with dask:2, against one process", 1.5, Code(f"{SWEEP}, engine='dask:2')", LOAD), Code(f"{SWEEP})", LOAD),
         least=True, traces=PUBLIC[:1]),
    Case("a sweep of 200 scenarios, one process", 5, Code(f"{SWEEP})", LOAD), unit="s", traces=PUBLIC[:1]),
    Case("plan, start and end", 100, Code("per = bytes_of([*(getattr(plan, name, None) for name in type(plan).__slots__), "
         "*engine.run(plan)]) / len(plan)", ENGINE + BYTES), what="per", unit="bytes a task"),
    Case("the graph that people edit", 100, Code("per = bytes_of([*graph.columns.values(), graph.alive, *(c for table in (graph.syncs, "
         "graph.waits, graph.links) for c in table.columns.values())]) / len(graph)", GRAPH + BYTES), what="per", unit="bytes a task"),
    Case("daydream --help, against importing click", 4, Command(f"{DAYDREAM} --help"), Command("-c 'import click'"), traces=()),
    Case("whatif on a parquet of about 100k tasks, against bare imports", 1.5,
         Command(f"{DAYDREAM} whatif scale --on gpu --factor 0.5 PARQUET"), BARE, traces=("machine model", *PUBLIC[:1])),
    Case("rank on a parquet of about 100k tasks", 1, Command(f"{DAYDREAM} rank PARQUET"), unit="s of process time",
         traces=("machine model", *PUBLIC[:1])),
    Case("whatif amp, a question about a trace asked about before, against bare imports", 1.5,
         Command(f"{DAYDREAM} whatif amp PARQUET"), BARE),
    Case("whatif amp on a million rows", 2, Command(f"{DAYDREAM} whatif amp PARQUET"), unit="s of process time", traces=LARGE),
    Case("its peak memory", 500, Command(f"{DAYDREAM} whatif amp PARQUET"), what="megabytes", unit="MB", traces=LARGE),
    Case("rank on a million rows", 8, Command(f"{DAYDREAM} rank PARQUET"), unit="s of process time", traces=LARGE),
    Case("a step with a tool, against the plain step", 1.01, Code("step()", f"{STEP}; apply(tool).__enter__(); step(); step()"),
         Code("step()", f"{STEP}; step(); step()"), traces=()),
    Case("collect around a short job, against the job", 2, Command(f"{DAYDREAM} collect --no-suggestions -o FOLDER/t.parquet --force "
         "ROOT/examples/train_gpt.py --steps 60 --layers 2"), Command(f'-c "{JOB}"'), traces=()),
)  # fmt: skip


def main() -> None:
    """Run the cases and print or keep what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--quick", action="store_true", help="two rounds: to see that it runs")
    parser.add_argument("--hta", help="a Python with HolisticTraceAnalysis; its cases are left out without")
    parser.add_argument("--write", type=Path, help="the folder of CSV files")
    options = parser.parse_args()
    chosen = [case for case in CASES if options.only in case.name]
    with tempfile.TemporaryDirectory(prefix="daydream-benchmark-") as folder:
        os.environ |= {
            "PYTHONPYCACHEPREFIX": folder,
            "OMP_NUM_THREADS": "1",
            "DAYDREAM_CACHE": f"{folder}/cache",
        }
        bench = Bench(
            Path(folder), {"ours": sys.executable, "hta": options.hta}, 2 if options.quick else ROUNDS
        )
        rows = [row for case in chosen if (row := bench.row(case))]
    keep = (options.write / "speed_aims.csv").open("w", newline="") if options.write else sys.stdout
    with keep as file:
        writer = csv.DictWriter(file, ("aim", "bar", "measured", "cases", "met", "A/A"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@dataclass(frozen=True)
class Bench:
    """Where cases run: a folder for what is made, an interpreter a side, and how many rounds are taken."""

    folder: Path
    pythons: dict[str, str | None]
    rounds: int

    def row(self, case: Case) -> dict[str, str]:
        """Return a case's figures on all its traces that are at hand; nothing of one that cannot run here."""
        figures, controls = {}, []
        for name, path in self.traces(case):
            print(f"  {case.name}: {name}", file=sys.stderr, flush=True)
            try:
                costs = self.in_turns(case, path)
            except RuntimeError as error:
                print(f"  left out: {error}", file=sys.stderr)
                continue
            middle = {
                side: median(self.figure(case, cost) for cost in taken) for side, taken in costs.items()
            }
            ours, other = middle["ours"], middle.get("beside", 1.0)
            figures[name] = other / ours if case.least else ours / other
            controls.append(middle["ours again"] / ours)
        if not figures:
            return {}
        low, high = min(figures.values()), max(figures.values())
        missed = [
            name for name, value in figures.items() if (value < case.bar) == case.least and value != case.bar
        ]
        met = (
            "yes"
            if not missed
            else "no"
            if len(missed) == len(figures)
            else f"in part; missed on {', '.join(missed)}"
        )
        off = max(controls, key=lambda value: abs(value - 1))
        return {
            "aim": case.name, "bar": f"{'>=' if case.least else '<='} {case.bar:g} {case.unit}".strip(),
            "measured": f"{low:.3g}{f' to {high:.3g}' * (len(figures) > 1)} {case.unit}".strip(),
            "cases": str(len(figures)), "met": met, "A/A": f"{off:.2f}{' (off)' * (abs(off - 1) > CONTROL_OFF)}",
        }  # fmt: skip

    @staticmethod
    def figure(case: Case, cost: Cost) -> float:
        """Return what is compared of a run."""
        return cost.seconds / cost.per if case.what == "seconds" else float(getattr(cost, case.what))

    def in_turns(self, case: Case, path: Path) -> dict[str, list[Cost]]:
        """Return the costs of our side, the same again, and what is beside it, a cost a round."""
        with self.started(case.ours, path) as ours, self.started(case.beside or case.ours, path) as beside:
            jobs = {"ours": ours.run, "ours again": ours.run} | (
                {"beside": beside.run} if case.beside else {}
            )
            for job in jobs.values():
                job()
            costs: dict[str, list[Cost]] = {side: [] for side in jobs}
            for number in range(self.rounds):
                for side in list(jobs)[:: 1 if number % 2 else -1]:
                    costs[side].append(jobs[side]())
            return costs

    def started(self, side: Code | Command, path: Path) -> Side:
        """Return a side that is ready to run. Raises `RuntimeError` where it cannot."""

        def filled(text: str) -> str:
            parquet = path.with_name(f"{path.name}.parquet")
            if "PARQUET" in text and not parquet.exists():
                here = self.folder / parquet.name
                if not here.exists():
                    subprocess.run(
                        [sys.executable, "-m", "daydream", "import", path, "-o", here],
                        check=True,
                        capture_output=True,
                    )
                parquet = here
            places = {"PARQUET": parquet, "TRACE": path, "FOLDER": self.folder, "ROOT": ROOT}
            for place, value in places.items():
                text = text.replace(place, str(value))
            return text

        if isinstance(side, Command):
            return Side(lambda: whole_process(filled(side.words), self.folder))
        if not (python := self.pythons[side.python]):
            raise RuntimeError("no --hta PYTHON was given")
        if "engines.so" in side.setup and not (self.folder / "engines.so").exists():
            compiler = shutil.which("g++") or shutil.which("clang++")
            if compiler is None:
                raise RuntimeError("no g++ or clang++ was found")
            subprocess.run(
                [compiler, *FLAGS, "-o", self.folder / "engines.so", HERE / "engines.cpp"], check=True
            )
        names = f"import sys; sys.path[:0] = [{str(HERE)!r}]; TRACE, FOLDER = {str(path)!r}, {str(self.folder)!r}\n"
        return Side.of_server(python, names + side.setup, side.run)

    def traces(self, case: Case) -> Iterator[tuple[str, Path]]:
        """Yield the traces of a case: public ones that are at hand, the example, or the machine model's."""
        if not case.traces:
            yield "alone", self.folder
        for name in case.traces:
            public = SHARED / f"{name}.json.gz"
            if name == "the example":
                yield name, ROOT / "examples" / "synthetic_gpt_gpu.json.gz"
            elif public.exists():
                yield name, public
            elif name in MACHINES:
                layers, steps = MACHINES[name]
                made = self.folder / f"{layers}x{steps}.json.gz"
                code = (
                    f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); from dataclasses import replace; from machine.programs import "
                    f"multi_stream; replace(multi_stream({layers}), steps={steps + 2}).run().write({str(made)!r}, 1, {steps})"
                )
                if not made.exists():
                    subprocess.run([sys.executable, "-c", code], check=True)
                yield name, made


@dataclass(frozen=True)
class Side:
    """One side of a comparison: `run` does it once; a context manager that ends its process."""

    run: Callable[[], Cost]
    process: subprocess.Popen[str] | None = None

    @classmethod
    def of_server(cls, python: str, setup: str, run: str) -> Side:
        """Start a process that has done `setup`; each call then does `run` there."""
        process = subprocess.Popen(
            [python, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

        def ask(code: str, least: float) -> Cost:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([code, least]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            if not answer:
                raise RuntimeError(f"{run} ended with code {process.wait()}")
            return Cost(*json.loads(answer))

        ask(setup, 0)
        return cls(lambda: ask(run, 0.1), process)

    def __enter__(self) -> Side:  # noqa: PYI034 - `Self` needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()


def whole_process(words: str, folder: Path) -> Cost:
    """Return the CPU seconds and the peak memory of one process, whose output is thrown away."""
    import shlex

    arguments: Sequence[str] = [sys.executable, *shlex.split(words)]
    silent = [
        (os.POSIX_SPAWN_OPEN, number, str(folder / "said"), os.O_CREAT | os.O_WRONLY, 0o600)
        for number in (1, 2)
    ]
    began = time.monotonic()
    pid = os.posix_spawn(sys.executable, arguments, os.environ, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status):
        said = (folder / "said").read_text()[-500:]
        raise RuntimeError(f"{words} failed after {time.monotonic() - began:.0f} s: {said}")
    return Cost(used.ru_utime + used.ru_stime, 1.0, used.ru_maxrss / 1e3)


if __name__ == "__main__":
    main()
