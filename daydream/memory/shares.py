"""What each of several workers holds: shares of parameters, gradients and states, and buckets.

What a worker of `fully_shard` holds: shares, and units whole while they are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from daydream.arrays import take
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    Allocations,
    Parts,
    between,
    on_device,
    parts_of,
)
from daydream.memory.before import let_states_shrink
from daydream.memory.liveness import block_of_rows, codes_of_rows, forward_calls, in_phase
from daydream.trace.schema import PHASES


def gradient_bytes(held: Allocations, rank: int, device: int) -> int:
    """Return the bytes of all gradients of a device: the most of any step.

    Args:
        held: the allocations.
        rank: rank of the process.
        device: index of the GPU, -1 for the CPU.
    """
    own = held.where(kind="gradient") & on_device(held, rank, device)
    lasting = own & held.lasting
    of_steps = np.bincount(held["step"][own & ~lasting] + 1, held["bytes"][own & ~lasting])[1:]
    return int(held["bytes"][lasting].sum() + of_steps.max(initial=0))


def add_buckets(held: Allocations, *, as_views: bool) -> None:
    """Add the buckets of DistributedDataParallel: as large as all gradients, and held all the time.

    Args:
        held: the allocations.
        as_views: gradients are views of the buckets, which then is all that holds them
            (`gradient_as_bucket_view`; torch's documentation of DistributedDataParallel).

    Returns:
        None; `held` is changed. Where no memory is known to be a gradient there is no size for the buckets,
        and a note says that they are not counted.
    """
    gradient = held.where(kind="gradient")
    if not held["bytes"][gradient].any():
        held.note(
            "Buckets are not counted in the peak: no memory of this trace is known to be gradients."
        )
    add_copies(held, 1, kind="bucket", begin_row=-1, end_row=-1, step=-1)
    if as_views:
        held.remove(np.append(gradient, np.zeros(len(held) - len(gradient), bool)))


def divide(held: Allocations, which: np.ndarray, workers: int) -> None:
    """Leave of some allocations one worker's share, rounded up.

    Args:
        held: the allocations.
        which: those that are divided, bool, shape (rows,).
        workers: how many share.

    Returns:
        None; `held` is changed.
    """
    held.resize(which, -(-held["bytes"][which] // workers))


def add_copies(
    held: Allocations, times: float, *, kind: str = "optimizer_state", **columns: int
) -> None:
    """Add what is kept of every gradient from step to step: `times` the bytes of all of them.

    Args:
        held: the allocations.
        times: how many values there are for each gradient.
        kind: of that memory.
        **columns: what else its rows hold.
    """
    for rank, device in held.devices():
        total = gradient_bytes(held, rank, device)
        like = np.flatnonzero(on_device(held, rank, device))[:1]
        if total:
            held.add(
                like, bytes=round(total * times), begin=BEFORE, end=AFTER, kind=kind, **columns
            )


def hold_throughout(held: Allocations, which: np.ndarray, *, besides: bool) -> None:
    """Hold some allocations (bool, shape (rows,)) of one step all the time: tensors at fixed addresses.

    Args:
        held: the allocations.
        which: those of all steps; the step with most bytes counts.
        besides: those that are made in each step stay, too; else they go.

    Returns:
        None; `held` is changed.
    """
    size = len(held)
    for rank, device in held.devices():
        own = np.flatnonzero(which & on_device(held, rank, device)[:size])
        own = own[held["step"][own] >= 0]
        if not len(own):
            continue
        most = int(np.argmax(np.bincount(held["step"][own], held["bytes"][own])))
        chosen = own[held["step"][own] == most]
        held.add(chosen, begin=BEFORE, end=AFTER)
    if not besides:
        held.remove(np.append(which, np.zeros(len(held) - size, bool)))


def let_go_behind(held: Allocations, gradient: np.ndarray, nbytes: int) -> None:
    """Let gradients go when so many bytes of others are there behind them: their bucket is copied away.

    At the most they stay as long as they do now.

    Args:
        held: the allocations.
        gradient: which are gradients, bool, shape (rows,).
        nbytes: of a bucket.

    Returns:
        None; `held` is changed.
    """
    ends = held["end"].copy()
    pairs = zip(held["rank"][gradient].tolist(), held["step"][gradient].tolist(), strict=True)
    for rank, step in set(pairs):
        mine = np.flatnonzero(gradient & (held["rank"] == rank) & (held["step"] == step))
        mine = mine[np.argsort(held["begin"][mine], kind="stable")]
        total = np.cumsum(held["bytes"][mine])
        last = np.minimum(np.searchsorted(total, total + nbytes), len(mine) - 1)
        ends[mine] = np.minimum(ends[mine], held["begin"][mine[last]])
    held["end"][:] = held.among(ends, ends, held["end"])


def scale_owned(held: Allocations, which: np.ndarray, times: np.ndarray, share: float) -> None:
    """Let some layers have other numbers of parameters and optimizer states: `times` more of each, or less.

    Args:
        held: the allocations.
        which: what is of these layers, bool, shape (rows,).
        times: how many more there are of each of these, -1 to take it away; int64, shape (rows,).
        share: by which part of all parameters' elements they grow or shrink together. Where no parameter is
            told from others, all parameters and states do so by this part, and so does what a joint
            update makes on its way.

    Returns:
        None; `held` is changed.
    """
    lasting = held.where(kind=("parameter", "optimizer_state"))
    owned = np.flatnonzero(lasting & which)
    known = (held["parameter"] >= 0) | (held["begin_row"] >= 0)
    alike = lasting & ~known if not len(owned) else np.zeros(len(held), bool)
    joint = held.where(phase="optimizer", kind="temporary") & (codes_of_rows(held, "layer") < 0)
    held.scale(alike | joint, 1 + share)
    goes = np.zeros(len(held), bool)
    goes[owned[times[owned] < 0]] = True
    more = np.maximum(times[owned], 0)
    held.add(np.repeat(owned, more))
    held.remove(np.append(goes, np.zeros(more.sum(), bool)))


ROOT = -1
Key = tuple[int, ...]

# Before the first work of a unit, and behind its last, torch 2.13 does this in this order
# (torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py, _fsdp_collectives.py, _fsdp_state.py).
(
    COPIES_GO, OTHER_FLAT_GRADIENTS_GO, FLAT_GRADIENTS, GRADIENTS_GO, SHARE, REDUCE, REDUCED,
    GATHER, GATHERED, COPIES, FLAT_GOES, NEXT,
) = range(1, 13)  # fmt: skip


def _at(place: int, what: int) -> int:
    """Return where that is done between the last event and the one at a place."""
    return between(place, what, NEXT + 1)


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
    # What the loss asks for, and in the backward pass its own gradient, is of neither pass.
    call = forward_calls(held)
    loss = held.trace.code("phase", "loss")
    begun &= (call < 0) | (take(held.trace["phase"], call) != loss)
    passes = [
        parts_of(held, begun & in_phase(held, phase), held["step"])
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
            if len(mine) and spans[0][0] < AFTER:
                units.append(_Unit(unit, int(whole[mine].sum()), int(mine[0]), theirs, *spans))
        program.phase = "forward"
        program.gather_for_forward(units, _span(passes[0], step)[1], again=again)
        program.phase = "backward"
        if again:
            program.gather_for_backward(units, _span(passes[1], step)[0], ahead=ahead)
        program.scatter(units, workers, gone)
    held["end"][:] = gone
    program.add()


@dataclass(frozen=True)
class _Unit:
    """A unit in a step: bytes of its parameters, one of them, its gradients, begin and end of its passes."""

    number: int
    nbytes: int
    like: int
    gradients: np.ndarray
    forward: tuple[int, int]
    backward: tuple[int, int]


@dataclass
class _Program:
    """Buffers that a worker makes besides: a row that each is like, bytes, begin, end, end at the most."""

    held: Allocations
    made: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    phase: str = "forward"

    def make(
        self,
        unit: _Unit,
        nbytes: int,
        begin: int,
        end: int,
        most: int = BEFORE,
    ) -> None:
        """Hold bytes from a place to another."""
        if end > begin:
            self.made.append(
                (unit.like, nbytes, begin, end, max(most, end), PHASES.index(self.phase))
            )

    def send(
        self,
        unit: _Unit,
        nbytes: int,
        begin: int,
        end: int,
        most: int = BEFORE,
    ) -> None:
        """Hold bytes once more while gloo moves them, which it does on a CPU."""
        if self.held["device"][unit.like] < 0:
            self.make(unit, nbytes, begin, end, most)

    def gather_for_forward(self, units: list[_Unit], until: int, *, again: bool) -> None:
        """Gather each unit before its forward pass."""
        order = sorted(units, key=lambda unit: (unit.forward[0], unit.number != ROOT))
        for unit, following in zip(order, [*order[1:], None], strict=False):
            first, done = unit.forward
            if unit.number != ROOT and not again:
                done = max(done, unit.backward[1])
            end = (
                _at(until, COPIES_GO) if following is None else _at(following.forward[0], FLAT_GOES)
            )
            ask = _at(first, GATHER)
            self.make(unit, unit.nbytes, ask, end)
            self.send(unit, unit.nbytes, ask, _at(first, GATHERED))
            self.make(unit, unit.nbytes, _at(first, COPIES), _at(done, COPIES_GO))

    def gather_for_backward(self, units: list[_Unit], begins: int, *, ahead: bool) -> None:
        """Gather each unit before its backward pass, or when the one before it is there."""
        order = [unit for unit in units if unit.number != ROOT and unit.backward[0] < AFTER]
        order.sort(key=lambda unit: unit.backward[0])
        place = begins
        for unit in order:
            first, done = unit.backward
            ask = _at(place, NEXT) if ahead and place < first else _at(first, GATHER)
            self.make(unit, unit.nbytes, ask, _at(first, FLAT_GOES))
            self.send(unit, unit.nbytes, ask, ask + 1, _at(first, GATHERED))
            self.make(unit, unit.nbytes, _at(first, COPIES), _at(done, COPIES_GO))
            place = first

    def scatter(self, units: list[_Unit], workers: int, gone: np.ndarray) -> None:
        """Let whole gradients go when their unit's backward pass is done (`gone`: ends), and shares stay."""
        held = self.held
        trained = [unit for unit in units if len(unit.gradients)]
        done = [max(unit.backward[1], int(held["begin"][unit.gradients].max())) for unit in trained]
        order = sorted(
            range(len(trained)), key=lambda place: (done[place], trained[place].number == ROOT)
        )
        for place, following in zip(order, [*order[1:], None], strict=False):
            unit = replace(trained[place], like=int(trained[place].gradients[0]))
            until = done[place]
            total = int(held["bytes"][unit.gradients].sum())
            end = until if following is None else _at(done[following], OTHER_FLAT_GRADIENTS_GO)
            self.make(unit, total, _at(until, FLAT_GRADIENTS), end)
            self.send(unit, total, _at(until, REDUCE), _at(until, REDUCED))
            stays = int(held["end"][unit.gradients].max())
            self.make(unit, -(-total // workers), _at(until, SHARE), stays)
            goes = _at(until, GRADIENTS_GO)
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


def _span(parts: Parts, key: Key) -> tuple[int, int]:
    """Return the first and the last place of a part; from nowhere to nowhere if there is none."""
    at = int(parts.find(np.array([key]))[0])
    return (AFTER, BEFORE) if at < 0 else (int(parts.first[at]), int(parts.until[at]))
