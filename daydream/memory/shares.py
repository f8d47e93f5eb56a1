"""What each of several workers holds: shares of parameters, gradients and states, and buckets."""

from __future__ import annotations

import numpy as np

from daydream.memory.allocations import AFTER, BEFORE, Allocations, on_device
from daydream.memory.asked import codes_of_rows


def gradient_bytes(held: Allocations, rank: int, device: int) -> int:
    """Return the bytes of all gradients of a device: the most of any step.

    Args:
        held: the allocations.
        rank: rank of the process.
        device: index of the GPU, -1 for the CPU.
    """
    own = held.where(kind="gradient") & on_device(held, rank, device)
    lasting = own & (held["begin"] == BEFORE) & (held["end"] == AFTER)
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
    rows = np.flatnonzero(gradient)
    rows = rows[np.lexsort((held["begin"][rows], held["step"][rows], held["rank"][rows]))]
    ends = held["end"][rows].copy()
    for key in sorted(
        set(zip(held["rank"][rows].tolist(), held["step"][rows].tolist(), strict=True))
    ):
        mine = np.flatnonzero((held["rank"][rows] == key[0]) & (held["step"][rows] == key[1]))
        total = np.cumsum(held["bytes"][rows[mine]])
        behind = np.searchsorted(total, total + nbytes)
        last = np.minimum(behind, len(mine) - 1)
        ends[mine] = np.minimum(ends[mine], held["begin"][rows[mine[last]]])
    held["end"][rows] = held.among(ends, ends, held["end"][rows])


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
