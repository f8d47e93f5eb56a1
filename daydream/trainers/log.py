"""What is said in the log of a training job, and where its trace goes."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path

from daydream.cli.suggestions import suggestions

LOG = logging.getLogger("daydream")


def own_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that no file has: with the rank, where there are several; with a number, where taken."""
    from daydream.collect.live.rank import rank_and_world

    rank, world = rank_and_world()
    target = Path(path)
    stem = f"{target.stem}.rank{rank or 0}" if (world or 1) > 1 else target.stem
    suffix = target.suffix or ".parquet"
    more = (f"{stem}-{count}{suffix}" for count in itertools.count(2))
    names = itertools.chain([f"{stem}{suffix}"], more)
    return next(found for name in names if not (found := target.with_name(name)).exists())


def say_what_to_change(path: Path) -> None:
    """Say where the trace is, and the three largest suggestions for it."""
    LOG.warning("daydream: wrote %s", path)
    for line in suggestions(path).lines(path):
        LOG.warning("daydream: %s", line)


def say_not_recorded(error: Exception) -> None:
    """Say in one line that nothing was recorded, and why."""
    LOG.warning("daydream: no trace was written: %s", " ".join(f"{error}".split()) or type(error).__name__)
