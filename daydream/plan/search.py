"""The search: which strategies fit, which of them is fastest or cheapest, and what the others lack.

A strategy is left out unpredicted only where that is certain: the model cannot be divided like that, its memory
is known not to fit, or one that was predicted needs no more memory and is faster than this could be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import log
from typing import Any, Literal, Protocol

from msgspec import field

from daydream.errors import DaydreamError, GraphError
from daydream.lazy import NotebookTables
from daydream.parallel import map_on
from daydream.plan.strategies import Limits, Sizes, Strategy, valid_strategies
from daydream.results import Record

FIRST = 8  # one of so many is predicted before dominated ones are left out
MORE = (2, 4, 8, 16, 32, 64)  # times as many GPUs, or parts of the batch, that advice looks at
NS_PER_HOUR = 3.6e12
By = Literal["time", "cost"]
SHOWN = 8  # rows of a table


class Predictor(Protocol):
    """What tells time and memory of a strategy. Each raises `DaydreamError` where it cannot."""

    def prepare(self, strategies: Sequence[Strategy], **how: Any) -> None:
        """Get ready to be asked about these; `how`: capacity, engine and progress."""

    def memory_bytes(self, strategy: Strategy) -> int:
        """Return the peak of the GPU that needs most."""

    def least_ns(self, strategy: Strategy) -> int:
        """Return what a step takes at least."""

    def predict(self, strategy: Strategy) -> Candidate:
        """Return the step and its parts."""


class Candidate(Record):
    """A strategy that was predicted; times are ns per step.

    Attributes:
        strategy: which.
        gpus: how many it takes.
        step_ns: the step.
        step_low_ns: the lower end of its 90% interval.
        step_high_ns: the upper end.
        memory_bytes: peak of the GPU that needs most.
        parts_ns: what the step waits for, by name; they add up to it.
        bound: what limits it: the largest part, or `memory`: without checkpointing or offload it does not fit.
        lost_to: the largest part but for computing.
        hours: of so many tokens.
        dollars: of these hours, by the price; of an hour where no tokens are given.
    """

    strategy: Strategy
    gpus: int
    step_ns: int
    step_low_ns: int
    step_high_ns: int
    memory_bytes: int
    parts_ns: dict[str, int]
    bound: str = ""
    lost_to: str = ""
    hours: float | None = None
    dollars: float | None = None


class Turn(Record):
    """What would have to be false for the second to win.

    Attributes:
        part: of both steps.
        factor: how many times as long as predicted it would take in both, for both to be equal.
    """

    part: str
    factor: float


class Advice(Record):
    """What would make the step fit.

    Attributes:
        change: what to change.
        strategy: one that then fits.
        memory_bytes: what that needs.
    """

    change: str
    strategy: Strategy
    memory_bytes: int


class Seen(Record):
    """How much of the space was looked at: strategies, in the order in which they are left out.

    Attributes:
        possible: ways to spread so many GPUs and samples.
        invalid: how many the model cannot be divided by, by the reason.
        refused: how many the script or the model of time cannot do, by the reason.
        too_large: how many do not fit the memory.
        dominated: how many one that was predicted beats in time, cost and memory, whatever they take.
        predicted: how many were predicted.
    """

    possible: int = 0
    invalid: dict[str, int] = {}
    refused: dict[str, int] = {}
    too_large: int = 0
    dominated: int = 0
    predicted: int = 0


class Plan(Record, NotebookTables, eq=False):
    """The strategies for a job, best first.

    Attributes:
        by: what the best has least of.
        gpus: numbers of GPUs that were asked about.
        batch: samples of a step.
        capacity_bytes: memory of a GPU.
        price: dollars for an hour of a GPU.
        tokens: that hours and dollars are for.
        candidates: those that fit and were predicted, best first.
        front: places, among them, of those that none beats in time, memory and cost.
        turn: what would have to be false for the second to win.
        own: the script's own settings, or those of the trace.
        least: the strategy that needs least memory.
        advice: what would make it fit, where nothing does.
        seen: how much of the space was looked at.
        notes: what a reader should know before trusting the figures.
    """

    by: By
    gpus: list[int]
    batch: int
    capacity_bytes: int
    price: float | None = None
    tokens: float | None = None
    candidates: list[Candidate] = field(default_factory=list)
    front: list[int] = field(default_factory=list)
    turn: Turn | None = None
    own: Candidate | None = None
    least: Advice | None = None
    advice: list[Advice] = field(default_factory=list)
    seen: Seen = field(default_factory=Seen)
    notes: list[str] = field(default_factory=list)


def plan(
    predictor: Predictor,
    gpus: Sequence[int],
    batch: int,
    sizes: Sizes,
    *,
    capacity: int,
    by: By = "time",
    limits: Limits | None = None,
    own: Strategy | None = None,
    price: float | None = None,
    tokens: float | None = None,
    engine: Any = "local",
    progress: Callable[[str, float], None] | None = None,
) -> Plan:
    """Return the strategies for a job that fit its GPUs, best first.

    Args:
        predictor: tells time and memory.
        gpus: how many there may be.
        batch: samples of a step.
        sizes: what the model can be divided by.
        capacity: memory of a GPU, bytes.
        by: whether time or cost counts.
        limits: the values that an axis may have.
        own: the script's own settings.
        price: dollars for an hour of a GPU.
        tokens: that hours and dollars are for.
        engine: where strategies are predicted, see `daydream.parallel`.
        progress: told what is being done, and the share done.

    Raises:
        GraphError: a number makes no sense, or nothing that was asked for can be predicted.
    """
    if not gpus or min([*gpus, batch]) < 1:
        raise GraphError("the GPUs and the batch are whole numbers of 1 or more")
    limits = {**({} if sizes.experts else {"ep": [1]}), **(limits or {})}
    found = Plan(by, sorted({*gpus}), batch, capacity, price, tokens)
    seen, valid = found.seen, list[Strategy]()
    for number in found.gpus:
        some, invalid = valid_strategies(number, batch, sizes, limits)
        valid += some
        seen.invalid = dict(Counter(seen.invalid) + invalid)
    seen.possible = len(valid) + sum(seen.invalid.values())
    predictor.prepare(
        [*valid, *([own] if own else [])], capacity=capacity, engine=engine, progress=progress
    )
    refused = Counter[str]()
    known: dict[Strategy, int] = {}
    for strategy in valid:
        try:
            known[strategy] = predictor.memory_bytes(strategy)
        except DaydreamError as error:
            refused[_first_line(error)] += 1
    fits = {strategy: nbytes for strategy, nbytes in known.items() if nbytes <= capacity}
    seen.too_large = len(known) - len(fits)

    def weight(strategy: Strategy) -> int:
        return strategy.world_size if by == "cost" else 1

    least = {each: predictor.least_ns(each) for each in fits}
    waiting = sorted(fits, key=lambda each: least[each] * weight(each))
    for part in (len(waiting) // FIRST + 1, len(waiting)):
        now, waiting = waiting[:part], waiting[part:]
        answers = map_on(
            engine, _predictions, predictor, now, progress=progress and partial(progress, "predicting")
        )
        for answer in answers:
            if isinstance(answer, str):
                refused[answer] += 1
            else:
                found.candidates.append(answer)
        points = [(each.step_ns, each.memory_bytes, each.gpus) for each in found.candidates]
        best = [points[at] for at in _front(points)]
        left = [
            each
            for each in waiting
            if not any(
                ns < least[each] and nbytes <= fits[each] and number <= each.world_size
                for ns, nbytes, number in best
            )
        ]
        seen.dominated += len(waiting) - len(left)
        waiting = left
    seen.predicted, seen.refused = len(found.candidates), dict(refused)
    if own is not None:
        answer = _predictions(predictor)(own)
        if isinstance(answer, str):
            found.notes.append(f"your own settings ({own}) cannot be predicted: {answer}")
        else:
            found.own = answer
    per_step = batch * sizes.sequence
    for each in [*found.candidates, *([found.own] if found.own else [])]:
        _complete(each, found, fits, per_step)
    found.candidates.sort(
        key=lambda each: (each.step_ns * weight(each.strategy), each.memory_bytes, str(each.strategy))
    )
    found.front = _front([(each.step_ns, each.memory_bytes, each.gpus) for each in found.candidates])
    if len(found.candidates) > 1:
        found.turn = turn_of(found.candidates[0], found.candidates[1], by)
    if not known:
        reasons = [*seen.invalid, *refused] or ["no number of replicas divides the batch"]
        raise GraphError(
            f"none of {seen.possible:,} strategies can be predicted: {'; '.join(reasons[:3])}"
        )
    smallest = min(known, key=lambda each: (known[each], str(each)))
    found.least = Advice("", smallest, known[smallest])
    if not fits:
        found.advice = [*_advice(predictor, found, sizes, limits)]
    return found


def turn_of(best: Candidate, second: Candidate, by: By = "time") -> Turn | None:
    """Return the part of both steps that need be wrong by the smallest factor for the second to win."""
    weights = (best.gpus, second.gpus) if by == "cost" else (1, 1)
    of_best, of_second = (
        {name: ns * weight for name, ns in each.parts_ns.items()}
        for each, weight in zip((best, second), weights, strict=True)
    )
    gap = second.step_ns * weights[1] - best.step_ns * weights[0]
    turns = []
    for part in sorted({*of_best, *of_second}):
        more = of_second.get(part, 0) - of_best.get(part, 0)
        factor = 1 - gap / more if more else 0
        if factor > 0:
            turns.append(Turn(part, factor))
    return min(turns, key=lambda each: abs(log(each.factor)), default=None)


def _predictions(predictor: Predictor) -> Callable[[Strategy], Candidate | str]:
    """Return what predicts a strategy, or says why it cannot."""

    def answer(strategy: Strategy) -> Candidate | str:
        try:
            return predictor.predict(strategy)
        except DaydreamError as error:
            return _first_line(error)

    return answer


def _front(points: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the places of the points that no other is below or equal to in everything, less in something."""
    order = sorted(range(len(points)), key=lambda at: points[at])
    front: list[int] = []
    for at in order:
        if not any(
            all(a <= b for a, b in zip(points[one], points[at], strict=True)) for one in front
        ):
            front.append(at)
    return sorted(front)


def _complete(each: Candidate, found: Plan, fits: Mapping[Strategy, int], per_step: int) -> None:
    """Fill in what limits a candidate, and what it costs."""
    plainer = [
        replace(each.strategy, **{axis: False})
        for axis in ("checkpointing", "offload")
        if getattr(each.strategy, axis)
    ]
    parts = each.parts_ns
    each.bound = max(parts, key=lambda part: parts[part])
    if plainer and not any(one in fits for one in plainer):
        each.bound = "memory"
    lost = {part: ns for part, ns in parts.items() if part != "compute" and ns}
    each.lost_to = max(lost, key=lambda part: lost[part], default="")
    if found.tokens is not None and per_step:
        each.hours = found.tokens / per_step * each.step_ns / NS_PER_HOUR
    if found.price is not None:
        each.dollars = (1.0 if each.hours is None else each.hours) * found.price * each.gpus


def _advice(
    predictor: Predictor, found: Plan, sizes: Sizes, limits: Limits
) -> Iterator[Advice]:
    """Yield the least of each kind of change after which a strategy fits."""
    gpus, batch = found.gpus[-1], found.batch
    free = {axis: limits[axis] for axis in limits if axis not in ("checkpointing", "offload")}
    kinds = [
        [(f"{gpus * times:,} GPUs", gpus * times, batch, limits) for times in MORE],
        [
            (f"a batch of {batch // times:,}", gpus, batch // times, limits)
            for times in MORE
            if not batch % times
        ],
        [("checkpointing or offload", gpus, batch, free)] if len(free) < len(limits) else [],
    ]
    for kind in kinds:
        for change, number, samples, within in kind:
            sized: dict[Strategy, int] = {}
            for strategy in valid_strategies(number, samples, sizes, within)[0]:
                try:
                    sized[strategy] = predictor.memory_bytes(strategy)
                except DaydreamError:  # of a shape that was never looked at
                    continue
            best = min(sized, key=lambda each: (sized[each], str(each)), default=None)
            if best is not None and sized[best] <= found.capacity_bytes:
                yield Advice(change, best, sized[best])
                break


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
