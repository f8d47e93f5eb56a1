"""The search: which strategies fit, which of them is fastest or cheapest, and what the others lack.

A strategy is left out unpredicted only where that is certain: the model cannot be divided like that, its memory
does not fit, or it fits without checkpointing or offload, which only add work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import Any, Literal

from msgspec import field

from daydream.errors import DaydreamError, GraphError
from daydream.lazy import NotebookTables
from daydream.parallel import map_on
from daydream.plan.predictor import Candidate, Job
from daydream.plan.strategies import CHOICES, Limits, Strategy, every_strategy
from daydream.results import Record

MORE = (2, 4, 8, 16, 32, 64)  # times as many GPUs, or parts of the batch, that advice looks at
SHOWN = 8  # rows of a table
NS_PER_HOUR = 3.6e12
By = Literal["time", "cost"]


class Turn(Record):
    """What would have to be false for the second to win.

    Attributes:
        part: of both steps.
        factor: times its prediction in both, where both are equal.
    """

    part: str
    factor: float


class Advice(Record):
    """What would make the step fit.

    Attributes:
        change: what to change; nothing for the first.
        strategy: what then needs least.
        memory_bytes: how much.
    """

    change: str
    strategy: Strategy
    memory_bytes: int


class Seen(Record):
    """How much of the space was looked at: strategies, in the order in which they are left out.

    Attributes:
        possible: ways to divide the samples among so many GPUs.
        impossible: those that model or script do not allow, by the reason.
        too_large: those that do not fit.
        dominated: those that fit without their checkpointing or offload, and so are slower.
        predicted: all others.
    """

    possible: int
    impossible: dict[str, int]
    too_large: int = 0
    dominated: int = 0
    predicted: int = 0


class Plan(Record, NotebookTables, eq=False):
    """The strategies for a job, best first.

    Attributes:
        by: what the best has least of.
        gpus: how many there may be.
        batch: samples of a step.
        capacity_bytes: memory of a GPU.
        seen: how many strategies were looked at.
        candidates: those that were predicted, best first.
        turn: when the second wins.
        own: the script's own settings.
        advice: what would fit, where nothing does.
        notes: what a reader should know before trusting the figures.
    """

    by: By
    gpus: list[int]
    batch: int
    capacity_bytes: int
    seen: Seen
    candidates: list[Candidate] = field(default_factory=list)
    turn: Turn | None = None
    own: Candidate | None = None
    advice: list[Advice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def plan(
    job: Job,
    gpus: Sequence[int],
    batch: int,
    *,
    capacity: int | None = None,
    by: By = "time",
    limits: Limits | None = None,
    price: float | None = None,
    tokens: float | None = None,
    engine: Any = "local",
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Return the strategies for a job that fit its GPUs, best first.

    Args:
        job: what is known of it.
        gpus: how many there may be.
        batch: samples of a step.
        capacity: memory of a GPU, bytes.
        by: whether time or cost counts.
        limits: the values that an axis may have.
        price: dollars for an hour of a GPU.
        tokens: that hours and dollars are for.
        engine: where strategies are predicted, see `daydream.parallel`.
        progress: told what is being done, and the share done.

    Raises:
        GraphError: nothing that was asked for can be predicted.
    """
    for axis, values in (limits or {}).items():
        if (known_of := job.limits.get(axis)) and not {*values} & {*known_of}:
            only = ", ".join(map(str, known_of))
            raise GraphError(
                f"only {axis} {only} is known: a trace tells of no other, a script of those that --set gives"
            )
    limits, capacity = {**(limits or {}), **job.limits}, capacity or job.capacity
    found = Plan(by, sorted({*gpus}), batch, capacity, Seen(0, {}), notes=[*job.notes])
    every = [each for number in found.gpus for each in every_strategy(number, batch, limits)]
    least = min(limits.get("micro_batch", [1]))
    few = f"{batch:,} samples, {least} at once, feed at most {batch // least:,} replicas"
    job.prepare(every, capacity, engine, progress and partial(progress, "emulating"))
    seen, impossible = found.seen, Counter[str]()
    known = _answered(every, map(_tried(job.memory_bytes), every), impossible)
    if not known:
        limited = "no division of so many GPUs is within the limits"
        reasons = [*impossible, few] if every else [limited, few]
        raise GraphError(
            f"none of {len(every):,} strategies can be predicted: {'; '.join(reasons[:3])}"
        )
    for number in sorted({*found.gpus} - {each.world_size for each in known}):
        found.notes.append(f"Nothing is possible with {number:,} GPUs: {few}.")
    fits = {each for each, nbytes in known.items() if nbytes <= capacity}
    if not fits:
        found.advice = [*_advice(job, found, limits)]
    wanted = [each for each in known if each in fits and not _plainer(each) & fits]
    say = progress and partial(progress, "predicting")
    answers = map_on(engine, _tried, job.predict, wanted, progress=say)
    found.candidates = [*_answered(wanted, answers, impossible).values()]
    seen.possible, seen.impossible = len(every), dict(impossible)
    seen.too_large, seen.dominated = len(known) - len(fits), len(fits) - len(wanted)
    seen.predicted = len(found.candidates)
    found.candidates.sort(
        key=lambda each: (each.step_ns * _weight(each.strategy, by), *_point(each), str(each))
    )
    if job.own is not None:
        answer = _tried(job.predict)(job.own)
        if isinstance(answer, str):
            found.notes.append(f"Your own settings ({job.own}) cannot be predicted: {answer}")
        else:
            found.own = answer
    best = _front([_point(each) for each in found.candidates])
    for each in [*found.candidates, *filter(None, [found.own])]:
        parts = each.parts_ns
        saves = each.strategy.checkpointing or each.strategy.offload
        each.bound = "memory" if saves else max(parts, key=parts.__getitem__)
        each.lost_to = max(parts, key=lambda part: parts[part] * (part != "compute"))
        each.best_of = _point(each) in best
        if tokens is not None and job.sizes.sequence:
            steps = tokens / (batch * job.sizes.sequence)
            each.hours = steps * each.step_ns / NS_PER_HOUR
            each.dollars = each.hours * price * each.gpus if price is not None else None
    if tokens is not None and not job.sizes.sequence:
        found.notes.append("The tokens of a sample are not known: no hours and no dollars.")
    if len(found.candidates) > 1:
        found.turn = turn_of(found.candidates[0], found.candidates[1], by)
    return found


def turn_of(best: Candidate, second: Candidate, by: By = "time") -> Turn | None:
    """Return the part of both steps that need be wrong by the smallest factor for the second to win."""
    here, there = _weight(best.strategy, by), _weight(second.strategy, by)
    gap = second.step_ns * there - best.step_ns * here
    turns = []
    for part in sorted({*best.parts_ns, *second.parts_ns}):
        more = second.parts_ns.get(part, 0) * there - best.parts_ns.get(part, 0) * here
        if more and (factor := 1 - gap / more) > 0:
            turns.append(Turn(part, factor))
    return min(turns, key=lambda each: abs(log(each.factor)), default=None)


def _plainer(strategy: Strategy) -> set[Strategy]:
    """Return the same without checkpointing, and without offload, where it has them."""
    axes = [axis for axis in ("checkpointing", "offload") if getattr(strategy, axis)]
    return {replace(strategy, **{axis: False}) for axis in axes}


def _weight(strategy: Strategy, by: By) -> int:
    return strategy.world_size if by == "cost" else 1


def _point(each: Candidate) -> tuple[int, int, int]:
    return each.step_ns, each.memory_bytes, each.gpus


def _front(points: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the points than which no other is lower or equal in everything."""
    front: list[tuple[int, int, int]] = []
    for point in sorted({*points}):
        if not any(all(map(int.__le__, one, point)) for one in front):
            front.append(point)
    return front


def _tried(ask: Callable[[Strategy], Any]) -> Callable[[Strategy], Any]:
    """Return what asks about a strategy and, where there is no answer, says why."""

    def answer(strategy: Strategy) -> Any:
        try:
            return ask(strategy)
        except DaydreamError as error:
            return str(error).partition("\n")[0]

    return answer


def _answered(
    strategies: Sequence[Strategy], answers: Any, refused: Counter[str]
) -> dict[Strategy, Any]:
    """Return the answers by strategy; count why there is none to others."""
    found = dict(zip(strategies, answers, strict=True))
    refused.update(answer for answer in found.values() if isinstance(answer, str))
    return {each: answer for each, answer in found.items() if not isinstance(answer, str)}


def _advice(job: Job, found: Plan, limits: Limits) -> Iterator[Advice]:
    """Yield what needs least and, of each kind of change, the smallest after which a strategy fits."""
    gpus, batch = found.gpus[-1], found.batch
    free = {axis: values for axis, values in limits.items() if axis not in CHOICES}
    kinds: list[list[tuple[str, int, int, Limits]]] = [
        [("the least that any needs", gpus, batch, limits)],
        [(f"with {gpus * times:,} GPUs", gpus * times, batch, limits) for times in MORE],
        [(f"with a batch of {batch // times:,}", gpus, batch // times, limits) for times in MORE],
        [("with checkpointing or offload", gpus, batch, free)],
    ]
    for kind in kinds:
        for change, number, samples, within in kind:
            some = [*every_strategy(number, max(samples, 1), within)]
            sized = _answered(some, map(_tried(job.memory_bytes), some), Counter())
            best = min(sized, key=lambda each: (sized[each], str(each)), default=None)
            if best is not None and (sized[best] <= found.capacity_bytes or kind is kinds[0]):
                yield Advice(change, best, sized[best])
                break
