"""Hooks on all optimizers. Torch walks through them in every step, and none may come or go meanwhile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_LEFT: list[Any] = []  # handles of hooks that went within a step: off, and taken away later


class OptimizerHooks:
    """A hook before and one behind each step. Within a step they are put on later, by `catch_up`."""

    def __init__(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._on, self._pending = False, False
        self._handles: list[Any] = []

        def before_step(*args: Any) -> None:
            if self._on:
                before(*args)

        def after_step(*args: Any) -> None:
            if self._on:
                after(*args)

        self.functions = before_step, after_step

    def install(self) -> None:
        """Put the hooks on, or within a step wait for `catch_up`."""
        self._on = self._pending = True
        self.catch_up()

    def catch_up(self) -> None:
        """Put the hooks on if that had to wait; costs nothing otherwise."""
        if not self._pending or _in_step():
            return
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        _take_away()
        before, after = self.functions
        self._handles = [
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ]
        self._pending = False

    def remove(self) -> None:
        """Put the hooks off; within a step they stay, idle, until others are put on or off."""
        self._on = self._pending = False
        _LEFT.extend(self._handles)
        self._handles = []
        if not _in_step():
            _take_away()


def _take_away() -> None:
    while _LEFT:
        _LEFT.pop().remove()


def _in_step() -> bool:
    """Return whether this thread runs a step of an optimizer, in which torch walks through the hooks."""
    import torch.optim.optimizer as home

    frame: Any = sys._getframe(1)  # noqa: SLF001 - the only way to look at who called
    while frame is not None:
        if frame.f_code.co_filename == home.__file__:
            return True
        frame = frame.f_back
    return False
