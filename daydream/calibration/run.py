"""Which operator calls a prediction asks for, and a table of what they take on this machine.

A change can be calibrated in place, too: by steps recorded without it and with it, which say what the operators
that it acts on take. Both are of one run of one script, so tensors, layouts, caches and threads are those of
training, and what a tool costs in Python counts. The machine's own change of speed between the two recordings is
taken out by the operators that the change does not touch.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from daydream.arrays import distinct_rows, lookup, take
from daydream.calibration.operators import OperatorCall
from daydream.calibration.worker import Worker
from daydream.costs.device.call_scaling import works
from daydream.costs.device.measured import (
    CPU,
    METADATA,
    NUMBERS,
    SCHEMA,
    KernelTable,
    device_name,
    recorded_ns,
    types_of,
)
from daydream.costs.kernels import work
from daydream.costs.operators import bare_name, operator
from daydream.costs.workload.calls import calls_of, forward_rows, nodes, of_rows
from daydream.costs.workload.formulas import Shape
from daydream.errors import NotApplicableError
from daydream.graph.build import build
from daydream.graph.calls import enclosing
from daydream.graph.graph import Graph
from daydream.results import Record
from daydream.trace.trace import Trace
from daydream.transforms.compose import apply, spelled
from daydream.transforms.registry import Optimization

TOTAL_LIMIT_S = 120.0
CALL_LIMIT_S = 0.2
Say = Callable[[str, float], None]


class Questions(KernelTable):
    """A table that knows nothing and remembers what it was asked, in this order."""

    def __init__(self) -> None:
        super().__init__([])
        self.asked: dict[tuple[str, str, str | None], OperatorCall] = {}

    def call(
        self, op: str, shapes: str, dtype: str | None, hint: Shape | None = None
    ) -> float | None:
        """Remember a call; its time is not known."""
        self.asked.setdefault((op, shapes, dtype), OperatorCall(op, shapes, dtype, hint))
        return None


class MeasuredCall(Record):
    """An operator call, and what it takes here.

    Attributes:
        op: the operator.
        shapes: of its arguments, as JSON.
        dtype: torch's name of their type, or `tf32`; None if unknown.
        duration_ns: what one call takes.
        repeats: how often it was timed.
    """

    op: str
    shapes: str
    dtype: str | None
    duration_ns: int
    repeats: int


class CallLeftOut(Record):
    """An operator call that was not measured, and why."""

    op: str
    shapes: str
    dtype: str | None
    reason: str


class MeasuredTimes(Record):
    """Times of operator calls on a machine: what is measured, a record each.

    Attributes:
        device: what they ran on.
        torch: its version.
    """

    device: str
    torch: str
    if TYPE_CHECKING:
        measured: list[Any]

    def table(self) -> KernelTable:
        """Return the times as predictions take them."""
        return KernelTable([msgspec.structs.asdict(each) for each in self.measured], self.device)

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the times as parquet; `KernelTable.load` reads it.

        Raises `OutputError` if the path cannot be written, or exists and `force` is not given.
        """
        import pyarrow as pa
        from pyarrow.parquet import write_table

        from daydream.files.atomic import write_whole

        rows = [msgspec.structs.asdict(each) for each in self.measured]
        columns = [(name, NUMBERS.get(name, "string")) for name in rows[0]]
        said = {"schema_version": SCHEMA, "device": self.device, "torch": self.torch}
        table = pa.Table.from_pylist(rows, pa.schema(columns, {METADATA: json.dumps(said)}))
        write_whole(
            path, lambda temporary: write_table(table, temporary, compression="zstd"), force=force
        )


class Calibration(MeasuredTimes):
    """What operator calls take on this machine, and which were not measured.

    Attributes:
        device: what they ran on.
        torch: its version.
        asked: how many distinct calls there were.
        measured: those that were measured.
        left_out: those that were not, each with the reason.
        seconds: how long that took.
    """

    asked: int = 0
    measured: list[MeasuredCall] = msgspec.field(default_factory=list)
    left_out: list[CallLeftOut] = msgspec.field(default_factory=list)
    seconds: float = 0.0

    def measure(self, call: OperatorCall, nanoseconds: float, repeats: int) -> None:
        """Add a call that was measured."""
        self.measured.append(
            MeasuredCall(call.op, call.shapes, call.dtype, round(nanoseconds), repeats)
        )
        self.asked += 1

    def leave_out(self, call: OperatorCall, reason: str) -> None:
        """Add a call that was not."""
        self.left_out.append(CallLeftOut(call.op, call.shapes, call.dtype, reason))
        self.asked += 1

    def reasons(self) -> dict[str, list[CallLeftOut]]:
        """Return what was left out, by reason."""
        found: dict[str, list[CallLeftOut]] = {}
        for call in self.left_out:
            found.setdefault(call.reason, []).append(call)
        return found


def calibrate(
    trace: Trace | Graph,
    optimizations: Sequence[Optimization] = (),
    options: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    total_limit_s: float = TOTAL_LIMIT_S,
    call_limit_s: float = CALL_LIMIT_S,
    progress: Say | None = None,
) -> Calibration:
    """Measure the operator calls of a trace on this machine, or those that a change of it asks for.

    With optimizations: each call as it was recorded and as the change would make it, in type and shape.
    Those that take most of the recorded time come first. `device` is `cpu` or `cuda`, by default where
    the trace's work ran.

    Raises `NotApplicableError` if there is nothing to measure, `DaydreamError` if torch or the device is
    not there.
    """
    graph = trace if isinstance(trace, Graph) else build(trace)
    calls = (
        _asked_by(graph, optimizations, options or {}) if optimizations else recorded_calls(graph)
    )
    device = device or (CPU if device_name(graph) == CPU else "cuda")
    threads = graph.recorded.metadata.get("threads")
    trains = len(graph.select(phase="backward")) > 0
    with closing(
        Worker(
            device=device,
            threads=threads if isinstance(threads, int) and threads > 0 else None,
            trains=trains,
            call_limit_s=call_limit_s,
        )
    ) as worker:
        result = _measure(calls, worker, total_limit_s, progress)
    for call in _unknown_calls(graph):
        result.leave_out(call, "its work is not known, so no prediction asks for it")
    if not result.measured:
        raise NotApplicableError(
            f"none of the {result.asked:,} operator calls could be run; "
            + "; ".join(f"{reason}: {len(calls)}" for reason, calls in result.reasons().items())
        )
    return result


def recorded_calls(graph: Graph) -> list[OperatorCall]:
    """Return the distinct operator calls that do a trace's work, by the time that they took, most first."""
    tasks = graph.select(
        on="gpu" if len(graph.select(kind="kernel")) else "cpu", kind=("kernel", "cpu")
    )
    trace = graph.recorded
    if not len(tasks):
        return []
    rows = work(graph, tasks).call
    calls = calls_of(trace)
    time_of_row = recorded_ns(graph)
    total: dict[tuple[int, str | None], float] = {}
    pairs = zip(rows.tolist(), types_of(tasks).tolist(), strict=True)
    for row, dtype in dict(pair for pair in pairs if pair[0] >= 0).items():
        key = (int(calls.which[row]), dtype)
        total[key] = total.get(key, 0.0) + float(time_of_row[row])
    order = sorted(total, key=lambda key: (-total[key], key[0], str(key[1])))
    return [
        OperatorCall(op, shapes, dtype, hint)
        for which, dtype in order
        for op, shapes, hint in [calls.keys[which]]
    ]


def _unknown_calls(graph: Graph) -> list[OperatorCall]:
    """Return the distinct calls that did work of which no formula is known: nothing asks for their times."""
    on_gpu = len(graph.select(kind="kernel")) > 0
    tasks = graph.select(kind="kernel") if on_gpu else graph.select(kind="cpu")
    if not len(tasks):
        return []
    unknown = work(graph, tasks).call < 0
    if not on_gpu:  # what calls others does its work there
        unknown &= ~np.isin(tasks.row, graph.recorded["parent"])
    columns = (tasks.op, tasks.shapes, tasks.dtype)
    found = dict.fromkeys(zip(*(column[unknown].tolist() for column in columns), strict=True))
    return [
        OperatorCall(op, shapes or "", dtype)
        for op, shapes, dtype in found
        if op is not None and not operator(op).formula and (on_gpu or works(op))
    ]


def _asked_by(
    graph: Graph, optimizations: Sequence[Optimization], options: Mapping[str, Any]
) -> list[OperatorCall]:
    """Return the calls that the prediction of a change looks up, before and after it."""
    questions = Questions()
    changed = graph.copy()
    changed.times = questions
    apply(optimizations, changed, options)
    if not questions.asked:
        raise NotApplicableError(
            f"{spelled(optimizations)} asks for no times of operators: it changes neither their types nor\n"
            "       their shapes, or these are not recorded (profile with record_shapes=True).\n"
            "       Without --optimization, calibrate measures the trace's calls as they are."
        )
    return list(questions.asked.values())


def _measure(
    calls: Sequence[OperatorCall], worker: Worker, total_limit_s: float, progress: Say | None
) -> Calibration:
    result = Calibration(worker.machine["device"], worker.machine["torch"])
    begin = time.perf_counter()
    for number, call in enumerate(calls):
        if progress is not None:
            progress(f"timing {call.op} {call.dtype or ''}", number / len(calls))
        left = total_limit_s - (time.perf_counter() - begin)
        answer: dict[str, Any] = (
            worker.time(call, left)
            if left > 0
            else {"reason": f"not reached within {total_limit_s:g} s"}
        )
        if "reason" in answer:
            result.leave_out(call, answer["reason"])
        else:
            result.measure(call, answer["duration_ns"], answer["repeats"])
    result.seconds = time.perf_counter() - begin
    return result


PASSES = ("forward", "backward")
QUARTILE = 25
Key = tuple[str, str, str]  # operator, shapes, element type


class ChangedCall(Record):
    """One distinct call of an operator that the change acts on, in one pass.

    Attributes:
        op: the operator.
        shapes: of its arguments, as JSON.
        dtype: torch's name of their type.
        phase: `forward` or `backward`.
        before_ns: what a call took before the change.
        duration_ns: what it takes with it.
        repeats: how many calls there were.
    """

    op: str
    shapes: str
    dtype: str
    phase: str
    before_ns: int
    duration_ns: int
    repeats: int


class InPlaceCalibration(MeasuredTimes):
    """What the operators took that a change acts on, before and with it.

    Attributes:
        device: what they ran on.
        torch: its version.
        drift: how many times as long the operators took that the change does not touch.
        measured: distinct calls with their times.
        left_out: those that only one recording has.
    """

    drift: float = 1.0
    measured: list[ChangedCall] = msgspec.field(default_factory=list)
    left_out: list[str] = msgspec.field(default_factory=list)


def calibrate_in_place(before: Trace, after: Trace) -> InPlaceCalibration:
    """Return what the operators that a change acts on took before and after it.

    Args:
        before: steps as they were.
        after: steps of the same run with the change; its metadata names the operators that it acts on.

    Raises:
        NotApplicableError: the change acts on no operator, or on none of whose calls both recordings hold.
    """
    operators = after.metadata.get("changed_operators") or []
    if not operators:
        raise NotApplicableError(
            "the tool acts on no operator of this script: it ordered no actions"
        )
    times = [_Times(trace, operators) for trace in (before, after)]
    drift = _drift(*times)
    device = next(
        (one["name"] for one in after.metadata.get("devices") or [] if one.get("name")), CPU
    )
    if not after.is_kind("kernel").any():
        device = CPU
    result = InPlaceCalibration(
        device, str(after.metadata.get("versions", {}).get("torch", "")), drift=drift
    )
    for key in sorted({*times[0].calls, *times[1].calls}):
        old, new = (each.calls.get(key) for each in times)
        if old is None or new is None:
            result.left_out.append(
                f"{' '.join(key)}: only {'before' if new is None else 'with'} the change"
            )
            continue
        for number, phase in enumerate(PASSES):
            was = _usual(old[:, number])
            now = _usual(new[:, number]) / drift
            if phase == PASSES[0] or was or now:
                result.measured.append(ChangedCall(*key, phase, round(was), round(now), len(new)))
    if not result.measured:
        raise NotApplicableError(
            f"no call of {', '.join(operators)} has the same shapes and type before and with the change"
        )
    return result


class _Times:
    """Times of a trace by distinct call: (forward, backward) ns of each changed one, ns of each other."""

    def __init__(self, trace: Trace, operators: Sequence[str]) -> None:
        on_gpu = bool(trace.is_kind("kernel").any())
        inclusive = (
            recorded_ns(build(trace)) if on_gpu else np.asarray(trace["duration_ns"], np.float64)
        )
        names = {bare_name(op) for op in operators}
        is_operator = trace.is_kind("operator")
        wanted = of_rows(trace, "name", lambda text: bare_name(text) in names) & is_operator
        covered = np.array([*(bool(one.get("covered")) for one in trace.metadata["steps"]), False])
        counts = covered[trace["step"]]
        every = np.arange(len(trace))
        outermost = partial(enclosing, trace["parent"], rows=every, inner=False)
        around = outermost(wanted)
        node = outermost(nodes(trace))
        rows = np.flatnonzero((around == every) & (node < 0) & counts)
        back = np.flatnonzero((node == every) & counts)
        maker = forward_rows(trace, back)
        owner = take(around, maker)
        place = lookup(rows, owner)
        mine = np.flatnonzero(place >= 0)
        spent = np.zeros((len(rows), 2))
        spent[:, 0] = inclusive[rows]
        np.add.at(spent[:, 1], place[mine], inclusive[back[mine]])
        self.calls = {key: spent[numbers] for key, numbers in _by_key(trace, rows).items()}
        top = np.flatnonzero((outermost(is_operator) == every) & (around < 0) & counts)
        other = np.setdiff1d(top, back)
        self.others = {
            key: inclusive[other[numbers]] for key, numbers in _by_key(trace, other).items()
        }


def _drift(before: _Times, after: _Times) -> float:
    """Return how many times as long the work took that the change does not touch; 1 where there is none."""
    both = [key for key in before.others if key in after.others]
    was, now = (
        sum(len(before.others[key]) * _usual(each.others[key]) for key in both)
        for each in (before, after)
    )
    return float(now / was) if was > 0 and now > 0 else 1.0


def _usual(times: np.ndarray) -> float:
    """Return the lower quartile: other programs only ever add, and the fastest alone may be luck."""
    return float(np.percentile(times, QUARTILE))


def _by_key(trace: Trace, rows: np.ndarray) -> dict[Key, np.ndarray]:
    """Return the places of rows by operator, shapes and element type."""
    columns = ("name", "shapes", "dtype")
    first, which = distinct_rows([trace[name][rows] for name in columns])
    texts = [trace.values(name, rows[first].tolist()) for name in columns]
    keys = [
        (name or "", shapes or "", dtype or "") for name, shapes, dtype in zip(*texts, strict=True)
    ]
    return {key: np.flatnonzero(which == number) for number, key in enumerate(keys)}
