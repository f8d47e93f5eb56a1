"""Selecting: columns of tasks, which tasks fit the words of a selection, and what to say when none does.

Columns are the graph's own, the trace's through the row behind each task, and derived ones.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from daydream import lazy
from daydream.arrays import take
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.calls import (
    call_rows,
    device_work,
    has_device_work,
    instances,
    shape_rows,
    shapes_in,
)
from daydream.graph.tables import CODED, KINDS
from daydream.lazy import regex
from daydream.text import listed, meant
from daydream.trace.schema import FIELDS, PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.selection import Selection

Where = tuple[tuple[str, tuple[str, ...]], ...]  # words, and the texts wanted of each

BY_GLOB = ("layer",)
BY_REGEX = ("name", "op", "shapes")  # texts are matched by value otherwise
GLOB = regex(r"[*?[]")
MOST_LAYERS = 8  # that a message lists


def texts_of(where: Mapping[str, Any]) -> Where:
    """Return the words of a selection that are texts, as they are kept with it."""
    return tuple(
        (name, (wanted,) if isinstance(wanted, str) else tuple(wanted))
        for name, wanted in sorted(where.items())
        if isinstance(wanted, Sequence)
    )


def matching(graph: Graph, ids: ndarray, where: Mapping[str, Any]) -> ndarray:
    """Return the tasks that match every word."""
    for name, wanted in where.items():
        ids = ids[_matches(graph, ids, name, wanted)]
    return ids


def _matches(graph: Graph, ids: ndarray, name: str, wanted: Any) -> ndarray:
    if name == "on":
        if wanted not in ("cpu", "gpu"):
            raise GraphError(f"on={wanted!r}; choose cpu or gpu")
        return device_work(graph)[ids] == (wanted == "gpu")
    options: list[Any] = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    if name == "within":
        return np.any([call_rows(graph, ids, option) >= 0 for option in options], axis=0)
    if name == "handle":  # the column has places in the trace's map
        if graph.recorded.handles is None:
            raise GraphError("this trace has no debug handles; give a map with --handles FILE")
        handles = [*graph.recorded.handles]
        for each in options:
            if each not in handles:
                hint = meant(str(each), map(str, handles), f"{len(handles):,} are known.")
                raise GraphError(f"no compiled piece has the identifier {each!r:.60}. {hint}")
        options = [*map(handles.index, options)]
    if not is_text(name):
        values = read_column(graph, name, ids)
        return values == options[0] if len(options) == 1 else np.isin(values, options)
    if not all(isinstance(option, str) for option in options):
        raise GraphError(f"{name} is matched by text, not by {options!r}")
    vocabulary = {"kind": KINDS, "phase": PHASES}.get(name, options)
    for option in options:
        if option not in vocabulary:
            choice = f"choose from {', '.join(vocabulary)}. {meant(option, vocabulary)}"
            raise GraphError(f"unknown {name} {option!r}; {choice}".rstrip())
    if name == "lane":
        options = [
            graph.lanes[number].name for option in options for number in lanes_named(graph, option)
        ]
    patterns = tuple(options)
    return of_tasks(graph.tasks(ids), name, lambda text: _fits(name, text, patterns), bool)


@lru_cache(maxsize=1 << 16)  # optimizations ask the same of the same texts
def _fits(name: str, text: str | None, options: tuple[str, ...]) -> bool:
    if text is None:
        return False
    if name in BY_REGEX:
        try:
            return any(re.search(option, text) for option in options)
        except re.error as error:
            raise GraphError(f"{name}: not a regular expression ({error})") from None
    if name in BY_GLOB:
        return any(fnmatch.fnmatchcase(text, option) for option in options)
    return text in options


def no_match(graph: Graph, words: str, conditions: Iterable[Where]) -> str:
    """Return what to say when nothing matched: what is missing from the trace, and what to do."""
    lines = [f"no task matched {words or 'the selection'}."]
    pairs = [pair for where in conditions for pair in where]
    wanted = [pattern for name, patterns in pairs if name == "layer" for pattern in patterns]
    devices = any(part in str(texts) for _, texts in pairs for part in ("kernel", "gpu"))
    if any(name == "phase" for name, _ in pairs) and not (graph.phase[graph.alive] >= 0).any():
        lines.append(
            "This trace has no phases: it has no optimizer or autograd ranges. Select by name or op."
        )
    used = np.unique(graph.layer[graph.alive])
    layers = [graph.texts["layer"][code] for code in used.tolist() if code >= 0]
    if wanted and not layers:
        lines.append(
            "This trace has no layers. Record it with `daydream collect`, or select by name or op."
        )
    unknown = [pattern for pattern in wanted if layers and not fnmatch.filter(layers, pattern)]
    for pattern in unknown:
        near = " or ".join(map(repr, nearest_layers(pattern, layers)))
        lines.append(f"No layer matches {pattern!r}." + (near and f" Did you mean {near}?"))
    if unknown:
        lines.append(f"Layers are {listed(layers, MOST_LAYERS)}.")
    if devices and not has_device_work(graph):
        lines.append("This trace holds no device work; it was recorded on the CPU only.")
    return "\n       ".join(lines)


def nearest_layers(wanted: str, layers: Sequence[str]) -> list[str]:
    """Return patterns (or paths) like the one that was `wanted` which some of the layers match.

    The first part of the path that no layer has is spelled as the nearest one that layers have there.
    """
    from difflib import get_close_matches  # which only who mistyped waits for

    parts = wanted.split(".")
    paths = [layer.split(".") for layer in layers]
    for place, part in enumerate(parts):
        paths = [path for path in paths if len(path) > place]
        here = sorted({path[place] for path in paths})
        fitting = fnmatch.filter(here, part)
        if fitting:
            paths = [path for path in paths if path[place] in fitting]
            continue
        spelled = [
            ".".join(
                [*parts[:place], each + ("*" if part.endswith("*") else ""), *parts[place + 1 :]]
            )
            for each in get_close_matches(GLOB.sub("", part), here, 3, 0.7)
        ]
        matched = [pattern for pattern in spelled if fnmatch.filter(layers, pattern)]
        if matched:
            return matched[:2]
        break
    return get_close_matches(GLOB.sub("", wanted).strip("."), layers, 3)


def layer_order(graph: Graph, ids: ndarray) -> ndarray:
    """Return the place of each task's layer in the order layers first run forward, from 0; -1 for unknown.

    Raises `NotApplicableError` if no task has a layer.
    """
    tasks = graph.ids[graph.layer[graph.ids] >= 0]
    if not len(tasks):
        raise NotApplicableError("this trace has no layers; record it with `daydream collect`")
    first_phases = [PHASES.index("forward"), PHASES.index("loss")]
    rest = ~np.isin(
        graph.phase[tasks], first_phases
    )  # layers that are never seen forward come last
    first = tasks[np.argsort(rest, kind="stable")]
    layers = list(dict.fromkeys(graph.layer[first].tolist()))
    place = np.full(len(graph.texts["layer"]) + 1, -1)
    place[layers] = np.arange(len(layers))
    return place[graph.layer[ids]]


def _input_elements(graph: Graph, ids: ndarray) -> ndarray:
    """Return how many elements the inputs of the innermost call have in all, -1 for unknown."""
    codes, texts = coded(graph, "shapes", ids)
    return np.array([*(sum(map(math.prod, shapes_in(text))) for text in texts), -1], np.int64)[
        codes
    ]


DERIVED: dict[str, Callable[[Graph, ndarray], ndarray]] = {
    "layer_index": layer_order,
    "grad_bytes": lambda graph, ids: lazy.ask("gradient_bytes", graph, ids),
    "instance": instances,
    "call": lambda graph, ids: instances(graph, ids, inner=True),
    "input_elements": _input_elements,
    "itemsize": lambda graph, ids: of_tasks(
        graph.tasks(ids), "dtype", lambda dtype: lazy.ask("itemsize", dtype) or 4, np.int64
    ),
    "measured_duration_ns": lambda graph, ids: of_trace(graph, "duration_ns", ids),
    "rank": lambda graph, ids: graph.ranks[graph.lane[ids]],
}


def is_text(name: str) -> bool:
    """Tell whether a column holds texts."""
    return name in (*CODED, "kind", "phase", "lane") or (
        name in FIELDS and FIELDS[name].type == "text"
    )


def coded(graph: Graph, name: str, ids: ndarray) -> tuple[ndarray, list[str]]:
    """Return a text column as codes (-1 for unknown) and the texts they point into."""
    lanes = [lane.name for lane in graph.lanes]
    texts = {"kind": [*KINDS], "phase": [*PHASES], "lane": lanes, **graph.texts}
    own = name in graph.columns
    codes = graph.columns[name][ids] if own else of_trace(graph, name, ids)
    return codes, texts.get(name, graph.recorded.text(name))


def read_column(graph: Graph, name: str, ids: ndarray) -> ndarray:
    """Return a column for some tasks: integers (-1 for unknown), or an object array of texts."""
    if is_text(name):
        codes, texts = coded(graph, name, ids)
        return np.array([*texts, None], dtype=object)[codes]
    if name in graph.columns:
        return graph.columns[name][ids]
    if name in DERIVED:
        return DERIVED[name](graph, ids)
    if name in FIELDS:
        return of_trace(graph, name, ids)
    hint = meant(name, (*graph.columns, *DERIVED, *FIELDS))
    raise GraphError(f"tasks have no column {name!r}. {hint}".rstrip())


def of_trace(graph: Graph, name: str, ids: ndarray) -> ndarray:
    """Return what was recorded of some tasks; shapes also of the call around."""
    rows = shape_rows(graph, ids) if name == "shapes" else graph.row[ids]
    return take(graph.recorded[name], rows, FIELDS[name].null)


def lanes_named(graph: Graph, name: str) -> list[int]:
    """Return the lanes of this name, that of each rank where names begin with a rank (`rank 0 stream 7`)."""
    lanes = [*enumerate(graph.lanes)]
    exact = [number for number, lane in lanes if lane.name == name]
    return exact or [number for number, lane in lanes if lane.name == f"rank {lane.rank} {name}"]


def lanes_for(
    graph: Graph,
    names: str | Sequence[str],
    beside: ndarray,
    *,
    on_device: bool,
    new: bool = True,
) -> ndarray:
    """Return the lane of this name (one for all, or one for each) on the rank of each of some lanes.

    One that is new is made, for each rank; unless `new`, it is refused. Shape (lanes,), int64.
    """
    each = one_each(np.array(names, dtype=object), len(beside), "lane")
    ranks = graph.ranks
    wanted = list(zip(each.tolist(), ranks[beside].tolist(), strict=True))
    numbers = {}
    for name, rank in dict.fromkeys(wanted):
        number = next(
            (one for one in lanes_named(graph, name) if graph.lanes[one].rank == rank), -1
        )
        if number < 0 and not new:
            raise GraphError(
                f"no device lane {name!r} on rank {rank} to wait for; see `graph.lanes`"
            )
        if number < 0:
            several = (ranks != ranks[0]).any() and not name.startswith("rank ")
            full = f"rank {rank} {name}" if several else name
            number = graph.lane_id(full, on_device=on_device, rank=rank)
        if graph.lanes[number].on_device != on_device:
            kind = "a CPU thread" if on_device else "a lane of the device"
            raise GraphError(f"{graph.lanes[number].name!r} is {kind}")
        numbers[name, rank] = number
    return np.array([numbers[each] for each in wanted], np.int64)


def one_each(values: Any, count: int, what: str) -> ndarray:
    """Return as many values as there are tasks: one for all of them, or one for each."""
    array = np.asarray(values)
    if array.shape not in ((), (1,), (count,)):
        raise GraphError(
            f"{what}: {array.size} values for {count} tasks; give one, or one for each"
        )
    return np.broadcast_to(array, count)


def same_graph(graph: Graph, tasks: Selection) -> None:
    """Raise `GraphError` if tasks of another graph were given."""
    if tasks.graph is not graph:
        raise GraphError("a task of another graph was given; select it from this one")


def priorities(
    graph: Graph, lane: int, key: str | Callable[[Selection], Any]
) -> tuple[ndarray, ndarray]:
    """Return the tasks of a scheduled lane and the key of each, a whole number."""
    tasks = graph.select(lane=graph.lanes[lane].name)
    values = np.asarray(key(tasks) if callable(key) else read_column(graph, key, tasks.ids))
    if values.shape != (len(tasks),) or values.dtype.kind not in "iub":
        raise GraphError(
            f"the key of lane {graph.lanes[lane].name!r} must give a whole number for each of its "
            f"{len(tasks)} tasks, not {values.dtype} {values.shape}"
        )
    return tasks.ids, values.astype(np.int64)


def for_each(texts: ndarray, tell: Callable[[str | None], object], dtype: npt.DTypeLike) -> ndarray:
    """Return what `tell` gives for each of some texts (object, None for unknown): of `dtype`, their shape."""
    listed = texts.tolist()
    known = {text: tell(text) for text in set(listed)}
    return np.fromiter(map(known.__getitem__, listed), dtype, len(listed))


def is_among(texts: ndarray, wanted: Iterable[str]) -> ndarray:
    """Return a mask of the texts (object, None for unknown) that are among some: bool, their shape."""
    return for_each(texts, frozenset(wanted).__contains__, bool)


def of_tasks(
    tasks: Selection, column: str, tell: Callable[[str | None], object], dtype: npt.DTypeLike
) -> ndarray:
    """Return what `for_each` does for a column of texts of some tasks, without making these texts.

    Each text that is used is looked at once.
    """
    codes, texts = coded(tasks.graph, column, tasks.ids)
    told = np.zeros(len(texts) + 1, dtype)
    used = np.zeros(len(texts) + 1, bool)
    used[codes] = True  # the last: of no text, -1
    for each in np.flatnonzero(used).tolist():
        told[each] = tell(texts[each] if each < len(texts) else None)
    return told[codes]


def in_program_order(graph: Graph, ids: ndarray) -> ndarray:
    """Return tasks by `order`, then by id.

    Args:
        graph: the graph of the tasks.
        ids: tasks, removed ones and repeated ones too, int64, shape (n,).

    Returns:
        int64, shape (n,).

    """
    order = graph.order[ids]
    return ids if (order[1:] > order[:-1]).all() else ids[np.lexsort((ids, order))]


def among(graph: Graph, ids: ndarray) -> ndarray:
    """Return a mask of all ids ever given out that is true for these: bool, shape (ids,)."""
    mask = np.zeros(graph.size, bool)
    mask[ids] = True
    return mask
