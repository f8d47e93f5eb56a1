"""What memory is for, told from its lifetime: parameter, gradient, optimizer state, activation, ...

No recording names it. But what a backward pass makes and leaves is a gradient, what forward makes and
backward still holds was saved for it, and what goes before the next backward pass was temporary. A lifetime
that an end of the recording cuts is taken for that of its like in another step.

Lifetimes come from recorded events: which free ends which allocation, and what was held before. An allocation and a
free at one address of one device belong together. A free of what was never seen
allocated ends something that was held before the recording. Where the allocator's totals are recorded,
what they hold beyond that was there before and stays. Events that contradict each other are counted: no total
may be wrong in silence.

How much a recording itself says was held needs no pairing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from daydream.arrays import distinct_rows, places, run_starts, take, unique
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
    on_device,
)
from daydream.memory.before import add_held_before
from daydream.memory.enclosing import Moments, moments, rows_that
from daydream.results import Record
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
    row = held["begin_row"][lost]
    outer = enclosing(trace["parent"], trace.is_kind("operator"), row, inner=False)
    end = (trace["start_ns"] + trace["duration_ns"])[np.where(outer >= 0, outer, row)]
    for rank in unique(held["rank"][lost]).tolist():
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
    left = held["begin"] > BEFORE
    for kind, rule in RULES:
        found = left & rule(known)
        kinds[found] = KINDS.index(kind)
        left &= ~found
    return _as_their_like(held, kinds)


class _Lifetimes:
    """Allocations as the rules ask about them: columns of one length, bool but for phases and passes."""

    def __init__(self, held: Allocations, events: MemoryEvents, when: Moments) -> None:
        self.held = held
        self.trace = held.trace
        self.time_ns = events["time_ns"]
        self.phase = held["phase"]
        self.end_phase = held["end_phase"]
        self.freed = held["end"] < AFTER
        ranks, rank = places(held["rank"])
        last = np.full(len(ranks), UNKNOWN, np.int64)
        np.maximum.at(last, rank, held["step"])
        self.kept = ~self.freed & (held["step"] < last[rank])  # a whole step and more
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
    begun = held["begin"] > BEFORE
    freed = held["end"] < AFTER
    passes = np.zeros(len(held), np.int64)
    passes[begun] = when.passes[held["begin"][begun] // EVENT]
    ends = np.full(len(held), int(when.passes.max(initial=0)) + 1)
    ends[freed] = when.passes[held["end"][freed] // EVENT]
    return passes, ends


# The rules on what began in the recording, in order: what one finds, those after it do not see ---------


def _gradient(of: _Lifetimes) -> np.ndarray:
    """Made by a backward pass, and held when that is over."""
    stays = (of.end_phase != BACKWARD) | (of.end_passes > of.passes)
    return (of.phase == BACKWARD) & stays


def _state(of: _Lifetimes) -> np.ndarray:
    """Made by an optimizer, and held through a backward pass: moments, made once or anew in each step."""
    return (of.phase == OPTIMIZER) & (of.crosses if of.freed.any() else of.kept)


def _shard(of: _Lifetimes) -> np.ndarray:
    """Asked for by FSDP: gathered parameters, gradients on their way to the shards."""
    return under(of.held, SHARDING)


def _bucket(of: _Lifetimes) -> np.ndarray:
    """Asked for by DDP's reducer."""
    return under(of.held, REDUCER)


def _workspace(of: _Lifetimes) -> np.ndarray:
    """A library's own memory on a GPU: cuDNN's goes with its call, cuBLAS keeps it for good."""
    row = of.held["begin_row"]
    within = of.freed & (row >= 0) & (row == of.held["end_row"])
    on_gpu = of.held["device"] >= 0
    return on_gpu & ((within & of.family("convolution")) | (of.kept & of.family("matmul")))


def _input(of: _Lifetimes) -> np.ndarray:
    """Loaded, or made outside of every layer before the first layer of a pass, and held into that."""
    loaded = (of.phase == DATA) & (of.end_phase != DATA)
    layer = take(of.trace["layer"], of.held["begin_row"])
    in_layer = (of.held["begin"] > BEFORE) & (layer >= 0) & (of.phase == FORWARD)
    _, of_pass = distinct_rows([of.held["rank"], of.passes])
    first = np.full(len(of.held), AFTER)
    np.minimum.at(first, of_pass[in_layer], of.held["begin"][in_layer])
    begins = first[of_pass]
    outside = (layer < 0) & np.isin(of.phase, (FORWARD, OTHER, DATA))
    outside &= (of.held["begin"] < begins) & (of.held["end"] > begins)
    return ~of.kept & (loaded | outside)


def _activation(of: _Lifetimes) -> np.ndarray:
    """Made by forward or the loss and still held when backward begins; or made again for it within it."""
    saved = np.isin(of.phase, (FORWARD, LOSS)) & of.crosses & ~of.kept
    return saved | _recomputed(of)


def _recomputed(of: _Lifetimes) -> np.ndarray:
    """Asked for by a forward call within the backward pass, for whose own node it is held."""
    found = np.zeros(len(of.held), bool)
    mine = np.flatnonzero((of.phase == BACKWARD) & (of.held["begin_row"] >= 0))
    if not len(mine):
        return found
    trace = of.trace
    maker = innermost_makers(trace, of.held["begin_row"][mine])
    again = (maker >= 0) & ~take(nodes(trace), maker, False)
    end = np.append(trace["start_ns"] + trace["duration_ns"], 0)
    freed = of.held["end"][mine]
    at = np.where(freed < AFTER, freed // EVENT, len(of.time_ns) - 1)
    found[mine] = again & (of.time_ns[at] > end[maker])
    return found


def _temporary(of: _Lifetimes) -> np.ndarray:
    """Freed before the next backward pass."""
    return of.freed & ~of.crosses


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
    for one in unique(rank[cut]).tolist():
        own = (rank == one) & (step >= 0)
        edge[rank == one] = step[own].max() if neighbour < 0 else step[own].min()
    return edge


Pairs = tuple[np.ndarray, np.ndarray, list[str]]


def trusted(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> Pairs:
    """Return the pairs of an allocation and its free that can be believed, and sentences about the odd ones.

    `begin` and `end` are numbers of events, -1 where there is none: int64, shape (pairs,).
    """
    notes = [*_sizes(events, begin, end), *_twice(events, begin, end), *_totals(events, begin, end)]
    # Such a free on the CPU is recorded only of what an earlier recording of the process saw: torch does not
    # notice what goes and comes between the two (`ProfiledCPUMemoryReporter`, c10/core/CPUAllocator.cpp).
    stale = (begin < 0) & (events["device"][end] == HOST)
    if found := int(stale.sum()):
        was = "was" if found == 1 else "were"
        notes.append(
            f"{counted(found, 'free', 'frees')} on the CPU {was} of memory from an earlier recording of the "
            f"same process, whose size is not known for sure, and {was} left out."
        )
    return begin[~stale], end[~stale], notes


def _sizes(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> list[str]:
    both = (begin >= 0) & (end >= 0)
    odd = int((events["bytes"][begin[both]] + events["bytes"][end[both]] != 0).sum())
    if not odd:
        return []
    return [
        f"{counted(odd, 'free', 'frees')} of memory gave back another size than was allocated there."
    ]


def _twice(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> list[str]:
    """Say how many allocations are at an address that is held: the free between is missing."""
    known = (begin >= 0) & (events["address"][begin] >= 0)
    first = begin[known]
    last = np.where(end[known] >= 0, end[known], len(events))
    _, place = distinct_rows([events[name][first] for name in ("address", "device", "rank")])
    order = np.lexsort((first, place))
    first = first[order]
    last = last[order]
    above = place[order] * (len(events) + 1)  # keeps the places apart
    held_until = np.maximum.accumulate(above + last)
    odd = int((above[1:] + first[1:] < held_until[:-1]).sum())
    if not odd:
        return []
    were = "was at an address" if odd == 1 else "were at addresses"
    found = counted(odd, "allocation", "allocations")
    missing = "frees are missing, and less may be held than the events add up to"
    return [f"{found} {were} that had not been freed: {missing}."]


def _totals(events: MemoryEvents, begin: np.ndarray, end: np.ndarray) -> list[str]:
    """Say where recorded totals contradict the running sum of the events."""
    notes = []
    owners = sorted(set(zip(events["rank"].tolist(), events["device"].tolist(), strict=True)))
    freed = np.abs(events["bytes"][end[begin < 0]])
    for rank, device in owners:
        own = on_device(events, rank, device)
        total = events["allocated_bytes"][own]
        held = np.cumsum(events["bytes"][own])
        before = (total - held)[total >= 0]  # what each total says was held at the start
        if not len(before):
            continue
        where = ("the CPU" if device == HOST else f"device {device}") + (
            f" of rank {rank}" if rank else ""
        )
        apart = np.abs(before - before[0])
        if odd := int((apart > 0).sum()):
            notes.append(
                f"{counted(odd, 'recorded total', 'recorded totals')} of {where} "
                f"{'differs' if odd == 1 else 'differ'} from what the events add up to, by up to "
                f"{int(apart.max()):,} bytes."
            )
        lacking = int(freed[own[end[begin < 0]]].sum()) - int(before[0])
        if lacking > 0 and device != HOST:
            notes.append(
                f"{where} freed {lacking:,} bytes more than its recorded totals say it held at the start: "
                "what is held here is more than was recorded."
            )
    return notes


FROM_DRIVER = (
    "Memory events are what the program took from the driver: with PyTorch's allocator what it reserved, in "
    "segments, not what tensors held."
)


def paired(trace: Trace, events: MemoryEvents, when: Moments | None = None) -> Allocations:
    """Return the allocations of a trace's memory events, all of kind `unknown`; `when` they happen, if known.

    What contradicts itself (an address allocated twice, a free of another size) is counted in the notes.
    Events without addresses are paired by size, the latest first.
    """
    begin, end, notes = trusted(events, *_pairs(events))
    if trace.metadata.get("memory_from") == "driver":
        notes.append(FROM_DRIVER)
    of = np.where(begin >= 0, begin, end)  # the event that tells whose and how much
    when = moments(trace, events) if when is None else when
    columns = {
        "rank": events["rank"][of],
        "device": events["device"][of],
        "bytes": np.abs(events["bytes"][of]),
        "begin": np.where(begin >= 0, begin * EVENT, BEFORE),
        "end": np.where(end >= 0, end * EVENT, AFTER),
        "kind": np.full(len(of), KINDS.index("unknown")),
        "parameter": np.full(len(of), UNKNOWN),
    }
    for at, event in (("begin", begin), ("end", end)):
        columns[f"{at}_row"] = take(when.row, event)  # the last: not recorded
    for names, values in ((("step", "end_step"), when.step), (("phase", "end_phase"), when.phase)):
        for name, event in zip(names, (begin, end), strict=True):
            columns[name] = take(values, event)
    held = _held_throughout(events, columns)
    columns = {name: np.concatenate([column, held[name]]) for name, column in columns.items()}
    return Allocations(trace, columns, notes)


def _pairs(events: MemoryEvents) -> tuple[np.ndarray, np.ndarray]:
    """Return the events that begin and end each allocation, -1 where there is none.

    How many are open at an address rises and falls by one; so an allocation and the next free at the same
    height belong together, like brackets.
    """
    nbytes = events["bytes"]
    address = events["address"]
    change = np.sign(nbytes)
    event = np.flatnonzero(change)
    where = np.where(address >= 0, address, -2 - np.abs(nbytes))[
        event
    ]  # without an address: by size
    _, place = distinct_rows([events["rank"][event], events["device"][event], where])
    order = np.lexsort((event, place))
    event, place, step = event[order], place[order], change[event[order]]
    height = np.cumsum(step) + (step < 0)  # of a free: the height it comes from
    by_height = np.lexsort((event, height, place))
    event = event[by_height]
    step = step[by_height]
    first = run_starts(place[by_height]) | run_starts(height[by_height])
    opens = step > 0
    closed = opens & np.append((step < 0) & ~first, False)[1:]
    begins = np.where(opens, event, UNKNOWN)
    ends = np.where(closed, np.append(event, UNKNOWN)[1:], UNKNOWN)
    alone = ~opens & ~np.append(False, closed)[:-1]  # a free of what nobody was seen to allocate
    ends[alone] = event[alone]
    kept = opens | alone
    return begins[kept], ends[kept]


def _held_throughout(events: MemoryEvents, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the recorded totals hold at the start and no event names: a row a GPU.

    The CPU's total is none: PyTorch counts there what it saw while it recorded, so that what came while it
    did and went later stays in it (`ProfiledCPUMemoryReporter`, c10/core/CPUAllocator.cpp).
    """
    found: dict[str, list[int]] = {name: [] for name in columns}
    pairs = sorted(set(zip(events["rank"].tolist(), events["device"].tolist(), strict=True)))
    for rank, device in pairs:
        if device == HOST:
            continue
        own = np.flatnonzero(on_device(events, rank, device))
        total = events["allocated_bytes"][own]
        known = np.flatnonzero(total >= 0)
        if not len(known):
            continue
        first = known[0]
        start = int(total[first]) - int(events["bytes"][own][: first + 1].sum())
        mine = (
            (columns["rank"] == rank) & (columns["device"] == device) & (columns["begin"] == BEFORE)
        )
        rest = start - int(columns["bytes"][mine].sum())
        if rest > 0:
            row = {
                **dict.fromkeys(columns, UNKNOWN), "rank": rank, "device": device, "bytes": rest,
                "begin": BEFORE, "end": AFTER, "kind": KINDS.index("unknown"),
            }  # fmt: skip
            for name, value in row.items():
                found[name].append(value)
    return {name: np.array(values, columns[name].dtype) for name, values in found.items()}


class RecordedMemory(Record):
    """The events of one device of a rank, and the most that it held.

    Attributes:
        rank: whose memory.
        device: `cpu`, or `cuda:` and the GPU's number.
        events: how many allocations and frees.
        peak_allocated_bytes: the largest recorded total; without totals, and on the CPU, whose total counts
            what the profiler saw alone, the most that the events add up to.
        peak_reserved_bytes: the largest recorded total of what the allocator had, None if not recorded.
        since_start: whether the peak counts from what was held when the recording began.

    """

    rank: int
    device: str
    events: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    since_start: bool


def recorded_memory(events: MemoryEvents) -> list[RecordedMemory]:
    """Return what was recorded of each device of each rank, GPUs first."""
    owners = set(zip(events["rank"].tolist(), (events["device"] == HOST).tolist(),
                     events["device"].tolist(), strict=True))  # fmt: skip
    found = []
    for rank, on_host, device in sorted(owners):
        own = on_device(events, rank, device)
        total = events["allocated_bytes"][own]
        reserved = events["reserved_bytes"][own]
        since_start = on_host or bool((total < 0).all())
        held = np.cumsum(events["bytes"][own])
        peak = int(held.max()) - min(int(held.min()), 0) if since_start else int(total.max())
        found.append(RecordedMemory(
            rank=rank, device="cpu" if on_host else f"cuda:{device}", events=int(own.sum()),
            peak_allocated_bytes=peak, since_start=since_start,
            peak_reserved_bytes=None if on_host or (reserved < 0).all() else int(reserved.max()),
        ))  # fmt: skip
    return found
