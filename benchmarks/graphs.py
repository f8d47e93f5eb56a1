"""Graph and what-if: per node, against HolisticTraceAnalysis's critical path and against networkx + heapq."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from hta_environment import MissingError, hta_python
from results import Aim, Part, Settings, Table, alone, control, say
from timing import Ratio, take_turns, times_faster
from traces import Source, sources
from workers import Worker, WorkError

FACTOR = 0.5
NS = 1e9

METHOD = """\
One process a side, both with the whole trace loaded and warmed up by one call, asked in turn. Graphs
differ: ours has a task for every device task and every stretch of CPU time between two boundaries of
operators and calls, HTA's has two nodes an event. So times are compared **per node** (ours: per task);
the tables give both node counts, and the raw ratio is theirs times ours / theirs. HTA's build is
`critical_path_analysis` over the whole range without the longest path; its what-if is new weights on the
edges that are device work (which ones is found before the clock starts), then `critical_path()`. That
says which chain is longest after the change, with recorded waits still in it: it is the nearest HTA has,
not the same answer. A/A is ours against ours again."""

BUILD = {
    "trace": "trace",
    "tasks": "our tasks",
    "nodes": "HTA nodes",
    "ours_s": "ours, s",
    "hta_s": "HTA, s",
    "ours_ns": "ours, ns/task",
    "hta_ns": "HTA, ns/node",
    "ratio": "x HTA per node",
    "control": "A/A",
}
WHATIF = {
    "trace": "trace",
    "way": "ours",
    "ours_ms": "ours, ms",
    "ours_ns": "ours, ns/task",
    "hta_ns": "HTA, ns/node",
    "over_hta": "x HTA per node",
    "networkx_ns": "networkx + heapq, ns/task",
    "over_networkx": "x networkx",
    "control": "A/A",
}
WAYS = {
    "rerun": "new durations, simulate again",
    "first": "the same, with the engine's planning",
    "whatif": "`whatif` on a replayed trace",
}


def measure(settings: Settings) -> Part:
    """Return the graph and what-if benchmark."""
    part = Part("Graph and what-if", METHOD)
    build, whatif = Table("Graph build", BUILD), Table("What-if on a loaded graph", WHATIF)
    whatif.explanation = (
        "Device work made twice as fast. `whatif` is the whole answer: copy, edit, lint, simulate the steps "
        "until they have settled (at least twice the tasks, but counted per task of the graph), compare. "
        "networkx + heapq is Algorithm 1 on the same graph with the same answer, checked task by task; its "
        "graph is made beforehand."
    )
    part.tables += [build, whatif]
    part.aims += [
        Aim("graph build per node, against HTA's", 60, {}),
        Aim("what-if on a loaded graph per node, against HTA's", 500, {}),
        Aim("the whole `whatif` per node, against HTA's", 200, {}),
        Aim("what-if on a loaded graph, against networkx + heapq", 25, {}),
    ]
    with sources(quick=settings.quick) as chosen:
        try:
            with hta_python(settings.cache) as python:
                for source in chosen:
                    _one(part, settings, source, python)
        except MissingError as reason:
            part.left_out.append(str(reason))
            for source in chosen:
                _one(part, settings, source, None)
    return part


def _one(part: Part, settings: Settings, source: Source, python: Path | None) -> None:
    say(f"graph of {source.name}")
    with Worker("work_ours.py") as ours:
        ours.ask("load", path=str(source.path), save=False)
        ours.ask("build")
        if python is None:
            _compare(part, settings, source.name, ours, None)
            return
        with Worker("work_hta.py", python) as hta:
            try:
                hta.ask("load", path=str(source.path))
                hta.ask("build")
                hta.ask("whatif", factor=FACTOR)
            except WorkError as error:
                part.left_out.append(f"HTA on {source.name}: {error}")
                _compare(part, settings, source.name, ours, None)
                return
            _compare(part, settings, source.name, ours, hta)


def _compare(part: Part, settings: Settings, name: str, ours: Worker, hta: Worker | None) -> None:
    build_row, sizes = _build(settings, name, ours, hta)
    part.tables[0].rows.append(build_row)
    tasks, nodes = sizes.get("tasks", 0), sizes.get("nodes", 0)
    if hta is not None:
        part.aims[0].cases[name] = build_row["ratio_value"]
    for row in _whatifs(settings, name, ours, hta, tasks, nodes):
        part.tables[1].rows.append(row)
        if hta is not None and row["key"] != "first":
            part.aims[1 if row["key"] == "rerun" else 2].cases[name] = row["over_hta_value"]
        if row["key"] == "rerun":
            part.aims[3].cases[name] = row["over_networkx_value"]


def _build(
    settings: Settings, name: str, ours: Worker, hta: Worker | None
) -> tuple[dict[str, Any], dict[str, int]]:
    sizes: dict[str, int] = {}
    jobs = {"ours": _asking(ours, "build", sizes), "ours again": _asking(ours, "build", sizes)}
    if hta is not None:
        jobs["hta"] = _asking(hta, "build", sizes)
    seconds = take_turns(jobs, settings.rounds(5))
    tasks = sizes["tasks"]
    row: dict[str, Any] = {
        "trace": name,
        "tasks": tasks,
        "ours_s": median(seconds["ours"]),
        "ours_ns": median(seconds["ours"]) / tasks * NS,
        "control": control(times_faster(seconds, "ours", "ours again")),
        "seconds": seconds,
    }
    if hta is not None:
        nodes = sizes["nodes"]
        ratio = times_faster(seconds, "ours", "hta").scaled(tasks / nodes)
        row |= {
            "nodes": nodes,
            "hta_s": median(seconds["hta"]),
            "hta_ns": median(seconds["hta"]) / nodes * NS,
            "ratio": str(ratio),
            "ratio_value": ratio.value,
        }
    return row, sizes


def _whatifs(
    settings: Settings, name: str, ours: Worker, hta: Worker | None, tasks: int, nodes: int
) -> list[dict[str, Any]]:
    ours.ask("rerun", factor=FACTOR)
    ours.ask("networkx_build")
    ours.ask("whatif", factor=FACTOR)
    nothing: dict[str, Any] = {}
    jobs = {
        "rerun": _asking(ours, "rerun", nothing, factor=FACTOR),
        "first": _asking(ours, "rerun", nothing, factor=FACTOR, first=True),
        "whatif": _asking(ours, "whatif", nothing, factor=FACTOR),
        "networkx": _asking(ours, "networkx_rerun", nothing, factor=FACTOR),
        "rerun again": _asking(ours, "rerun", nothing, factor=FACTOR),
        "first again": _asking(ours, "rerun", nothing, factor=FACTOR, first=True),
        "whatif again": _asking(ours, "whatif", nothing, factor=FACTOR),
    }
    if hta is not None:
        jobs["hta"] = _asking(hta, "whatif", nothing, factor=FACTOR)
    seconds = take_turns(jobs, settings.rounds(5))
    rows = []
    for key, way in WAYS.items():
        row: dict[str, Any] = {
            "key": key,
            "trace": name,
            "way": way,
            "ours_ms": median(seconds[key]) * 1e3,
            "ours_ns": median(seconds[key]) / tasks * NS,
            "control": control(times_faster(seconds, key, f"{key} again")),
            "seconds": {
                job: seconds[job] for job in seconds if job.startswith(key) or job in {"hta", "networkx"}
            },
        }
        over_networkx = times_faster(seconds, key, "networkx")
        row |= {
            "networkx_ns": median(seconds["networkx"]) / tasks * NS,
            "over_networkx": str(over_networkx),
            "over_networkx_value": over_networkx.value,
        }
        if hta is not None:
            over_hta: Ratio = times_faster(seconds, key, "hta").scaled(tasks / nodes)
            row |= {
                "hta_ns": median(seconds["hta"]) / nodes * NS,
                "over_hta": str(over_hta),
                "over_hta_value": over_hta.value,
            }
        rows.append(row)
    return rows


def _asking(worker: Worker, job: str, facts: dict[str, Any], **arguments: Any) -> Callable[[], float]:
    def ask() -> float:
        answer = worker.ask(job, **arguments)
        facts.update({key: value for key, value in answer.items() if key != "seconds"})
        return float(answer["seconds"])

    return ask


if __name__ == "__main__":
    alone(measure)
