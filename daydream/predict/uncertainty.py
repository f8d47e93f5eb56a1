"""Uncertainty: how far the step after a change may be from the predicted one, and from which causes.

Seven causes, each a half-width at 90 %, in ns of the predicted step; they are taken to be
independent, so the range is the root of the sum of their squares:

- *variation*: steps that do the same work differ, and their mean is known only so well. A standard
  error: more steps make it smaller. What a change takes away (a loader that is hidden) varies no more, and
  work that it moves from a step into the next is none: of the steps before and after those count that
  vary less.
- *replay*: the untouched simulation misses the recorded steps by so much. That further steps would take
  longer than those (a queue that fills) is no miss.
- *model*: the change is simulated once more with all that it touches longer by the error that
  predictions of this sort of time were found to have (`MODEL_ERROR`): what stays hidden behind other
  work does not count. A model that says itself how far its times may be off (`Selection.doubt`) widens
  this where that is more.
- *rerun*: the change is seen in another run than the recorded one, and the same work takes another time in
  each (`ANOTHER_RUN`), the most where the CPU was hidden and shows after the change (`HIDDEN_CPU`). In a
  CPU's recordings it is part of the model's errors, which were measured so.
- *recording*: a trace that does not say what recording cost is corrected with a typical cost, of which so
  much may be wrong (`RECORDING_ERROR`). The step as recorded may be off by all of it, where the change
  makes it wait for the CPU more, or less.
- *unknown*: delays without a known cause, CPU time that may be a wait, device work that was not recorded or
  that a change may not reach (inside replays of CUDA graphs, of no known layer, held to a recorded start),
  and stream waits that could not be resolved. What they do after the change is not known; at most they eat
  up what it moves. Where the change makes unrecorded device work longer, what it adds is as unknown; so is
  what it takes off calls that start up the driver, in the only step.
- *waiting*: what transfers took may have been waiting for ranks that were not recorded, which no network
  changes. The step may be longer by that than with a better one, shorter than with a worse one, below 0.

A change that touches nothing has the first two and the rerun only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import hypot, isfinite, sqrt
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.query.device import device_work
from daydream.graph.recording_cost import cost_of_recording
from daydream.graph.tables import CPU
from daydream.simulate.causes import Bound
from daydream.simulate.steady import settle

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.tables import Facts
    from daydream.predict.affected import Affected
    from daydream.predict.prediction import Prediction

# Errors over affected time, by sort, that hold 90 % of the ledger's predictions, rounded up: `python
# validation/ranges.py` fits them. These are of processes that gave freed memory back at times, as a
# user's does (`validation/` at revision 2ddd0fd); those of today need less, as docs/accuracy.md shows.
# `kernels` is from traces of the same models on two GPUs and at two batch sizes, `transfers` from an
# emulated link, the others from small models on a CPU.
MODEL_ERROR: Mapping[str, float] = {
    "moved": 0.14, "copied": 0.08, "computed": 0.22, "kernels": 0.20, "transfers": 0.08,
}  # fmt: skip
# Half-widths at 90 % of how far the same work is from itself in another run, by what the step waits for;
# rounded up. From public recordings with and without a change, by what the change leaves alone: kernels
# of a ViT and of a 3D U-Net on A100s, 0.0 to 1.7 % apart over four pairs of runs; launches of a GPT on an
# A10, 3 % over one pair. Some of these judge: docs/accuracy.md tells how many intervals hold without it.
# Runs of a few cold passes are further apart (a MoE's forward pass, repeated: 11 to 32 %) and not covered.
ANOTHER_RUN: Mapping[str, float] = {"device": 0.02, "CPU": 0.05}
# The same for CPU time that was hidden behind a device when it was recorded, and that the step waits for
# after the change. One program's CPU took 8.6, 8.7, 11.0, 11.2 and 12.3 ms a step in five recordings on the
# same shared host of an H200 (validation/h200, without the cost of recording): its pairs are 0 to 43 % apart,
# 27 % in the median. Where a step waits for the CPU on both sides, that cancels. Traces of Nsight Systems
# record little of the CPU: three GPTs on an A10 are 0.5 to 3.6 % from what the longest one's launches tell.
HIDDEN_CPU = 0.3
# Of what the typical cost of recording changes of an answer, this much may be wrong: half-width at 90 %,
# rounded up from what it misses in recordings that know better (validation/typical_cost.py).
RECORDING_ERROR = 0.5
TWO_SIDED_90 = 1.645  # of the normal distribution
STUDENT_90 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)  # with 1 to 9 degrees of freedom
LEAST_SAID = 0.0005  # of a step
NOTHING, AS_NOW = 0.1, 0.95  # of the step: a range that reaches from one to the other tells nothing
OTHER_WORK = 0.1  # of the tasks of a step: steps with more or fewer are of another kind


@dataclass(frozen=True)
class Uncertainty:
    """Half-widths of a prediction's 90 % range, in ns, by cause.

    `waiting` is of one end: the upper one, or below 0 the lower one.
    """

    variation: float
    replay: float
    model: float
    unknown: float
    rerun: float = 0.0
    recording: float = 0.0
    waiting: float = 0.0

    @property
    def total_ns(self) -> float:
        """How far the step may be above the predicted one."""
        return hypot(self._either_way_ns, max(self.waiting, 0.0))

    @property
    def shorter_ns(self) -> float:
        """How far the step may be below the predicted one."""
        return hypot(self._either_way_ns, max(-self.waiting, 0.0))

    @property
    def _either_way_ns(self) -> float:
        return hypot(self.variation, self.replay, self.model, self.unknown, self.rerun, self.recording)

    @property
    def of_the_change_ns(self) -> float:
        """What is uncertain, either way, about before against after: without how steps and runs vary."""
        return hypot(self.replay, self.model, self.unknown)

    def to_json(self) -> dict[str, int | None]:
        """Return each cause's half-width in whole ns, None where it has no bound."""
        known = {field.name: float(getattr(self, field.name)) for field in fields(self)}
        return {name: round(value) if isfinite(value) else None for name, value in known.items()}

    def words(self, step_ns: int, most: int = 3) -> str:
        """Return the largest causes as shares of a step, in their order; empty if none matters."""
        said = {
            "cost models": self.model,
            "step-to-step variation": self.variation,
            "replay error": self.replay,
            "unknown causes": self.unknown,
            "another run": self.rerun,
            "cost of recording": self.recording,
            "waiting for peers": abs(self.waiting),
        }
        shares = {words: ns / step_ns for words, ns in said.items()} if step_ns else {}
        there = [words for words in shares if shares[words] >= LEAST_SAID]
        there.sort(key=lambda words: -shares[words])
        there = there[:most]
        return ", ".join(f"{words} {100 * shares[words]:.1f} %" for words in there)

    def reason(self, comparison: Prediction) -> str:
        """Return in words what keeps the step from being predicted: the largest of the causes."""
        step_ns, facts = max(comparison.replayed_ns, 1), comparison.replay.graph.facts
        parts = {
            "replay": self.replay, "model": self.model, "unknown": self.unknown,
            "waiting": abs(self.waiting),
        }  # fmt: skip
        most = max(parts, key=lambda name: parts[name])
        share = f"{parts[most] / step_ns:.0%} of the step"
        if most == "waiting":
            return f"not all ranks were recorded, and {share} may be waiting for them"
        if most == "model":
            affected = comparison.affected.together / step_ns
            return (
                f"the change affects {affected:.0%} of the step, and what that takes then is known to within "
                f"{share} only"
            )
        if most == "replay":
            return f"the replay of the unchanged trace misses the recording by {share}"
        what = {
            "delays without a known cause": facts.unexplained_ns,
            "device work that was not recorded": facts.untraced_ns,
            "CPU time that may be a wait": facts.doubtful_ns,
            "calls that start up the driver": comparison.edits.start_up_ns,
        }
        return f"{max(what, key=lambda words: what[words])} may carry it by {share}"


def uncertainty_of(comparison: Prediction) -> Uncertainty:
    """Return how far the step after a change may be from the predicted one."""
    found = _uncertainty(comparison, _exposed_ns(comparison), _another_run_ns(comparison))
    return replace(found, recording=_recording_ns(comparison), waiting=_waiting_ns(comparison))


def why_unpredictable(comparison: Prediction) -> str | None:
    """Return why the step after a change cannot be predicted; None if the range tells anything."""
    found = comparison.uncertainty if not _tells(comparison, _at_most(comparison)) else None
    return None if found is None or _tells(comparison, found) else found.reason(comparison)


def _tells(comparison: Prediction, found: Uncertainty) -> bool:
    low = comparison.simulated_ns - hypot(found.of_the_change_ns, max(-found.waiting, 0.0))
    high = comparison.simulated_ns + hypot(found.of_the_change_ns, max(found.waiting, 0.0))
    return low > NOTHING * comparison.replayed_ns or high < AS_NOW * comparison.replayed_ns


def _at_most(comparison: Prediction) -> Uncertainty:
    """Return what is uncertain of the change, or more than that, without simulating anything."""
    affected = comparison.affected
    return _uncertainty(comparison, hypot(model_ns(affected), affected.waiting))


def _uncertainty(comparison: Prediction, model: float, rerun: float = 0.0) -> Uncertainty:
    replay, step_ns = comparison.replay, comparison.simulated_ns
    recorded = replay.recorded or replay
    facts, affected, edits = comparison.replay.graph.facts, comparison.affected, comparison.edits
    measured = sum(step.measured_ns for step in recorded.steps)
    side_by_side = _side_by_side_ns(comparison) if facts.event_waits["unresolved"] else 0.0
    unknown = unknown_ns(facts, measured, comparison.replayed_ns, affected, side_by_side)
    return Uncertainty(
        variation=_variation(comparison) * step_ns,
        replay=max(abs(recorded.error), abs(replay.bias or 0.0)) * step_ns,
        model=model,
        unknown=unknown + edits.unknown_longer_ns + edits.start_up_ns + _out_of_reach_ns(comparison),
        rerun=rerun,
    )


def _out_of_reach_ns(comparison: Prediction) -> float:
    """Return how far what the change may not reach carries the step: in replays, of no layer, held."""
    left, held = comparison.left_out, comparison.replay.held_ns
    out = 0.0 if left is None else left.unknown_ns
    out += 0.0 if comparison.unplaced is None else comparison.unplaced.unknown_ns
    if comparison.held is not None:
        out += min(held, comparison.affected.together)
    return float(min(out, comparison.replayed_ns))


def _recording_ns(comparison: Prediction) -> float:
    """Return how far the cost of recording may carry the step, where that was not measured."""
    recorded, without = comparison.beside, comparison.unprofiled
    if recorded is not None:
        return RECORDING_ERROR * abs(comparison.ratio - recorded.ratio) * comparison.replayed_ns
    if without is None or without.beside is None:
        return 0.0
    return abs(comparison.ratio - without.ratio) * comparison.replayed_ns


def _another_run_ns(comparison: Prediction) -> float:
    """Return how far another run of the changed program may be from this one, by what its step waits for."""
    if not device_work(comparison.graph)[comparison.graph.alive].any():
        return 0.0
    waits = dict(comparison.waited_for_ns)
    cpu = waits.pop(Bound.CPU, 0)
    scale = comparison.simulated_ns / max(cpu + sum(waits.values()), 1)
    shown = max(scale * cpu - comparison.cpu_share[0] * comparison.replayed_ns, 0.0)
    trace = comparison.replay.graph.trace
    if trace is None or cost_of_recording(trace) is None:
        shown = 0.0  # where little is recorded of the CPU, its time is about that of other runs
    both = ANOTHER_RUN["CPU"] * (scale * cpu - shown), ANOTHER_RUN["device"] * scale * sum(waits.values())
    return hypot(*both, HIDDEN_CPU * shown)


def _variation(comparison: Prediction) -> float:
    """Return the relative half-width of the mean of the recorded steps, or of those after the change."""
    graph = comparison.replay.graph
    measured = {
        number: int(step["measured_ns"]) for number, step in enumerate(graph.steps) if step.get("covered")
    }
    tasks = comparison.replay.tasks_of_steps
    return min(variation(_kinds(times, tasks)) for times in (measured, comparison.after.step_times()))


def _kinds(times: Mapping[int, int], tasks: np.ndarray) -> list[list[int]]:
    """Return the times of steps, those together that do the same work: about as many tasks."""
    kinds: list[list[int]] = []
    least, counts = -1.0, tasks.tolist()
    for step in sorted(times, key=counts.__getitem__):
        if not kinds or counts[step] > (1 + OTHER_WORK) * least:
            kinds.append([])
            least = float(counts[step])
        kinds[-1].append(times[step])
    return kinds


def _exposed_ns(comparison: Prediction) -> float:
    """Return how much longer the step is if all that is affected takes longer by the models' errors."""
    affected = comparison.affected
    waits = MODEL_ERROR["moved"] * affected.waits
    if affected.together == affected.waits:
        return waits
    return hypot(max(_longer_ns(comparison, comparison.edits.longer(affected, MODEL_ERROR)), 0), waits)


def _waiting_ns(comparison: Prediction) -> float:
    """Return how much longer the step is if all that recorded transfers took was waiting for peers."""
    if not comparison.affected.waiting:
        return 0.0
    return _longer_ns(comparison, comparison.edits.waiting_for_peers())


def _longer_ns(comparison: Prediction, graph: Graph) -> float:
    """Return how much longer the step of another changed graph is than the predicted one."""
    choice = comparison.contention
    slowed = None if choice is None else choice.between(comparison.replay.graph, graph)
    passes = comparison.after.passes - (slowed is not None)  # that one is simulated behind them anyway
    settled = settle(graph, passes=passes, contention=slowed)
    return float(comparison.step_of(settled) - comparison.simulated_ns)


def variation(kinds: Sequence[Sequence[int]]) -> float:
    """Return the relative half-width at 90 % of the mean of steps of some kinds; 0 for single ones."""
    times = np.concatenate([np.asarray(kind, np.float64) for kind in kinds]) if kinds else np.empty(0)
    freedom = len(times) - len(kinds)
    if freedom < 1 or times.mean() <= 0:  # steps of a damaged recording may cancel
        return 0.0
    student = STUDENT_90[freedom - 1] if freedom <= len(STUDENT_90) else TWO_SIDED_90 * (1 + 1.15 / freedom)
    within = sum(float(np.square(kind - np.mean(kind)).sum()) for kind in map(np.asarray, kinds))
    return float(student * sqrt(within / freedom) / sqrt(len(times)) / times.mean())


def model_ns(affected: Affected, errors: Mapping[str, float] = MODEL_ERROR) -> float:
    """Return the half-width that the models' errors make where nothing hides them."""
    return hypot(*affected.errors_ns(errors))


def unknown_ns(
    facts: Facts, recorded_ns: int, step_ns: int, affected: Affected, side_by_side_ns: float
) -> float:
    """Return how far what has no known cause may carry the step, at most what the change touches.

    `recorded_ns` are all steps that the facts are about. An unresolved wait is an order that the
    simulation does not keep: it counts with its part of all waits of what streams do side by side, which is
    all that another order could put one behind the other.
    """
    together = affected.together
    delays = facts.unexplained_ns + facts.untraced_ns + facts.doubtful_ns
    share = min(delays / recorded_ns, 1.0) if recorded_ns else 0.0
    waits = sum(facts.event_waits.values())
    unresolved = facts.event_waits["unresolved"] / waits if waits else 0.0
    return min(share * step_ns, together) + unresolved * min(together, step_ns, side_by_side_ns)


def _side_by_side_ns(comparison: Prediction) -> float:
    """Return how long streams work that are not the busiest one of their rank, per step."""
    graph = comparison.replay.graph
    steps = [number for number, step in enumerate(graph.steps) if step.get("covered")]
    chosen = graph.alive & (graph.columns["kind"] != CPU) & np.isin(graph.columns["step"], steps)
    busy = np.bincount(
        graph.columns["lane"][chosen], graph.columns["duration_ns"][chosen], minlength=len(graph.lanes)
    )
    busiest: dict[int, float] = {}
    for lane, ns in zip(graph.lanes, busy.tolist(), strict=True):
        busiest[lane.rank] = max(busiest.get(lane.rank, 0.0), ns)
    return float(busy.sum() - sum(busiest.values())) / max(len(steps), 1)
