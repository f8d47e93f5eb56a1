"""Changes of a running training script that several optimizations' `apply` make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MISSING = object()


@contextmanager
def optimizer_settings(optimizer: Any, **settings: Any) -> Iterator[None]:
    """Give every parameter group of a torch optimizer these settings; put back what it had on leaving.

    with optimizer_settings(optimizer, fused=True):
        train()
    """
    before = [{name: group.get(name, MISSING) for name in settings} for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group.update(settings)
    _place_step_counts(optimizer)
    try:
        yield
    finally:
        for group, had in zip(optimizer.param_groups, before, strict=True):
            for name, value in had.items():
                if value is MISSING:
                    group.pop(name, None)
                else:
                    group[name] = value
        _place_step_counts(optimizer)


def _place_step_counts(optimizer: Any) -> None:
    """Move counts of steps to where torch makes them: beside the parameters of fused and capturable groups.

    The loop and the foreach kernels take them from the CPU; a fused one refuses them there.
    """
    for group in optimizer.param_groups:
        beside = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if hasattr(state.get("step"), "to"):  # a number in some optimizers
                state["step"] = state["step"].to(parameter.device if beside else "cpu")
