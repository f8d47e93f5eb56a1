"""Sweep: the same what-if with every combination of some options' values, over one or many traces."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from math import inf, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from msgspec import field

from daydream.costs.contention import MEASURED, ContentionOption, parsed
from daydream.costs.device.measured import KernelTable
from daydream.errors import DaydreamError, GraphError, OutputError
from daydream.files.atomic import own_folder, write_whole
from daydream.lazy import NotebookTables
from daydream.parallel import Engine, engine_of, map_on
from daydream.predict.prediction import Changed, predict
from daydream.predict.replay import Replay, Source, replay
from daydream.results import Record
from daydream.trace.schema import Document
from daydream.trace.trace import Trace
from daydream.transforms.compose import arguments, edit_of, goes_by, option_names, parse, spelled
from daydream.transforms.registry import Optimization, find
from daydream.transforms.user_file import reason_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    import pandas as pd
    import pyarrow as pa

    from daydream.graph.graph import Graph

    SweepSource = Source | Graph | Replay

Item = tuple[str, Document | None]  # name of the trace, the options that vary; None: how it replays
Sort = Literal["throughput", "step", "speedup", "order"]
SORTS: tuple[Sort, ...] = get_args(Sort)
MOST_SCENARIOS = 1_000_000
FIGURES = (
    "replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup", "reason",
    "changed", "inserted", "removed",
)  # fmt: skip


class SweepTrace(Record):
    """One of the traces as it was recorded; or, where it cannot be replayed, the reason."""

    trace: str
    basis: str | None = None
    measured_ns: int | None = None
    replayed_ns: int | None = None
    replay_error: float | None = None
    notes: tuple[str, ...] = ()
    reason: str | None = None


class Answered(Changed):
    """What one scenario of a `trace` would give; notes without those that the trace has anyway.

    Times are of the step that `replay` chose, its `basis`.
    """

    trace: str = ""

    @property
    def gain(self) -> float:
        """How many times the throughput; 0 where that is not known."""
        return self.throughput.gain if self.throughput else self.speedup or 0


class Refused(Record):
    """A scenario that has no answer, and why."""

    trace: str
    options: dict[str, Any]
    reason: str
    notes: tuple[str, ...] = ()


class Sweep(Record, NotebookTables, eq=False):
    """Every scenario that was answered, best first, and those that were not, with the reason.

    Attributes:
        optimization: its name.
        varied: the values of each option that varies.
        options: those that are the same in all scenarios, defaults included.
        traces: what the scenarios are of.
        scenarios: those that were answered.
        refused: those that were not.
        notes: what a reader should know before trusting the figures, of whatever trace.

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
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Fill in the notes of all traces."""
        self.notes = list(dict.fromkeys(note for trace in self.traces for note in trace.notes))

    def __len__(self) -> int:
        """Return the number of scenarios, answered or not."""
        return len(self.scenarios) + len(self.refused)

    def __repr__(self) -> str:
        times = self.possible[0].speedup if self.possible else None
        best = f", best {times:.2f}x" if times is not None else ""
        return f"<Sweep of {self.optimization}: {len(self):,} scenarios, {len(self.refused):,} refused{best}>"

    @property
    def possible(self) -> list[Answered]:
        """The scenarios in this order, without those that do not fit the device's memory."""
        return [
            each for each in self.scenarios if each.memory is None or each.memory.fits is not False
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return all scenarios, a flat row each: trace, options, figures, notes, and why it was refused."""
        measured = {each.trace: each.measured_ns for each in self.traces}
        found = []
        every: list[Answered | Refused] = [*self.scenarios, *self.refused]
        for each in every:
            memory = getattr(each, "memory", None)
            figures = {
                "measured_ns": measured[each.trace],
                **{name: getattr(each, name, None) for name in FIGURES},
                "peak_memory_bytes": getattr(memory, "after_bytes", None),
                "fits": getattr(memory, "fits", None),
                "notes": len(each.notes),
                "notes_text": " ".join(each.notes) or None,
                "refused": None,
            }
            if isinstance(each, Refused):
                figures |= {"reason": None, "refused": each.reason}
            taken = {"trace", *figures}  # an option may have the name of a figure
            options = {
                f"option {name}" if name in taken else name: each.options[name]
                for name in self.varied
            }
            found.append({"trace": each.trace, **options, **figures})
        return found

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per scenario, in this order, those that were refused last."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def to_arrow(self) -> pa.Table:
        """Return a row a scenario, as `rows` has them, as an Arrow table."""
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


def sweep(
    source: SweepSource | Sequence[SweepSource] | Mapping[str, SweepSource],
    optimization: str | Callable[..., None] | Sequence[Any],
    values: Mapping[str, Sequence[Any]],
    *,
    table: KernelTable | str | os.PathLike[str] | None = None,
    contention: ContentionOption = MEASURED,
    engine: str | Engine | Executor = "local",
    sort: Sort | None = None,
    capacity: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Sweep:
    """Return what a change would give with every combination of some options' `values`.

    `source` is one trace or several, by name perhaps. `options` are the same in all scenarios. Each
    scenario is the what-if with its options; one that does not apply, or fails, is listed with the
    reason. The first are those with the largest throughput; `sort` chooses (`throughput`, `step`,
    `speedup`, or `order`: as asked, the last option fastest). `engine` is where they are answered, see
    `daydream.parallel`; the answers do not depend on it. `table` and
    `contention` are as in `whatif`, and so is `capacity`.

    Returns:
        A `Sweep`: an entry for each scenario, times in ns per step.

    Raises:
        GraphError: options or values make no sense (before anything is simulated), none of the traces
            can be replayed, or a graph is given where workers need a trace.
        TraceError: a file is not a usable trace.

    """
    from daydream.collect import load

    runs_on = engine_of(engine)
    optimizations = parse(optimization)
    varied, fixed = checked(optimizations, values, options)
    if sort is not None and sort not in SORTS:
        raise GraphError(f"sort must be one of {', '.join(SORTS)}, not {sort!r}")
    named = _named(source)
    if not named:
        raise GraphError("a sweep needs a trace")
    parsed(contention)
    for value in (*options.values(), *chain(*varied.values())):
        if runs_on.elsewhere and isinstance(value, str) and Path(value).is_file():
            raise DaydreamError(
                f"{value} is a file of this machine, which workers elsewhere need not see.\n"
                "Traces and optimizations of your own are sent, what options name is not: use the engine "
                "processes, or local."
            )
    if table is not None and not isinstance(table, KernelTable):
        table = KernelTable.load(table)
    read = {
        name: load(each) if isinstance(each, str | os.PathLike) else each
        for name, each in named.items()
    }
    sent: list[Optimization | _Packed] = [*optimizations]
    if not runs_on.local:
        for name, each in read.items():  # as parquet: a tenth of its size in memory or less
            if not isinstance(each, Trace):
                raise GraphError(
                    f"{name} is a {type(each).__name__}, which is not sent to workers: give the trace, or "
                    "take the engine local"
                )
            with own_folder("daydream") as folder:
                each.save(folder / "trace.parquet")
                read[name] = _Packed.of(folder / "trace.parquet")
        sent = [
            replace(each, apply=None) if each.own_file is None else _Packed.of(Path(each.own_file))
            for each in optimizations
        ]
    question = read, sent, options, table, contention, capacity
    combinations = [dict(zip(varied, chosen, strict=True)) for chosen in product(*varied.values())]
    items = [*product(named, (None, *combinations))]
    what = f"predicting {len(named) * len(combinations):,} scenarios"
    found = map_on(
        runs_on, _answers_on, question, items, progress=progress and partial(progress, what)
    )

    traces = [each for each in found if isinstance(each, SweepTrace)]
    failed = [each.reason for each in traces if each.reason is not None]
    if len(failed) == len(traces):
        raise GraphError(failed[0])
    answered = [each for each in found if isinstance(each, Answered)]
    if sort == "step":
        answered.sort(key=lambda each: each.predicted_ns if each.predicted_ns is not None else inf)
    elif sort != "order":
        answered.sort(key=lambda each: -(each.gain if sort != "speedup" else each.speedup or 0))
    refused = [each for each in found if isinstance(each, Refused)]
    return Sweep(spelled(optimizations), varied, fixed, traces, answered, refused)


def checked(
    optimizations: Sequence[Optimization],
    values: Mapping[str, Sequence[Any]],
    options: Mapping[str, Any],
) -> tuple[dict[str, list[Any]], Document]:
    """Return the values by the names that options go by, and the options that are the same throughout.

    Raises `GraphError` for an option that none of them has, that is given twice or is missing, and
    for a value of another type, or given twice.
    """
    if not values:
        raise GraphError(
            "a sweep needs an option with several values; `whatif` answers one question"
        )
    named = option_names(optimizations)
    for name, listed in values.items():
        if isinstance(listed, str) or not len(listed):
            raise GraphError(f"{name} needs a list of values, not {listed!r}")
        if name in options:
            raise GraphError(f"option {name!r} is given twice")
    first = {name: listed[0] for name, listed in values.items()}
    used, _ = arguments(optimizations, {**options, **first})
    varied = {}
    for alias, listed in values.items():
        name = goes_by(named, alias)
        option = named[name][1]
        varied[name] = [option.checked(value) for value in listed]
        [(value, times)] = Counter(varied[name]).most_common(1)
        if times > 1:
            raise GraphError(f"{name} is given {value!r} twice")
    count = prod(map(len, varied.values()))
    if count > MOST_SCENARIOS:
        raise GraphError(
            f"these are {count:,} scenarios; up to {MOST_SCENARIOS:,} are answered at once"
        )
    return varied, {name: value for name, value in used.items() if name not in varied}


def _named(source: Any) -> Document:
    """Return the traces by name: the one given, the path, what the trace says, or its place."""
    if isinstance(source, Mapping):
        return dict(source)
    named = {}
    for place, one in enumerate(source if isinstance(source, list | tuple) else [source], 1):
        trace = getattr(getattr(one, "graph", one), "trace", one)
        name = str(getattr(trace, "metadata", {}).get("source") or f"trace {place}")
        if isinstance(one, str | os.PathLike):
            name = os.fspath(one)
        named[f"{name} ({place})" if name in named else name] = one
    return named


class _Packed(NamedTuple):
    """A file as it is sent to a worker, which does not see the folders of this process."""

    name: str
    data: bytes

    @classmethod
    def of(cls, path: Path) -> _Packed:
        return cls(path.name, path.read_bytes())

    def unpacked(self, folder: Path) -> Path:
        path = folder / self.name
        path.write_bytes(self.data)
        return path


def _answers_on(question: Sequence[Any]) -> Callable[[Item], SweepTrace | Answered | Refused]:
    """Return what answers the items of a sweep; a trace is built when it is first asked about."""
    traces, sent, options, table, contention, capacity = question
    with own_folder("daydream") as folder:
        optimizations = [
            find(str(each.unpacked(folder))) if isinstance(each, _Packed) else each for each in sent
        ]
    replays = dict[str, Replay | str]()  # one at a time: graphs are large

    def answer(item: Item) -> SweepTrace | Answered | Refused:
        name, varied = item
        if name not in replays:
            replays.clear()
            source = traces[name]
            try:
                if isinstance(source, _Packed):
                    with own_folder("daydream") as folder:
                        source = Trace.load(source.unpacked(folder))
                replays[name] = (
                    source if isinstance(source, Replay) else replay(source, table=table)
                )
            except GraphError as error:
                replays[name] = str(error)
        before = replays[name]
        if isinstance(before, str):
            return (
                SweepTrace(name, reason=before) if varied is None else Refused(name, varied, before)
            )
        if varied is None:
            return SweepTrace(name, **before.basis_figures, notes=tuple(before.notes))
        try:
            edit = edit_of(optimizations, {**options, **varied}, table)
            found = predict(before, edit, contention=contention, capacity_bytes=capacity)
            return found.shared(Answered, trace=name, options=varied)
        except Exception as error:  # noqa: BLE001 - one that fails must not lose the others
            return Refused(name, varied, reason_of(error))

    return answer
