"""Which blocks to checkpoint or offload, so that a step fits into memory and takes the least time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from daydream.errors import NotApplicableError
from daydream.graph.calls import has_device_work
from daydream.memory.allocations import Allocations
from daydream.memory.prediction import last_whole_step, memory_after, up_to, worst_device
from daydream.model.blocks import matching_blocks, repeated_blocks
from daydream.predict.memory import held_now
from daydream.predict.prediction import Changed, Prediction, predict
from daydream.predict.replay import Replay
from daydream.results import Live, Record
from daydream.text import bytes_text
from daydream.transforms.compose import edit_of, memory_changes, parse

WIDTH = 2048  # sets of blocks that are kept
TRIES = 8
OPTIONS = {"checkpointing": "layers", "vdnn": "within"}  # which option of a change names blocks
CODE = "from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers"
WRAP = (
    "wrappers.apply_activation_checkpointing(model, wrappers.{}, "
    "[model.get_submodule(name) for name in {}].__contains__)"
)
WRAPPERS = {"checkpointing": "checkpoint_wrapper", "vdnn": "offload_wrapper"}


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
    simulated as a whole; what it needs and costs beyond its sums moves the limit and the prices for the next
    search.

    Raises:
        TraceError: the trace has no memory events.
        NotApplicableError: the step fits as it is, or no choice makes it fit.

    """
    graph = replay.graph
    held = held_now(graph.recorded, graph)
    as_is = memory_after(held, [], capacity)
    if as_is.fits:
        raise NotApplicableError(f"a step fits {bytes_text(capacity)} as it is")
    ways, costs, curves = _alone(replay, up_to(held, last_whole_step(held)), progress)
    places = np.unique(np.concatenate([at for at, _ in curves]))
    now, *then = (nbytes[np.searchsorted(at, places, "right") - 1] for at, nbytes in curves)
    saved, cost = now - np.stack(then), np.array(costs, float)
    limit = capacity - (as_is.most_bytes - now.max())
    best: Prediction | None = None
    seen: list[list[int]] = []
    for _ in range(TRIES):
        try:
            picked, exact = cheapest(cost, saved, now - limit, [way[0] for way in ways])
        except NotApplicableError:
            break
        if not picked or picked in seen:
            break
        seen.append(picked)
        spec, options = _change([ways[each] for each in picked])
        found = predict(replay, edit_of(spec, options), capacity_bytes=capacity)
        memory = memory_after(held, memory_changes(spec, options), capacity)
        if memory.fits and (best is None or found.simulated_ns < best.simulated_ns):
            best, chosen, whole_search = found, picked, exact
        together = found.simulated_ns - found.replayed_ns  # of one link, say
        cost[picked] *= max(together / max(cost[picked].sum(), 1), 1)
        limit = capacity - (memory.most_bytes - (now - saved[picked].sum(axis=0)).max())
    if best is None:
        again = [way for way in ways if way[1] == "checkpointing"]
        spec, options = _change(again)
        least = memory_after(held, memory_changes(spec, options), capacity).most_bytes
        raise NotApplicableError(
            f"no choice of blocks fits {bytes_text(capacity)}: with all {len(again)} checkpointed a step needs "
            f"{bytes_text(least)}. batch-size, offload-optimizer and fsdp make it smaller."
        )
    at_peak = saved[:, now.argmax()].tolist()
    rows = [
        Block(*way, number in chosen, ns, nbytes)  # type: ignore[call-arg] # mypy counts them twice
        for number, (way, ns, nbytes) in enumerate(zip(ways, costs, at_peak, strict=True))
    ]
    rows.sort(key=lambda row: np.inf if row.ns_per_byte is None else row.ns_per_byte)
    code = [CODE]
    for change, wrapper in WRAPPERS.items():
        if names := [row.block for row in rows if row.chosen and row.change == change]:
            code.append(WRAP.format(wrapper, sorted(names)))
    choice = best.shared(Choice, blocks=rows, code="\n".join(code), exact=whole_search)
    return choice.having(prediction=best)


def _alone(replay: Replay, whole: Allocations, progress: Any) -> tuple[list[Any], ...]:
    """Return each block and change, how much longer a step takes with it, and what is held: without, with each."""
    graph, device = replay.graph, worst_device(whole)
    curves = [whole.held(*device)]
    ways = []
    costs = []
    families = repeated_blocks(graph)
    blocks = [block for family in families for block in family] or matching_blocks(graph, "*")
    changes = OPTIONS if has_device_work(graph) else ["checkpointing"]
    every = [*product(blocks, changes)]
    for number, way in enumerate(every):
        if progress is not None:
            progress(f"{way[1]} of {way[0]}", number / len(every))
        spec, options = _change([way])
        (change,) = memory_changes(spec, options)
        after = whole.copy()
        after.case = "most"
        try:
            alone = predict(replay, edit_of(spec, options), interval=False)
            change.edit(after, **change.options)  # type: ignore[misc]
        except NotApplicableError:
            continue
        ways.append(way)
        costs.append(alone.simulated_ns - alone.replayed_ns)
        curves.append(after.held(*device))
    if not ways:
        raise NotApplicableError("no block of this trace holds activations for its backward pass")
    return ways, costs, curves


def cheapest(
    cost: np.ndarray, saved: np.ndarray, excess: np.ndarray, groups: Sequence[str]
) -> tuple[list[int], bool]:
    """Return the items of the least cost that together save the excess at every place.

    Group by group each set is continued without and with an item: dynamic programming, by what sets still
    lack. Sets that can no longer save enough go; of many those stay that are likely to end cheapest.

    Args:
        cost: of each item, shape (items,).
        saved: bytes that each saves at each place, negative for more, shape (items, places).
        excess: bytes that have to go at each place, shape (places,).
        groups: what each item is of; items of a group exclude each other.

    Returns:
        the chosen items, and whether no set was left out that could have been cheaper.

    Raises:
        NotApplicableError: no set saves enough.

    """
    kept: list[int] = []  # places that are not decided by another one
    for place in np.argsort(-excess, kind="stable").tolist():
        if not (saved[:, kept] <= saved[:, [place]]).all(axis=0).any():
            kept.append(place)
    saved, price = saved[:, kept], np.maximum(cost, 0)
    worth = price.sum() / saved.clip(1).max(axis=1, initial=1).sum()  # of a byte, about
    of = np.array(groups)
    ways = [np.flatnonzero(of == group) for group in dict.fromkeys(groups)]
    sets: dict[tuple[int, ...], tuple[float, list[int]]] = {tuple(excess[kept]): (0, [])}
    exact = True
    for number, way in enumerate(ways, 1):
        later = [saved[items] for items in ways[number:]]
        gain, harm = (
            sum((end(one, axis=0).clip(*limits) for one in later), np.zeros(len(kept)))
            for end, limits in ((np.max, (0, None)), (np.min, (None, 0)))
        )
        found: dict[tuple[int, ...], tuple[float, list[int]]] = {}
        for lacks, (total, chosen) in sets.items():
            for some in ([], *([item] for item in way.tolist())):
                left = np.maximum(lacks - saved[some].sum(axis=0), harm)  # more never lacks again
                key, now = tuple(left), total + price[some].sum()
                if (left <= gain).all() and now < found.get(key, (np.inf,))[0]:
                    found[key] = now, [*chosen, *some]
        exact &= len(found) <= WIDTH
        likely = sorted(found, key=lambda key: found[key][0] + worth * max(key, default=0))
        sets = {key: found[key] for key in likely[:WIDTH]}
    if not sets:
        raise NotApplicableError("no set of blocks saves enough")
    return min(sets.values())[1], exact


def _change(ways: Sequence[tuple[str, str]]) -> tuple[list[Any], dict[str, Any]]:
    """Return what changes these blocks, and its options."""
    options: dict[str, Any] = {}
    for change, option in OPTIONS.items():
        if blocks := ",".join(block for block, of in ways if of == change):
            options[f"{change}.{option}"] = blocks
            options |= {"vdnn.layers": "all"} if change == "vdnn" else {}
    return parse([*dict.fromkeys(name.partition(".")[0] for name in options)]), options
