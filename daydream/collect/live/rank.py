"""Which of a job's processes this one is: its rank of how many, or a loader's worker."""

from __future__ import annotations

import os
import sys
from typing import Any


def rank_and_world() -> tuple[int | None, int | None]:
    """Return this process's rank and the number of ranks: torch's, else the launcher's, else unknown."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return _number("RANK"), _number("WORLD_SIZE")


def is_loader_worker() -> bool:
    """Return whether this process loads data for another: what it computes is no training."""
    import torch

    data: Any = torch.utils.data
    return data.get_worker_info() is not None


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
