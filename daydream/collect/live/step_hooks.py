"""Step boundaries: a call back whenever an optimizer has stepped or a backward pass has ended.

The optimizer's global hook sees every `torch.optim` step, whoever calls it. A step that a
gradient scaler leaves out is seen at the scaler. What neither sees, an update by hand or a
compiled optimizer step, is found by the calls of `backward`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from daydream.collect.live.parameter_versions import Updates

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
        self._optimizers: list[Any] = []  # held, so that no other optimizer gets the id of one of them
        self._handles: list[Any] = []
        self._replaced: list[tuple[Any, str, Any, Any]] = []  # owner, name, what was there, what is there
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
            register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step),
        ]  # fmt: skip
        self._replace(torch.autograd, "backward", self._with_marker)
        if hasattr(amp, "GradScaler"):
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
            one for group in optimizer.param_groups for one in group["params"] if one.grad is not None
        )
    except Exception:  # noqa: BLE001 - an optimizer of another make; it must step as without us
        return None


def any_optimizer_exists() -> bool:
    """Return whether the process holds a `torch.optim` optimizer, though none has been seen to step."""
    import gc

    from torch.optim import Optimizer

    return any(issubclass(type(one), Optimizer) for one in gc.get_objects())
