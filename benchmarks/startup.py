"""Start-up: the command line as whole processes, against processes that only import."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from results import Aim, Part, Settings, Table, alone, control, say
from timing import Seconds, take_turns, times_faster
from traces import Source, largest, machine_trace, sources

import daydream
from daydream.collect.importers import import_trace
from daydream.graph.build import build

METHOD = """\
Whole processes, from start to exit, output thrown away, in turn; every process is run once beforehand,
so that all modules have their bytecode. "bare" imports click, numpy and pyarrow.parquet and does
nothing. The what-if reads a parquet trace, builds the graph, replays it, scales all device work by half,
simulates until settled, and prints. A/A is the what-if against itself. `rank` predicts all optimizations that
ship and pairs of the best, as a screen shows them; its figure is process time (user and system), the median
of all rounds."""

HELP = {"what": "process", "ms": "ms", "beyond": "beyond click, ms"}
WHATIF = {
    "trace": "trace",
    "tasks": "tasks",
    "bare_ms": "bare imports, ms",
    "whatif_ms": "whatif, ms",
    "ratio": "whatif / bare",
    "control": "A/A",
}
RANK = {
    "trace": "trace",
    "tasks": "tasks",
    "applicable": "optimizations that apply",
    "process_s": "process s",
}
BARE = "import click, numpy, pyarrow.parquet"
LAYERS, STEPS = 120, 16  # of the machine model's trace: about 100,000 tasks


def measure(settings: Settings) -> Part:
    """Return the start-up benchmark."""
    part = Part("Start-up", METHOD)
    rounds = 3 if settings.quick else 11
    with TemporaryDirectory(prefix="daydream-benchmark-") as folder:
        bytecode = {"PYTHONPYCACHEPREFIX": folder}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        start = Start({**environment, **bytecode}, folder)
        _help(part, rounds, start)
        _whatif(part, rounds, start)
        _rank(part, 2 if settings.quick else 5, start)
    return part


def _rank(part: Part, rounds: int, start: Start) -> None:
    table = Table("`daydream rank --trace`", RANK)
    aim = Aim("`rank` on a parquet of about 100k tasks", 1, {}, least=False, unit="s of process time")
    part.tables.append(table)
    part.aims.append(aim)
    with TemporaryDirectory(prefix="daydream-benchmark-") as folder, sources() as chosen:
        made = machine_trace(Path(folder) / "machine.json.gz", LAYERS, STEPS)
        for source in (Source("machine model", made), largest(chosen)):
            say(f"rank on {source.name}")
            parquet = Path(folder) / "trace.parquet"
            trace = import_trace([source.path])
            trace.save(parquet, force=True)
            job = start.process_time("-m", "daydream", "rank", "--trace", str(parquet))
            job()
            seconds = [job() for _ in range(rounds)]
            aim.cases[source.name] = median(seconds)
            table.rows.append(
                {
                    "trace": source.name,
                    "tasks": len(build(trace)),
                    "applicable": len(daydream.rank(trace, pairs=0, with_curves=False).optimizations),
                    "process_s": median(seconds),
                    "seconds": {"rank": seconds},
                }
            )


def _whatif(part: Part, rounds: int, start: Start) -> None:
    table = Table("`daydream whatif scale --on gpu --factor 0.5 --trace`", WHATIF)
    aim = Aim("`whatif` on a parquet of about 100k tasks, against bare imports", 1.5, {}, least=False)
    part.tables.append(table)
    part.aims.append(aim)
    with TemporaryDirectory(prefix="daydream-benchmark-") as folder, sources() as chosen:
        made = machine_trace(Path(folder) / "machine.json.gz", LAYERS, STEPS)
        for source in (Source("machine model", made), largest(chosen)):
            say(f"start-up on {source.name}")
            parquet = Path(folder) / "trace.parquet"
            trace = import_trace([source.path])
            trace.save(parquet, force=True)
            command = [
                "-m",
                "daydream",
                "whatif",
                "scale",
                "--on",
                "gpu",
                "--factor",
                "0.5",
                "--trace",
                str(parquet),
            ]
            jobs = {
                "bare": start.process("-c", BARE),
                "whatif": start.process(*command),
                "again": start.process(*command),
            }
            seconds = _warm_turns(jobs, rounds)
            ratio = times_faster(seconds, "bare", "whatif")
            aim.cases[source.name] = ratio.value
            table.rows.append(
                {
                    "trace": source.name,
                    "tasks": len(build(trace)),
                    "bare_ms": median(seconds["bare"]) * 1e3,
                    "whatif_ms": median(seconds["whatif"]) * 1e3,
                    "ratio": str(ratio),
                    "control": control(times_faster(seconds, "whatif", "again")),
                    "seconds": seconds,
                }
            )


def _help(part: Part, rounds: int, start: Start) -> None:
    say("start-up of --help")
    jobs = {
        "python": start.process("-c", "pass"),
        "import click": start.process("-c", "import click"),
        "daydream --help": start.process("-m", "daydream", "--help"),
        "daydream whatif --help": start.process("-m", "daydream", "whatif", "--help"),
        "import click again": start.process("-c", "import click"),
    }
    seconds = _warm_turns(jobs, rounds)
    table = Table("Help", HELP)
    for name, taken in seconds.items():
        beyond = median(a - b for a, b in zip(taken, seconds["import click"], strict=True))
        table.rows.append({"what": name, "ms": median(taken) * 1e3, "beyond": beyond * 1e3, "seconds": taken})
        if name == "daydream --help":
            part.aims.append(
                Aim("`daydream --help` beyond importing click", 0.15, {"help": beyond}, least=False, unit="s")
            )
    part.tables.append(table)


def _warm_turns(jobs: dict[str, Callable[[], float]], rounds: int) -> Seconds:
    for job in jobs.values():
        job()
    return take_turns(jobs, rounds)


@dataclass(frozen=True)
class Start:
    """Processes with this environment: bytecode of all modules is kept, as it is after an installation."""

    environment: dict[str, str]
    folder: str  #: where they run: no folder that holds modules

    def process(self, *arguments: str) -> Callable[[], float]:
        """Return a job: the seconds of one process; what it says is thrown away, a failure is an error."""

        def job() -> float:
            begin = perf_counter()
            done = subprocess.run(
                [sys.executable, *arguments],
                capture_output=True,
                check=False,
                env=self.environment,
                cwd=self.folder,
            )
            seconds = perf_counter() - begin
            if done.returncode:
                raise RuntimeError(f"{' '.join(arguments)} failed: {done.stderr.decode().strip()}")
            return seconds

        return job

    def process_time(self, *arguments: str) -> Callable[[], float]:
        """Return a job: the seconds that one process computes, its own and the system's for it."""
        run = self.process(*arguments)

        def job() -> float:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

        return job


if __name__ == "__main__":
    alone(measure)
