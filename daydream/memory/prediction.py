"""Peak memory before and after a change: the table of allocations, edited as the change edits the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct, field

from daydream.errors import DaydreamError, GraphError
from daydream.results import Record

if TYPE_CHECKING:
    from daydream.memory.allocations import Allocations

MIB = 2**20
CONTEXT = (
    300 * MIB,
    600 * MIB,
)  # what CUDA's context takes on a GPU besides (between builds and devices)
Case = Literal["least", "expected", "most"]


class MemoryChange(Struct, frozen=True):
    """What one optimization does to memory, with its options.

    Attributes:
        name: the optimization's.
        edit: changes allocations: `edit(held, **options)`; None if it cannot say what it does.
        options: of the optimization, defaults included.
        around: what the edit runs in.
    """

    name: str
    edit: Callable[..., None] | None
    options: Mapping[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[None]] = nullcontext


class MemoryPrediction(Record):
    """Peak memory before and after a change, on the device that comes out worst; in bytes.

    Attributes:
        before_bytes: the peak of what is allocated now.
        after_bytes: the peak after the change.
        low_bytes: the least it may be: what no shape or lifetime tells taken at its best, less the
            table's `own_error`.
        high_bytes: the most it may be.
        before_reserved_bytes: what the caching allocator takes from the device now, as recorded where it
            was; None on a CPU.
        after_reserved_bytes: likewise after the change, with as much unused as now.
        capacity_bytes: what the device has; None if unknown.
        fits: whether it fits into that; None if that is unknown, or too close to tell.
        device: `cpu`, `cuda:0`; with several ranks also whose: `rank 1, cuda:0`.
        notes: what a reader should know of the change before trusting the figures.
        recording_notes: likewise of the recorded allocations.
    """

    before_bytes: int
    after_bytes: int
    low_bytes: int
    high_bytes: int
    before_reserved_bytes: int | None
    after_reserved_bytes: int | None
    capacity_bytes: int | None
    fits: bool | None = None
    device: str = "cpu"
    notes: tuple[str, ...] = ()
    recording_notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Tell whether it fits.

        Beside what is allocated stand what the allocator reserves and does not use, and on a GPU CUDA's
        context. The allocator gives back what it does not use before it runs out, so that alone never
        says that it does not fit.
        """
        self.fits = None
        if self.capacity_bytes is None:
            return
        least = 0 if self.device.endswith("cpu") else CONTEXT[0]
        if self.low_bytes + least > self.capacity_bytes:
            self.fits = False
        elif self.most_bytes <= self.capacity_bytes:
            self.fits = True

    @property
    def most_bytes(self) -> int:
        """What the device may need at most: what is allocated, reserved and not used, and CUDA's context."""
        most = 0 if self.device.endswith("cpu") else CONTEXT[1]
        return (
            max(self.after_reserved_bytes or 0, self.after_bytes)
            + self.high_bytes
            - self.after_bytes
            + most
        )


def cannot_say(changes: Sequence[MemoryChange]) -> list[str]:
    """Return the names of the changes that cannot say what they do to memory."""
    return [change.name for change in changes if change.edit is None]


def memory_after(
    held: Allocations, changes: Sequence[MemoryChange], capacity_bytes: int | None = None
) -> MemoryPrediction:
    """Return the peak of allocations before and after some changes, made one after the other in a copy.

    Args:
        held: the allocations now; they stay as they are.
        changes: what each optimization does, in the order of the graph's edits.
        capacity_bytes: what the device has; by default what the trace says of it.

    Returns:
        `MemoryPrediction`.

    Raises:
        GraphError: a change cannot say what it does to memory; or its function has not its options.
        NotApplicableError: a change does not apply to this trace.
    """
    if unsaid := cannot_say(changes):
        raise GraphError(f"{unsaid[0]} cannot say what it does to memory")
    stays = all(change.edit is unchanged for change in changes)
    after = held if stays else changed(held, changes, "expected")
    now = rank, device = worst_device(after)
    if now not in held.devices():  # a new worker's
        now = worst_device(held)
    low = high = after_bytes = before_bytes = peak_bytes(held, *now)
    if not stays:  # a case that differs in nothing has the peak that is expected
        last = last_whole_step(held)
        lost = before_bytes - peak_bytes(up_to(held, last), *now)

        def peak(after: Allocations) -> int:
            return peak_bytes(up_to(after, last), rank, device) + lost

        after_bytes = peak(after)
        cases: list[Case] = [case for case in ("least", "most") if case in after.doubted_cases]
        ends = [after_bytes, *(peak(changed(held, changes, case)) for case in cases)]
        low = min(ends)
        high = max(ends)
        if any(not np.array_equal(values, after[name]) for name, values in held.columns.items()):
            own = round(after_bytes * after.own_error)
            low = max(low - own, 0)
            high = high + own
    # What the allocator has besides what tensors hold stays. Of 60 changes measured on an H200 (validation/h200)
    # nine of ten then come within 10%, of a replay of the changed requests within 28 % (public pairs alike).
    reserved = reserved_after = _reserved_bytes(held, *now, before_bytes)
    if reserved_after is not None:
        reserved_after += after_bytes - before_bytes
    ranks = len({rank for rank, _ in held.devices()}) > 1
    from daydream.memory.allocations import device_name  # most traces hold no memory events
    from daydream.memory.before import device_bytes

    name = device_name(device)
    return MemoryPrediction(
        before_bytes,
        after_bytes,
        low,
        high,
        reserved,
        reserved_after,
        device_bytes(held.trace, rank, device) if capacity_bytes is None else capacity_bytes,
        device=f"rank {rank}, {name}" if ranks else name,
        notes=tuple(note for note in after.notes if note not in held.notes),
        recording_notes=tuple(held.notes),
    )


def changed(
    held: Allocations, changes: Sequence[MemoryChange], case: Case = "expected"
) -> Allocations:
    """Return a copy of allocations with changes made, one after the other; what is doubted as in `case`.

    Raises `GraphError` and `NotApplicableError` as `memory_after`.
    """
    from daydream.memory.allocations import COLUMNS, renumber

    after = held.copy()
    after.case = case
    for change in changes:
        if change.edit is None:
            continue
        try:
            with change.around():
                change.edit(after, **change.options)
        except DaydreamError:
            raise
        except Exception as error:  # a file of a user, or of another package, may raise anything
            import traceback

            said = traceback.format_exception_only(error)[-1].strip()
            raise GraphError(f"memory() of {change.name} failed: {said}") from error
        sizes = {len(after.columns.get(column, ())) for column in COLUMNS}
        if len(sizes) > 1:
            raise GraphError(
                f"memory() of {change.name} left a broken table: columns differ in length"
            )
        if after["bytes"].min(initial=0) < 0:
            raise GraphError(f"memory() of {change.name} left allocations of less than no bytes")
        renumber(after)
    return after


def last_whole_step(held: Allocations) -> int:
    """Return the last step whose backward pass was recorded: the profiler loses the end of some recordings.

    What later steps save is seen to be freed late or never, whatever is changed. A backward pass was recorded if it
    allocates at least half as often as that of the step with most; without any every step is whole.
    """
    steps = held["step"][held.where(phase="backward") & (held["step"] >= 0)]
    if not steps.size:
        return int(held["step"].max(initial=-1))
    counts = np.bincount(steps)
    return int(np.flatnonzero(counts * 2 >= counts.max())[-1])


def up_to(held: Allocations, step: int) -> Allocations:
    """Return allocations without those of later steps."""
    if (held["step"] <= step).all():
        return held
    whole = held.copy()
    whole.remove(held["step"] > step)
    return whole


def peak_bytes(held: Allocations, rank: int, device: int) -> int:
    """Return the most that is held at once of a device's memory, 0 if nothing is."""
    return held.peak(rank, device)[0] if (rank, device) in held.devices() else 0


def _reserved_bytes(held: Allocations, rank: int, device: int, peak_bytes: int) -> int | None:
    """Return the most that a GPU's allocator had: as recorded, else for these allocations; None on a CPU."""
    from daydream.memory.allocations import recorded_reserved

    if (recorded := recorded_reserved(held, rank, device) or 0) >= peak_bytes and device >= 0:
        return recorded
    key = ("reserved", rank, device)
    if key not in held.worked_out:
        from daydream.memory.reserved import reserved_for  # most recordings tell

        usage = reserved_for(held, rank, device)
        held.worked_out[key] = None if usage is None else usage.peak_reserved_bytes
    return held.worked_out[key]


def worst_device(held: Allocations) -> tuple[int, int]:
    """Return rank and device with the highest peak: of GPUs where there are any, else of the CPU."""
    return max(
        held.devices(),
        key=lambda pair: (pair[1] >= 0, held.peak(*pair)[0], -pair[0], -pair[1]),
        default=(0, -1),
    )


def unchanged(held: Allocations, **options: Any) -> None:
    """Leave memory as it is: for an optimization, `memory = unchanged`.

    Args:
        held: the allocations.
        **options: of the optimization, whatever they are.
    """
