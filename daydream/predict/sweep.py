"""Sweep: the same what-if with every combination of some options' values, over one or many traces."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from daydream.display import NotebookTables, as_json
from daydream.errors import DaydreamError, GraphError, OutputError
from daydream.files.atomic import write_whole
from daydream.parallel.engines import Engine, engine_of
from daydream.parallel.map_on import map_on
from daydream.predict.as_run import of_one_step
from daydream.predict.contention_option import MEASURED, parsed
from daydream.predict.contention_option import Option as ContentionOption
from daydream.predict.sweep_worker import FIGURES, Answered, Question, Refused, SweepTrace, answers_on
from daydream.transforms.compose import arguments, option_names, parse, qualified, spelled
from daydream.transforms.registry import Optimization

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from daydream.costs.device.table import KernelTable
    from daydream.graph.graph import Graph
    from daydream.predict.replay import Replay, Source

    SweepSource = Source | Graph | Replay

Sort = Literal["step", "speedup", "order"]
SORTS: tuple[Sort, ...] = get_args(Sort)
MOST_SCENARIOS = 1_000_000
AS_RUN = ("as_run_before_ns", "as_run_after_ns", "as_run_low_ns", "as_run_high_ns", "as_run_speedup")


@dataclass(repr=False)
class Sweep(NotebookTables):
    """Every scenario that was answered, best first, and those that were not, with the reason.

    `varied` maps options to their values, `options` holds those that are the same in all
    scenarios, defaults included.

    Example::

        found = daydream.sweep("examples/mlp_cpu.json.gz", "scale", {"factor": [0.5, 0.8]}, on="cpu")
        for each in found.scenarios:
            print(each.options["factor"], each.predicted_ns)
        found.to_pandas()

    """

    optimization: str
    varied: dict[str, list[Any]]
    options: dict[str, Any]
    traces: list[SweepTrace]
    scenarios: list[Answered]
    refused: list[Refused]

    def __len__(self) -> int:
        """Return the number of scenarios, answered or not."""
        return len(self.scenarios) + len(self.refused)

    def __repr__(self) -> str:
        first = self.possible[0].as_run if self.possible else None
        best = f", best {first.speedup:.2f}x" if first is not None else ""
        return f"<Sweep of {self.optimization}: {len(self):,} scenarios, {len(self.refused):,} refused{best}>"

    @property
    def possible(self) -> list[Answered]:
        """The scenarios in this order, without those that do not fit the device's memory."""
        return [each for each in self.scenarios if each.memory is None or each.memory.fits is not False]

    def rows(self) -> list[dict[str, Any]]:
        """Return all scenarios, a flat row each: trace, options, figures, notes, and why it was refused."""
        measured = {each.trace: each.measured_ns for each in self.traces}
        found = []
        every: list[Answered | Refused] = [*self.scenarios, *self.refused]
        for each in every:
            refused = isinstance(each, Refused)
            row: dict[str, Any] = {"trace": each.trace}
            row |= {_column(name): each.options[name] for name in self.varied}
            row["measured_ns"] = measured[each.trace]
            row |= {name: None if refused else getattr(each, name) for name in FIGURES}
            run = None if isinstance(each, Refused) else each.as_run
            for name in AS_RUN:
                row[name] = None if run is None else getattr(run, name.removeprefix("as_run_"))
            memory = None if isinstance(each, Refused) else each.memory
            row["peak_memory_bytes"] = None if memory is None else memory.after_bytes
            row["fits"] = None if memory is None else memory.fits
            row["notes"] = len(each.notes)
            row["notes_text"] = " ".join(each.notes) or None
            row["refused"] = each.reason if refused else None
            found.append(row)
        return found

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per scenario, in this order, those that were refused last."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_arrow(self) -> pa.Table:
        """Return the same as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_pylist(self.rows())

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write a row per scenario as .csv or .parquet; the file appears whole or not at all.

        Raises `OutputError` for another suffix, a path that cannot be written, or one that exists
        without `force`.
        """
        suffix = Path(path).suffix
        if suffix not in {".csv", ".parquet"}:
            raise OutputError(f"cannot write {path}: a sweep is written as .csv or .parquet")

        def write(temporary: str) -> None:
            from pyarrow import csv, parquet

            (csv.write_csv if suffix == ".csv" else parquet.write_table)(self.to_arrow(), temporary)

        write_whole(path, write, force=force)

    def notes(self) -> list[str]:
        """Return what a reader should know before trusting the figures, of whatever trace."""
        return list(dict.fromkeys(note for trace in self.traces for note in trace.notes))

    def to_json(self) -> dict[str, Any]:
        """Return the object `sweep --json` prints."""
        keys = "optimization varied options traces scenarios refused"
        return as_json(self, keys) | {"notes": self.notes()}


def sweep(
    source: SweepSource | Sequence[SweepSource] | Mapping[str, SweepSource],
    optimization: str | Callable[..., None] | Sequence[Any],
    values: Mapping[str, Sequence[Any]],
    *,
    table: KernelTable | str | os.PathLike[str] | None = None,
    contention: ContentionOption = MEASURED,
    engine: str | Engine = "local",
    sort: Sort | None = None,
    capacity: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Sweep:
    """Return what a change would give with every combination of some options' `values`.

    `source` is one trace or several, by name perhaps. `options` are the same in all scenarios. Each
    scenario is the what-if with its options; one that does not apply, or fails, is listed with the
    reason. The first are those with the shortest step, of several traces those with the largest
    speed-up; `sort` chooses (`step`, `speedup`, or `order`: as asked, the last option fastest). `engine`
    is where they are answered, see `daydream.parallel.engines`; the answers do not depend on it. `table` and
    `contention` are as in `whatif`, and so is `capacity`.

    Returns:
        A `Sweep`: an entry for each scenario, times in ns per step.

    Raises:
        GraphError: options or values make no sense (before anything is simulated), or none of the
            traces can be replayed.

    """
    runs_on = engine_of(engine)
    optimizations = parse(optimization)
    varied, fixed = checked(optimizations, values, options)
    if sort is not None and sort not in SORTS:
        raise GraphError(f"sort must be one of {', '.join(SORTS)}, not {sort!r}")
    named = _named(source)
    parsed(contention)
    _check_files(runs_on, [*options.values(), *(value for listed in varied.values() for value in listed)])
    question = Question.of(named, optimizations, options, table, contention, runs_on, capacity)
    items = list(_items(len(named), varied))
    say = progress or (lambda _what, _share: None)
    what = f"predicting {len(items) - len(named):,} scenarios"
    found = map_on(runs_on, answers_on, question, items, progress=lambda share: say(what, share))

    traces = [each for each in found if isinstance(each, SweepTrace)]
    failed = [each.reason for each in traces if each.reason is not None]
    if len(failed) == len(traces):
        raise GraphError(failed[0])
    answered = [each for each in found if isinstance(each, Answered)]
    chosen = sort or ("step" if len(named) == 1 else "speedup")
    by_trace = [[each for each in answered if each.trace == name] for name in named]
    answered = [each for of_trace in by_trace for each in of_one_step(of_trace)]
    if chosen == "step":
        answered.sort(key=lambda each: each.as_run.after_ns if each.as_run is not None else inf)
    elif chosen == "speedup":
        answered.sort(key=lambda each: -each.as_run.speedup if each.as_run is not None else inf)
    refused = [each for each in found if isinstance(each, Refused)]
    return Sweep(spelled(optimizations), varied, fixed, traces, answered, refused)


def checked(
    optimizations: Sequence[Optimization], values: Mapping[str, Sequence[Any]], options: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """Return the values by the names that options go by, and the options that are the same throughout.

    Raises `GraphError` for an option that none of them has, that is given twice or is missing, and
    for a value of another type, or given twice.
    """
    if not values:
        raise GraphError("a sweep needs an option with several values; `whatif` answers one question")
    named = option_names(optimizations)
    aliases = {qualified(owner, plain): name for name, (owner, plain) in named.items()}
    for name, listed in values.items():
        if isinstance(listed, str) or not len(listed):
            raise GraphError(f"{name} needs a list of values, not {listed!r}")
    first = {name: listed[0] for name, listed in values.items()}
    for name in first:
        if name in options:
            raise GraphError(f"option {name!r} is given twice")
    used, _ = arguments(optimizations, {**options, **first})
    varied: dict[str, list[Any]] = {}
    for alias, listed in values.items():
        name = aliases.get(alias, alias)
        owner, plain = named[name]
        option = next(each for each in owner.options if each.name == plain)
        right = [option.checked(value) for value in listed]
        again = [value for value, times in Counter(right).items() if times > 1]
        if again:
            raise GraphError(f"{name} is given {again[0]!r} twice")
        varied[name] = right
    count = prod(map(len, varied.values()))
    if count > MOST_SCENARIOS:
        raise GraphError(f"these are {count:,} scenarios; up to {MOST_SCENARIOS:,} are answered at once")
    return varied, {name: value for name, value in used.items() if name not in varied}


def _check_files(engine: Engine, values: Iterable[Any]) -> None:
    """Raise `DaydreamError` if a value names a file that workers on other machines would look for."""
    for value in values:
        if engine.elsewhere and isinstance(value, str) and Path(value).is_file():
            raise DaydreamError(
                f"{value} is a file of this machine, which the workers of {engine.address} need not see.\n"
                "Traces and optimizations of your own are sent, what options name is not: use the engine "
                "processes, or local."
            )


def _items(traces: int, varied: Mapping[str, Sequence[Any]]) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield what is asked: for each trace how it replays (no options), then every combination."""
    for place in range(traces):
        yield place, None
        for chosen in product(*varied.values()):
            yield place, dict(zip(varied, chosen, strict=True))


def _named(source: Any) -> dict[str, Any]:
    """Return the traces by name: the one given, the path, what the trace says, or its place."""
    if isinstance(source, Mapping):
        named = dict(source)
    else:
        each = list(source) if isinstance(source, list | tuple) else [source]
        named = {}
        for place, one in enumerate(each):
            name = _name(one) or f"trace {place + 1}"
            named[name if name not in named else f"{name} ({place + 1})"] = one
    if not named:
        raise GraphError("a sweep needs a trace")
    return named


def _name(source: Any) -> str:
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    trace = getattr(getattr(source, "graph", source), "trace", source)
    return str(getattr(trace, "metadata", {}).get("source", ""))


def _column(option: str) -> str:
    """Return the column of an option, which may have the name of a figure."""
    of_memory, said = ("peak_memory_bytes", "fits"), ("notes", "notes_text", "refused")
    taken = {"trace", "measured_ns", *FIGURES, *AS_RUN, *of_memory, *said}
    return f"option {option}" if option in taken else option
