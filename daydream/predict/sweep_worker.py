"""The scenarios of a sweep answered one by one: by this process, or by a worker that was sent the trace."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from daydream.costs.device.table import KernelTable
from daydream.display import as_json
from daydream.errors import DaydreamError, GraphError
from daydream.files.own_folders import own_folder
from daydream.memory.prediction import MemoryPrediction
from daydream.parallel.engines import Engine
from daydream.predict.as_run import StepAsRun, step_as_run
from daydream.predict.contention_option import MEASURED, Option
from daydream.predict.prediction import predict
from daydream.predict.replay import Replay
from daydream.trace.trace import Trace
from daydream.transforms.compose import edit_of
from daydream.transforms.mistakes import mistake_in_own_file
from daydream.transforms.registry import OWN_FILE, Optimization, find

Item = tuple[int, dict[str, Any] | None]

FIGURES = (
    "replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup", "reason",
    "changed", "inserted", "removed",
)  # fmt: skip


@dataclass(frozen=True)
class SweepTrace:
    """One of the traces as it was recorded; or, where it cannot be replayed, the reason."""

    trace: str
    measured_ns: int | None
    replayed_ns: int | None
    replay_error: float | None
    notes: tuple[str, ...] = ()
    reason: str | None = None


@dataclass(frozen=True)
class Answered:
    """What one scenario would give; `notes` without those that the trace has anyway.

    `predicted_ns`, its range and `speedup` are of the recorded step, `as_run` is that of a run without a
    profiler where the trace knows it.
    """

    trace: str
    options: dict[str, Any]
    replayed_ns: int
    predicted_ns: int | None
    predicted_low_ns: int | None
    predicted_high_ns: int | None
    changed: int
    inserted: int
    removed: int
    notes: tuple[str, ...] = ()
    reason: str | None = None  # why it cannot be predicted
    memory: MemoryPrediction | None = None
    as_run: StepAsRun | None = None  # None if it cannot be predicted

    @property
    def speedup(self) -> float | None:
        """Return replayed / predicted, infinite if nothing is left; None if it cannot be predicted."""
        if self.predicted_ns is None:
            return None
        return self.replayed_ns / self.predicted_ns if self.predicted_ns else float("inf")

    def to_json(self) -> dict[str, Any]:
        """Return the entry as `sweep --json` prints it."""
        return as_json(self, f"trace options {' '.join(FIGURES)} as_run memory notes")


@dataclass(frozen=True)
class Refused:
    """A scenario that has no answer, and why."""

    trace: str
    options: dict[str, Any]
    reason: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Packed:
    """A file as it is sent to a worker."""

    name: str
    data: bytes

    def unpacked(self, folder: Path) -> Path:
        path = folder / self.name
        path.write_bytes(self.data)
        return path


@dataclass(frozen=True)
class Question:
    """What all scenarios share: traces, optimizations, options that stay, measured times, contention.

    Traces and a user's own files are sent as they are, so that a worker needs none of this
    machine's files.
    """

    traces: dict[str, Any]
    optimizations: list[Optimization | _Packed]
    options: dict[str, Any]
    table: KernelTable | None
    contention: Option = MEASURED
    capacity: int | None = None

    @classmethod
    def of(
        cls,
        traces: Mapping[str, Any],
        optimizations: Sequence[Optimization],
        options: Mapping[str, Any],
        table: KernelTable | str | os.PathLike[str] | None,
        contention: Option,
        engine: Engine,
        capacity: int | None = None,
    ) -> Question:
        """Return the question as this engine can take it.

        Raises `TraceError` if a file is not a usable trace, `GraphError` for a graph where a trace is needed.
        """
        if table is not None and not isinstance(table, KernelTable):
            table = KernelTable.load(table)
        sent: dict[str, Any]
        parts: list[Optimization | _Packed]
        if engine.local:
            sent, parts = {name: _read(each) for name, each in traces.items()}, [*optimizations]
        else:
            sent = {name: _sent(name, each) for name, each in traces.items()}
            parts = [_without_file(each) for each in optimizations]
        return cls(sent, parts, dict(options), table, contention, capacity)


def answers_on(question: Question) -> Callable[[Item], SweepTrace | Answered | Refused]:
    """Return what answers the items of a sweep: (number of the trace, the options that vary or None)."""
    return _SweepAnswers(question).answer


class _SweepAnswers:
    """Answers about one trace after the other; a trace is built when it is first asked about."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.names = list(question.traces)
        with own_folder("daydream") as folder:
            self.optimizations = [
                find(str(each.unpacked(folder))) if isinstance(each, _Packed) else each
                for each in question.optimizations
            ]
        self.place = -1
        self.replay: Replay | str = ""

    def answer(self, item: Item) -> SweepTrace | Answered | Refused:
        place, varied = item
        if place != self.place:  # one at a time: graphs are large
            self.place, self.replay = place, ""
            self.replay = self._replayed(self.names[place])
        name, before = self.names[place], self.replay
        if varied is None:
            return _summary(name, before)
        if isinstance(before, str):
            return Refused(name, varied, before)
        try:
            return self._answered(name, before, varied)
        except DaydreamError as error:
            said = str(mistake_in_own_file(error) or error)
        except Exception as error:  # noqa: BLE001 - one that fails must not lose the others
            said = str(mistake_in_own_file(error) or f"it failed: {type(error).__name__}: {error}")
        return Refused(name, varied, " ".join(said.split()))

    def _replayed(self, name: str) -> Replay | str:
        """Return the replay of a trace, or why there is none."""
        from daydream.predict.replay import replay

        source = self.question.traces[name]
        if isinstance(source, Replay):
            return source
        try:
            if isinstance(source, _Packed):
                with own_folder("daydream") as folder:
                    source = Trace.load(source.unpacked(folder))
            return replay(source, table=self.question.table)
        except GraphError as error:
            return str(error)

    def _answered(self, name: str, before: Replay, varied: Mapping[str, Any]) -> Answered:
        options = {**self.question.options, **varied}
        edit = edit_of(self.optimizations, options, self.question.table)
        question = self.question
        found = predict(before, edit, contention=question.contention, capacity_bytes=question.capacity)
        known = set(before.notes)
        notes = tuple(note for note in found.notes if note not in known)
        figures = {figure: getattr(found, figure) for figure in FIGURES if figure != "speedup"}
        run = None if found.reason else step_as_run(found)
        return Answered(
            trace=name, options=dict(varied), notes=notes, memory=found.memory, as_run=run, **figures
        )  # fmt: skip


def _summary(name: str, before: Replay | str) -> SweepTrace:
    if isinstance(before, str):
        return SweepTrace(name, None, None, None, reason=before)
    now = before.settled.step_ns
    return SweepTrace(name, before.measured_ns, now, before.error, tuple(before.notes))


def _read(source: Any) -> Any:
    from daydream.collect.load import load

    return load(source) if isinstance(source, str | os.PathLike) else source


def _sent(name: str, source: Any) -> _Packed:
    """Return a trace as parquet, a tenth of its size in memory or less."""
    trace = _read(source)
    if not isinstance(trace, Trace):
        raise GraphError(
            f"{name} is a {type(trace).__name__}, which is not sent to workers: give the trace, or take the "
            "engine local"
        )
    with own_folder("daydream") as folder:
        path = folder / "trace.parquet"
        trace.save(path)
        return _Packed(path.name, path.read_bytes())


def _without_file(optimization: Optimization) -> Optimization | _Packed:
    """Return an optimization as it is sent: one of a user's own file as that file."""
    module = sys.modules.get(optimization.function.__module__)
    if module is not None and module.__name__.startswith(OWN_FILE) and module.__file__:
        path = Path(module.__file__)
        return _Packed(path.name, path.read_bytes())
    return replace(optimization, apply=None)
