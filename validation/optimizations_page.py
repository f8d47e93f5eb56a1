"""Write docs/optimizations.md, and evaluation/optimizations.csv: what each gives on each public training trace, or why not.

    python validation/optimizations_page.py --traces ../shared/traces --write docs/optimizations.md

Options are at their defaults, but for those of `EXAMPLES`. A trace is of training if it
holds a backward pass. Exits with 1 if an optimization crashes or leaves a broken graph;
the table then says where.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import daydream
from daydream.errors import DaydreamError
from daydream.predict.notes import most_of, waited_for_ns
from daydream.transforms import stages
from daydream.transforms.registry import Optimization, find, names

EXAMPLES: dict[str, dict[str, Any]] = {  # what has to be said, or says nothing by default
    "batch-size": {"factor": 2.0},
    "collective-times": {"collective_times": "times.csv"},  # of a network simulator
    "cpu": {"speedup": 2.0},
    "freeze": {"layers": "*Conv2d*"},
    "gpu": {"to": "h100"},
    "metaflow": {"layers": "*Conv2d*", "factor": 0.5},
    "network": {"bandwidth_factor": 2.0},
    "pcie": {"bandwidth": 24.0},
    "remove-layers": {"layers": "*BatchNorm2d*"},
    "replace": {"op": r"^aten::(gelu|relu)_?$", "factor": 0.5},
    "scale": {"on": "gpu", "factor": 0.5},
    "sequence-length": {"length": 512},
}
BROKEN = "left a broken graph"
LONGEST_REASON = 200


@dataclass(frozen=True)
class Cell:
    """What an optimization gives on a trace, or why it gives nothing; both for a crash."""

    shown: str = ""
    reason: str = ""


@dataclass
class Found:
    """The table as it is filled: cells by optimization, one a trace; and the crashes."""

    traces: list[str] = field(default_factory=list)
    about: list[list[str]] = field(default_factory=list)
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    crashes: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list and the tables, or write them; return the exit code."""
    from tables import keep, put  # the documentation's hook reads this file from elsewhere

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, help="folder with kineto/ and nsys/")
    parser.add_argument("--write", type=Path, help="the page; without it all is printed")
    parser.add_argument("--cache", type=Path, help="folder for imported traces, to be used again")
    parser.add_argument("--only", action="append", help="run this optimization only; may be given again")
    options = parser.parse_args(arguments)
    chosen = [find(name) for name in options.only or names()]
    found = run(sources(options.traces), chosen, options.cache)
    put(options.write, "the list of optimizations", listed(chosen))
    keep(options.write and options.write.parent / "evaluation", "optimizations", rows(found))
    for crash in found.crashes:
        print(crash, file=sys.stderr)
    return 1 if found.crashes else 0


def sources(folder: Path) -> list[Path]:
    """Return the traces below a folder: files, and folders with one file a rank."""
    kineto = [path for path in (folder / "kineto").glob("*") if path.is_dir() or ".json" in path.suffixes]
    return sorted(kineto) + sorted((folder / "nsys").glob("*.sqlite*"))


def run(paths: Sequence[Path], chosen: Sequence[Optimization], cache: Path | None) -> Found:
    """Return what every optimization gives on each of the traces that train."""
    found = Found()
    replays = [(path, replay) for path in paths if (replay := _training(path, cache)) is not None]
    found.traces = short_names([path.name.split(".")[0] for path, _ in replays])
    while replays:  # each is let go when it is done
        path, replay = replays.pop(0)
        short = found.traces[len(found.about)]
        bound, share = most_of(waited_for_ns(replay.settled))
        found.about.append(
            [short, f"`{path.name}`", str(len(replay.steps)), f"{replay.settled.step_ns / 1e6:,.1f}",
             f"{replay.error:+.2%}", f"{bound} ({share:.0%})"]
        )  # fmt: skip
        for optimization in chosen:
            cell = outcome(found, replay, optimization, short)
            found.cells.setdefault(optimization.name, []).append(cell)
    return found


def _training(path: Path, cache: Path | None) -> daydream.Replay | None:
    """Return the replay of a trace that holds a backward pass and a step to be judged, else None."""
    try:
        replay = daydream.replay(_load(path, cache))
    except DaydreamError:
        return None
    return replay if len(replay.graph.select(phase="backward")) else None


def _load(path: Path, cache: Path | None) -> daydream.Trace:
    kept = None if cache is None else cache / f"{path.name}.parquet"
    if kept is not None and kept.exists() and kept.stat().st_mtime > path.stat().st_mtime:
        return daydream.load(kept)
    trace = daydream.load(path)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        trace.save(kept, force=True)
    return trace


def unchanged(replay: daydream.Replay) -> daydream.Prediction:
    """Return the comparison of a replay with itself."""
    return daydream.Prediction.unchanged(replay)


def outcome(found: Found, replay: daydream.Replay, optimization: Optimization, trace: str) -> Cell:
    """Return speedup and bound, a reason, or that it crashed."""
    try:
        comparison = daydream.whatif(replay, optimization.name, **EXAMPLES.get(optimization.name, {}))
        bound, _ = comparison.bound
    except Exception as error:  # noqa: BLE001 - whatever it is, the table shows it
        if isinstance(error, DaydreamError) and BROKEN not in str(error):
            return Cell(reason=shortened(str(error)))
        said = f"{type(error).__name__}: {error}"
        found.crashes.append(f"{optimization.name} on {trace}: {said}")
        return Cell("**crash**", shortened(said))
    return Cell(
        f"{comparison.speedup:.2f}x, {bound}" if comparison.predicted_ns else f"nothing left, {bound}"
    )


def shortened(reason: str) -> str:
    """Return a reason on one line; of a long one (a list of all GPUs) the first sentence."""
    line = " ".join(reason.split())
    return line if len(line) <= LONGEST_REASON else line.split(". ")[0][:LONGEST_REASON]


def short_names(stems: Sequence[str]) -> list[str]:
    """Return short names of files: the first two words, and those that tell equal ones apart."""
    words = [stem.split("_") for stem in stems]
    short = []
    for each in words:
        common = set.intersection(*(set(other) for other in words if other[:2] == each[:2]))
        alone = sum(other[:2] == each[:2] for other in words) == 1
        short.append(" ".join([*each[:2], *(word for word in each[2:] if not alone and word not in common)]))
    return short


def listed(chosen: Sequence[Optimization]) -> Iterator[str]:
    """Yield the optimizations and what each predicts, by stage."""
    for stage, title in stages.TITLES.items():
        mine = [each for each in chosen if each.stage == stage]
        if mine:
            yield f"**{title[0].upper()}{title[1:]}**\n"
            yield from (f"- `{each.name}`: {each.summary}" for each in mine)
            yield ""


def rows(found: Found) -> Iterator[str]:
    """Yield two tables: a row for each optimization and trace, and the traces."""
    yield _row(["optimization", "trace", "speedup, bound by", "why not"])
    yield "|---|---|---|---|"
    for name, cells in found.cells.items():
        for trace, cell in zip(found.traces, cells, strict=True):
            yield _row([_spelled(name), trace, cell.shown, cell.reason])
    yield ""
    yield _row(["trace", "file", "steps", "settled step, ms", "replay error", "bound by"])
    yield "|---|---|---|---|---|---|"
    yield from map(_row, found.about)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _spelled(name: str) -> str:
    """Return an optimization with the options it was given, as typed."""
    typed = [name]
    for option, value in EXAMPLES.get(name, {}).items():
        typed += [f"--{option.replace('_', '-')}", f"{value:g}" if isinstance(value, float) else str(value)]
    return f"`{' '.join(typed)}`"


if __name__ == "__main__":
    sys.exit(main())
