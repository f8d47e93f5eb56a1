"""What operators take before and after a change, in place: from steps recorded without it and with it.

Both are of one run of one script, so tensors, layouts, caches and threads are those of training, and what
a tool costs in Python counts. The machine's own change of speed between the two recordings is taken out by
the operators that the change does not touch.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from daydream.arrays import distinct_rows
from daydream.calibration.run import MeasuredTimes
from daydream.costs.device.measured import CPU, recorded_ns
from daydream.costs.operators import bare_name
from daydream.costs.workload.calls import forward_rows, nodes
from daydream.errors import NotApplicableError
from daydream.graph.build import build
from daydream.results import Record
from daydream.trace.trace import Trace

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
            was, now = _usual(old[:, number]), _usual(new[:, number]) / drift
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
        parent = np.append(np.asarray(trace["parent"], np.int64), -1)
        names = {bare_name(op) for op in operators}
        wanted = np.array([*(bare_name(text) in names for text in trace.text("name")), False])[
            trace["name"]
        ]
        wanted &= trace.is_kind("operator")
        covered = np.array([*(bool(one.get("covered")) for one in trace.metadata["steps"]), False])
        counts = covered[np.asarray(trace["step"], np.int64)]
        every = np.arange(len(trace))
        around, node = _outermost(parent, wanted), _outermost(parent, nodes(trace))
        rows = np.flatnonzero(wanted & (around == every) & (node < 0) & counts)
        back = np.flatnonzero((node == every) & counts)
        maker = forward_rows(trace, back)
        owner = np.where(maker >= 0, np.append(around, -1)[maker], -1)
        place = np.full(len(trace) + 1, -1)
        place[rows] = np.arange(len(rows))
        mine = np.flatnonzero(place[owner] >= 0)
        spent = np.zeros((len(rows), 2))
        spent[:, 0] = inclusive[rows]
        np.add.at(spent[:, 1], place[owner[mine]], inclusive[back[mine]])
        self.calls = {key: spent[numbers] for key, numbers in _by_key(trace, rows).items()}
        top = np.flatnonzero((_outermost(parent, trace.is_kind("operator")) == every) & counts)
        other = np.setdiff1d(top, np.concatenate([rows, back]))
        other = other[np.isin(around[other], [-1])]
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


def _outermost(parent: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the outermost wanted row around each row, itself included, -1 for none."""
    found = np.full(len(wanted), -1)
    up = np.arange(len(wanted))
    fits = np.append(wanted, False)
    while (up >= 0).any():
        found = np.where((up >= 0) & fits[up], up, found)
        up = np.where(up >= 0, parent[up], -1)
    return found
