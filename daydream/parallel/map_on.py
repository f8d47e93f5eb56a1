"""`map_on`: a function of many items, answered by an engine; answers and their order are the same on all."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from daydream.errors import DaydreamError
from daydream.parallel.engines import Answers, Engine, engine_of

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[float], None]

BATCHES = 4  # for each worker, so that one that is slower gets fewer of them
LARGEST_BATCH = 16  # items: enough to outweigh the millisecond that sending a batch takes
UNKNOWN = 64  # as how many workers a cluster counts when work is cut into batches


def map_on(
    engine: str | Engine,
    function: Callable[[S], Callable[[T], R]],
    shared: S,
    items: Sequence[T],
    *,
    batch: int | None = None,
    progress: Progress | None = None,
) -> list[R]:
    """Return `function(shared)(item)` of every item, in the order of the items.

    Each worker calls `function` once, and what it returns for its items. `function`, `shared`, items
    and results are pickled, but for the engine `local`. `batch` items are sent at a time; `progress` is
    called with the share that is done. An error of a worker is raised here, and ends the others, as
    Ctrl-C does. Raises `DaydreamError` if workers cannot be reached, or end before they have answered.
    """
    engine = engine_of(engine)
    say = progress or (lambda _share: None)
    if engine.local or not items:
        return list(_here(function, shared, items, say))
    packed = _packed(function, shared, None if engine.elsewhere else os.getcwd())  # noqa: PTH109 - sent as text
    count = engine.workers or (UNKNOWN if engine.elsewhere else cores())
    size = batch or min(max(len(items) // (BATCHES * count), 1), LARGEST_BATCH)
    batches = [items[first : first + size] for first in range(0, len(items), size)]
    run: Callable[[Engine, int, bytes, Sequence[Any]], Answers]
    if engine.kind == "dask":
        from daydream.parallel.dask_workers import on_dask as run
    else:
        from daydream.parallel.processes import on_processes as run
    found: list[R] = []
    with contextlib.closing(run(engine, min(count, len(batches)), packed, batches)) as answers:
        for answer in answers:
            found += answer
            say(len(found) / len(items))
    return found


def _here(
    function: Callable[[S], Callable[[T], R]], shared: S, items: Sequence[T], say: Progress
) -> Iterator[R]:
    work: Callable[[T], R] | None = None
    for number, item in enumerate(items):
        say(number / len(items))
        work = work or function(shared)
        yield work(item)


def _packed(function: object, shared: object, folder: str | None) -> bytes:
    try:
        return pickle.dumps((function, shared, folder), protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DaydreamError(
            f"this cannot be sent to a worker process ({error}).\n"
            "Put an optimization of your own into a file and give its path, or take the engine local."
        ) from error


def cores() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
