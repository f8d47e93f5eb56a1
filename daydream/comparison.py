"""Comparison: a training step before and after a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.lint import problems
from daydream.shown import Drawn
from daydream.simulate.replay import Replay
from daydream.simulate.steady import Settled, need_steps, settle
from daydream.simulate.timeline import Timeline
from daydream.wording import counted

if TYPE_CHECKING:
    import pandas as pd

OTHER_WORK = 0.1  # of the tasks of a typical step: more or fewer is another kind of step
UNUSUAL = 0.25  # steps further than this from the median (a stalled loader, a warm-up) are not typical


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
        before, after = _times(self.replay.settled), _times(self.after)
        typical = [step for step in self.typical_steps() if step in after]
        work = sum(before[step] for step in typical)
        if not work:
            return round(median(after.values()))
        return round(self.replayed_ns * sum(after[step] for step in typical) / work)

    def typical_steps(self) -> list[int]:
        """Return the steps that the headline is about.

        A step far from the median that does the same work was held up (a stalled loader, a
        warm-up) and is left out; one that does other work (the optimizer every fourth
        step) is part of the loop.
        """
        return self._typical_steps

    @cached_property
    def _typical_steps(self) -> list[int]:
        times = _times(self.replay.settled)
        graph = self.replay.graph
        steps = graph.columns["step"][graph.alive]
        tasks = np.bincount(steps[steps >= 0], minlength=len(graph.steps))
        usual = median(times.values())
        same = [step for step, ns in times.items() if abs(ns - usual) <= UNUSUAL * usual]
        amount = median(tasks[step] for step in same) if same else 0
        return [step for step in times if step in same or abs(tasks[step] - amount) > OTHER_WORK * amount]

    @property
    def speedup(self) -> float:
        """Return replayed / predicted; infinite if nothing is left of the step."""
        return self.replayed_ns / self.predicted_ns if self.predicted_ns else float("inf")

    @property
    def uncertainty(self) -> float:
        """Relative half-width of the range: how steps vary, replay error, untraced work, unexplained delays.

        What the optimization's own model assumes (its factors) is not in it.
        """
        measured = [step.measured_ns for step in self.replay.steps]
        typical = [ns for ns in measured if abs(ns - median(measured)) <= UNUSUAL * median(measured)]
        varies = 0.0
        if len(typical) > 1:
            low, high = np.percentile(typical, [10, 90])
            varies = float(high - low) / 2 / median(typical)
        facts = self.replay.graph.facts
        recorded = sum(measured)
        unexplained = min((facts.unexplained_ns + facts.untraced_ns) / recorded, 1.0) if recorded else 0.0
        return varies + self.replay.max_error + unexplained

    @property
    def predicted_low_ns(self) -> int:
        """Lower end of the range."""
        return round(self.predicted_ns * max(1 - self.uncertainty, 0))

    @property
    def predicted_high_ns(self) -> int:
        """Upper end of the range."""
        return round(self.predicted_ns * (1 + self.uncertainty))

    @property
    def timeline(self) -> Timeline:
        """The predicted timeline."""
        return self.after.timeline

    @cached_property
    def unprofiled(self) -> Comparison | None:
        """The same change without the profiler's cost; None if that is not known.

        `predicted_ns` of it is the prediction for a run without a profiler.
        """
        return self._again(self.replay.unprofiled if self.edit is not None else None)

    @cached_property
    def anchored(self) -> Comparison | None:
        """The same change in unprofiled steps that take as long as measured; see `Replay.anchored`."""
        return self._again(self.replay.anchored if self.edit is not None else None)

    def _again(self, before: Replay | None) -> Comparison | None:
        if before is None or self.edit is None:
            return None
        changed = before.graph.copy()
        self.edit(changed)
        return compare(before, changed, optimization=self.optimization, options=self.options)

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

        Of the typical steps the one whose time changes most nearly as the headline's does, since a
        change also shifts the boundaries of steps; of several the one nearest to the median.
        """
        before, after = _times(self.replay.settled), _times(self.after)
        both = [step for step in self.typical_steps() if before.get(step) and after.get(step) is not None]
        if not both:
            return self.replay.settled.typical()[0], self.after.typical()[0]
        share = self.predicted_ns / self.replayed_ns if self.replayed_ns else 1.0

        def apart(step: int) -> tuple[float, float]:
            off = round(abs(after[step] / before[step] - share), 3)  # nearer than that is no reason
            return off, abs(before[step] - self.replayed_ns)

        chosen = min(both, key=apart)
        return chosen, chosen

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
        times = _times(self.replay.settled)
        left_out = sorted(set(times) - set(self.typical_steps()))
        if left_out:
            share = sum(times[step] for step in left_out) / max(sum(times.values()), 1)
            said.append(
                f"{len(left_out)} of {counted(len(times), 'step')}, {share:.0%} of their time, took far "
                "longer or shorter for the same work and are left out."
            )
        if len(self.replay.steps) == 1:
            said.append("Only one step is covered: the range knows nothing of how steps vary.")
        return said

    def to_json(self) -> dict[str, Any]:
        """Return the object `whatif --json` prints."""
        before, after = self.breakdowns()
        replayed, predicted = _times(self.replay.settled), _times(self.after)
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
            "notes": self.notes(),
        }


def compare(
    before: Replay,
    graph: Graph,
    *,
    optimization: str,
    options: Mapping[str, Any] | None = None,
    edit: Callable[[Graph], object] | None = None,
    passes: int = 2,
) -> Comparison:
    """Return the comparison of a replay with a changed copy of its graph.

    `edit` makes the same change in another copy; with it the unprofiled step is predicted too.
    `passes` are simulated at once; only the speed depends on it (see `settle`).

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
    try:
        after = settle(graph, passes=passes)
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
    )


def _step_ns(settled: Settled) -> int:
    return round(median(_times(settled).values()))


def _times(settled: Settled) -> dict[int, int]:
    return {step: ns for (copy, step), ns in settled.times.items() if copy == settled.copy}
