"""What memory is for, told from its lifetime: parameter, gradient, optimizer state, activation, ...

No recording names it. But what a backward pass makes and leaves is a gradient, what forward makes and
backward still holds was saved for it, and what goes before the next backward pass was temporary. A lifetime
that an end of the recording cuts is taken for that of its like in another step.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from daydream.arrays import distinct_rows
from daydream.costs.operators import operators_that
from daydream.costs.workload.calls import innermost_makers, nodes
from daydream.errors import TraceError
from daydream.graph.calls import enclosing
from daydream.lazy import regex
from daydream.memory.allocations import (
    AFTER,
    BEFORE,
    EVENT,
    KINDS,
    STEP,
    Allocations,
)
from daydream.memory.before import add_held_before
from daydream.memory.enclosing import Moments, moments, rows_that, take
from daydream.memory.pairing import paired
from daydream.text import counted
from daydream.trace.memory_events import HOST, MemoryEvents
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.trace.trace import Trace

DATA, FORWARD, LOSS, BACKWARD, OPTIMIZER, OTHER = range(len(PHASES))
SHARDING = regex(r"^(FSDP::|fsdp::|FullyShardedDataParallel\._(pre|post))")  # torch's own ranges
REDUCER = regex(r"reducer::")
COLLECTIVE = regex(r"^(c10d::|FSDP::all_gather)")
NONE_RECORDED = (
    "this trace has no memory events. Record it with `daydream collect`, or with "
    "torch.profiler's profile_memory=True."
)
OF_ALL_STEPS = (
    "of a range of steps memory is not known, as what was held when they began is not. "
    "Ask about the whole trace, without --steps."
)


def allocations(trace: Trace) -> Allocations:
    """Return what the trace holds in memory, each allocation with its kind.

    What was there before the recording is added from the metadata where events and totals do not show it.

    Raises:
        TraceError: the trace has no memory events.
    """
    events = trace.memory
    if events is None:
        raise none_recorded(trace)
    when = moments(trace, events)
    held = paired(trace, events, when)
    _free_after_collectives(held, events)
    held["kind"][:] = _kinds(held, events, when)
    add_held_before(held, events)
    return held


def none_recorded(trace: Trace) -> TraceError:
    """Return the error that a trace without memory events is for questions about memory."""
    return TraceError(OF_ALL_STEPS if trace.metadata.get("steps_read") else NONE_RECORDED)


def _free_after_collectives(held: Allocations, events: MemoryEvents) -> None:
    """End what collectives on the CPU ask for and nobody is seen to free, with the call that asked.

    Threads of the communication library free it, and the profiler does not listen to them.
    """
    trace = held.trace
    lost = np.flatnonzero(
        (held["device"] == HOST) & (held["end"] == AFTER) & under(held, COLLECTIVE)
    )
    if not len(lost):
        return
    parent, row = np.asarray(trace["parent"], np.int64), held["begin_row"][lost].copy()
    outer = np.append(trace.is_kind("operator"), False)
    while (climbing := np.flatnonzero(outer[parent[row]])).size:
        row[climbing] = parent[row[climbing]]
    end = (trace["start_ns"] + trace["duration_ns"])[row]
    for rank in np.unique(held["rank"][lost]).tolist():
        own = np.flatnonzero(events["rank"] == rank)
        mine = held["rank"][lost] == rank
        after = np.searchsorted(events["time_ns"][own], end[mine], side="right")
        held["end"][lost[mine]] = np.append(own, own[-1] + 1)[after] * EVENT - STEP
    for name in ("end_step", "end_phase"):
        held[name][lost] = held[name.removeprefix("end_")][lost]
    held.note(
        f"{counted(len(lost), 'buffer')} of collectives on the CPU: threads that the profiler does not hear "
        "free them; each is assumed to end with the call that asked for them."
    )


def _kinds(held: Allocations, events: MemoryEvents, when: Moments) -> np.ndarray:
    """Return the kind of each allocation: codes into `KINDS`, int64, shape (rows,)."""
    known = _Lifetimes(held, events, when)
    kinds = np.full(len(held), KINDS.index("unknown"), np.int64)
    left = np.ones(len(held), bool)
    for kind, rule in RULES:
        found = left & rule(known)
        kinds[found] = KINDS.index(kind)
        left &= ~found
    return _as_their_like(held, kinds)


class _Lifetimes:
    """Allocations as the rules ask about them: columns of one length, bool but for phases and passes."""

    def __init__(self, held: Allocations, events: MemoryEvents, when: Moments) -> None:
        self.held, self.trace = held, held.trace
        self.time_ns = events["time_ns"]
        self.phase, self.end_phase = held["phase"], held["end_phase"]
        self.begun, self.freed = held["begin"] > BEFORE, held["end"] < AFTER
        ranks, rank = np.unique(held["rank"], return_inverse=True)
        last = np.full(len(ranks), UNKNOWN, np.int64)
        np.maximum.at(last, rank, held["step"])
        self.kept = self.begun & ~self.freed & (held["step"] < last[rank])  # a whole step and more
        self.passes, self.end_passes = _passes(held, when)
        self.crosses = self.end_passes > self.passes  # a backward pass begins while it is held

    def family(self, family: str) -> np.ndarray:
        """Mask of what operators of a family asked for."""
        return self.held.where(op=operators_that(lambda op: op.family == family))

    def by(self, pattern: re.Pattern[str]) -> np.ndarray:
        """Return what the operator that matches asked for itself."""
        return self.held.where(op=pattern.pattern)


def under(held: Allocations, pattern: re.Pattern[str]) -> np.ndarray:
    """Return what was asked for within a row whose name matches: bool, shape (rows,)."""
    hits = rows_that(held.trace, pattern.search)
    return enclosing(held.trace["parent"], hits, held["begin_row"], inner=True) >= 0


def _passes(held: Allocations, when: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Return how many backward passes have begun where each begins and where it ends: int64, (rows,)."""
    begun, freed = held["begin"] > BEFORE, held["end"] < AFTER
    passes = np.zeros(len(held), np.int64)
    passes[begun] = when.passes[held["begin"][begun] // EVENT]
    ends = np.full(len(held), int(when.passes.max(initial=0)) + 1)
    ends[freed] = when.passes[held["end"][freed] // EVENT]
    return passes, ends


# The rules, in order: what one finds, those after it do not see -------------------------------------


def _gradient(of: _Lifetimes) -> np.ndarray:
    """Made by a backward pass, and held when that is over."""
    stays = (of.end_phase != BACKWARD) | (of.end_passes > of.passes)
    return of.begun & (of.phase == BACKWARD) & stays


def _state(of: _Lifetimes) -> np.ndarray:
    """Made by an optimizer, and held through a backward pass: moments, made once or anew in each step."""
    return of.begun & (of.phase == OPTIMIZER) & (of.crosses if of.freed.any() else of.kept)


def _shard(of: _Lifetimes) -> np.ndarray:
    """Asked for by FSDP: gathered parameters, gradients on their way to the shards."""
    return of.begun & under(of.held, SHARDING)


def _bucket(of: _Lifetimes) -> np.ndarray:
    """Asked for by DDP's reducer."""
    return of.begun & under(of.held, REDUCER)


def _workspace(of: _Lifetimes) -> np.ndarray:
    """A library's own memory on a GPU: cuDNN's goes with its call, cuBLAS keeps it for good."""
    row = of.held["begin_row"]
    within = of.freed & (row >= 0) & (row == of.held["end_row"])
    on_gpu = of.held["device"] >= 0
    return (
        on_gpu & of.begun & ((within & of.family("convolution")) | (of.kept & of.family("matmul")))
    )


def _input(of: _Lifetimes) -> np.ndarray:
    """Loaded, or made outside of every layer before the first layer of a pass, and held into that."""
    loaded = (of.phase == DATA) & (of.end_phase != DATA)
    layer = take(of.trace["layer"], of.held["begin_row"])
    in_layer = of.begun & (layer >= 0) & (of.phase == FORWARD)
    _, of_pass = distinct_rows([of.held["rank"], of.passes])
    first = np.full(len(of.held), AFTER)
    np.minimum.at(first, of_pass[in_layer], of.held["begin"][in_layer])
    begins = first[of_pass]
    outside = (layer < 0) & np.isin(of.phase, (FORWARD, OTHER, DATA))
    outside &= (of.held["begin"] < begins) & (of.held["end"] > begins)
    return of.begun & ~of.kept & (loaded | outside)


def _activation(of: _Lifetimes) -> np.ndarray:
    """Made by forward or the loss and still held when backward begins; or made again for it within it."""
    saved = np.isin(of.phase, (FORWARD, LOSS)) & of.crosses & ~of.kept
    return of.begun & (saved | _recomputed(of))


def _recomputed(of: _Lifetimes) -> np.ndarray:
    """Asked for by a forward call within the backward pass, for whose own node it is held."""
    found = np.zeros(len(of.held), bool)
    mine = np.flatnonzero(of.begun & (of.phase == BACKWARD) & (of.held["begin_row"] >= 0))
    if not len(mine):
        return found
    trace = of.trace
    maker = innermost_makers(trace, of.held["begin_row"][mine])
    again = (maker >= 0) & ~take(nodes(trace), maker, False)
    end = np.append(np.asarray(trace["start_ns"]) + trace["duration_ns"], 0)
    freed = of.held["end"][mine]
    at = np.where(freed < AFTER, freed // EVENT, len(of.time_ns) - 1)
    found[mine] = again & (of.time_ns[at] > end[maker])
    return found


def _temporary(of: _Lifetimes) -> np.ndarray:
    """Freed before the next backward pass."""
    return of.begun & of.freed & ~of.crosses


RULES: tuple[tuple[str, Callable[[_Lifetimes], np.ndarray]], ...] = (
    ("gradient", _gradient),
    ("optimizer_state", _state),
    ("shard", _shard),
    ("bucket", _bucket),
    ("workspace", _workspace),
    ("input", _input),
    ("activation", _activation),
    ("temporary", _temporary),
)


def _as_their_like(held: Allocations, kinds: np.ndarray) -> np.ndarray:
    """Give lifetimes that the recording cuts the kind of whole ones that began, or ended, in the same way.

    That is: of as many bytes, by the same operator of the same layer and phase, the nth of these in a step;
    of the step before where the recording ends too early, of the next where it began too late.
    """
    whole = (held["begin"] > BEFORE) & (held["end"] < AFTER)
    found = kinds.copy()
    for at, step, phase, order, neighbour in (
        ("begin", held["step"], held["phase"], held["begin"], -1),
        ("end", held["end_step"], held["end_phase"], held["end"], 1),
    ):
        inside = (order > BEFORE) & (order < AFTER)
        cut = inside & ~whole & (step >= 0)
        edge = _edge(held["rank"], step, cut, neighbour)  # each rank's last, or first, step
        cut &= step == edge
        rows = np.flatnonzero(inside & ((step == edge) | (step == edge + neighbour)))
        rows = rows[np.argsort(order[rows], kind="stable")]
        by = held[f"{at}_row"][rows]
        op, layer = (take(held.trace[name], by) for name in ("op", "layer"))
        parts = [held[name][rows] for name in ("rank", "device", "bytes")]
        parts += [phase[rows], op, layer, step[rows]]
        keys = zip(*(part.tolist() for part in parts), strict=True)
        alike: dict[tuple[int, ...], list[int]] = {}
        for number, key in zip(rows.tolist(), keys, strict=True):
            alike.setdefault(key, []).append(number)
        for key, mine in alike.items():
            others = alike.get((*key[:-1], key[-1] + neighbour), [])
            for number, other in zip(mine, others, strict=False):
                if cut[number] and whole[other]:
                    found[number] = kinds[other]
    return found


def _edge(rank: np.ndarray, step: np.ndarray, cut: np.ndarray, neighbour: int) -> np.ndarray:
    """Return for each row the last (or, with the neighbour after it, the first) step of its rank."""
    edge = np.full(len(rank), -2, np.int64)
    for one in np.unique(rank[cut]).tolist():
        own = (rank == one) & (step >= 0)
        edge[rank == one] = step[own].max() if neighbour < 0 else step[own].min()
    return edge
