"""Ranking: what every optimization that applies to a trace would save, and what decides after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.lazy import NotebookFigure
from daydream.predict.basis import preference
from daydream.predict.curves import Curve, curves
from daydream.predict.explain import bound_now
from daydream.predict.prediction import Changed, predict
from daydream.predict.replay import OfStep, Replay, Source, as_replay
from daydream.results import Live, Record
from daydream.simulate.critical_path import Bound
from daydream.transforms import stages
from daydream.transforms.compose import Edit, edit_of, in_order, option_names, parse, spelled
from daydream.transforms.real_change import why_not_offered
from daydream.transforms.registry import Optimization, find, names
from daydream.transforms.user_file import reason_of

if TYPE_CHECKING:
    import pandas as pd


By = Literal["time", "memory"]
Named = str | Optimization | Callable[..., None]
OF_JOBS = (
    "it is for jobs of several processes, and this trace is of one; `whatif` predicts it anyway"
)
SAME = "the same change as {} in this trace"
SMALLEST = 0.001  # of a step: what saves less is no gain and has no partner


class Ranked(Changed):
    """What one optimization, or a pair of them, would give; notes without those that the trace has anyway.

    Attributes:
        summary: what it is; empty for a pair.
        needs: what else it takes: other hardware, more GPUs, another workload.
        code: the line of a training script that makes the change, if one does.
        bound: what most of the predicted step then waits for (GPU, CPU, copies, communication).
        bound_share: that part of the step.
    """

    summary: str = ""
    needs: str | None = None
    code: str | None = None
    bound: Bound = Bound.NOTHING
    bound_share: float = 0.0

    change = Live[Optimization]()  # of a pair the one that was named first

    @property
    def changes_nothing(self) -> bool:
        """Whether the step stays as it was, but for less than anyone would notice."""
        return self.saving_ns is not None and abs(self.saving_ns) <= SMALLEST * self.replayed_ns

    @property
    def gains(self) -> bool:
        """Whether the step gets noticeably shorter."""
        return (self.saving_ns or 0) > 0 and not self.changes_nothing

    @property
    def place(self) -> tuple[float, str]:
        """What to sort by: what saves most comes first, what cannot be predicted last."""
        return inf if self.predicted_ns is None else self.predicted_ns, self.optimization

    @property
    def place_by_memory(self) -> tuple[float, tuple[float, str]]:
        """What to sort by for memory: what holds least comes first, what cannot say last."""
        return inf if self.memory is None else self.memory.after_bytes, self.place


class LeftOut(Record):
    """An optimization, or a pair, that is not in a ranking, and why."""

    optimization: str
    reason: str


class Ranking(OfStep, NotebookFigure, eq=False):
    """Optimizations by what they save, most first; the same for pairs; and what was left out, and why.

    `by` memory they are sorted by the peak of what they hold, least first.

    `curves` tell how the step depends on each part of the work; see `daydream.predict.curves`.

    Attributes:
        bound: what bounds the step now.
        bound_share: its share of the critical path; 0 where two sides bound it.
        optimizations: a row for each change.
        pairs: a row for two of them together.
        reasons: what was left out, and why.
        curves: how the step depends on each part of the work.
        notes: what a reader should know before trusting the figures.
        by: what the rows are sorted by: `time`, or `memory`.

    Example::

        ranking = daydream.rank("examples/mlp_cpu.json.gz")
        for each in ranking.optimizations[:3]:
            print(each.optimization, each.speedup, each.code)

    """

    bound: Bound
    bound_share: float
    optimizations: list[Ranked] = field(name="changes")
    pairs: list[Ranked]
    reasons: list[LeftOut] = field(name="left_out")
    curves: list[Curve]
    notes: list[str]
    by: By = "time"

    @property
    def left_out(self) -> dict[str, str]:
        """The reasons of what was left out, by name."""
        return {each.optimization: each.reason for each in self.reasons}

    def __repr__(self) -> str:
        best = self.optimizations[0] if self.optimizations else None
        first = (
            f", {best.optimization} first ({best.speedup:.2f}x)" if best and best.speedup else ""
        )
        return f"<Ranking of {len(self.optimizations)} optimizations{first}>"

    @property
    def cannot_tell(self) -> bool:
        """Whether most intervals say neither that a change helps nor that it hurts, and are wider than 2x."""
        known = [
            (each.speedup_low, each.speedup_high or inf)
            for each in self.optimizations
            if each.predicted_ns and each.speedup_low
        ]
        open_ = [low for low, high in known if low < 1 < high and high > 2 * low]
        return 2 * len(open_) > len(known)

    @property
    def optimizations_left_out(self) -> dict[str, str]:
        """The reasons of the optimizations that were left out, without those of pairs."""
        return {name: reason for name, reason in self.left_out.items() if "+" not in name}

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per optimization and pair, in this order."""
        import pandas as pd

        rows = [each.to_json() for each in (*self.optimizations, *self.pairs)]
        return pd.DataFrame(
            rows,
            columns=[
                "optimization",
                "predicted_ns",
                "saving_ns",
                "speedup",
                "bound",
                "bound_share",
                "needs",
                "summary",
            ],
        )


def rank(
    source: Replay | Graph | Source,
    optimizations: Sequence[Named] | None = None,
    *,
    pairs: int = 3,
    with_curves: bool = True,
    by: By = "time",
    capacity: int | None = None,
    every: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> Ranking:
    """Return what each optimization would save, most first: all there are, or the ones given.

    Options are those that the trace suggests, else at their defaults. Those that do not apply are listed
    with the reason, and so is one that fails, and what the recorded script cannot have, if not `every`
    change is asked for. The best are tried in pairs as well, one more than `pairs`, which are kept.
    `by` memory what holds least comes first. `capacity` is what each device has in bytes, by default what
    the trace says of it.

    Returns:
        A `Ranking`: an entry for each that applies, times in ns per step, and the reasons of the others.

    Raises:
        GraphError: the trace covers no step.

    """
    say = progress or (lambda _what, _share: None)
    before = as_replay(source)
    trial = _Trial(before, capacity, optimizations is None, every)
    chosen: Sequence[Named] = names() if optimizations is None else optimizations
    tried = trial.rows
    for number, each in enumerate(chosen):
        name = each if isinstance(each, str) else spelled(parse([each]))
        say(f"predicting {name}", number / len(chosen))
        row = trial.row(name, [each])
        if row is not None:
            tried.append(row)
            best = sorted(tried, key=lambda row: -_worth(row, by))[: pairs + 1]
            trial.begun = {
                one.optimization: trial.begun[one.optimization] for one in best if pairs > 0
            }
    found = list[Ranked]()
    for row in sorted(tried, key=lambda row: preference(row.notes, row.optimization)):
        twin = next((other for other in found if _same(row, other)), None)
        if twin is None:
            found.append(row)
        else:
            trial.left_out[row.optimization] = SAME.format(twin.optimization)
    found.sort(key=lambda row: row.place)
    # Those first that save most together if they do not touch each other.
    better = [row for row in found if _worth(row, by) > 0]
    couples = sorted(
        combinations(better, 2), key=lambda couple: -sum(_worth(row, by) for row in couple)
    )
    together = list[Ranked]()
    for couple in couples[: 4 * max(pairs, 0)]:
        if len(together) > pairs:
            break
        name = "+".join(each.optimization for each in couple)
        say(f"predicting {name}", -1.0)
        row = trial.row(name, [each.change for each in couple])
        if row is not None:
            together.append(row)
    together = sorted(together, key=lambda row: row.place)[:pairs]
    if by == "memory":
        found.sort(key=lambda row: row.place_by_memory)
        together.sort(key=lambda row: row.place_by_memory)
    say("drawing curves", -1.0)
    bound, share = bound_now(before)
    return Ranking(
        **before.basis_figures,
        bound=bound,
        bound_share=share,
        optimizations=found,
        pairs=together,
        reasons=[LeftOut(name, reason) for name, reason in trial.left_out.items()],
        curves=curves(before) if with_curves else [],
        notes=[*before.notes],
        by=by,
    ).having(replay=before)


def _same(row: Ranked, other: Ranked) -> bool:
    """Tell whether two that exclude each other are one change: as many tasks are edited, to the same step."""
    figures = [
        (each.predicted_ns, each.changed, each.inserted, each.removed) for each in (row, other)
    ]
    return row.change.rules_out(other.change) and figures[0] == figures[1]


def _worth(row: Ranked, by: By) -> float:
    """Return what makes an optimization worth trying in a pair: ns a step, or bytes; 0 if nothing does."""
    if by == "memory":
        return 0 if row.memory is None else row.memory.before_bytes - row.memory.after_bytes
    return (row.saving_ns or 0) if row.gains and row.needs != stages.NEEDS[stages.HARDWARE] else 0


class _Trial(Struct):
    """What optimizations would give of one trace.

    With `only_apt` what asks about jobs of several processes gives nothing for a process by itself, nor does
    what the recorded script cannot have, if not `every` change is asked for. What is the same line of code as
    one of the `rows`, and excludes it, is the same change.
    """

    before: Replay
    capacity: int | None
    only_apt: bool
    every: bool
    rows: list[Ranked] = []
    left_out: dict[str, str] = {}  # the reasons
    begun: dict[str, Edit] = {}  # of one each, by name: from its copies several go on

    def row(self, name: str, chosen: Sequence[Named]) -> Ranked | None:
        """Return what optimizations would give together; None if nothing, and why is in `left_out`."""
        try:
            return self._predicted(
                parse([find(each) if isinstance(each, str) else each for each in chosen])
            )
        except Exception as error:  # noqa: BLE001 - one that fails, another package's perhaps, must not hide the others
            self.left_out[name] = reason_of(error)
            return None

    def _predicted(self, parsed: Sequence[Optimization]) -> Ranked:
        """Return what optimizations would give. Raises `DaydreamError` if that is nothing."""
        first = parsed[0]
        graph = self.before.graph
        alone = len(parsed) == 1
        if self.only_apt:
            several = graph.recorded.metadata.get("world_size", 1) > 1
            if any(each.of_jobs for each in parsed) and not (
                several or len(graph.select(kind="collective"))
            ):
                raise NotApplicableError(OF_JOBS)
            if not self.every:
                for reason in filter(None, (why_not_offered(each, graph) for each in parsed)):
                    raise NotApplicableError(reason)
        needed = [option.flag for each in parsed for option in each.options if option.required]
        if needed:
            raise NotApplicableError(f"needs {' and '.join(needed)}")
        for row in self.rows if self.only_apt and alone else ():
            if (
                row.predicted_ns
                and row.change.code == first.code != ""
                and row.change.rules_out(first)
            ):
                raise NotApplicableError(SAME.format(row.optimization))
        options = {}  # that the trace suggests, by the names that they go by together
        for name, (owner, option) in option_names(parsed).items():
            if owner.suggested_options is None:
                continue
            suggested = owner.suggested_options(graph)
            if suggested is None:
                raise NotApplicableError(
                    f"this trace does not show its options; `whatif {owner.name}` predicts it at the defaults"
                )
            if option.name in suggested:
                options[name] = suggested[option.name]
        edit = edit_of(
            parsed, options, after=None if alone else self.begun.get(in_order(parsed)[0].name)
        )
        found = predict(self.before, edit, capacity_bytes=self.capacity, recorded=False)
        if alone:
            self.begun[first.name] = edit
        bound, share = found.bound
        row = found.shared(
            Ranked,
            options=options,
            summary=first.summary if alone else "",
            needs=next(
                (stages.NEEDS[each.stage] for each in parsed if each.stage in stages.NEEDS), None
            ),
            code=found.code,
            bound=bound,
            bound_share=share,
        )
        return row.having(change=first)
