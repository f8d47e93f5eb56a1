"""Work ahead: a thread makes the next items while the present one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item], count: int = 2) -> Iterator[Item]:
    """Yield the items, of which a thread makes up to `count` ahead; what it raises is raised here.

    It pays where making them leaves the interpreter to others: reading, unpacking, compiled loops.
    """
    from concurrent.futures import ThreadPoolExecutor

    end = object()
    with ThreadPoolExecutor(1) as thread:
        try:
            made = deque(thread.submit(next, items, end) for _ in range(count))
            while (item := made.popleft().result()) is not end:
                made.append(thread.submit(next, items, end))
                yield item  # type: ignore[misc]
                del item
        finally:
            thread.shutdown(cancel_futures=True)
