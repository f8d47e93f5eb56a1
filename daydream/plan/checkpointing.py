"""Which blocks to checkpoint or offload, so that a step fits into memory and takes the least time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from daydream.transforms.compose import edit_of, parse

WIDTH = 2048  # sets of blocks that are kept
TRIES = 8
OPTIONS = {"checkpointing": "checkpointing.layers", "vdnn": "vdnn.within"}  # which name blocks
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
    replay: Replay, capacity: int, *, progress: Callable[[str, float], None] = lambda *_: None
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
    whole = up_to(held, last_whole_step(held))
    alone = [*_alone(replay, whole, progress)]
    if not alone:
        raise NotApplicableError("no block of this trace holds activations for its backward pass")
    ways, costs, curves = zip(*alone, strict=True)
    curves = whole.held(*worst_device(whole)), *curves
    places = np.unique(np.concatenate([at for at, _ in curves]))
    now, *then = (nbytes[np.searchsorted(at, places, "right") - 1] for at, nbytes in curves)
    saved = now - np.stack(then)
    cost = np.array(costs, float)
    limit = capacity - (as_is.most_bytes - now.max())
    best: Prediction | None = None
    seen: list[list[int]] = []
    for _ in range(TRIES):
        picked, sure = cheapest(cost, saved, now - limit, [block for block, _ in ways])
        if not picked or picked in seen:
            break
        seen.append(picked)
        edit = _edit([ways[each] for each in picked])
        found = predict(replay, edit, capacity_bytes=capacity)
        memory: Any = found.memory
        if memory.fits and (best is None or found.simulated_ns < best.simulated_ns):
            best, chosen, exact = found, picked, sure
        together = found.simulated_ns - found.replayed_ns  # of one link, say
        cost[picked] *= max(together / max(cost[picked].sum(), 1), 1)
        limit = capacity - (memory.most_bytes - (now - saved[picked].sum(axis=0)).max())
    if best is None:
        again = [way for way in ways if way[1] == "checkpointing"]
        least = memory_after(held, _edit(again).memory(), capacity).most_bytes
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
    choice = best.shared(Choice, blocks=rows, code="\n".join(code), exact=exact)
    return choice.having(prediction=best)


def _alone(replay: Replay, whole: Allocations, progress: Any) -> Iterator[Any]:
    """Yield each block and change, how much longer a step takes with it, and what is held then."""
    graph = replay.graph
    families = repeated_blocks(graph)
    blocks = [block for family in families for block in family] or matching_blocks(graph, "*")
    ways = [*product(blocks, OPTIONS if has_device_work(graph) else ["checkpointing"])]
    for number, way in enumerate(ways):
        progress(f"{way[1]} of {way[0]}", number / len(ways))
        edit = _edit([way])
        (change,) = edit.memory()
        after = whole.copy()
        after.case = "most"
        try:
            found = predict(replay, edit, interval=False)
            change.edit(after, **change.options)
        except NotApplicableError:
            continue
        cost_ns = found.simulated_ns - found.replayed_ns
        yield way, cost_ns, after.held(*worst_device(whole))


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
        the chosen items, none where no set saves enough, and whether no set was left out that could have been
        cheaper.

    """
    kept: list[int] = []  # places that are not decided by another one
    for place in np.argsort(-excess, kind="stable").tolist():
        if not (saved[:, kept] <= saved[:, [place]]).all(axis=0).any():
            kept.append(place)
    saved = saved[:, kept]
    price = np.maximum(cost, 0)
    worth = price.sum() / saved.clip(1).max(axis=1, initial=1).sum()  # of a byte, about
    of = np.array(groups)
    ways = [np.flatnonzero(of == group).tolist() for group in dict.fromkeys(groups)]
    gain = np.array([saved[way].max(axis=0).clip(0) for way in ways])
    sets: dict[tuple[int, ...], tuple[float, list[int]]] = {tuple(excess[kept]): (0, [])}
    exact = True
    for number, way in enumerate(ways, 1):
        later = gain[number:].sum(axis=0)
        found: dict[tuple[int, ...], tuple[float, list[int]]] = {}
        for lacks, (total, chosen) in sets.items():
            for some in ([], *([item] for item in way)):
                left = lacks - saved[some].sum(axis=0)
                now = total + price[some].sum()
                if (left <= later).all() and now < found.get(tuple(left), (np.inf,))[0]:
                    found[tuple(left)] = now, [*chosen, *some]
        exact &= len(found) <= WIDTH
        likely = sorted(found, key=lambda key: found[key][0] + worth * max(key))
        sets = {key: found[key] for key in likely[:WIDTH]}
    return min(sets.values(), default=(0, []))[1], exact


def _edit(ways: Sequence[tuple[str, str]]) -> Any:
    """Return what changes these blocks."""
    names = []
    options = {"vdnn.layers": "all"}
    for change, option in OPTIONS.items():
        if blocks := ",".join(block for block, of in ways if of == change):
            names.append(change)
            options[option] = blocks
    if "vdnn" not in names:
        del options["vdnn.layers"]
    return edit_of(parse(names), options)
