"""Whether parameters were updated, seen without a hook: by the version numbers that torch counts on tensors.

An optimizer's compiled step and an update by hand call no hook. What they change in place
has another version afterwards, which the host can read without waiting for a device.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from itertools import islice
from typing import Any

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
        tensors = [one() for one in self._watched]
        return [-1 if one is None else version(one) for one in tensors]


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
        if issubclass(type(one), tensor) and one.requires_grad and one.is_leaf and one.grad is not None:
            yield one
