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


class Sizes(Record):
    """What a model can be divided by; 0 where that is not known, which then forbids nothing.

    Attributes:
        layers: repeated blocks.
        heads: of attention.
        experts: of a layer; 0 for none.
        sequence: tokens of a sample.
        gpus_per_node: GPUs of a node.
    """

    layers: int = 0
    heads: int = 0
    experts: int = 0
    sequence: int = 0
    gpus_per_node: int = 0

    def why_not(self, of: compose.Strategy) -> str | None:
        """Return why the model cannot be divided like that, None if it can."""
        reasons = {
            "tp is larger than a node": of.tp > (self.gpus_per_node or of.tp),
            "tp does not divide the heads": self.heads % of.tp,
            "pp does not divide the layers": self.layers % (of.pp * of.chunks),
            "chunks need stages that divide the micro-batches": of.chunks > 1
            and (of.pp == 1 or of.micro_batches % of.pp),
            "ep does not divide the experts": self.experts % of.ep,
            "ep does not divide the GPUs of a stage": of.world_size // of.pp % of.ep,
            "cp does not divide the sequence": of.cp > 1 and self.sequence % (2 * of.cp),
        }
        return next((why for why, wrong in reasons.items() if wrong), None)


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
        sizes: what the model can be divided by.
        capacity: memory of a GPU, bytes.
        limits: the values of axes that are known.
        own: the script's own settings.
        notes: what a reader should know.
    """

    models: dict[tuple[int, ...], Model | str]
    cluster: Cluster
    pcie: float = 0
    error: float = 0
    sizes: Sizes = field(default_factory=Sizes)
    capacity: int = 0
    limits: Limits = field(default_factory=dict)
    own: Strategy | None = None
    notes: list[str] = field(default_factory=list)

    def prepare(self, strategies: Sequence[Strategy], capacity: int, engine: Any, say: Any) -> None:
        """Get ready to be asked about these; what is known of a trace is known."""

    def memory_bytes(self, strategy: Strategy) -> int:
        """Return what tensors take on the GPU that needs most. Raises `DaydreamError` where that cannot be."""
        if why := self.sizes.why_not(strategy):
            raise NotApplicableError(why)
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
        model = self.models.get(strategy.shape, "this tp, ep, cp or micro-batch was not looked at")
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
    progress: Any = None,
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
    for axis, values in (limits or {}).items():
        if (known_of := job.limits.get(axis)) and not {*values} & {*known_of}:
            only = ", ".join(map(str, known_of))
            raise GraphError(
                f"only {axis} {only} is known: a trace tells of no other, a script of those that --set gives"
            )
    limits = {**(limits or {}), **job.limits}
    found = Plan(by, sorted({*gpus}), batch, capacity or job.capacity, Seen(0, {}))
    found.notes += job.notes
    every = [each for number in found.gpus for each in every_strategy(number, batch, limits)]
    least = min(limits.get("micro_batch", [1]))
    few = f"{batch:,} samples, {least} at once, feed at most {batch // least:,} replicas"
    say = progress or (lambda *_: None)
    job.prepare(every, found.capacity_bytes, engine, partial(say, "emulating"))
    impossible = Counter[str]()
    known = _answers(job.memory_bytes, every, impossible)
    if not known:
        limited = "no division of so many GPUs is within the limits"
        reasons = [*impossible, few] if every else [limited, few]
        raise GraphError(
            f"none of {len(every):,} strategies can be predicted: {'; '.join(reasons[:3])}"
        )
    for number in sorted({*found.gpus} - {each.world_size for each in known}):
        found.notes.append(f"Nothing is possible with {number:,} GPUs: {few}.")
    fits = {each for each in known if needed_bytes(known[each]) <= found.capacity_bytes}
    if not fits:
        found.advice = [*_advice(job, found, limits)]
    wanted = [
        each
        for each in known
        if each in fits
        and not {replace(each, checkpointing=False), replace(each, offload=False)} - {each} & fits
    ]
    predicting = partial(say, "predicting")
    answers = _answers(job.predict, wanted, impossible, engine, predicting)
    found.candidates = [*answers.values()]
    seen = len(every), dict(impossible), len(known) - len(fits), len(fits) - len(wanted)
    found.seen = Seen(*seen, len(found.candidates))
    found.candidates.sort(
        key=lambda each: (each.step_ns * each.paid(by), *each.point, str(each.strategy))
    )
    if job.own is not None:
        refused = Counter[str]()
        found.own = _answers(job.predict, [job.own], refused).get(job.own)
        found.notes += [
            f"Your own settings ({job.own}) cannot be predicted: {why}" for why in refused
        ]
    front: list[tuple[int, ...]] = []  # than which no other is lower or equal in everything
    for point in sorted({each.point for each in found.candidates}):
        if not any(all(map(int.__le__, one, point)) for one in front):
            front.append(point)
    for each in [*found.candidates, *filter(None, [found.own])]:
        parts = each.parts_ns
        saves = each.strategy.checkpointing or each.strategy.offload
        each.bound = "memory" if saves else max(parts, key=parts.__getitem__)
        each.lost_to = max(parts, key=lambda part: parts[part] * (part != "compute"))
        each.best_of = each.point in front
        if tokens is not None and job.sizes.sequence:
            each.hours = tokens / (batch * job.sizes.sequence) * each.step_ns / NS_PER_HOUR
            each.dollars = each.hours * price * each.gpus if price is not None else None
    if tokens is not None and not job.sizes.sequence:
        found.notes.append("The tokens of a sample are not known: no hours and no dollars.")
    if len(found.candidates) > 1:
        found.turn = turn_of(found.candidates[0], found.candidates[1], by)
    return found


def turn_of(best: Candidate, second: Candidate, by: By = "time") -> Turn | None:
    """Return the part of both steps that need be wrong by the least factor, 10 at most, for the second to win."""
    here, there = best.paid(by), second.paid(by)
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
    choices = [limits.get(axis, values) for axis, values in CHOICES.items()]
    every = divisors(gpus)
    for fsdp, tp, pp, ep, cp in product(
        *([each for each in every if each in limits.get(axis, every)] for axis in PARALLEL[1:])
    ):
        dp, left = divmod(gpus, fsdp * tp * pp * cp)
        samples, odd = divmod(batch, dp * fsdp or 1)
        if left or odd or dp not in limits.get("dp", [dp]):
            continue
        for micro, *switches in product(divisors(samples), *choices):
            many = samples // micro
            within = micro in limits.get("micro_batch", [micro])
            if within and many in limits.get("micro_batches", [many]):
                yield Strategy(dp, fsdp, tp, pp, ep, cp, micro, many, *switches)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    return [each for each in range(1, number + 1) if not number % each]


def tried(ask: Any) -> Any:
    """Return what asks about a strategy and, where there is no answer, says why."""

    def answer(strategy: Strategy) -> Any:
        try:
            return ask(strategy)
        except DaydreamError as error:
            return str(error).partition("\n")[0]

    return answer


def _answers(
    ask: Any,
    strategies: Sequence[Strategy],
    refused: Counter[str],
    engine: Any = "local",
    say: Any = None,
) -> Any:
    """Return the answers by strategy; count why there is none to others."""
    found = map_on(engine, tried, ask, strategies, progress=say)
    refused.update(answer for answer in found if isinstance(answer, str))
    every = zip(strategies, found, strict=True)
    return {each: answer for each, answer in every if not isinstance(answer, str)}


def _advice(job: Job, found: Plan, limits: Limits) -> Iterator[Advice]:
    """Yield what needs least and, of each kind of change, the smallest after which a strategy fits."""
    gpus, batch = found.gpus[-1], found.batch
    free = {axis: values for axis, values in limits.items() if axis not in CHOICES}
    least: list[tuple[str, int, int, Limits]] = [("the least that any needs", gpus, batch, limits)]
    for kind in (
        least,
        [(f"with {gpus * times:,} GPUs", gpus * times, batch, limits) for times in MORE],
        [(f"with a batch of {batch // times:,}", gpus, batch // times, limits) for times in MORE],
        [("with checkpointing or offload", gpus, batch, free)],
    ):
        for change, number, samples, within in kind:
            some = [*every_strategy(number, max(samples, 1), within)]
            sized = _answers(job.memory_bytes, some, Counter())
            best = min(sized, key=lambda each: (sized[each], str(each)), default=None)
            if best and (kind is least or needed_bytes(sized[best]) <= found.capacity_bytes):
                yield Advice(change, best, sized[best])
                break
