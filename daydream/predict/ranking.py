"""Ranking: what every optimization that applies to a trace would save, and what decides after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from daydream.display import NotebookFigure, as_json, plain
from daydream.errors import DaydreamError
from daydream.explanation.bound import bound_now
from daydream.graph.graph import Graph
from daydream.memory.prediction import MemoryPrediction
from daydream.predict.as_run import StepAsRun, of_one_step, step_as_run
from daydream.predict.couples import couples_of
from daydream.predict.edited import Copies
from daydream.predict.notes import prediction_notes
from daydream.predict.prediction import Prediction, predict
from daydream.predict.recording import replay_as_run
from daydream.predict.replay import Replay, as_replay
from daydream.predict.sensitivity import Curve, curves
from daydream.predict.twins import without_twins
from daydream.simulate.causes import Bound
from daydream.transforms import stages
from daydream.transforms.code_lines import framework_of, line_of
from daydream.transforms.compose import Edit, apply, in_order, memory_changes, parse, spelled
from daydream.transforms.registry import Optimization, describe, find, names

if TYPE_CHECKING:
    import os

    import pandas as pd

    from daydream.trace.trace import Trace

By = Literal["time", "memory"]
Named = str | Optimization | Callable[..., None]
Ranges = bool | Callable[["Ranked"], bool]  # for all or none, or for the step as run of those it tells
OF_JOBS = "it is for jobs of several processes, and this trace is of one; `whatif` predicts it anyway"
SMALLEST = 0.001  # of a step: what saves less is no gain and has no partner


@dataclass(frozen=True)
class Ranked:
    """What one optimization, or a pair of them, would give.

    `bound` is what most of the predicted step then waits for (GPU, CPU, copies,
    communication), `bound_share` its part of the step. `needs` says what else it takes:
    other hardware, or that other work is done. `code` is the line of a training script that
    makes the change, if one does. The range is None where it was not asked for.

    `predicted_ns`, its range, `saving_ns` and `speedup` are of the recorded step, `as_run` is that of a run
    without a profiler where the trace knows it: the order follows from that one.
    """

    name: str
    summary: str
    needs: str | None
    replayed_ns: int
    predicted_ns: int | None
    predicted_low_ns: int | None
    predicted_high_ns: int | None
    bound: Bound
    bound_share: float
    changed: int
    inserted: int
    removed: int
    notes: tuple[str, ...] = ()
    reason: str | None = None  # why it cannot be predicted
    code: str | None = None
    memory: MemoryPrediction | None = None
    as_run: StepAsRun | None = None  # None if it cannot be predicted

    @property
    def saving_ns(self) -> int:
        """How much shorter the step gets; negative if it gets longer, 0 if that cannot be predicted."""
        return 0 if self.predicted_ns is None else self.replayed_ns - self.predicted_ns

    @property
    def speedup(self) -> float | None:
        """Return replayed / predicted, infinite if nothing is left; None if it cannot be predicted."""
        if self.predicted_ns is None:
            return None
        return self.replayed_ns / self.predicted_ns if self.predicted_ns else float("inf")

    @property
    def changes_nothing(self) -> bool:
        """Whether the step stays as it was, but for less than anyone would notice."""
        return self.as_run is not None and abs(self.as_run.saving_ns) <= SMALLEST * self.as_run.before_ns

    @property
    def gains(self) -> bool:
        """Whether the step gets noticeably shorter."""
        return self.as_run is not None and self.as_run.saving_ns > 0 and not self.changes_nothing

    @property
    def place(self) -> tuple[float, str]:
        """What to sort by: what saves most comes first, what cannot be predicted last."""
        return float("inf") if self.as_run is None else self.as_run.ratio, self.name

    @property
    def place_by_memory(self) -> tuple[float, tuple[float, str]]:
        """What to sort by for memory: what holds least comes first, what cannot say last."""
        return float("inf") if self.memory is None else self.memory.after_bytes, self.place

    def to_json(self) -> dict[str, Any]:
        """Return the entry as `rank --json` prints it."""
        saving = {"saving_ns": None if self.predicted_ns is None else self.saving_ns}
        keys = "optimization=name summary needs code predicted_ns predicted_low_ns predicted_high_ns"
        rest = "speedup as_run reason bound bound_share changed inserted removed memory notes"
        return as_json(self, keys) | saving | as_json(self, rest)


@dataclass(repr=False)
class Ranking(NotebookFigure):
    """Optimizations by what they save, most first; the same for pairs; and what was left out, and why.

    `by` memory they are sorted by the peak of what they hold, least first.

    `curves` tell how the step depends on each part of the work; see `daydream.predict.sensitivity`.

    Example::

        ranking = daydream.rank("examples/mlp_cpu.json.gz")
        for each in ranking.optimizations[:3]:
            print(each.name, each.as_run.speedup, each.code)

    """

    replay: Replay
    replayed_ns: int
    bound: Bound
    bound_share: float
    optimizations: list[Ranked]
    pairs: list[Ranked]
    left_out: dict[str, str]
    curves: list[Curve] = field(default_factory=list)
    by: By = "time"

    def __repr__(self) -> str:
        best = self.optimizations[0] if self.optimizations else None
        first = f", {best.name} first ({best.as_run.speedup:.2f}x)" if best and best.as_run else ""
        return f"<Ranking of {len(self.optimizations)} optimizations{first}>"

    @property
    def before_ns(self) -> float:
        """The step without any change, as a run pays for it: the one that each `as_run` starts from."""
        steps = (each.as_run for each in (*self.optimizations, *self.pairs))
        return next((step.before_ns for step in steps if step is not None), float(self.replayed_ns))

    @property
    def profiled(self) -> bool:
        """Whether that step is the recorded one."""
        steps = (each.as_run for each in (*self.optimizations, *self.pairs))
        return all(step.profiled for step in steps if step is not None)

    @property
    def optimizations_left_out(self) -> dict[str, str]:
        """The reasons of the optimizations that were left out, without those of pairs."""
        return {name: reason for name, reason in self.left_out.items() if "+" not in name}

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per optimization and pair, in this order."""
        import pandas as pd

        rows = [each.to_json() for each in (*self.optimizations, *self.pairs)]
        columns = [
            "optimization",
            "predicted_ns",
            "saving_ns",
            "speedup",
            "bound",
            "bound_share",
            "needs",
            "summary",
        ]
        return pd.DataFrame(rows, columns=columns)

    def notes(self) -> list[str]:
        """Return what a reader should know before trusting the figures."""
        return list(self.replay.notes)

    def to_json(self) -> dict[str, Any]:
        """Return the object `rank --json` prints, without the trace's name."""
        left_out = [{"optimization": name, "reason": reason} for name, reason in self.left_out.items()]
        keys = "measured_ns=replay.measured_ns replayed_ns replay_error=replay.error bound bound_share"
        return {
            **as_json(self, f"{keys} optimizations pairs"),
            "left_out": left_out,
            "curves": plain(self.curves),
            "notes": self.notes(),
        }


def rank(
    source: Replay | Graph | Trace | str | os.PathLike[str],
    optimizations: Sequence[Named] | None = None,
    *,
    pairs: int = 3,
    with_curves: bool = True,
    with_ranges: bool | tuple[int, int] = True,
    by: By = "time",
    capacity: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Ranking:
    """Return what each optimization would save, most first: all there are, or the ones given.

    Options are at their defaults. Those that do not apply are listed with the reason, and so
    is one that fails. The best are tried in pairs as well, one more than `pairs`, which are kept.
    Ranges take about a third of the time: `with_ranges` may be two numbers, of how many of the best and of
    how many of the best pairs `as_run` has one; no other range is made then. `by` memory what holds least
    comes first. `capacity` is what each device has in bytes, by default what the trace says of it.

    Returns:
        A `Ranking`: an entry for each that applies, times in ns per step, and the reasons of the others.

    Raises:
        GraphError: the trace covers no step.

    """
    say = progress or (lambda _what, _share: None)
    before = as_replay(source)
    chosen: Sequence[Named] = names() if optimizations is None else optimizations
    most, most_pairs = (None, None) if isinstance(with_ranges, bool) else with_ranges
    left_out: dict[str, str] = {}
    found: list[tuple[Ranked, Optimization]] = []
    copies = Copies()
    for number, each in enumerate(chosen):
        name = _name(each)
        say(f"predicting {name}", number / len(chosen))
        ranges = bool(with_ranges) if most is None else _among_best([one for one, _ in found], most)
        parsed, result = _tried([each], before, copies, capacity, ranges, only_apt=optimizations is None)
        if isinstance(result, Ranked):
            found.append((result, parsed[0]))
            found.sort(key=lambda pair: pair[0].place)
            best = {optimization.name for _, optimization in found[: pairs + 1]}
            copies.keep(best)
        else:
            left_out[name] = result

    found, same = without_twins(found)
    left_out |= same
    for place, (had, optimization) in enumerate(found):
        # One that stood before it has gone, or the one whose answer it has.
        if had.name in copies.stand_ins or (place < (most or 0) and _lacks_range(had)):
            ranges = bool(with_ranges) if most is None else _lacks_range
            _, again = _tried([optimization], before, Copies(), capacity, ranges, only_apt=False)
            found[place] = (again if isinstance(again, Ranked) else had), optimization
    together: list[Ranked] = []
    for number, couple in enumerate(couples_of(found, by) if pairs > 0 else []):
        if len(together) > pairs or number >= 4 * pairs:
            break
        name = "+".join(each.name for each in couple)
        say(f"predicting {name}", -1.0)
        ranges = bool(with_ranges) if most_pairs is None else _among_best(together, most_pairs, pairs=True)
        _, result = _tried(couple, before, copies, capacity, ranges)
        if isinstance(result, Ranked):
            together.append(result)
        else:
            left_out[name] = result
    together.sort(key=lambda ranked: ranked.place)
    together = together[:pairs]
    if by == "memory":
        found.sort(key=lambda pair: pair[0].place_by_memory)
        together = sorted(together, key=lambda ranked: ranked.place_by_memory)
    say("drawing curves", -1.0)
    bound, share = bound_now(replay_as_run(before))
    ranked = of_one_step([*(each for each, _ in found), *together])
    return Ranking(
        replay=before,
        replayed_ns=before.settled.step_ns,
        bound=bound,
        bound_share=share,
        optimizations=ranked[: len(found)],
        pairs=ranked[len(found) :],
        left_out=left_out,
        curves=curves(before) if with_curves else [],
        by=by,
    )


def _lacks_range(ranked: Ranked) -> bool:
    """Tell whether an answer that makes the step shorter has no range."""
    return ranked.as_run is not None and ranked.as_run.low_ns is None and ranked.as_run.ratio < 1


def _among_best(found: Sequence[Ranked], most: int, *, pairs: bool = False) -> Callable[[Ranked], bool]:
    """Return what tells whether another answer is among the first `most`; of optimizations what gains."""
    places = [each.place for each in found]

    def among(ranked: Ranked) -> bool:
        before = sum(place < ranked.place for place in places)
        return before < most and ranked.as_run is not None and (pairs or _lacks_range(ranked))

    return among


def _name(each: Named) -> str:
    if isinstance(each, str):
        return each
    return each.name if isinstance(each, Optimization) else describe(each).name


def _tried(
    chosen: Sequence[Named],
    before: Replay,
    copies: Copies,
    capacity: int | None,
    ranges: Ranges,
    *,
    only_apt: bool = True,
) -> tuple[list[Optimization], Ranked | str]:
    """Return the optimizations, and what they would give together or the reason why they give nothing.

    With `only_apt` what asks about jobs of several processes gives nothing for a process by itself.
    `copies` are those that optimizations were made in; new ones are put in.
    """
    parsed: list[Optimization] = []
    try:
        parsed = parse([find(each) if isinstance(each, str) else each for each in chosen])
        if only_apt and _alone(before) and any(each.of_jobs for each in parsed):
            return parsed, OF_JOBS
        needed = [option.flag for each in parsed for option in each.options if option.required]
        if needed:
            return parsed, f"needs {' and '.join(needed)}"
        return parsed, _predicted(parsed, before, copies, capacity, ranges)
    except DaydreamError as error:
        return parsed, " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - one that fails, another package's perhaps, must not hide the others
        return parsed, f"it failed: {type(error).__name__}: {error}"


def _alone(before: Replay) -> bool:
    """Tell whether a trace is of a process that trains by itself."""
    metadata = {} if before.graph.trace is None else before.graph.trace.metadata
    return metadata.get("world_size", 1) <= 1 and not len(before.graph.select(kind="collective"))


def _predicted(
    parsed: Sequence[Optimization],
    before: Replay,
    copies: Copies,
    capacity: int | None,
    ranges: Ranges,
) -> Ranked:
    first, *others = in_order(parsed)
    begun = copies.by_name.get(first.name) if others else None
    edit = Edit(
        spelled(parsed),
        lambda graph: apply(parsed, graph, {}),
        partial(memory_changes, parsed, {}),
        begun=None if begun is None else begun.copy_of,
        rest=lambda graph: apply(others, graph, {}),
    )
    made = edit.in_copy(before.graph)
    twin = None if others else copies.twin_of(first, before.graph, made[0])
    if twin is not None:
        return twin
    comparison = predict(before, edit, capacity_bytes=capacity, made=made)
    ranked = _ranked(parsed, comparison, with_ranges=ranges is True)
    if callable(ranges) and ranges(ranked):
        ranked = replace(ranked, as_run=step_as_run(comparison))
    if not others:
        copies.add(first, ranked, comparison)
    return ranked


def _ranked(parsed: Sequence[Optimization], comparison: Prediction, *, with_ranges: bool) -> Ranked:
    bound, share = comparison.as_run.bound
    known = set(comparison.replay.notes)
    needs = [stages.NEEDS[each.stage] for each in parsed if each.stage in stages.NEEDS]
    code = [line_of(each, framework_of(comparison.replay.graph)) for each in parsed]
    return Ranked(
        name=comparison.optimization,
        summary=parsed[0].summary if len(parsed) == 1 else "",
        needs=needs[0] if needs else None,
        replayed_ns=comparison.replayed_ns,
        predicted_ns=comparison.predicted_ns,
        predicted_low_ns=comparison.predicted_low_ns if with_ranges else None,
        predicted_high_ns=comparison.predicted_high_ns if with_ranges else None,
        bound=bound,
        bound_share=share,
        changed=comparison.changed,
        inserted=comparison.inserted,
        removed=comparison.removed,
        notes=tuple(note for note in prediction_notes(comparison, as_recorded=True) if note not in known),
        reason=comparison.reason,
        code="; ".join(code) if all(code) else None,
        memory=comparison.memory,
        as_run=None if comparison.reason else step_as_run(comparison, with_range=with_ranges),
    )
