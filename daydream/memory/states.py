"""The optimizer's state among what was held before a recording: how much its kind keeps, and of what sizes.

An update of torch keeps so many values of each parameter that it trains, in a tensor of the parameter's size,
from its first step on. A parameter that is trained gets a gradient of its size in each backward pass.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from daydream.memory.allocations import AFTER, BEFORE, Allocations, is_kind, of_rank, on_device
from daydream.model.optimizers import states_of
from daydream.text import bytes_text
from daydream.trace.schema import UNKNOWN

Row = tuple[str, int, int]  # kind, bytes, parameter


def by_kind(held: Allocations, rank: int, device: int, told: list[Row]) -> list[Row]:
    """Return the state that an optimizer that the trace does not describe keeps, a row a tensor.

    Args:
        held: the allocations.
        rank: of the process.
        device: index of the GPU.
        told: what is known to be held there before the recording: parameters.

    Returns:
        Rows; none where the optimizer is not known, keeps nothing, or shares its state among ranks.
    """
    states = states_of(held.trace)
    if not states or is_kind(held, "shard").any():
        return []
    owners: dict[int, list[int]] = defaultdict(list)
    for kind, nbytes, parameter in reversed(told):
        if kind == "parameter" and held.parameters[rank][parameter].get("requires_grad", True):
            owners[nbytes].append(parameter)
    mine = np.flatnonzero(
        on_device(held, rank, device) & is_kind(held, "gradient") & (held["begin"] > BEFORE)
    )
    if not len(mine):  # those that were there are filled
        return [
            ("optimizer_state", size, one)
            for size in owners
            for one in owners[size]
            for _ in range(states)
        ]
    most = int(np.argmax(np.bincount(held["step"][mine] + 1, held["bytes"][mine]))) - 1
    rows = []
    for size in held["bytes"][mine[held["step"][mine] == most]].tolist():
        owner = owners[size].pop() if owners[size] else UNKNOWN
        rows += [("optimizer_state", size, owner)] * states
    return rows


def let_states_shrink(
    held: Allocations, workers: int | None = None, *, on: str | None = None
) -> None:
    """Leave one of several workers' share of the optimizer's states, or nothing (None).

    Where it keeps state that is not told from what else was held before the recording, as much of that may
    be the state: at the least all of it shrinks, at the most nothing.

    Args:
        held: the allocations.
        workers: how many share.
        on: `gpu` or `cpu`, if only what lies there shrinks.
    """

    def left(nbytes: np.ndarray) -> np.ndarray:
        return nbytes * 0 if workers is None else -(-nbytes // workers)

    states = held.where(kind="optimizer_state", on=on)
    held.resize(states, left(held["bytes"][states]))
    for rank, device in held.devices():
        here = on_device(held, rank, device)
        rest = here & is_kind(held, "unknown") & (held["begin"] == BEFORE) & (held["end"] == AFTER)
        kept = _kept_bytes(held, rank)
        if (here & states).any() or device < 0 or kept == 0 or not rest.any():
            continue
        now, whole = held["bytes"][rest], int(held["bytes"][rest].sum())
        may = (
            now
            if kept is None
            else np.floor(now * (min(kept, whole) / max(whole, 1))).astype(np.int64)
        )
        least = now - may + left(may)
        held.resize(rest, held.among(least, now if kept is None else least, now))
        held.note(
            f"Which of {bytes_text(whole)} held before the recording are the optimizer's state is not "
            "recorded: the range is from as much of it as there may be to none."
        )
    if workers is None:
        held.remove(states)


def _kept_bytes(held: Allocations, rank: int) -> int | None:
    """Return the bytes of a rank's optimizer states, None if not known; 0 where nothing is updated."""
    trace = held.trace
    described = of_rank(trace, "optimizers", rank)
    if described:
        own = (one.get("local_state_bytes", one.get("state_bytes")) for one in described)
        return sum(each or 0 for each in own)
    if not (trace["phase"] == trace.code("phase", "optimizer")).any():
        return 0
    states = states_of(trace)
    if not states:
        return states
    sizes = held["bytes"][held.where(kind="parameter") & (held["rank"] == rank)]
    return states * int(sizes.sum()) if len(sizes) else None
