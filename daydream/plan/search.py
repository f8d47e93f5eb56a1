"""The search: which strategies fit, which of them is fastest or cheapest, and what the others lack.

A strategy is left out unpredicted only where that is certain: the model cannot be divided like that, its memory
does not fit, or it fits without checkpointing or offload, which only add work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import log
from typing import Any, Literal

import msgspec

from daydream.costs.network.clusters import Cluster
from daydream.errors import DaydreamError, GraphError, NotApplicableError
from daydream.lazy import NotebookTables
from daydream.memory.prediction import CONTEXT
from daydream.parallel import map_on
from daydream.results import Record
from daydream.world import compose
from daydream.world.compose import Model

# A billion parameters take Adam 0.22 s on the CPUs of one machine (Ren et al., "ZeRO-Offload", USENIX ATC 2021,
# table 4), which all its GPUs share.
CPU_UPDATE_NS = 0.22
ALONE = ("compute", "launch", "optimizer")
# Of all-reduces on A100s, by the machine's name alone, from 8 MB on, the worst: docs/accuracy.md.
NETWORK_ERROR = 0.285
# What PyTorch's allocator reserved over what tensors held: at most this in nine of ten of SimuMax' 22 runs on B200
# (truth/b200_one_node.csv). CUDA's context comes on top.
RESERVED = 1.07
MORE = (2, 4, 8, 16, 32, 64)  # times as many GPUs, or parts of the batch, that advice looks at
SHOWN = 8  # rows of a table
NS_PER_HOUR = 3.6e12
ONLY = "a trace tells of no other, a script of those that --set gives, and tp stays in a node"
PARALLEL = ("dp", "fsdp", "tp", "pp", "ep", "cp")
CHOICES: dict[str, Sequence[Any]] = {  # by default, in the order of `Strategy`
    "chunks": [1],
    "checkpointing": [False, True],
    "sharded_optimizer": [False],
    "overlap": [True],
    "offload": [False, True],
}
AXES = (*PARALLEL, "micro_batch", "micro_batches", *CHOICES)
By = Literal["time", "cost"]
Limits = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Strategy(compose.Strategy):
    """How a step is divided, with what runs on the CPU.

    Attributes:
        offload: the optimizer's state and its update are on the CPU.
    """

    offload: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """What the sizes of operators depend on: tp, ep, cp and micro-batch."""
        return self.tp, self.ep, self.cp, self.micro_batch

    def __str__(self) -> str:
        parts = [f"{axis} {getattr(self, axis)}" for axis in PARALLEL if getattr(self, axis) > 1]
        parts.append(f"{self.micro_batches} x {self.micro_batch}")
        parts += [f"{self.chunks} chunks"] * (self.chunks > 1)
        switches = ("checkpointing", "offload", "sharded_optimizer")
        parts += [name.replace("_", " ") for name in switches if getattr(self, name)]
        return ", ".join(parts)


class Candidate(Record):
    """A strategy that was predicted; times are ns per step.

    Attributes:
        strategy: which, axis by axis.
        gpus: how many it takes.
        step_ns: the step.
        step_low_ns: the lower end of its 90% interval.
        step_high_ns: the upper end.
        memory_bytes: what tensors take at most, of the GPU that needs most.
        parts_ns: what the step waits for, by name; they add up to it.
        bound: what limits it: the largest part, or `memory`: without checkpointing or offload it does not fit.
        lost_to: the largest part but for computing.
        best_of: whether none is better in time, memory and GPUs.
        hours: of all tokens.
        dollars: of these hours.
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
    best_of: bool = False
    hours: float | None = None
    dollars: float | None = None

    def paid(self, by: By) -> int:
        """Return by what its time counts: GPUs, where cost does."""
        return self.gpus if by == "cost" else 1

    @property
    def point(self) -> tuple[int, int, int]:
        """Time, memory and GPUs."""
        return self.step_ns, self.memory_bytes, self.gpus


@dataclass
class Job:
    """What is known of a job before the search.

    Attributes:
        models: by the shape of a strategy; or why there is none.
        cluster: the machines.
        pcie: from a GPU to its host and back, GB/s.
        error: by which part what the GPUs do alone may be off.
        sequence: tokens of a sample; 0 where that is not known.
        capacity: memory of a GPU, bytes.
        limits: the values of axes that are known.
        own: the script's own settings.
        notes: what a reader should know.
    """

    models: dict[tuple[int, ...], Model | str]
    cluster: Cluster
    pcie: float = 0
    error: float = 0
    sequence: int = 0
    capacity: int = 0
    limits: Limits = field(default_factory=dict)
    own: Strategy | None = None
    notes: list[str] = field(default_factory=list)

    def prepare(self, strategies: Sequence[Strategy], capacity: int, engine: Any, say: Any) -> None:
        """Get ready to be asked about these; what is known of a trace is known."""

    def memory_bytes(self, strategy: Strategy) -> int:
        """Return what tensors take on the GPU that needs most. Raises `DaydreamError` where that cannot be."""
        return round(max(compose.peaks(self._model(strategy), strategy)))

    def predict(self, strategy: Strategy) -> Candidate:
        """Return the step and its parts. Raises `DaydreamError` where they are not known."""
        found = compose.compose(self._model(strategy), strategy, self.cluster)
        step, parts = found.step_ns, found.parts
        doubt = step * self.error + (step - sum(map(parts.__getitem__, ALONE))) * NETWORK_ERROR
        return Candidate(
            strategy,
            strategy.world_size,
            round(step),
            round(step - doubt),
            round(step + doubt),
            round(found.peak_bytes),
            {part: round(ns) for part, ns in parts.items()},
        )

    def _model(self, strategy: Strategy) -> Model:
        model = self.models.get(strategy.shape, "not looked at: fewer samples at once do not fit")
        if isinstance(model, str):
            raise NotApplicableError(model)
        if not strategy.offload:
            return model
        crossing = (model.gradient_bytes + model.parameter_bytes) / self.pcie
        update = crossing + CPU_UPDATE_NS * self.cluster.gpus_per_node
        update = max(update, model.optimizer_ns)
        return replace(model, optimizer_bytes=0, update_bytes=0, optimizer_ns=update)


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
    candidates: list[Candidate] = msgspec.field(default_factory=list)
    turn: Turn | None = None
    own: Candidate | None = None
    advice: list[Advice] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)


def needed_bytes(memory_bytes: int) -> int:
    """Return what a GPU needs for so much of tensors: what the allocator leaves unused, and CUDA's context."""
    return round(memory_bytes * RESERVED) + CONTEXT[1]


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
    progress: Any = lambda *_: None,
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
        progress: called with what is being done, and the share done.

    Raises:
        GraphError: nothing that was asked for can be predicted.
    """
    within = {**(limits or {})}
    for axis, values in job.limits.items():
        within[axis] = [each for each in values if each in within.get(axis, values)]
        if not within[axis]:
            raise GraphError(f"{axis} can only be {', '.join(map(str, values))}: {ONLY}")
    numbers = sorted({*gpus})
    capacity = capacity or job.capacity
    notes = [*job.notes]
    every = [each for number in numbers for each in every_strategy(number, batch, within)]
    job.prepare(every, capacity, engine, partial(progress, "emulating"))
    sizes, impossible = answers(job.memory_bytes, every)
    least = min(within.get("micro_batch", [1]))
    few = f"{batch:,} samples, {least} at once, feed at most {batch // least:,} replicas"
    if not sizes:
        reasons = [*impossible] or ["no division of so many GPUs is within the limits"]
        raise GraphError(
            f"none of {len(every):,} strategies can be predicted: {'; '.join([*reasons, few][:3])}"
        )
    none = {*numbers} - {each.world_size for each in sizes}
    notes += [f"Nothing is possible with {number:,} GPUs: {few}." for number in sorted(none)]
    fits = {each for each in sizes if needed_bytes(sizes[each]) <= capacity}
    wanted = [
        each
        for each in sizes
        if each in fits
        and not {replace(each, checkpointing=False), replace(each, offload=False)} - {each} & fits
    ]
    known, refused = answers(job.predict, wanted, engine, partial(progress, "predicting"))
    candidates = sorted(
        known.values(),
        key=lambda each: (each.step_ns * each.paid(by), *each.point, str(each.strategy)),
    )
    too_large = len(sizes) - len(fits)
    dominated = len(fits) - len(wanted)
    seen = Seen(len(every), dict(impossible + refused), too_large, dominated, len(known))
    mine, lacking = answers(job.predict, [job.own] if job.own else [])
    notes += [f"Your own settings ({job.own}) cannot be predicted: {why}" for why in lacking]
    own = next(iter(mine.values()), None)
    front: list[tuple[int, ...]] = []  # than which no other is lower or equal in everything
    for point in sorted({each.point for each in candidates}):
        if not any(all(map(int.__le__, one, point)) for one in front):
            front.append(point)
    if tokens and not job.sequence:
        notes.append("The tokens of a sample are not known: no hours and no dollars.")
    for each in [*candidates, *filter(None, [own])]:
        parts = each.parts_ns
        saves = each.strategy.checkpointing or each.strategy.offload
        each.bound = "memory" if saves else max(parts, key=parts.__getitem__)
        each.lost_to = max(parts, key=lambda part: parts[part] * (part != "compute"))
        each.best_of = each.point in front
        if tokens and job.sequence:
            each.hours = hours = tokens / (batch * job.sequence) * each.step_ns / NS_PER_HOUR
            each.dollars = price and hours * price * each.gpus
    turn = turn_of(candidates[0], candidates[1], by) if len(candidates) > 1 else None
    advice = [] if fits else [*_advice(job, numbers[-1], batch, capacity, within)]
    return Plan(by, numbers, batch, capacity, seen, candidates, turn, own, advice, notes)


def turn_of(best: Candidate, second: Candidate, by: By = "time") -> Turn | None:
    """Return the part of both steps that need be wrong by the least factor, 10 at most, for the second to win."""
    here = best.paid(by)
    there = second.paid(by)
    gap = second.step_ns * there - best.step_ns * here
    turns = []
    for part in sorted({*best.parts_ns, *second.parts_ns}):
        more = second.parts_ns.get(part, 0) * there - best.parts_ns.get(part, 0) * here
        if more and 0.1 <= (factor := 1 - gap / more) <= 10:
            turns.append(Turn(part, factor))
    return min(turns, key=lambda each: abs(log(each.factor)), default=None)


def every_strategy(gpus: int, batch: int, limits: Limits) -> Iterator[Strategy]:
    """Yield all strategies for so many GPUs and samples a step.

    Args:
        gpus: of the job.
        batch: samples of a step, the same for all.
        limits: the values that an axis may have; of others each divisor, or those of `CHOICES`.
    """

    def allowed(axis: str, values: list[int]) -> list[int]:
        return [each for each in values if each in limits.get(axis, values)]

    axes = [allowed(axis, divisors(gpus)) for axis in PARALLEL[1:]]
    choices = [limits.get(axis, values) for axis, values in CHOICES.items()]
    for fsdp, tp, pp, ep, cp in product(*axes):
        dp, left = divmod(gpus, fsdp * tp * pp * cp)
        samples, odd = divmod(batch, dp * fsdp or 1)
        if left or odd or not allowed("dp", [dp]):
            continue
        for micro, *switches in product(allowed("micro_batch", divisors(samples)), *choices):
            if allowed("micro_batches", [many := samples // micro]):
                yield Strategy(dp, fsdp, tp, pp, ep, cp, micro, many, *switches)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    return [each for each in range(1, number + 1) if not number % each]


def tried(ask: Any) -> Any:
    """Return what asks about a strategy and, where there is no answer, says why."""

    def answer(strategy: Any) -> Any:
        try:
            return ask(strategy)
        except DaydreamError as error:
            return str(error).partition("\n")[0]

    return answer


def answers(
    ask: Any, strategies: Sequence[Strategy], engine: Any = "local", say: Any = None
) -> tuple[dict[Strategy, Any], Counter[str]]:
    """Return the answers by strategy, and how often there is none, by the reason."""
    found = map_on(engine, tried, ask, strategies, progress=say)
    refused = Counter(answer for answer in found if isinstance(answer, str))
    both = zip(strategies, found, strict=True)
    return {each: answer for each, answer in both if not isinstance(answer, str)}, refused


def _advice(job: Job, gpus: int, batch: int, capacity: int, limits: Limits) -> Iterator[Advice]:
    """Yield what needs least and, of each kind of change, the smallest after which a strategy fits."""
    free = {axis: values for axis, values in limits.items() if axis not in CHOICES}
    kinds: list[list[tuple[str, int, int, Limits]]] = [
        [("the least that any needs", gpus, batch, limits)],
        [(f"with {gpus * times:,} GPUs", gpus * times, batch, limits) for times in MORE],
        [(f"with a batch of {batch // times:,}", gpus, batch // times, limits) for times in MORE],
        [("with checkpointing or offload", gpus, batch, free)],
    ]
    for kind in kinds:
        for change, number, samples, within in kind:
            sizes, _ = answers(job.memory_bytes, [*every_strategy(number, samples, within)])
            best = min(sizes, key=lambda each: (sizes[each], str(each)), default=None)
            if best and (kind is kinds[0] or needed_bytes(sizes[best]) <= capacity):
                yield Advice(change, best, sizes[best])
                break
