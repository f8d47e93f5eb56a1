"""Import: profiler JSON to a saved trace, against `json.load` alone and HolisticTraceAnalysis."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from hta_environment import MissingError, hta_python
from process_tree import watched
from results import Aim, Part, Settings, Table, alone, control, say
from timing import take_turns, times_faster
from traces import Source, free_memory, largest, replicate, sources, unpacked
from workers import Worker

MB, GB = 1e6, 1e9
ROOM = 9  # bytes of memory that `json.load` can take per byte of JSON, with some to spare

METHOD = (
    """\
Every measurement is a fresh process; ours, `json.load` and HolisticTraceAnalysis (HTA) take turns. Ours
is `import_trace(...)` and `save(...)`: decoding, steps, phases, layers, operators, and the parquet file
written. `json.load` only parses. HTA is `TraceAnalysis(...)`, which keeps a data frame in memory and
writes nothing. The modules of all sides are imported before the clock starts, except those that ours
loads while it works. "x" is how many times faster ours is: the ratio of medians, and in brackets the
least and most of any round. A/A is ours against ours again, and should be 1."""
    ""
)

LOADING = {
    "trace": "trace",
    "format": "file",
    "events": "events",
    "ours_s": "ours, s",
    "json_s": "json.load, s",
    "hta_s": "HTA, s",
    "over_json": "x json.load",
    "over_hta": "x HTA",
    "control": "A/A",
}
LARGE = {
    "trace": "trace",
    "side": "side",
    "seconds": "s",
    "speed": "MB/s",
    "peak": "peak memory, MB",
    "times": "x json.load",
    "share": "memory / json.load's",
}


def measure(settings: Settings) -> Part:
    """Return the import benchmark."""
    part = Part("Import", METHOD)
    with TemporaryDirectory(prefix="daydream-benchmark-") as folder, sources(quick=settings.quick) as chosen:
        try:
            with hta_python(settings.cache) as python:
                part.tables.append(_loading(part, settings, chosen, Path(folder), python))
        except MissingError as reason:
            part.left_out.append(str(reason))
            part.tables.append(_loading(part, settings, chosen, Path(folder), None))
        _large(part, settings, largest(chosen), Path(folder))
    return part


def _loading(part: Part, settings: Settings, chosen: list[Source], folder: Path, hta: Path | None) -> Table:
    table = Table("Loading", LOADING)
    over_hta: dict[str, float] = {}
    for source in chosen:
        for name, path in (
            (".json.gz", source.path),
            (".json", unpacked(source.path, folder / "trace.json")),
        ):
            say(f"import {source.name}{name}")
            facts: dict[str, Any] = {}
            jobs = _jobs(path, facts, hta)
            seconds = take_turns(jobs, settings.rounds(5))
            row = {
                "trace": source.name,
                "format": name,
                "events": facts["events"],
                "ours_s": median(seconds["ours"]),
                "json_s": median(seconds["json"]),
                "over_json": str(times_faster(seconds, "ours", "json")),
                "control": control(times_faster(seconds, "ours", "ours again")),
                "seconds": seconds,
            }
            if hta is not None:
                ratio = times_faster(seconds, "ours", "hta")
                over_hta[f"{source.name}{name}"] = ratio.value
                row |= {"hta_s": median(seconds["hta"]), "over_hta": str(ratio)}
            table.rows.append(row)
    part.aims.append(Aim("import and save, against HTA's load", 4, over_hta))
    return table


def _large(part: Part, settings: Settings, source: Source, folder: Path) -> None:
    size = round(0.1 * GB if settings.quick else GB)
    if free_memory() < ROOM * size:
        part.left_out.append(
            f"{size / GB:g} GB of JSON: less than {ROOM * size / GB:.0f} GB of memory is free"
        )
        return
    say(f"writing {size / GB:g} GB of JSON")
    path = folder / "large.json"
    copies = replicate(source.path, path, size)
    size = path.stat().st_size
    facts: dict[str, Any] = {}
    say("import it")
    seconds = take_turns(_jobs(path, facts, None), settings.rounds(3))
    path.unlink()
    faster = times_faster(seconds, "ours", "json")
    share = facts["work_ours.py peak"] / facts["workers.py peak"]
    case = f"{size / GB:.2g} GB"
    part.aims += [
        Aim("time of import and save, against json.load alone", 0.45, {case: 1 / faster.value}, least=False),
        Aim("its peak memory, against json.load's", 0.12, {case: share}, least=False),
    ]
    explanation = (
        f"`{source.name}` {copies} times over, times, ids and steps moved on: {facts['events']:,} events, "
        f"{facts['rows']:,} rows in the trace, {facts['parquet'] / MB:.0f} MB of parquet. "
        f"A/A {control(times_faster(seconds, 'ours', 'ours again'))}."
    )
    table = Table(f"{case} of plain JSON", LARGE, explanation=explanation)
    for side, script in (("ours", "work_ours.py"), ("json", "workers.py")):
        taken = median(seconds[side])
        table.rows.append(
            {
                "trace": source.name,
                "side": "import and save" if side == "ours" else "json.load",
                "seconds": taken,
                "speed": size / MB / taken,
                "peak": facts[f"{script} peak"] / MB,
                "times": str(faster) if side == "ours" else None,
                "share": share if side == "ours" else None,
                "all_seconds": seconds[side],
            }
        )
    part.tables.append(table)


def _jobs(path: Path, facts: dict[str, Any], hta: Path | None) -> dict[str, Callable[[], float]]:
    jobs: dict[str, Callable[[], float]] = {
        "ours": lambda: _fresh("work_ours.py", path, facts),
        "json": lambda: _fresh("workers.py", path, facts),
        "ours again": lambda: _fresh("work_ours.py", path, facts),
    }
    if hta is not None:
        jobs["hta"] = lambda: _fresh("work_hta.py", path, facts, hta)
    return jobs


def _fresh(script: str, path: Path, facts: dict[str, Any], python: Path | None = None) -> float:
    """Return the seconds a load takes in a process of its own; what else it says goes into `facts`."""
    with Worker(script, python) if python else Worker(script) as worker, watched(worker.pid) as most:
        answer = worker.ask("load", path=str(path))
    answer["peak"] = max(answer["peak"], most[0])  # with the processes that it started to read beside it
    facts |= {key: value for key, value in answer.items() if key not in {"seconds", "peak"}}
    facts[f"{script} peak"] = max(facts.get(f"{script} peak", 0), answer["peak"])
    return float(answer["seconds"])


if __name__ == "__main__":
    alone(measure)
