"""Step boundaries: a call back whenever an optimizer has stepped or a backward pass has ended.

The optimizer's global hook sees every `torch.optim` step, whoever calls it. What it cannot
see, an update by hand or a compiled optimizer step, is found by the calls of `backward`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

BACKWARD = -1  # the marker of a backward pass; optimizers count from 0


class StepHooks:
    """Calls `on_marker(which)` after each optimizer step and each `torch.autograd.backward`.

    `which` numbers the optimizers in order of their first step, or is `BACKWARD`.
    """

    def __init__(self, on_marker: Callable[[int], None]) -> None:
        self._on_marker = on_marker
        self._optimizers: list[Any] = []  # held, so that no other optimizer gets the id of one of them
        self._handle: Any = None
        self._backward: Callable[..., Any] | None = None
        self._wrapper: Callable[..., Any] | None = None
        self._active = False

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers that have stepped, in the order of their numbers."""
        return self._optimizers

    def install(self) -> None:
        """Begin to call back."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        is_compiling = torch.compiler.is_compiling
        backward = torch.autograd.backward

        def after_step(optimizer: Any, *_: Any) -> None:
            if is_compiling():
                return
            if self._active:
                self._on_marker(self._number(optimizer))

        @functools.wraps(backward)
        def with_marker(*args: Any, **kwargs: Any) -> Any:
            backward(*args, **kwargs)
            if is_compiling():
                return
            if self._active:
                self._on_marker(BACKWARD)
            else:
                self.remove()

        self._active = True
        self._handle = register_optimizer_step_post_hook(after_step)
        self._backward, self._wrapper = backward, with_marker
        torch.autograd.backward = with_marker

    def disable(self) -> None:
        """Stop calling back; safe inside a hook, where the hooks themselves cannot be removed yet."""
        self._active = False

    def remove(self) -> None:
        """Take the hooks off. Not inside an optimizer's hook: torch is walking through them."""
        import torch

        self._active = False
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        autograd: Any = torch.autograd
        if self._wrapper is not None and autograd.backward is self._wrapper:
            autograd.backward = self._backward
            self._wrapper = None

    def forget(self) -> None:
        """Let go of the optimizers."""
        self._optimizers = []

    def _number(self, optimizer: Any) -> int:
        for number, known in enumerate(self._optimizers):
            if known is optimizer:
                return number
        self._optimizers.append(optimizer)
        return len(self._optimizers) - 1


def any_optimizer_exists() -> bool:
    """Return whether the process holds a `torch.optim` optimizer, though none has been seen to step."""
    import gc

    from torch.optim import Optimizer

    return any(issubclass(type(one), Optimizer) for one in gc.get_objects())
