"""What a worker of `fully_shard` holds: shares, and units whole while they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from daydream.memory.allocations import BEFORE, Allocations, Parts, parts_of, renumber
from daydream.memory.asked import block_of_rows, forward_calls, in_phase
from daydream.memory.shares import divide
from daydream.memory.states import let_states_shrink
from daydream.trace.schema import PHASES, UNKNOWN

ROOT = -1
Key = tuple[int, ...]
One = TypeVar("One")

# In the gap before the first work of a unit, and behind its last, torch 2.13 does this in this order
# (torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py).
COPIES_GO, OTHER_FLAT_GRADIENTS_GO, FLAT_GRADIENTS, GRADIENTS_GO, SHARE = 0.05, 0.08, 0.1, 0.15, 0.2
REDUCED = (0.25, 0.3)
GATHER, GATHERED, COPIES, FLAT_GOES, NEXT = 0.4, 0.45, 0.5, 0.6, 0.7


def shard(
    held: Allocations, patterns: str | Sequence[str], workers: int, *, again: bool, ahead: bool
) -> None:
    """Let a worker hold its share of parameters, gradients and states, and units whole while they are used.

    As torch's `fully_shard` does (2.13): a unit is gathered into a flat buffer and copied out of it before
    its forward pass; that buffer stays until the next unit is copied. Its gradients are copied into a flat
    buffer and scattered when its backward pass is done, and that buffer stays until the next unit's is.
    On a CPU gloo holds each flat buffer once more meanwhile; of what is gathered ahead at the most until it
    is used. What is in no unit is the root, whole from the first work to the last.

    Args:
        held: the allocations.
        patterns: shell patterns on module paths: the units.
        workers: how many share.
        again: a unit is let go after its forward pass and gathered again for its backward pass (stage 3).
        ahead: in the backward pass the next unit is gathered while one is at work.
    """
    block, _ = block_of_rows(held, patterns)
    begun = held["begin"] > BEFORE
    forward, backward = (
        parts_of(held, begun & in_phase(held, phase), held["step"], block)
        for phase in ("forward", "backward")
    )
    passes = [
        parts_of(held, begun & in_phase(held, phase) & ~_of_loss(held), held["step"])
        for phase in ("forward", "backward")
    ]
    parameter = held.where(kind="parameter")
    gradient = np.flatnonzero(held.where(kind="gradient") & in_phase(held, "backward"))
    divide(held, in_phase(held, "optimizer") & held.where(kind="temporary"), workers)
    let_states_shrink(held, workers)
    whole = held["bytes"].copy()
    divide(held, parameter, workers)

    program = _Program(held)
    of_gradient = np.stack([held["rank"], held["repeat"], held["step"], block], axis=1)[gradient]
    gone = held["end"].copy()
    for step in sorted({(rank, turn, number) for rank, turn, number, _ in forward.keys.tolist()}):
        units = []
        for unit in sorted(
            {unit for *key, unit in forward.keys.tolist() if tuple(key) == step} | {ROOT}
        ):
            mine = np.flatnonzero(parameter & (held["rank"] == step[0]) & (block == unit))
            theirs = gradient[(of_gradient == np.array([*step, unit])).all(axis=1)]
            spans = [_span(parts, (*step, unit)) for parts in (forward, backward)]
            if unit == ROOT:
                ends = [_span(parts, step) for parts in passes]
                spans = [(ends[0][0], max(ends[0][1], ends[1][1]))] * 2
            if len(mine) and np.isfinite(spans[0][0]):
                units.append(_Unit(unit, int(whole[mine].sum()), int(mine[0]), theirs, *spans))
        program.phase = "forward"
        program.gather_for_forward(units, _span(passes[0], step)[1], again=again)
        program.phase = "backward"
        if again:
            program.gather_for_backward(units, _span(passes[1], step)[0], ahead=ahead)
        program.scatter(units, workers, gone)
    held["end"][:] = gone
    program.add()
    renumber(held)


@dataclass(frozen=True)
class _Unit:
    """A unit in a step: bytes of its parameters, one of them, its gradients, begin and end of its passes."""

    number: int
    nbytes: int
    like: int
    gradients: np.ndarray
    forward: tuple[float, float]
    backward: tuple[float, float]


@dataclass
class _Program:
    """Buffers that a worker makes besides: a row that each is like, bytes, begin, end, end at the most."""

    held: Allocations
    made: list[tuple[int, int, float, float, float, int]] = field(default_factory=list)
    phase: str = "forward"

    def __post_init__(self) -> None:
        inside = np.concatenate([self.held["begin"], self.held["end"]])
        self.places = np.unique(inside[np.isfinite(inside)])

    def at(self, place: float, share: float) -> float:
        """Return a place between this one and the last one before where anything happens."""
        before = int(np.searchsorted(self.places, place)) - 1
        begin = float(self.places[before]) if before >= 0 else place - 1
        return begin + (place - begin) * share

    def make(
        self, unit: _Unit, nbytes: int, begin: float, end: float, most: float | None = None
    ) -> None:
        """Hold bytes from a place to another."""
        if end > begin:
            most = end if most is None else max(most, end)
            self.made.append((unit.like, nbytes, begin, end, most, PHASES.index(self.phase)))

    def send(
        self, unit: _Unit, nbytes: int, begin: float, end: float, most: float | None = None
    ) -> None:
        """Hold bytes once more while gloo moves them, which it does on a CPU."""
        if self.held["device"][unit.like] < 0:
            self.make(unit, nbytes, begin, end, most)

    def gather_for_forward(self, units: list[_Unit], until: float, *, again: bool) -> None:
        """Gather each unit before its forward pass."""
        order = sorted(units, key=lambda unit: (unit.forward[0], unit.number != ROOT))
        for unit, following in _with_next(order):
            first, done = unit.forward
            if unit.number != ROOT and not again:
                done = max(done, unit.backward[1])
            end = (
                self.at(until, COPIES_GO)
                if following is None
                else self.at(following.forward[0], FLAT_GOES)
            )
            ask = self.at(first, GATHER)
            self.make(unit, unit.nbytes, ask, end)
            self.send(unit, unit.nbytes, ask, self.at(first, GATHERED))
            self.make(unit, unit.nbytes, self.at(first, COPIES), self.at(done, COPIES_GO))

    def gather_for_backward(self, units: list[_Unit], begins: float, *, ahead: bool) -> None:
        """Gather each unit before its backward pass, or when the one before it is there."""
        order = [unit for unit in units if unit.number != ROOT and np.isfinite(unit.backward[0])]
        order.sort(key=lambda unit: unit.backward[0])
        place = begins
        for unit in order:
            first, done = unit.backward
            ask = self.at(place, NEXT) if ahead and place < first else self.at(first, GATHER)
            self.make(unit, unit.nbytes, ask, self.at(first, FLAT_GOES))
            soon = ask + (self.at(first, GATHERED) - ask) * 0.001
            self.send(unit, unit.nbytes, ask, soon, self.at(first, GATHERED))
            self.make(unit, unit.nbytes, self.at(first, COPIES), self.at(done, COPIES_GO))
            place = first

    def scatter(self, units: list[_Unit], workers: int, gone: np.ndarray) -> None:
        """Let whole gradients go when their unit's backward pass is done (`gone`: ends), and shares stay."""
        held = self.held
        trained = [unit for unit in units if len(unit.gradients)]
        done = [
            max(unit.backward[1], float(held["begin"][unit.gradients].max())) for unit in trained
        ]
        order = sorted(
            range(len(trained)), key=lambda place: (done[place], trained[place].number == ROOT)
        )
        for place, following in _with_next(order):
            unit, until = (
                replace(trained[place], like=int(trained[place].gradients[0])),
                done[place],
            )
            total = int(held["bytes"][unit.gradients].sum())
            end = until if following is None else self.at(done[following], OTHER_FLAT_GRADIENTS_GO)
            self.make(unit, total, self.at(until, FLAT_GRADIENTS), end)
            self.send(unit, total, self.at(until, REDUCED[0]), self.at(until, REDUCED[1]))
            stays = float(held["end"][unit.gradients].max())
            self.make(unit, -(-total // workers), self.at(until, SHARE), stays)
            goes = self.at(until, GRADIENTS_GO)
            gone[unit.gradients] = np.maximum(goes, held["begin"][unit.gradients])

    def add(self) -> None:
        """Add what was made to the table."""
        if not self.made:
            return
        like, nbytes, begin, end, most, phase = (
            np.array(column) for column in zip(*self.made, strict=True)
        )
        ends = self.held.among(end, end, most)
        self.held.add(like, kind="shard", bytes=nbytes, begin=begin, end=ends, phase=phase)


def _with_next(some: Sequence[One]) -> Iterator[tuple[One, One | None]]:
    """Yield each one with the one behind it, None behind the last; a step may have none at all."""
    yield from zip(some, [*some[1:], None][: len(some)], strict=True)


def _of_loss(held: Allocations) -> np.ndarray:
    """Return what the loss asks for, and in the backward pass its own gradient: bool, shape (rows,)."""
    call = forward_calls(held)
    loss = held.trace.code("phase", "loss")
    return np.asarray((call >= 0) & (np.append(held.trace["phase"], UNKNOWN)[call] == loss))


def _span(parts: Parts, key: Key) -> tuple[float, float]:
    """Return the first and the last place of a part; from nowhere to nowhere if there is none."""
    at = int(parts.find(np.array([key]))[0])
    return (np.inf, -np.inf) if at < 0 else (float(parts.first[at]), float(parts.until[at]))
