"""Growth: time and peak memory of the commands from ten thousand rows to a million, and kept answers."""

from __future__ import annotations

import os
import subprocess
import sys
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from pyarrow.parquet import ParquetFile
from results import CONTROL_OFF, Aim, Part, Settings, Table, alone, say
from traces import Source, replicate, sources

import daydream
from daydream.collect.importers import import_trace

METHOD = """\
Whole processes: process time (user and system) and peak memory, output thrown away, bytecode kept. The
recordings are a few steps of a trace, all of it, and it again and again with times and ids of its own. The
exponent is the slope between the two largest, on logarithmic axes: 1 is linear, 2 a square; all steps are
looked at there (`--steps :`). Long recordings are asked about as people do: answered from the steps that
stand for all. Nothing is kept between processes (`DAYDREAM_CACHE=off`) but for the second question, whose
trace was asked about before. "bare" imports click, numpy and pyarrow.parquet; second and first questions and
bare processes take turns, and A/A is bare processes against bare processes."""

# A small process starts the command: Linux counts what a process held when it was forked as its own peak.
STARTER = """\
import os, sys
pid = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file:
    print(used.ru_utime + used.ru_stime, used.ru_maxrss, file=file)
sys.exit(os.waitstatus_to_exitcode(status))
"""
BARE = "import click, numpy, pyarrow.parquet"
FEW_STEPS = "0:4"
TIMES, MANY_TIMES = 14, 140  # about one million rows, and ten
STEEPEST = 1.05
QUESTIONS = {"rtx2080ti_resnet_30_iterations": (1.5, 2.5), "v100_recsys_rank1of2_copy_waits": (1.8, 3.0)}
SECONDS = "s of process time"
BARS = (("a million", 2, 500, 8), ("ten million", 20, 4000, 45))  # whatif: s and MB; rank: s
COMMANDS = ("replay", "whatif amp", "rank", "explain", "html")


class Cost(NamedTuple):
    """What a process took."""

    seconds: float
    megabytes: float


def measure(settings: Settings) -> Part:
    """Return the benchmark of growth."""
    part = Part("Growth", METHOD)
    with TemporaryDirectory(prefix="daydream-benchmark-") as folder, sources(quick=settings.quick) as chosen:
        here = Path(folder)
        _questions(part, chosen, here, 2 if settings.quick else 7)
        long = _growth(part, chosen[0], here, 2 if settings.quick else TIMES)
        _long(part, chosen[0], here, long, 4 if settings.quick else MANY_TIMES)
    return part


def _cost(folder: Path, *arguments: str, cache: str = "off") -> Cost:
    """Return what one process takes; raise an error if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "DAYDREAM_CACHE": cache}
    with (folder / "said").open("wb") as said:
        done = subprocess.run(
            [sys.executable, "-S", "-c", STARTER, str(folder / "used"), sys.executable, *arguments],
            stdout=subprocess.DEVNULL, stderr=said, env=environment, cwd=folder, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed: {(folder / 'said').read_text().strip()}")
    seconds, kilobytes = map(float, (folder / "used").read_text().split())
    return Cost(seconds, kilobytes / 1e3)


def _questions(part: Part, chosen: list[Source], folder: Path, rounds: int) -> None:
    table = Table(
        "`whatif amp`, the first question about a trace and the second",
        {
            "trace": "trace", "bare": "bare, s", "second": "second, s", "first": "first, s",
            "second_x": "second / bare", "first_x": "first / bare", "control": "A/A",
        },
    )  # fmt: skip
    for source in chosen:
        if source.name not in QUESTIONS:
            continue
        say(f"questions about {source.name}")
        trace = folder / f"{source.name}.parquet"
        import_trace([source.path]).save(trace, force=True)
        asked = ("-m", "daydream", "whatif", "amp", "--trace", str(trace))
        kept = str(folder / "kept")
        _cost(folder, *asked, cache=kept)
        taken: dict[str, list[float]] = {"bare": [], "second": [], "first": [], "again": []}
        for number in range(rounds):
            taken["bare"].append(_cost(folder, "-c", BARE).seconds)
            taken["second"].append(_cost(folder, *asked, cache=kept).seconds)
            new = str(folder / f"{source.name}-{number}")
            taken["first"].append(_cost(folder, *asked, cache=new).seconds)
            taken["again"].append(_cost(folder, "-c", BARE).seconds)
        middle = {name: median(seconds) for name, seconds in taken.items()}
        same = middle["again"] / middle["bare"]
        row = {name: middle[name] for name in ("bare", "second", "first")}
        ratios = {f"{name}_x": middle[name] / middle["bare"] for name in ("second", "first")}
        off = " (off)" if abs(same - 1) > CONTROL_OFF else ""
        table.rows.append(
            {
                "trace": source.name, **row, **ratios, "control": f"{same:.2f}{off}",
                "seconds": taken,
            }
        )  # fmt: skip
        for name, bar in zip(("second", "first"), QUESTIONS[source.name], strict=True):
            what = f"`whatif amp`, the {name} question, against bare imports"
            part.aims.append(Aim(what, bar, {source.name: ratios[f"{name}_x"]}, least=False))
    part.tables.append(table)


def _imported(folder: Path, source: Source, name: str, times: int) -> tuple[int, Path, Cost]:
    """Return the rows of a trace so many times over, its parquet file, and what importing took."""
    recording = folder / f"{name}.json"
    replicate(source.path, recording, 1)
    size = recording.stat().st_size
    if times > 1:
        replicate(source.path, recording, size * times - size // 2)
    say(f"import of {recording.stat().st_size / 1e6:,.0f} MB")
    trace = recording.with_suffix(".parquet")
    cost = _cost(folder, "-m", "daydream", "import", str(recording), "-o", str(trace))
    recording.unlink()
    with ParquetFile(trace) as file:
        return file.metadata.num_rows, trace, cost


def _asked(folder: Path, command: str, trace: Path, *steps: str) -> Cost:
    """Return what a command takes on a trace."""
    words = command.split()
    if command == "html":
        words = ["replay", "--html", str(folder / "report.html"), "--force"]
    return _cost(folder, "-m", "daydream", *words, "--trace", str(trace), *steps)


def _growth(part: Part, source: Source, folder: Path, times: int) -> tuple[int, Path, Cost]:
    """Add the table of growth; return the longest trace of it, as `_imported`."""
    found = [_imported(folder, source, "whole", 1), _imported(folder, source, "long", times)]
    traces = [(rows, trace) for rows, trace, _ in found]
    few = folder / "few.parquet"
    part_of = daydream.load(traces[0][1], steps=FEW_STEPS)
    part_of.save(few, force=True)
    traces.insert(0, (len(part_of), few))

    table = Table(
        f"From {traces[0][0]:,} to {traces[-1][0]:,} rows",
        {"command": "command"}
        | {f"s{place}": f"{rows:,} rows, s" for place, (rows, _) in enumerate(traces)}
        | {"exponent": "exponent"}
        | {f"mb{place}": f"{rows:,} rows, MB" for place, (rows, _) in enumerate(traces)},
        explanation=f"`{source.name}`: a few steps, the whole trace and it {times} times over; all steps.",
    )
    aim = Aim("growth with the recording, all steps, exponent", STEEPEST, {}, least=False, unit="")
    part.aims.append(aim)
    costs = {"import": [(rows, cost) for rows, _, cost in found]}
    for command in COMMANDS:
        for rows, trace in traces:
            say(f"{command} on {rows:,} rows")
            costs.setdefault(command, []).append((rows, _asked(folder, command, trace, "--steps", ":")))
    for command, taken in costs.items():
        (few_rows, before), (many_rows, after) = taken[-2:]
        exponent = log(after.seconds / before.seconds) / log(many_rows / few_rows)
        aim.cases[command] = exponent
        absent = len(traces) - len(taken)
        row = {"command": command, "exponent": exponent}
        for place, (_, cost) in enumerate(taken, absent):
            row |= {f"s{place}": cost.seconds, f"mb{place}": cost.megabytes}
        row |= {f"{key}{place}": None for key in ("s", "mb") for place in range(absent)}
        table.rows.append(row)
    part.tables.append(table)
    part.notes.append("Each figure of growth is one process.")
    return found[-1]


def _long(part: Part, source: Source, folder: Path, million: tuple[int, Path, Cost], times: int) -> None:
    """Add the table of long recordings, as people ask about them."""
    traces = [million, _imported(folder, source, "longest", times)]
    table = Table(
        "Long recordings",
        {"command": "command"}
        | {f"s{place}": f"{rows:,} rows, s" for place, (rows, _, _) in enumerate(traces)}
        | {f"mb{place}": f"{rows:,} rows, MB" for place, (rows, _, _) in enumerate(traces)},
        explanation="Answered from the steps that stand for all; import reads all.",
    )
    costs = {"import": [cost for _, _, cost in traces]}
    for command in COMMANDS:
        say(f"{command} on long recordings")
        costs[command] = [_asked(folder, command, trace) for _, trace, _ in traces]
    for command, taken in costs.items():
        row: dict[str, object] = {"command": command}
        for place, cost in enumerate(taken):
            row |= {f"s{place}": cost.seconds, f"mb{place}": cost.megabytes}
        table.rows.append(row)
    part.tables.append(table)
    for place, (size, whatif_s, whatif_mb, rank_s) in enumerate(BARS):
        whatif, rank = costs["whatif amp"][place], costs["rank"][place]
        part.aims += [
            Aim(
                f"`whatif amp` on {size} rows, some steps",
                whatif_s,
                {"whatif": whatif.seconds},
                least=False,
                unit=SECONDS,
            ),
            Aim("its peak memory", whatif_mb, {"whatif": whatif.megabytes}, least=False, unit="MB"),
            Aim(
                f"`rank` on {size} rows, some steps",
                rank_s,
                {"rank": rank.seconds},
                least=False,
                unit=SECONDS,
            ),
        ]
    rank = costs["rank"][-1]
    part.aims.append(Aim("its peak memory", 4000, {"rank": rank.megabytes}, least=False, unit="MB"))


if __name__ == "__main__":
    alone(measure)
