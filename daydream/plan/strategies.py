"""Strategies: the ways to divide a training step over GPUs, and which of them a model allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from daydream.results import Record
from daydream.world.compose import Strategy as Divided

PARALLEL = ("dp", "fsdp", "tp", "pp", "ep", "cp")
CHOICES: dict[str, list[bool | int]] = {  # by default
    "checkpointing": [False, True],
    "offload": [False, True],
    "chunks": [1],
    "sharded_optimizer": [False],
    "overlap": [True],
}
AXES = (*PARALLEL, "micro_batch", "micro_batches", *CHOICES)
Limits = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Strategy(Divided):
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

    def why_not(self, of: Divided) -> str | None:
        """Return why the model cannot be divided like that, None if it can."""
        chunked = of.chunks > 1 and (of.pp == 1 or of.micro_batches % of.pp)
        reasons = {
            "tp is larger than a node": of.tp > (self.gpus_per_node or of.tp),
            "tp does not divide the heads": self.heads % of.tp,
            "pp does not divide the layers": self.layers % (of.pp * of.chunks),
            "chunks need stages that divide the micro-batches": chunked,
            "ep does not divide the experts": self.experts % of.ep,
            "ep does not divide the GPUs of a stage": of.world_size // of.pp % of.ep,
            "cp does not divide the sequence": of.cp > 1 and self.sequence % (2 * of.cp),
        }
        return next((why for why, wrong in reasons.items() if wrong), None)


def every_strategy(gpus: int, batch: int, limits: Limits) -> Iterator[Strategy]:
    """Yield all strategies for so many GPUs and samples a step.

    Args:
        gpus: of the job.
        batch: samples of a step, the same for all.
        limits: the values that an axis may have; of others each divisor, or those of `CHOICES`.
    """

    def spread(axes: Sequence[str], left: int) -> Iterator[dict[str, Any]]:
        axis, *others = axes
        for value in divisors(left) if others else [left]:
            if value in limits.get(axis, (value,)):
                for more in spread(others, left // value) if others else [{}]:
                    yield {axis: value, **more}

    choices = {axis: limits.get(axis, values) for axis, values in CHOICES.items()}
    switched = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    experts = [ep for ep in divisors(gpus) if ep in limits.get("ep", (ep,))]
    for of in spread(("tp", "pp", "cp", "fsdp", "dp"), gpus):
        samples, left = divmod(batch, of["dp"] * of["fsdp"])
        for work in spread(("micro_batch", "micro_batches"), samples) if not left else ():
            for ep, switches in product(experts, switched):
                yield Strategy(**{**of, **work, **switches, "ep": ep})


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    return [each for each in range(1, number + 1) if not number % each]
