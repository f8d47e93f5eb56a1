"""Events of the Trace Event Format as JSON text, written directly: there are hundreds of thousands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

ABOUT = ("kind", "phase", "layer", "op", "step")


def process(pid: int, name: str) -> Iterator[str]:
    """Return the events that name a process and give it its place."""
    yield _metadata(pid, 0, "process_name", "name", name)
    yield _metadata(pid, 0, "process_sort_index", "sort_index", pid)


def thread(pid: int, tid: int, name: str) -> Iterator[str]:
    """Return the events that name a thread and give it its place."""
    yield _metadata(pid, tid, "thread_name", "name", name)
    yield _metadata(pid, tid, "thread_sort_index", "sort_index", tid)


def span(
    pid: int, tid: int, start_ns: int, duration_ns: int, name: str, category: str, args: str
) -> str:
    """Return a complete event. `name` and `category` are JSON text; each of `args` begins with a comma."""
    return (
        f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{microseconds(start_ns)},"dur":{microseconds(duration_ns)},'
        f'"name":{name},"cat":{category},"args":{{{args[1:]}}}}}'
    )


def flow(
    pid: int, number: int, name: str, tid: int, ts_ns: int, to_tid: int, to_ns: int
) -> Iterator[str]:
    """Return the two events of an arrow from the slice at a time on one thread to that on another."""
    common = f'"pid":{pid},"id":{number},"name":"{name}","cat":"{name}"'
    yield f'{{"ph":"s",{common},"tid":{tid},"ts":{microseconds(ts_ns)}}}'
    yield f'{{"ph":"f","bp":"e",{common},"tid":{to_tid},"ts":{microseconds(to_ns)}}}'


def counter(pid: int, ts_ns: int, name: str, value: int) -> str:
    """Return the value of a counter from a time on."""
    return (
        f'{{"ph":"C","pid":{pid},"ts":{microseconds(ts_ns)},"name":{json.dumps(name)},'
        f'"args":{{"value":{value}}}}}'
    )


def microseconds(ns: int) -> str:
    """Return nanoseconds, never negative, as microseconds without loss."""
    return f"{ns // 1000}.{ns % 1000:03d}"


class About:
    """The args that many slices share, made once for each combination of codes (-1 for unknown)."""

    def __init__(self, *texts: Sequence[str]) -> None:
        self._texts = [[json.dumps(text) for text in column] for column in texts]
        self._made: dict[tuple[int, ...], str] = {}

    def __call__(self, codes: tuple[int, ...]) -> str:
        """Return the args for a code of kind, phase, layer, op and step each."""
        if codes not in self._made:
            self._made[codes] = "".join(
                f',"{name}":{texts[code]}'
                for name, texts, code in zip(ABOUT, self._texts, codes, strict=True)
                if code >= 0
            )
        return self._made[codes]


def _metadata(pid: int, tid: int, what: str, key: str, value: Any) -> str:
    return json.dumps({"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {key: value}})
