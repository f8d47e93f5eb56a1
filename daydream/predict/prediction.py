"""Prediction: a training step before and after a change."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import field

from daydream import lazy
from daydream.costs.contention import MEASURED, Choice, ContentionOption, between, choose
from daydream.costs.device.measured import KernelTable
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.lower import problems
from daydream.graph.tables import step_rank
from daydream.lazy import NotebookFigure
from daydream.memory.prediction import MemoryChange, MemoryPrediction
from daydream.predict.basis import (
    ESTIMATED,
    RECORDED,
    UNPROFILED,
    Basis,
    most_of,
    prediction_notes,
    waited_for_ns,
)
from daydream.predict.graph_diff import (
    Affected,
    GraphDiff,
    OutOfReach,
    left_in_replays,
    unplaced_work,
)
from daydream.predict.interval import Uncertainty, judge
from daydream.predict.memory import MemoryAnswer, answer_of
from daydream.predict.replay import Replay, Source, as_replay
from daydream.results import Live, Predicted, Record
from daydream.simulate.critical_path import Bound
from daydream.simulate.steady_state import SteadyState, need_steps, settle
from daydream.simulate.timeline import Timeline
from daydream.transforms.compose import Edit, edit_of, parse
from daydream.transforms.real_change import lines_of

if TYPE_CHECKING:
    import pandas as pd

    from daydream.predict.breakdown import Parts


MUCH_HELD = 0.05  # of a step: more is noted


Row = TypeVar("Row", bound="Changed")


class Throughput(Record):
    """How much a second of training covers, before and after a change that alters what a step covers.

    Attributes:
        unit: `samples` or `tokens`.
        gain: after / before.
        before_per_s: of this unit; None where the trace does not tell how many a step covers.
        after_per_s: likewise.
    """

    unit: str
    gain: float
    before_per_s: float | None = None
    after_per_s: float | None = None


class Changed(Predicted):
    """What a change makes of a step and of its memory.

    Attributes:
        changed: how many tasks it changes, in all steps.
        inserted: how many it inserts.
        removed: how many it removes.
        throughput: where the change alters how many samples or tokens a step covers.
        memory: peak memory; None where the trace or the change does not tell it.
        notes: what a reader should know before trusting the figures.
    """

    changed: int = 0
    inserted: int = 0
    removed: int = 0
    throughput: Throughput | None = None
    memory: MemoryPrediction | None = None
    notes: Sequence[str] = ()


class RecordedStep(Record):
    """The step as it was recorded, with the profiler, where the answer is about another one; ns.

    `predicted_ns` is None if it cannot be predicted.
    """

    measured_ns: int
    replayed_ns: int
    predicted_ns: int | None


class PredictedStep(Record):
    """One covered step without and with the change, in ns; None where it cannot be predicted, or is gone."""

    name: str
    rank: int
    replayed_ns: int
    predicted_ns: int | None


class Prediction(Changed, NotebookFigure, eq=False):
    """What a change would give: `predicted_ns` against `replayed_ns`, with the replay's own error beside it.

    `speedup = replayed / predicted`, so that a bias common to both cancels. Both are means over the covered
    steps, what a run pays for, in a steady state, which the recorded window need not have reached.
    `predicted_ns` is None where the range leaves everything open. All figures are of the step that
    `replay` chose, its `basis`; those of the recorded step are in `recorded` where that is another one.

    Attributes:
        basis: which step this is about: `unprofiled`, `estimated` or `recorded`.
        measured_ns: mean measured step; None where the step without the profiler is estimated.
        replay_error: simulated / measured - 1 of that step, before calibration; None where it is estimated.
        typical_measured_ns: the median of the same steps.
        typical_replayed_ns: likewise, replayed.
        typical_predicted_ns: likewise, with the change.
        uncertainty_ns: half-widths of the interval by cause; None where one has no bound.
        held_ns: how much of the step is held to recorded starts, so that no change moves it.
        left_in_replays_ns: work that the change leaves as it is inside replays of CUDA graphs.
        recorded: the recorded step; None where the answer is about that one.
        steps: each covered step.
        parts_before: where a step's time goes, by cause, phase and layer, once `to_json` was asked for.
        parts_after: the same after the change.
        contention: of kernels and transfers; None where there are no transfers.
        rules: by what the times of kernels were changed.
        code: the line of a training script that makes the change, None if none does.

    Example::

        prediction = daydream.whatif("examples/mlp_cpu.json.gz", "fused-adam")
        print(prediction.replayed_ns, prediction.predicted_ns, prediction.speedup)

    """

    basis: Basis = RECORDED
    measured_ns: int | None = None
    replay_error: float | None = None
    typical_measured_ns: int | None = None
    typical_replayed_ns: int | None = None
    typical_predicted_ns: int | None = None
    uncertainty_ns: Mapping[str, int | None] = {}
    held_ns: int = 0
    left_in_replays_ns: int | None = None
    recorded: RecordedStep | None = None
    steps: Sequence[PredictedStep] = ()
    parts_before: Mapping[str, Mapping[str, int]] = field(name="before", default_factory=dict)
    parts_after: Mapping[str, Mapping[str, int]] = field(name="after", default_factory=dict)
    contention: Choice | None = None
    rules: Sequence[str] = ()
    code: str | None = None

    replay = Live[Replay]()
    graph = Live[Graph]()
    after = Live[SteadyState]()
    simulated_ns = Live[int]()  # the steady step after the change, whatever it is worth
    recorded_after_ns = Live[int | None](
        None
    )  # the changed recorded step, where that is not the basis
    uncertainty = Live(Uncertainty())
    affected = Live(Affected())  # what the change affects of a step
    waited_for_ns = Live[Mapping[Bound, int]]({})  # what the step waits for then, in ns
    released = Live[tuple[int, int, str] | None](None)  # as of `interval.released`
    left_out = Live[OutOfReach | None](
        None
    )  # what the change leaves as it is inside replays of CUDA graphs
    unplaced = Live[OutOfReach | None](
        None
    )  # what may be of the layers that were chosen, or of others
    memory_answer = Live(MemoryAnswer())  # peak memory before and after, or why it is not known
    memory_changes = Live[Callable[[], Sequence[MemoryChange]]](list)
    capacity_bytes = Live[int | None](None)  # what each device has; by default what the trace says

    @classmethod
    def of(
        cls, replay: Replay, edit: str, options: Mapping[str, Any], graph: Graph, after: SteadyState
    ) -> Prediction:
        """Return what a changed graph that was simulated tells; not yet how far that is to be trusted."""
        found = cls(
            edit,
            options,
            **replay.basis_figures,
            typical_measured_ns=replay.basis_typical_measured_ns,
            typical_replayed_ns=replay.settled.typical_ns,
            held_ns=replay.held_ns,
            rules=[*graph.facts.rules],
        )
        return found.having(
            replay=replay,
            graph=graph,
            after=after,
            simulated_ns=replay.settled.mean_after(after),
        )

    @classmethod
    def unchanged(cls, replay: Replay) -> Prediction:
        """Return the comparison of a replay with itself."""
        found = cls.of(replay, "", {}, replay.graph, replay.settled)
        found.conclude()
        return found

    def conclude(self) -> None:
        """Fill in the figures that follow from whether the step can be predicted, and the notes."""
        replay = self.replay
        known = self.reason is None
        self.predicted_ns = self.simulated_ns if known else None
        self.typical_predicted_ns = self.after.typical_ns if known else None
        self.__post_init__()
        facts = self.graph.facts
        if facts.work != 1 and self.speedup:
            from daydream.costs.device.input_sizes import samples_per_step

            gain = facts.work * self.speedup
            unit = facts.work_unit
            told = any(name.endswith("recorded") and value for name, value in self.options.items())
            count = None if told else samples_per_step(replay.graph, unit)
            rate = count and count / self.replayed_ns * 1e9
            self.throughput = Throughput(unit, gain, rate, rate and rate * gain)
        self.uncertainty_ns = self.uncertainty.whole_ns()
        if replay.basis != RECORDED:
            after_ns = self.recorded_after_ns if known else None
            self.recorded = RecordedStep(
                replay.measured_ns, replay.recording.settled.step_ns, after_ns
            )
        self.memory = self.memory_answer.memory
        predicted = self.after.step_times() if known else {}
        infos = self.graph.steps
        self.steps = [
            PredictedStep(infos[step]["name"], step_rank(infos[step]), ns, predicted.get(step))
            for step, ns in replay.settled.step_times().items()
        ]
        self.notes = prediction_notes(self)

    def shared(self, kind: type[Row], **more: Any) -> Row:
        """Return a row of another kind with `more` of its own; of the notes those that the replay lacks."""
        fields = {name: getattr(self, name) for name in Changed.__struct_fields__}
        return kind(**{**fields, "notes": self.own_notes, **more})

    def __repr__(self) -> str:
        if self.predicted_ns is None:
            return f"<Prediction {self.optimization}: cannot be predicted, because {self.reason}>"
        return (
            f"<Prediction {self.optimization}: replayed {self.replayed_ns / 1e6:,.3f} ms, "
            f"predicted {self.predicted_ns / 1e6:,.3f} ms, {self.speedup:.2f}x>"
        )

    @property
    def own_notes(self) -> list[str]:
        """The notes that the replay lacks."""
        return [note for note in self.notes if note not in self.replay.notes]

    @property
    def bound(self) -> tuple[Bound, float]:
        """What most of the predicted step waits for (GPU, CPU, copies, communication), and its share."""
        return most_of(self.waited_for_ns)

    @property
    def held(self) -> str | None:
        """How much of the step is held to recorded starts, so that no change moves it; None if little is."""
        held_ns = self.replay.held_ns
        step_ns = self.replayed_ns
        if held_ns <= MUCH_HELD * step_ns:
            return None
        return (
            f"{held_ns / step_ns:.0%} of the step cannot move: it waits for work from before the recording, "
            "whose causes were not recorded"
        )

    @property
    def timeline(self) -> Timeline:
        """The predicted timeline."""
        return self.after.timeline

    def breakdowns(self) -> tuple[Parts, Parts]:
        """Return where a step's time goes, before and after; means over the steps, as the headline is."""
        from daydream.predict.breakdown import parts_of

        return self.replay.breakdown(), parts_of(self.after)

    def shown_steps(self) -> tuple[int, int]:
        """Return the step that a picture of one shows, before and after: the same one where both have it.

        It is the one that is nearest to the headline's two times.
        """
        settled = self.replay.settled
        now = settled.step_times()
        then = self.after.step_times()
        off = {
            step: abs(ns - self.replayed_ns) + abs(then[step] - self.simulated_ns)
            for step, ns in now.items()
            if ns and step in then
        }
        if not off:
            return settled.typical()[0], self.after.typical()[0]
        chosen = min(off, key=off.__getitem__)
        return chosen, chosen

    def to_pandas(self) -> pd.DataFrame:
        """Return where a step's time goes, before and after in ns: a row per cause and per phase."""
        import pandas as pd

        before, after = self.breakdowns()
        rows = [
            (key.removeprefix("by_"), name, before[key].get(name, 0), after[key].get(name, 0))
            for key in ("by_cause", "by_phase")
            for name in {**before[key], **after[key]}
        ]
        frame = pd.DataFrame(rows, columns=["by", "part", "before_ns", "after_ns"]).set_index(
            ["by", "part"]
        )
        return frame.assign(change_ns=frame["after_ns"] - frame["before_ns"])

    def interactive(self) -> Any:
        """Return both timelines as a figure that a notebook shows: it zooms and tells, without widgets.

        Raises `GraphError` if the step after the change cannot be predicted.
        """
        return lazy.ask("interactive", self)

    def to_json(self) -> dict[str, Any]:
        """Return the object `whatif --json` prints; where the time of each step goes is worked out now."""
        from daydream.predict.breakdown import parts_json

        if not self.parts_before:
            self.parts_before, self.parts_after = map(parts_json, self.breakdowns())
        return super().to_json()


def whatif(
    source: Source | Graph | Replay,
    optimization: str | Callable[..., None] | Sequence[Any],
    *,
    table: KernelTable | str | os.PathLike[str] | None = None,
    contention: ContentionOption = MEASURED,
    capacity: int | None = None,
    **options: Any,
) -> Prediction:
    """Return what a change would give: a name, `"a+b"`, the path of a file, or a function of a graph.

    A replay given as the source is used again, so that many questions cost one replay. `table` is as in
    `replay`; an optimization's own option of that name is given as `<optimization>.table`. `contention` says
    how kernels and transfers that overlap slow each other: `"measured"` (as far as the trace shows), `"off"`,
    a factor for kernels, or two, for kernels and for transfers. `capacity` is what each device has in bytes,
    by default what the trace says of it: whether the change fits.

    Returns:
        A `Prediction`: replayed and predicted step in ns, the speed-up and its 90% interval.

    Raises:
        UnknownOptimizationError: there is no optimization of that name.
        NotApplicableError: the change does not apply to this trace.
        GraphError: an option's value makes no sense, or the trace covers no step.

    """
    if table is not None and not isinstance(table, KernelTable):
        table = KernelTable.load(table)
    edit = edit_of(parse(optimization), options, table)
    return predict(
        as_replay(source),
        edit,
        contention=contention,
        capacity_bytes=capacity,
    )


def predict(
    replay: Replay,
    edit: Edit,
    *,
    start: Graph | None = None,
    contention: ContentionOption = MEASURED,
    capacity_bytes: int | None = None,
    interval: bool = True,
    recorded: bool = True,
) -> Prediction:
    """Return what an edit would give: it is made in a copy of the replay's graph, which is simulated.

    `start` is a changed copy of that graph, for an edit that comes on top of another change; the recorded
    step is not predicted then. `contention` says how kernels and transfers that overlap slow each other:
    `"measured"`, `"off"`, or one or two factors. `capacity_bytes` is what each device has, by default what
    the trace says of it. Without `interval` the step alone is predicted, in one simulation as a rule: not its
    interval, the recorded step or memory. Without `recorded` the recorded step is predicted only where the
    interval needs it.

    Raises `GraphError` if the changed graph is broken, `NotApplicableError` if nothing was edited.
    """
    old = replay.graph
    graph, options = edit.in_copy(old if start is None else start)
    wrong = problems(graph, cycles=False)
    if wrong:
        raise GraphError(f"{edit.name} left a broken graph: " + " ".join(wrong))
    diff = GraphDiff(old, graph)
    if graph.version == old.version:
        raise NotApplicableError(f"{edit.name} found nothing to change in this trace")
    need_steps(graph)
    chosen, after = _simulated(edit.name, old, graph, contention)
    found = Prediction.of(replay, edit.name, options, graph, after)
    found.changed, found.inserted, found.removed = diff.counts
    found.contention = chosen
    found.memory_changes = edit.memory or list
    found.capacity_bytes = capacity_bytes
    if (
        interval
        and start is None
        and (replay.basis == ESTIMATED or (recorded and replay.basis == UNPROFILED))
    ):
        recording = replay.recording
        graph_too, _ = edit.in_copy(recording.graph)
        if graph_too.differs_in_times_only(graph):  # then it has the same plan
            graph_too = graph.retimed(graph_too.duration_ns, graph_too.gap_ns)
        _, after = _simulated(edit.name, recording.graph, graph_too, contention)
        found.recorded_after_ns = recording.settled.mean_after(after)
    found.code = lines_of(edit.optimizations, replay.graph)
    found.affected = diff.affected(found.simulated_ns - found.replayed_ns)
    found.waited_for_ns = waited_for_ns(found.after)
    found.left_out = left_in_replays(diff)
    found.unplaced = unplaced_work(diff)
    judge(found, diff, interval=interval)
    if interval and edit.memory is not None:
        found.memory_answer = answer_of(old, edit.memory(), capacity_bytes)
    if found.left_out is not None:
        found.left_in_replays_ns = round(found.left_out.left_ns)
    found.conclude()
    return found


def _simulated(
    name: str, old: Graph, graph: Graph, contention: ContentionOption
) -> tuple[Choice | None, SteadyState]:
    """Return the contention that was chosen, and the steady state of a changed graph."""
    chosen = choose(contention, old, graph)
    try:
        return chosen, settle(graph, contention=between(chosen, old, graph))
    except GraphError as error:  # a cycle, or a lane whose key cannot be read
        raise GraphError(f"{name} left a broken graph: {error}.") from None
