"""Step boundaries: a call back whenever an optimizer has stepped or a backward pass has ended.

The optimizer's global hook sees every `torch.optim` step, whoever calls it. A step that a
gradient scaler leaves out is seen at the scaler. What neither sees, an update by hand or a
compiled optimizer step, is found by the calls of `backward`.

Whether parameters were updated, seen without a hook: by the version numbers that torch counts on tensors.

An optimizer's compiled step and an update by hand call no hook. What they change in place
has another version afterwards, which the host can read without waiting for a device.

Steps from the sequence of markers: which of several optimizers ends a step, and which steps are alike.

Which of the markers that come in end a step, told while the script runs.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from typing import Any

import numpy as np

from daydream.collect.derive.steps import Ranges
from daydream.collect.launcher.runner import INTERRUPTED_EARLY
from daydream.text import counted
from daydream.trace.trace import Trace

Marker = tuple[int, int]  # its number, and when it was left, in ns
BACKWARD = -1  # the marker of a backward pass; optimizers count from 0

OnMarker = Callable[[int, bool], None]


class StepHooks:
    """Calls `on_marker(which, skipped)` after each optimizer step and each `torch.autograd.backward`.

    `which` numbers the optimizers in order of their first step, or is `BACKWARD`. `skipped` tells
    that a gradient scaler found infinite gradients and made no update. `on_begin(optimizer)` is called
    when an optimizer's step begins.
    """

    def __init__(self, on_marker: OnMarker, on_begin: Callable[[Any], None]) -> None:
        self._on_marker = on_marker
        self._on_begin = on_begin
        self._optimizers: list[
            Any
        ] = []  # held, so that no other optimizer gets the id of one of them
        self._handles: list[Any] = []
        self._replaced: list[
            tuple[Any, str, Any, Any]
        ] = []  # owner, name, what was there, what is there
        self._calls = 0
        self._active = False

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that have stepped, in the order of their numbers."""
        return self._optimizers

    def install(self) -> None:
        """Begin to call back."""
        import torch
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        is_compiling = torch.compiler.is_compiling
        amp: Any = torch.amp

        def after_step(optimizer: Any, *_: Any) -> None:
            if is_compiling():
                return
            self._calls += 1
            if self._active:
                self._on_marker(self._number(optimizer), False)

        def before_step(optimizer: Any, *_: Any) -> None:
            if self._active and not is_compiling():
                self._on_begin(optimizer)

        self._active = True
        self._handles = [
            register_optimizer_step_pre_hook(before_step),
            register_optimizer_step_post_hook(after_step),
        ]
        self._replace(torch.autograd, "backward", self._with_marker)
        self._replace(amp.GradScaler, "step", self._with_skips)

    def disable(self) -> None:
        """Stop calling back; safe inside a hook, where the hooks themselves cannot be removed yet."""
        self._active = False

    def remove(self) -> None:
        """Take the hooks off. Not inside an optimizer's hook: torch is walking through them."""
        self._active = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        kept = []
        for owner, name, was, ours in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, was)
            else:
                kept.append((owner, name, was, ours))
        self._replaced = kept

    def forget(self) -> None:
        """Let go of the optimizers."""
        self._optimizers = []

    def _replace(
        self, owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        was = getattr(owner, name)
        ours = functools.wraps(was)(wrap(was))
        setattr(owner, name, ours)
        self._replaced.append((owner, name, was, ours))

    def _with_marker(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        is_compiling = torch.compiler.is_compiling

        def with_marker(*args: Any, **kwargs: Any) -> Any:
            result = backward(*args, **kwargs)
            if is_compiling():
                return result
            if self._active:
                self._on_marker(BACKWARD, False)
            else:
                self.remove()
            return result

        return with_marker

    def _with_skips(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Tell of a scaler's step in which the optimizer's hook was not called.

        If parameters have changed nevertheless, the optimizer's step is a compiled one.
        """

        def with_skips(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._active:
                self.remove()
                return step(scaler, optimizer, *args, **kwargs)
            calls = self._calls
            updates = _watch(optimizer)
            result = step(scaler, optimizer, *args, **kwargs)
            if calls == self._calls and self._active:
                skipped = updates is not None and not updates.since_last()
                self._on_marker(self._number(optimizer), skipped)
            return result

        return with_skips

    def _number(self, optimizer: Any) -> int:
        for number, known in enumerate(self._optimizers):
            if known is optimizer:
                return number
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1


def _watch(optimizer: Any) -> Updates | None:
    try:
        return Updates(
            one
            for group in optimizer.param_groups
            for one in group["params"]
            if one.grad is not None
        )
    except Exception:  # noqa: BLE001 - an optimizer of another make; it must step as without us
        return None


def any_optimizer_exists() -> bool:
    """Return whether the process holds a `torch.optim` optimizer, though none has been seen to step."""
    import gc

    from torch.optim import Optimizer

    return any(issubclass(type(one), Optimizer) for one in gc.get_objects())


ENOUGH = 64  # tensors that are watched: an update changes most of them


class Updates:
    """Watches the trainable tensors that have a gradient now. Make one just after a backward pass."""

    def __init__(self, tensors: Iterable[Any] | None = None) -> None:
        found = _trainable() if tensors is None else tensors
        self._watched = [weakref.ref(one) for one in islice(found, ENOUGH)]
        self._versions = self._look()
        self.seen = False  # whether there was any update so far

    def since_last(self) -> bool:
        """Return whether there was an update since the last call."""
        versions = self._look()
        changed = versions != self._versions
        self._versions = versions
        self.seen = self.seen or changed
        return changed

    def _look(self) -> list[int]:
        return [-1 if (one := each()) is None else version(one) for each in self._watched]


def version(tensor: Any) -> int:
    """Return how often a tensor was changed in place; -1 for one made under inference mode."""
    try:
        return int(tensor._version)  # noqa: SLF001 - documented, and without another name
    except RuntimeError:
        return -1


def _trainable() -> Iterable[Any]:
    import gc

    import torch

    tensor = torch.Tensor
    for one in gc.get_objects():
        if (
            issubclass(type(one), tensor)
            and one.requires_grad
            and one.is_leaf
            and one.grad is not None
        ):
            yield one


UNLIKE = 0.1  # share of a step's operators: more than logging now and then, less than a second backward pass
DIFFERENT = "its operators differ from those of the other steps (a skipped update, an evaluation, a start-up)"


class Anchor:
    """Which of the markers that came in so far ends a step.

    Of several optimizers it is the one that steps least often, of equals the last. One
    that has stepped once only counts until the others show that it does not come again:
    after as many markers as came before it, twice. Backward passes count where no
    optimizer steps. Costs the same however many markers came in: it is asked in every step.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._steps = 0  # markers of optimizers
        self.value: int | None = None  # None while no marker has come in

    def add(self, marker: int) -> None:
        """Take a marker in."""
        if marker == BACKWARD:
            self.value = BACKWARD if self.value is None else self.value
            return
        self._counts[marker] = self._counts.get(marker, 0) + 1
        self._first.setdefault(marker, self._steps)
        self._last[marker] = self._steps
        self._steps += 1
        alive = [each for each in self._counts if self._comes_again(each)] or list(self._counts)
        self.value = min(alive, key=lambda each: (self._counts[each], -self._last[each]))

    def _comes_again(self, marker: int) -> bool:
        first = self._first[marker]
        last = self._last[marker]
        count = self._counts[marker]
        period = (last - first) / (count - 1) if count > 1 else first + 1
        return self._steps - 1 - last <= 2 * period + 1


def set_apart_unlike_steps(trace: Trace) -> None:
    """Mark the steps whose operators differ from those that most steps have as not covered, and say why.

    An update that a gradient scaler skipped calls no hook: two iterations look like one step.
    Where no two steps in three are alike, none is called different: the work itself varies.
    """
    steps = trace.metadata["steps"]
    if len(steps) < 3 or "step" not in trace.columns:
        return
    step = np.asarray(trace["step"], np.int64)
    rows = np.flatnonzero(trace.is_kind("operator") & (step >= 0))
    names = len(trace.text("name"))
    places = step[rows] * names + trace["name"][rows]
    counts = np.bincount(places, minlength=len(steps) * names).reshape(len(steps), names)
    usual = np.median(counts, axis=0)
    alike = np.abs(counts - usual).sum(axis=1) <= UNLIKE * usual.sum()
    if alike.sum() * 3 < len(steps) * 2:
        return
    for index in np.flatnonzero(~alike).tolist():
        if steps[index]["covered"]:
            steps[index].update(covered=False, why_not=DIFFERENT)


MEMORY = 256  # markers that are looked back on while waiting
PATIENCE = (
    32  # backward passes without an update before they count as steps, where an optimizer exists
)
INTERRUPTED = "Ctrl-C"  # what ended the recording
SHORT_PATIENCE = (
    8  # the same where none exists: an update can hide, as one of `parameter.data` does
)


class StepSequence:
    """Optimizer steps as they come in, or backward passes where no optimizer's step is seen.

    Of several backward passes between two updates the first one ends the step before.
    """

    def __init__(self) -> None:
        self.markers: list[int] = []
        self._anchor = Anchor()
        self.steps = 0  # that have ended so far, as well as that is known
        self._skipped: set[int] = set()
        self._updates: Updates | None = None
        self._optimizer_exists = False
        self._passes = 0  # backward passes since updates are watched
        self._settled = False

    @property
    def anchor(self) -> int | None:
        """The marker that ends a step, as well as that is known; None before the first."""
        return self._anchor.value

    @property
    def by_backward(self) -> bool:
        """Whether backward passes tell the steps so far."""
        return self.anchor == BACKWARD

    def wants(self, which: int) -> bool:
        """Return whether a marker is one of the sequence: a backward pass is not where optimizers step."""
        if which != BACKWARD:
            return True
        if self.anchor not in {None, BACKWARD}:
            return False
        if self._updates is None:
            return True
        self._passes += 1
        return self._updates.since_last() or not self._updates.seen

    def add(self, which: int, *, skipped: bool = False) -> bool:
        """Take a marker in. Returns whether it may end a step."""
        self.markers.append(which)
        self._anchor.add(which)
        if skipped:
            self._skipped.add(len(self.markers) - 1)
        if which != self.anchor:
            return False
        self.steps += 1
        return True

    def may_capture(self, which: int, warmup: int) -> bool:
        """Return whether enough is known of what makes a step, while waiting behind a marker."""
        if which != BACKWARD or self._settled:
            return True
        if self._updates is None:
            if self.steps < max(warmup, 1):
                return False
            self._updates = Updates()
            self._optimizer_exists = any_optimizer_exists()
            return False
        patience = PATIENCE if self._optimizer_exists else SHORT_PATIENCE
        if not self._updates.seen and self._passes < patience:
            return False
        self._settled = True
        if not self._updates.seen:
            self._updates = None  # updates cannot be seen here: every backward pass is a step
        return True

    def forget_the_past(self) -> None:
        """Let go of what came long ago. Not while capturing: positions change."""
        gone = len(self.markers) - MEMORY
        if gone > 0:
            del self.markers[:gone]
            self._skipped = {at - gone for at in self._skipped if at >= gone}

    def ends(self) -> list[int]:
        """Return the positions of the markers that end steps."""
        return [at for at, marker in enumerate(self.markers) if marker == self.anchor]

    def taken_since(self, began: int) -> tuple[int, int]:
        """Return how many steps with an update, and how many at all, have ended behind a position."""
        ends = [end for end in self.ends() if end >= began]
        skipped = (
            sum(self.skipped(end, before) for before, end in pairwise(ends)) if self._skipped else 0
        )
        return len(ends) - 1 - skipped, len(ends) - 1

    def ranges(
        self, markers: list[Marker], first: int, optimizers: list[Any]
    ) -> tuple[tuple[Ranges, str], set[str]]:
        """Return the steps between recorded markers, what ends them, and which have no update.

        `first` numbers the first of them. There are none where fewer than two markers end a step.
        """
        ends = set(self.ends())
        found = [(number, at) for number, at in markers if number in ends]
        if len(found) < 2:
            return ([], ""), set()
        anchor = self.markers[max(ends)]
        source = (
            "ends of backward passes, as no torch.optim optimizer was seen to step"
            if anchor == BACKWARD
            else f"steps of the optimizer {type(optimizers[anchor]).__name__}"
        )
        ranges = []
        skipped = set()
        begin = found[0][1]
        for index, ((before, _), (number, at)) in enumerate(pairwise(found)):
            name = f"step {first + index}"
            ranges.append((name, begin, at))
            begin = at + 1
            if self.skipped(number, before):
                skipped.add(name)
        return (ranges, source), skipped

    def skipped(self, position: int, before: int) -> bool:
        """Return whether an update between two markers, the later one included, was skipped."""
        return any(before < at <= position for at in self._skipped)


def why_nothing(sequence: StepSequence, warmup: int, reason: str, *, profiled: bool) -> str:
    """Return why no step was captured before the recording's end; `profiled`: the script did so itself."""
    if reason == INTERRUPTED:
        ran = f"{counted(sequence.steps, 'training step')} had run, the first {warmup} are to warm up."
        return f"{INTERRUPTED_EARLY}: {ran}"
    if profiled and sequence.steps > warmup:
        return (
            f"no step was captured before {reason}: the script's own torch.profiler ran all the while. "
            "Run the script without it, or profile fewer of its steps."
        )
    if not sequence.markers:
        return (
            f"no training step was seen before {reason}: no torch.optim optimizer stepped and "
            "torch.autograd.backward was not called. daydream records training steps."
        )
    return (
        f"only {counted(sequence.steps, 'training step')} ran before {reason}; {warmup} to warm up and at "
        "least 1 more to record are needed. Run more steps, or lower --warmup."
    )
