"""Prediction: a training step before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from warnings import warn

from daydream import hooks
from daydream.display import NotebookFigure, as_json
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.alike import share_plans_of_one_alike
from daydream.graph.graph import Graph
from daydream.graph.lint import problems
from daydream.graph.recording_cost import was_measured
from daydream.memory.prediction import MemoryChange, MemoryPrediction
from daydream.predict.affected import Affected, Edits, counts
from daydream.predict.as_run import step_as_run
from daydream.predict.bottleneck import bound_by, waited_for_ns
from daydream.predict.contention_option import MEASURED, Choice, choose
from daydream.predict.contention_option import Option as ContentionOption
from daydream.predict.memory import MemoryAnswer, answer_of
from daydream.predict.notes import prediction_notes
from daydream.predict.recording import counts_in, cpu_share, may_count
from daydream.predict.replay import Replay
from daydream.predict.replayed_work import LeftOut, left_in_replays
from daydream.predict.uncertainty import Uncertainty, uncertainty_of, why_unpredictable
from daydream.predict.unplaced_work import UnplacedWork, unplaced_work
from daydream.simulate.causes import Bound
from daydream.simulate.pinned import held_text
from daydream.simulate.steady import Settled, need_steps, settle
from daydream.simulate.timeline import Timeline
from daydream.transforms.compose import Edit

if TYPE_CHECKING:
    import pandas as pd


@dataclass(repr=False)
class Prediction(NotebookFigure):
    """What a change would give: `predicted_ns` against `replayed_ns`, with the replay's own error beside it.

    `speedup = replayed / predicted`, so that a bias common to both cancels. Both are means over the covered
    steps, what a run pays for, in a steady state, which the recorded window need not have reached.
    `predicted_ns` is None where the range leaves everything open.

    Example::

        prediction = daydream.whatif("examples/mlp_cpu.json.gz", "fused-adam")
        print(prediction.replayed_ns, prediction.predicted_ns, prediction.speedup)

    """

    optimization: str
    options: Mapping[str, Any]
    replay: Replay
    graph: Graph
    after: Settled
    changed: int
    inserted: int
    removed: int
    edit: Edit | None = None  # makes the whole change in another copy of the graph
    contention: Choice | None = None  # of kernels and transfers; None where there are no transfers
    memory_changes: Callable[[], Sequence[MemoryChange]] | None = None
    capacity_bytes: int | None = None  # what each device has; by default what the trace says
    beside: Prediction | None = None  # the one as recorded, where this is without a typical cost of recording

    @classmethod
    def unchanged(cls, replay: Replay) -> Prediction:
        """Return the comparison of a replay with itself."""
        return cls("", {}, replay, replay.graph, replay.settled, 0, 0, 0)

    def __repr__(self) -> str:
        if self.predicted_ns is None:
            return f"<Prediction {self.optimization}: cannot be predicted, because {self.reason}>"
        return (
            f"<Prediction {self.optimization}: replayed {self.replayed_ns / 1e6:,.3f} ms, "
            f"predicted {self.predicted_ns / 1e6:,.3f} ms, {self.speedup:.2f}x>"
        )

    @property
    def measured_ns(self) -> int:
        """Mean measured step."""
        return self.replay.measured_ns

    @property
    def replayed_ns(self) -> int:
        """The untouched graph's settled step, the mean over the covered ones."""
        return self.replay.settled.step_ns

    @property
    def replay_error(self) -> float:
        """Relative error of the replay of the recorded steps, signed."""
        return self.replay.error

    @cached_property
    def simulated_ns(self) -> int:
        """The changed graph's settled step, the mean over the covered ones, whatever it is worth."""
        return self.step_of(self.after)

    @property
    def predicted_ns(self) -> int | None:
        """The step after the change; None if it cannot be predicted from this trace, see `reason`."""
        return self.simulated_ns if self.reason is None else None

    @property
    def typical_predicted_ns(self) -> int | None:
        """Median step after the change; None if it cannot be predicted."""
        return self.after.typical_ns if self.reason is None else None

    @cached_property
    def reason(self) -> str | None:
        """Why the step after the change cannot be predicted from this trace; None if it can.

        It cannot where the range reaches from next to nothing to the step as it is, or beyond. How steps vary
        does not count: it is common to both sides. Nor can it where layers were chosen, and much work may
        be theirs or not.
        """
        if self.unplaced is not None and self.unplaced.is_much:
            return str(self.unplaced)
        return why_unpredictable(self)

    def step_of(self, settled: Settled) -> int:
        """Return the mean step of a changed graph that has settled, over the steps that both have."""
        return self.replay.settled.mean_after(settled)

    @property
    def speedup(self) -> float | None:
        """Return replayed / predicted, infinite if nothing is left; None if it cannot be predicted."""
        if self.predicted_ns is None:
            return None
        return self.replayed_ns / self.predicted_ns if self.predicted_ns else float("inf")

    @cached_property
    def edits(self) -> Edits:
        """What the change did, task by task."""
        return Edits(self.replay.graph, self.graph)

    @cached_property
    def affected(self) -> Affected:
        """What the change affects of a step."""
        return self.edits.affected(self.simulated_ns - self.replayed_ns)

    @property
    def touched(self) -> Affected:
        """The old name of `affected`, until 0.3."""
        warn("Prediction.touched is affected now; the old name goes with 0.3", DeprecationWarning, 2)
        return self.affected

    @cached_property
    def waited_for_ns(self) -> Mapping[Bound, int]:
        """What the predicted step waits for (GPU, CPU, copies, communication, other causes), in ns."""
        return waited_for_ns(self.after)

    @cached_property
    def bound(self) -> tuple[Bound, float]:
        """What most of the predicted step waits for (GPU, CPU, copies, communication), and its share."""
        return bound_by(self)

    @cached_property
    def left_out(self) -> LeftOut | None:
        """What the change leaves as it is because replays of CUDA graphs run it; None if that is little."""
        return left_in_replays(self)

    @cached_property
    def unplaced(self) -> UnplacedWork | None:
        """What may be of the layers that were chosen, or of others; None where that is told apart."""
        return unplaced_work(self)

    @property
    def held(self) -> str | None:
        """How much of the step is held to recorded starts, so that no change moves it; None if little is."""
        return held_text(self.replay.held_ns, self.replayed_ns)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far the step after the change may be from the predicted one, by cause."""
        return uncertainty_of(self)

    @property
    def predicted_low_ns(self) -> int | None:
        """Lower end of the range; None if the step cannot be predicted."""
        if self.predicted_ns is None:
            return None
        return max(round(self.predicted_ns - self.uncertainty.shorter_ns), 0)

    @property
    def predicted_high_ns(self) -> int | None:
        """Upper end of the range; None if the step cannot be predicted."""
        return None if self.predicted_ns is None else round(self.predicted_ns + self.uncertainty.total_ns)

    @property
    def timeline(self) -> Timeline:
        """The predicted timeline."""
        return self.after.timeline

    @cached_property
    def unprofiled(self) -> Prediction | None:
        """The same change without the profiler's cost; None if that is not known, or does not count.

        `predicted_ns` of it is the prediction for a run without a profiler. Where the cost was not measured
        it is the typical one (`recording_cost`), which counts where it moves the step or the answer.
        """
        if self.edit is None:
            return None
        measured = self.replay.unprofiled
        if measured is not None or not may_count(self):
            return self._again(measured)
        again = self._again(self.replay.typically_unprofiled, beside=self)
        return again if again is not None and counts_in(again, self) else None

    @cached_property
    def anchored(self) -> Prediction | None:
        """The same change in unprofiled steps that take as long as measured; see `Replay.anchored`."""
        return None if self.edit is None else self._again(self.replay.anchored)

    @property
    def as_run(self) -> Prediction:
        """The same change in the step as a run pays for it: without a profiler, where that is known."""
        return self.anchored or self.unprofiled or self

    @property
    def recording_cost(self) -> str | None:
        """Whether the cost of recording was `measured` or is `typical`; None where it does not count."""
        if self.unprofiled is None:
            return None
        trace = self.replay.graph.trace
        return "measured" if trace is not None and was_measured(trace) else "typical"

    @cached_property
    def cpu_share(self) -> tuple[float, float]:
        """How much of the step waits for the CPU, before and after: 0 to 1."""
        return cpu_share(waited_for_ns(self.replay.settled)), cpu_share(self.waited_for_ns)

    @property
    def ratio(self) -> float:
        """The step after the change over the one before, as simulated; 0.0 where that one takes no time."""
        return self.simulated_ns / self.replayed_ns if self.replayed_ns else 0.0

    def _again(self, before: Replay | None, beside: Prediction | None = None) -> Prediction | None:
        if before is None or self.edit is None:
            return None
        again = predict(before, self.edit, contention=self.contention or MEASURED, like=self.graph)
        return replace(again, beside=beside)

    @property
    def unprofiled_predicted_ns(self) -> int | None:
        """The settled step after the change, without the profiler's cost."""
        return None if self.unprofiled is None or self.reason else self.unprofiled.simulated_ns

    @property
    def unprofiled_anchored_ns(self) -> int | None:
        """The measured unprofiled step times what the change leaves of the anchored one: its bias cancels."""
        known = self.anchored is not None and not self.reason
        return round(step_as_run(self, with_range=False).after_ns) if known else None

    def breakdowns(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
        """Return where a step's time goes, before and after; means over the steps, as the headline is."""
        before, after = self.replay.settled, self.after
        return (
            before.timeline.breakdown(before.copy, *before.step_times()),
            after.timeline.breakdown(after.copy, *after.step_times()),
        )

    def shown_steps(self) -> tuple[int, int]:
        """Return the step that a picture of one shows, before and after: the same one where both have it.

        It is the one that is nearest to the headline's two times.
        """
        return self.replay.settled.nearest_steps(self.after, self.replayed_ns, self.simulated_ns)

    def to_pandas(self) -> pd.DataFrame:
        """Return where a step's time goes, before and after in ns: a row per cause and per phase."""
        import pandas as pd

        before, after = self.breakdowns()
        rows = [
            (key.removeprefix("by_"), name, before[key].get(name, 0), after[key].get(name, 0))
            for key in ("by_cause", "by_phase")
            for name in {**before[key], **after[key]}
        ]
        frame = pd.DataFrame(rows, columns=["by", "part", "before_ns", "after_ns"]).set_index(["by", "part"])
        return frame.assign(change_ns=frame["after_ns"] - frame["before_ns"])

    @cached_property
    def memory_answer(self) -> MemoryAnswer:
        """Peak memory before and after the change, or why that is not known."""
        if self.memory_changes is None:
            return MemoryAnswer()
        return answer_of(self.replay.graph, self.memory_changes(), self.capacity_bytes)

    @property
    def memory(self) -> MemoryPrediction | None:
        """Peak memory before and after the change; None where the trace or the change does not tell it."""
        return self.memory_answer.memory

    @property
    def notes(self) -> list[str]:
        """What a reader should know before trusting the figures."""
        return prediction_notes(self)

    def interactive(self) -> Any:
        """Return both timelines as a figure that a notebook shows: it zooms and tells, without widgets.

        Raises `GraphError` if the step after the change cannot be predicted.
        """
        return hooks.ask("interactive", self)

    def to_json(self) -> dict[str, Any]:
        """Return the object `whatif --json` prints."""
        before, after = self.breakdowns()
        replayed, predicted = self.replay.settled.step_times(), self.after.step_times()
        steps = self.graph.steps
        headline = (
            "optimization options measured_ns replayed_ns replay_error predicted_ns predicted_low_ns "
            "predicted_high_ns typical_measured_ns=replay.typical_measured_ns "
            "typical_replayed_ns=replay.settled.typical_ns typical_predicted_ns reason "
            "uncertainty_ns=uncertainty"
        )
        return {
            **as_json(self, headline),
            "speedup": self.speedup if self.predicted_ns else None,
            "held_ns": self.replay.held_ns,
            "left_in_replays_ns": None if self.left_out is None else round(self.left_out.replayed_ns),
            "unprofiled_measured_ns": self.replay.unprofiled_measured_ns,
            "unprofiled_replayed_ns": None if self.unprofiled is None else self.unprofiled.replayed_ns,
            **as_json(self, "unprofiled_predicted_ns unprofiled_anchored_ns recording_cost"),
            "as_run": None if self.reason else step_as_run(self).to_json(),
            "steps": [
                {
                    "name": steps[step]["name"],
                    "rank": steps[step].get("rank", 0),
                    "replayed_ns": replayed[step],
                    "predicted_ns": predicted.get(step) if self.reason is None else None,
                }
                for step in replayed
            ],
            "before": before,
            "after": after,
            **as_json(self, "changed inserted removed contention memory rules=graph.facts.rules notes"),
        }


def predict(
    replay: Replay,
    edit: Edit,
    *,
    start: Graph | None = None,
    contention: ContentionOption | Choice = MEASURED,
    capacity_bytes: int | None = None,
    like: Graph | None = None,
    made: tuple[Graph, Mapping[str, Any]] | None = None,
) -> Prediction:
    """Return what an edit would give: it is made in a copy of the replay's graph, which is simulated.

    `start` is a changed copy of that graph, for an edit that comes on top of another change; there is no
    answer for the step without a profiler then. `contention` says how kernels and transfers that overlap
    slow each other: `"measured"`, `"off"`, or one or two factors. `capacity_bytes` is what each device has,
    by default what the trace says of it. `like` is a graph that the edit made of one that differs in
    durations only: where the plans are the same, they are taken over. So are those of the replay's graph.
    `made` is the changed copy and the options, of whoever had the edit made already.

    Raises `GraphError` if the changed graph is broken, `NotApplicableError` if nothing was edited.
    """
    old = replay.graph
    graph, options = made or edit.in_copy(old if start is None else start)
    twin = share_plans_of_one_alike(graph, [old] if like is None else [like, old])
    wrong = problems(graph, cycles=False, like=twin)
    if wrong:
        raise GraphError(f"{edit.name} left a broken graph: " + " ".join(wrong))
    changed, inserted, removed = counts(old, graph)
    if not (changed or inserted or removed or graph.edits > old.edits):
        raise NotApplicableError(f"{edit.name} found nothing to change in this trace")
    need_steps(graph)
    chosen = choose(contention, old, graph)
    slowed = None if chosen is None else chosen.between(old, graph, replay.timeline)
    try:
        before = replay.settled
        after = settle(graph, passes=before.passes if slowed is None else before.judged, contention=slowed)
    except GraphError as error:  # a cycle, or a lane whose key cannot be read
        raise GraphError(f"{edit.name} left a broken graph: {error}.") from None
    return Prediction(
        optimization=edit.name,
        options=options,
        replay=replay,
        graph=graph,
        after=after,
        changed=changed,
        inserted=inserted,
        removed=removed,
        edit=edit if start is None else None,
        contention=chosen,
        memory_changes=edit.memory,
        capacity_bytes=capacity_bytes,
    )
