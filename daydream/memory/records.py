"""The events of an allocator's own history, as snapshots keep them; what cannot be is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeGuard

LARGEST = 1 << 48  # bytes of a request: more than any device has, by far
LAST_ADDRESS = 1 << 64
FREES = frozenset({"free", "free_requested", "free_completed"})
SEGMENTS = frozenset({"segment_alloc", "segment_free", "segment_map", "segment_unmap"})
WITHOUT_MEMORY = frozenset({"snapshot", "user_defined", "annotate"})


class Record(NamedTuple):
    """An event.

    Attributes:
        action: `alloc`, one of `FREES` or `SEGMENTS`, or `oom`.
        address: where; of `oom` the bytes that the device had left, -1 where that is unknown.
        size: bytes asked for; of segments, what the device gave or got back.
        stream: any number that names it.
        private: the private pool (of a CUDA graph, say), 0 for none.
        frames: the stack, as it was recorded, or None.

    """

    action: str
    address: int
    size: int
    stream: int = 0
    private: int = 0
    frames: object = None


class Records:
    """Events as they are read.

    Attributes:
        kept: those that can be, in order.
        doubts: how many events could not be read, by what was wrong with them.

    """

    def __init__(self) -> None:
        self.kept: list[Record] = []
        self.doubts: Counter[str] = Counter()
        self._pools: dict[tuple[object, object], int] = {(0, 0): 0}

    def add(
        self, action: object, address: object, size: object, stream: object, more: Mapping[str, Any]
    ) -> None:
        """Keep an event, or count why it cannot be kept."""
        if not isinstance(action, str):
            self.doubts["action"] += 1
        elif action in WITHOUT_MEMORY:
            return
        elif action not in FREES | SEGMENTS | {"alloc", "oom"}:
            self.doubts["action"] += 1
        elif not whole(size) or not whole(stream):
            self.doubts["fields"] += 1
        elif not 0 < size < LARGEST:
            self.doubts["size"] += 1
        elif action == "oom":
            free = more.get("device_free")
            self.kept.append(Record("oom", free if whole(free) else -1, size, stream))
        elif not whole(address) or not 0 <= address < LAST_ADDRESS:
            self.doubts["fields"] += 1
        else:
            private = self.private(more.get("pool_id"))
            self.kept.append(Record(action, address, size, stream, private, more.get("frames")))

    def private(self, pool: object) -> int:
        """Return a number for the private pool that an id of two numbers names, 0 for none."""
        if not isinstance(pool, list | tuple) or len(pool) != 2 or not all(map(whole, pool)):
            return 0
        return self._pools.setdefault((pool[0], pool[1]), len(self._pools))


def whole(value: object) -> TypeGuard[int]:
    """Tell whether a value is a whole number; true and false are none."""
    return type(value) is int


def normal(records: Iterable[Record]) -> list[Record]:
    """Return events in which a free has one name: without `free_completed` there are only plain frees."""
    found = list(records)
    if any(record.action == "free_completed" for record in found):
        return found
    return [
        each._replace(action="free") if each.action == "free_requested" else each for each in found
    ]
