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
    try:
        yield
    finally:
        for group, had in zip(optimizer.param_groups, before, strict=True):
            for name, value in had.items():
                if value is MISSING:
                    group.pop(name, None)
                else:
                    group[name] = value
