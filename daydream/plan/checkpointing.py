"""Which blocks to checkpoint or offload, so that a step fits into memory and takes the least time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from daydream.errors import GraphError, NotApplicableError
from daydream.graph.calls import has_device_work
from daydream.memory.allocations import Allocations, on_device
from daydream.memory.prediction import memory_after, worst_device
from daydream.model.blocks import matching_blocks, repeated_blocks
from daydream.predict.memory import held_now
from daydream.predict.prediction import Changed, Prediction, predict
from daydream.predict.replay import Replay
from daydream.results import Live, Record
from daydream.text import bytes_text
from daydream.transforms.compose import edit_of, memory_changes, parse

WIDTHS = 64, 8192  # sets of blocks that are kept; the first search limits the second
TRIES = 8
OPTIONS = {"checkpointing": "layers", "vdnn": "within"}  # which option of a change names blocks
CODE = """\
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers

for wrap, names in (
    (wrappers.checkpoint_wrapper, {checkpointing}),
    (wrappers.offload_wrapper, {vdnn}),
):
    chosen = [model.get_submodule(name) for name in names]
    wrappers.apply_activation_checkpointing(model, wrap, chosen.__contains__)
"""


class Block(Record):
    """One way to hold less of a block.

    Attributes:
        block: path of the module.
        change: `checkpointing`, or `vdnn` (offload to the CPU's memory).
        chosen: whether it is part of the choice.
        cost_ns: how much longer a step takes with this change alone.
        saved_bytes: how much less is then held where the recorded step holds most.
        ns_per_byte: the first divided by the second; None where nothing is saved there.
    """

    block: str
    change: str
    chosen: bool
    cost_ns: int
    saved_bytes: int
    ns_per_byte: float | None = None

    def __post_init__(self) -> None:
        """Fill in what a byte costs."""
        self.ns_per_byte = self.cost_ns / self.saved_bytes if self.saved_bytes > 0 else None


class Choice(Changed, kw_only=True):
    """The blocks to checkpoint or offload: what that makes of a step, and of its memory.

    Attributes:
        blocks: each block and change that was considered, the least ns per byte first.
        code: lines of a training script that make the change to `model`.
        exact: whether the search saw every set that could have been better.
    """

    blocks: list[Block]
    code: str
    exact: bool

    prediction = Live[Prediction]()


def choose_blocks(
    replay: Replay, capacity: int, *, progress: Callable[[str, float], None] | None = None
) -> Choice:
    """Return the blocks to checkpoint or offload so that a step fits `capacity` bytes and takes least time.

    Each block is changed alone: how much longer the step gets is simulated, and how much less is held at each
    place of the program is read off the changed allocations. Of the sets whose sums fit the cheapest is
    simulated as a whole; what it needs beyond its sum moves the limit for the next search.

    Raises:
        TraceError: the trace has no memory events.
        NotApplicableError: the step fits as it is, or no choice makes it fit.

    """
    graph = replay.graph
    held = held_now(graph.recorded, graph)
    as_is = memory_after(held, [], capacity)
    if as_is.fits:
        raise NotApplicableError(f"a step fits {bytes_text(capacity)} as it is")
    ways, cost, tables = _alone(replay, held, progress or (lambda _what, _share: None))
    places = np.unique(np.concatenate([table["begin"] for table in (held, *tables)]))
    now, *then = (_held_at(table, *worst_device(held), places) for table in (held, *tables))
    saved = now - np.stack(then)
    limit = capacity - (as_is.most_bytes - now.max())
    best: Prediction | None = None
    chosen: list[int] = []
    seen: list[list[int]] = []
    exact = True
    while len(seen) < TRIES:
        try:
            picked, whole = cheapest(cost, saved, now - limit, [way[0] for way in ways])
        except NotApplicableError:
            break
        if picked in seen:
            break
        seen.append(picked)
        options = _options([ways[each] for each in picked])
        spec = [change for change in OPTIONS if f"{change}.{OPTIONS[change]}" in options]
        found = predict(replay, edit_of(parse(spec), options), capacity_bytes=capacity)
        memory = found.memory
        if memory is None:
            raise GraphError(str(found.memory_answer.unsaid))
        if memory.fits and (best is None or found.simulated_ns < best.simulated_ns):
            best, chosen, exact = found, picked, whole
        limit = capacity - (memory.most_bytes - (now - saved[picked].sum(axis=0)).max())
    if best is None:
        again = [way for way in ways if way[1] == "checkpointing"]
        edits = memory_changes(parse("checkpointing"), _options(again))
        least = memory_after(held, edits, capacity).most_bytes
        raise NotApplicableError(
            f"no choice of blocks fits {bytes_text(capacity)}: with all {len(again)} checkpointed a step needs "
            f"{bytes_text(least)}. batch-size, offload-optimizer and fsdp make it smaller."
        )
    at_peak = saved[:, now.argmax()].tolist()
    rows = [
        Block(*way, number in chosen, ns, nbytes)
        for number, (way, ns, nbytes) in enumerate(zip(ways, cost.tolist(), at_peak, strict=True))
    ]
    named = {
        change: [row.block for row in rows if row.chosen and row.change == change]
        for change in OPTIONS
    }
    rows.sort(key=lambda row: np.inf if row.ns_per_byte is None else row.ns_per_byte)
    choice = best.shared(Choice, blocks=rows, code=CODE.format(**named), exact=exact)
    return choice.having(prediction=best)


def _alone(
    replay: Replay, held: Allocations, progress: Callable[[str, float], None]
) -> tuple[list[tuple[str, str]], np.ndarray, list[Allocations]]:
    """Return each block and change, how much longer a step takes with it (ns), and what is held then at most."""
    graph = replay.graph
    blocks = [block for family in repeated_blocks(graph) for block in family]
    ways = []
    cost = []
    tables = []
    for number, block in enumerate(blocks or matching_blocks(graph, "*")):
        for change in OPTIONS if has_device_work(graph) else ["checkpointing"]:
            progress(f"{change} of {block}", number / max(len(blocks), 1))
            options = _options([(block, change)])
            after = held.copy()
            after.case = "most"
            try:
                alone = predict(replay, edit_of(parse(change), options), interval=False)
                for each in memory_changes(parse(change), options):
                    if each.edit:
                        each.edit(after, **each.options)
            except NotApplicableError:
                continue
            ways.append((block, change))
            cost.append(alone.simulated_ns - alone.replayed_ns)
            tables.append(after)
    if not ways:
        raise NotApplicableError("no block of this trace holds activations for its backward pass")
    return ways, np.array(cost), tables


def cheapest(
    cost: np.ndarray, saved: np.ndarray, excess: np.ndarray, groups: Sequence[str]
) -> tuple[list[int], bool]:
    """Return the items of the least cost that together save the excess at every place.

    Items of a group come one after the other and exclude each other. Group by group each set is continued
    without and with an item. Sets that can no longer save enough go, and of sets that lack the same the
    dearer ones; of the others the cheapest stay, with the least that what they lack will cost.

    Args:
        cost: of each item, shape (items,).
        saved: bytes that each saves at each place, negative for more, shape (items, places).
        excess: bytes that have to go at each place, shape (places,).
        groups: what each item is of.

    Returns:
        the chosen items, and whether no set was left out that could have been cheaper.

    Raises:
        NotApplicableError: no set saves enough.

    """
    price = np.maximum(cost, 0)
    kept: list[int] = []  # places that are not decided by another one
    for place in np.argsort(-excess, kind="stable").tolist():
        if not (saved[:, kept] <= saved[:, [place]]).all(axis=0).any():
            kept.append(place)
    saved = saved[:, kept]
    items = np.arange(len(cost))
    ways = [
        [item for item in range(len(cost)) if groups[item] == group]
        for group in dict.fromkeys(groups)
    ]
    gain, harm = (np.stack([each(saved[way], axis=0) for way in ways]) for each in (np.max, np.min))
    most = np.inf
    best = items[:0]
    for width in WIDTHS:
        whole = True
        total, left = np.zeros(1), excess[None, kept]
        sets = np.zeros((1, len(items)), bool)
        for number, way in enumerate(ways):
            total = np.concatenate([total, *(total + price[item] for item in way)])
            left = np.concatenate([left, *(left - saved[item] for item in way)])
            sets = np.concatenate([sets, *(sets | (items == item) for item in way)])
            left = left.clip(harm[number + 1 :].clip(max=0).sum(axis=0))  # more never lacks again
            later = items > way[-1]
            rate = (price[later, None] / saved[later].clip(1)).min(axis=0, initial=np.inf)
            least = total + np.where(left > 0, left * np.where(np.isinf(rate), 0, rate), 0).max(
                axis=1, initial=0
            )
            can = (left <= gain[number + 1 :].clip(0).sum(axis=0)).all(axis=1) & (least <= most)
            total, left, sets, least = (each[can] for each in (total, left, sets, least))
            order = np.argsort(least, kind="stable")
            _, first = np.unique(left[order], axis=0, return_index=True)
            whole &= len(first) <= width
            order = order[np.sort(first)[:width]]
            total, left, sets = total[order], left[order], sets[order]
        if len(total):
            most = total.min()
            best = np.flatnonzero(sets[total.argmin()])
    if most == np.inf:
        raise NotApplicableError("no set of blocks saves enough")
    return best.tolist(), whole


def _options(chosen: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the options of the changes that change these blocks."""
    found: dict[str, Any] = {}
    for change, option in OPTIONS.items():
        blocks = ",".join(block for block, of in chosen if of == change)
        if blocks:
            found[f"{change}.{option}"] = blocks
            found |= {"vdnn.layers": "all"} if change == "vdnn" else {}
    return found


def _held_at(held: Allocations, rank: int, device: int, places: np.ndarray) -> np.ndarray:
    """Return what is held at places of a rank's device, before anything goes there: bytes, int64."""
    own = on_device(held, rank, device)
    nbytes = held["bytes"][own]
    found = np.zeros(len(places), np.int64)
    for name, sign in (
        ("begin", 1),
        ("end", -1),
    ):  # what begins at a place counts, and what ends there
        at = held[name][own]
        order = np.argsort(at, kind="stable")
        sums = np.append(0, np.cumsum(nbytes[order]))
        found += sign * sums[np.searchsorted(at[order] + (sign < 0), places, "right")]
    return found
