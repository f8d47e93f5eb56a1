"""Comparison: a training step before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.binding import bound_by, why_unmoved
from daydream.contention import MEASURED, Choice, choose
from daydream.contention import Option as ContentionOption
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.lint import problems
from daydream.shown import Drawn
from daydream.simulate.replay import Replay
from daydream.simulate.steady import Settled, need_steps, settle
from daydream.simulate.timeline import Timeline
from daydream.touched import Edits, Touched
from daydream.uncertainty import Uncertainty, uncertainty_of
from daydream.wording import counted

if TYPE_CHECKING:
    import pandas as pd

AGREEING = " The prediction is made of those that agree with the steps timed without a profiler."


@dataclass(repr=False)
class Comparison(Drawn):
    """What a change would give: `predicted_ns` against `replayed_ns`, with the replay's own error beside it.

    `speedup = replayed / predicted`, so that a bias common to both cancels. Both are
    settled steps: where the recorded window had not settled, `replayed_ns` is the step
    that the untouched graph settles to.
    """

    optimization: str
    options: Mapping[str, Any]
    replay: Replay
    graph: Graph
    after: Settled
    changed: int
    inserted: int
    removed: int
    edit: Callable[[Graph], object] | None = None  # makes the change in another copy of the graph
    contention: Choice | None = None  # of kernels and transfers; None where there are no transfers
    recorded: Replay | None = None  # the replay of the recording, where `replay` is of a graph made of it
    bias: float | None = None  # how far that graph's step is from the step that was measured so

    def __repr__(self) -> str:
        return (
            f"<Comparison {self.optimization}: replayed {self.replayed_ns / 1e6:,.3f} ms, "
            f"predicted {self.predicted_ns / 1e6:,.3f} ms, {self.speedup:.2f}x>"
        )

    @property
    def measured_ns(self) -> int:
        """Median measured step."""
        return self.replay.measured_ns

    @property
    def replayed_ns(self) -> int:
        """The untouched graph's settled step."""
        return _step_ns(self.replay.settled)

    @property
    def replay_error(self) -> float:
        """Relative error of the replay of the recorded steps, signed."""
        return self.replay.error

    @property
    def predicted_ns(self) -> int:
        """The changed graph's settled step.

        The untouched settled step times the share of the time that is left over the
        same typical steps: steps of a recording differ, and a change shifts their
        boundaries against each other, which a ratio of sums does not see.
        """
        return self.step_of(self.after)

    def step_of(self, settled: Settled) -> int:
        """Return the step of a changed graph that has settled, as `predicted_ns` is made."""
        before, after = self.replay.settled.step_times(), settled.step_times()
        typical = [step for step in self.typical_steps() if step in after]
        work = sum(before[step] for step in typical)
        if not work:
            return round(median(after.values()))
        return round(self.replayed_ns * sum(after[step] for step in typical) / work)

    def typical_steps(self) -> list[int]:
        """Return the steps that the headline is about: those that were held up are left out."""
        return self.replay.typical.steps

    @property
    def speedup(self) -> float:
        """Return replayed / predicted; infinite if nothing is left of the step."""
        return self.replayed_ns / self.predicted_ns if self.predicted_ns else float("inf")

    @cached_property
    def edits(self) -> Edits:
        """What the change did, task by task."""
        return Edits(self.replay.graph, self.graph)

    @cached_property
    def touched(self) -> Touched:
        """What the change touches of a step."""
        return self.edits.touched(self.predicted_ns - self.replayed_ns)

    @cached_property
    def bound(self) -> tuple[str, float]:
        """What most of the predicted step waits for (GPU, CPU, copies, communication), and its share."""
        return bound_by(self)

    @cached_property
    def uncertainty(self) -> Uncertainty:
        """How far the step after the change may be from the predicted one, by cause."""
        return uncertainty_of(self)

    @property
    def predicted_low_ns(self) -> int:
        """Lower end of the range."""
        return max(round(self.predicted_ns - self.uncertainty.total_ns), 0)

    @property
    def predicted_high_ns(self) -> int:
        """Upper end of the range."""
        return round(self.predicted_ns + self.uncertainty.total_ns)

    @property
    def timeline(self) -> Timeline:
        """The predicted timeline."""
        return self.after.timeline

    @cached_property
    def unprofiled(self) -> Comparison | None:
        """The same change without the profiler's cost; None if that is not known.

        `predicted_ns` of it is the prediction for a run without a profiler.
        """
        return self._again(
            self.replay.unprofiled if self.edit is not None else None, self.replay.unprofiled_error
        )

    @cached_property
    def anchored(self) -> Comparison | None:
        """The same change in unprofiled steps that take as long as measured; see `Replay.anchored`."""
        return self._again(self.replay.anchored if self.edit is not None else None)

    def _again(self, before: Replay | None, bias: float | None = None) -> Comparison | None:
        if before is None or self.edit is None:
            return None
        changed = before.graph.copy()
        self.edit(changed)
        again = compare(
            before, changed, optimization=self.optimization, options=self.options,
            contention=self.contention or MEASURED,
        )  # fmt: skip
        return replace(again, recorded=self.replay, bias=bias)

    @property
    def unprofiled_predicted_ns(self) -> int | None:
        """The settled step after the change, without the profiler's cost."""
        return None if self.unprofiled is None else self.unprofiled.predicted_ns

    @property
    def unprofiled_anchored_ns(self) -> int | None:
        """The measured unprofiled step times what the change leaves of the anchored one: its bias cancels."""
        measured, anchored = self.replay.unprofiled_measured_ns, self.anchored
        if measured is None or anchored is None or not anchored.replayed_ns:
            return None
        return round(measured * anchored.predicted_ns / anchored.replayed_ns)

    def breakdowns(self) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
        """Return where one typical step's time goes, before and after; see `shown_steps`."""
        before, after = self.shown_steps()
        return (
            self.replay.timeline.breakdown(self.replay.settled.copy, before),
            self.after.timeline.breakdown(self.after.copy, after),
        )

    def shown_steps(self) -> tuple[int, int]:
        """Return the step that stands for the change, before and after: the same one where both have it.

        Of the typical steps the one that is nearest to the headline's two times.
        """
        before, after = self.replay.settled.step_times(), self.after.step_times()
        both = [step for step in self.typical_steps() if before.get(step) and after.get(step) is not None]
        if not both:
            return self.replay.settled.typical()[0], self.after.typical()[0]

        def apart(step: int) -> int:
            return abs(before[step] - self.replayed_ns) + abs(after[step] - self.predicted_ns)

        chosen = min(both, key=apart)
        return chosen, chosen

    def shown_apart(self) -> float:
        """Return how far the shown step is from the headline, before or after, as a part of a step."""
        before, after = self.shown_steps()
        off = (
            self.replay.settled.step_times()[before] - self.replayed_ns,
            self.after.step_times()[after] - self.predicted_ns,
        )
        return max(map(abs, off)) / max(self.replayed_ns, 1)

    def to_pandas(self) -> pd.DataFrame:
        """Return where a typical step's time goes, before and after in ns: a row per cause and per phase."""
        import pandas as pd

        before, after = self.breakdowns()
        rows = [
            (key.removeprefix("by_"), name, before[key].get(name, 0), after[key].get(name, 0))
            for key in ("by_cause", "by_phase")
            for name in {**before[key], **after[key]}
        ]
        frame = pd.DataFrame(rows, columns=["by", "part", "before_ns", "after_ns"]).set_index(["by", "part"])
        return frame.assign(change_ns=frame["after_ns"] - frame["before_ns"])

    def notes(self) -> list[str]:
        """Return what a reader should know before trusting the figures."""
        said = list(self.replay.notes)
        said += [note for note in self.graph.facts.notes if note not in said]
        if self.contention is not None:
            said.append(self.contention.note())
        if not self.after.timeline.overlaps_settled:
            said.append(
                "Which kernels run beside transfers had not settled after simulating it again and again; "
                "the last of these simulations is shown."
            )
        if not self.after.settled:
            said.append(
                "The predicted step had not settled after repeating the window; its last pass is shown."
            )
        if self.replay.replayed_ns != self.replayed_ns:
            said.append(
                f"The recorded window had not settled: its median step replays in "
                f"{self.replay.replayed_ns / 1e6:,.2f} ms, further ones would take "
                f"{self.replayed_ns / 1e6:,.2f} ms."
            )
        times = self.replay.settled.step_times()
        left_out = sorted(set(times) - set(self.typical_steps()))
        if left_out:
            share = sum(times[step] for step in left_out) / max(sum(times.values()), 1)
            said.append(
                f"{len(left_out)} of {counted(len(times), 'step')}, {share:.0%} of their time, took far "
                "longer or shorter for the same work and are left out."
                + (AGREEING if self.replay.typical.by_unprofiled else "")
            )
        unmoved = why_unmoved(self) if self.changed or self.inserted or self.removed else None
        if unmoved is not None:
            said.append(unmoved)
        if len(self.replay.steps) == 1:
            said.append("Only one step is covered: the range knows nothing of how steps vary.")
        return said

    def to_json(self) -> dict[str, Any]:
        """Return the object `whatif --json` prints."""
        before, after = self.breakdowns()
        replayed, predicted = self.replay.settled.step_times(), self.after.step_times()
        steps = self.graph.steps
        return {
            "optimization": self.optimization,
            "options": dict(self.options),
            "measured_ns": self.measured_ns,
            "replayed_ns": self.replayed_ns,
            "replay_error": self.replay_error,
            "predicted_ns": self.predicted_ns,
            "predicted_low_ns": self.predicted_low_ns,
            "predicted_high_ns": self.predicted_high_ns,
            "uncertainty_ns": self.uncertainty.to_json(),
            "speedup": self.speedup if self.predicted_ns else None,
            "unprofiled_measured_ns": self.replay.unprofiled_measured_ns,
            "unprofiled_replayed_ns": None if self.unprofiled is None else self.unprofiled.replayed_ns,
            "unprofiled_predicted_ns": self.unprofiled_predicted_ns,
            "unprofiled_anchored_ns": self.unprofiled_anchored_ns,
            "steps": [
                {
                    "name": steps[step]["name"],
                    "rank": steps[step].get("rank", 0),
                    "replayed_ns": replayed[step],
                    "predicted_ns": predicted.get(step),
                }
                for step in replayed
            ],
            "before": before,
            "after": after,
            "changed": self.changed,
            "inserted": self.inserted,
            "removed": self.removed,
            "contention": None if self.contention is None else self.contention.to_json(),
            "notes": self.notes(),
        }


def compare(
    before: Replay,
    graph: Graph,
    *,
    optimization: str,
    options: Mapping[str, Any] | None = None,
    edit: Callable[[Graph], object] | None = None,
    contention: ContentionOption | Choice = MEASURED,
) -> Comparison:
    """Return the comparison of a replay with a changed copy of its graph.

    `edit` makes the same change in another copy; with it the unprofiled step is predicted too.
    `contention` says how kernels and transfers that overlap slow each other: `"measured"`, `"off"`, or one
    or two factors.

    Raises `GraphError` if the changed graph is broken, `NotApplicableError` if nothing was edited.
    """
    wrong = problems(graph, cycles=False)
    if wrong:
        raise GraphError(f"{optimization} left a broken graph: " + " ".join(wrong))
    old = before.graph
    size = old.size
    kept = old.alive & graph.alive[:size]
    differs = np.zeros(size, bool)
    for name in ("duration_ns", "gap_ns", "latency_ns", "lane"):
        differs |= old.columns[name] != graph.columns[name][:size]
    changed, inserted = int((differs & kept).sum()), int(graph.alive[size:].sum())
    removed = int((old.alive & ~graph.alive[:size]).sum())
    if not (changed or inserted or removed or graph.edits > old.edits):
        raise NotApplicableError(f"{optimization} found nothing to change in this trace")
    need_steps(graph)
    chosen = choose(contention, old, graph)
    slowed = None if chosen is None else chosen.between(old, graph)
    try:
        after = settle(graph, passes=before.settled.passes, contention=slowed)
    except GraphError as error:  # a cycle, or a lane whose key cannot be read
        raise GraphError(f"{optimization} left a broken graph: {error}.") from None
    return Comparison(
        optimization=optimization,
        options=options or {},
        replay=before,
        graph=graph,
        after=after,
        changed=changed,
        inserted=inserted,
        removed=removed,
        edit=edit,
        contention=chosen,
    )


def _step_ns(settled: Settled) -> int:
    return round(median(settled.step_times().values()))
