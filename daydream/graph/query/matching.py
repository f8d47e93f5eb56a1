"""Matching: which tasks fit the words of a selection, and what to say when none does."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import GraphError
from daydream.graph.query.calls import call_rows
from daydream.graph.query.columns import coded, is_text, lanes_named, read_column
from daydream.graph.query.device import device_work
from daydream.graph.tables import KINDS
from daydream.lazy import regex
from daydream.text import closest
from daydream.trace.schema import PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

BY_GLOB = ("layer",)
BY_REGEX = ("name", "op", "shapes")  # texts are matched by value otherwise
WANTED_LAYERS = regex(r"""\blayer=('[^']*'|"[^"]*"|\([^)]*\)|\[[^]]*\])""")  # as `matching` says it
GLOB = regex(r"[*?[]")
MOST_LAYERS = 6  # that a message lists


def matching(graph: Graph, ids: np.ndarray, where: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    """Return a mask of the tasks that match every word, and the words as said in messages."""
    left = None  # places of those that match so far
    said = []
    for name, wanted in where.items():
        if wanted is None:
            continue
        said.append(f"{name}={wanted!r}")
        if left is None:
            left = np.flatnonzero(_matches(graph, ids, name, wanted))
        else:
            left = left[_matches(graph, ids[left], name, wanted)]
    if left is None:
        return np.ones(len(ids), bool), said
    mask = np.zeros(len(ids), bool)
    mask[left] = True
    return mask, said


def note_layers(graph: Graph, where: dict[str, Any]) -> None:
    """Note on a copy of a graph by which layers (or blocks) its tasks are chosen, with the other texts."""
    if graph.layers_asked is not None and (where.get("layer") or where.get("block")):
        words = {name: (wanted,) if isinstance(wanted, str) else wanted for name, wanted in where.items()}
        texts = {name: tuple(wanted) for name, wanted in words.items() if isinstance(wanted, Sequence)}
        graph.layers_asked[tuple(sorted(texts.items()))] = None


def _matches(graph: Graph, ids: np.ndarray, name: str, wanted: Any) -> np.ndarray:
    if name == "on":
        if wanted not in ("cpu", "gpu"):
            raise GraphError(f"on={wanted!r}; choose cpu or gpu")
        on_device = device_work(graph)[ids]
        return on_device if wanted == "gpu" else ~on_device
    options: list[Any] = [wanted] if isinstance(wanted, str | int | np.integer) else list(wanted)
    if name == "within":
        return np.any([call_rows(graph, ids, option) >= 0 for option in options], axis=0)
    if name == "handle":
        return _of_handles(graph, ids, options)
    if not is_text(name):
        values = read_column(graph, name, ids)
        return values == options[0] if len(options) == 1 else np.isin(values, options)
    _known(name, options)
    if name == "lane":
        return np.isin(
            graph.columns["lane"][ids], [n for option in options for n in lanes_named(graph, option)]
        )
    codes, texts = coded(graph, name, ids)
    patterns = tuple(options)
    fits = _known_fits(graph, name, texts, patterns)
    found: np.ndarray = fits[codes]
    new = codes[found < 0]
    if len(new):
        used = np.zeros(len(fits), bool)
        used[new] = True
        for code in np.flatnonzero(used).tolist():
            fits[code] = _fits(name, texts[code], patterns)
        found = fits[codes]
    return found > 0


def _known_fits(graph: Graph, name: str, texts: Sequence[str], patterns: tuple[str, ...]) -> np.ndarray:
    """Return which texts fit (1), do not (0), or were not asked for (-1), to be written to: int8.

    The last entry stands for unknown texts. Kept with the trace: copies of a graph have its texts, and more.
    """
    kept = graph._of_trace.setdefault("fits", {})
    known, fits = kept.get((name, patterns), ([], np.zeros(1, np.int8)))
    if known != texts:
        same = min(len(known), len(texts))
        same = same if known[:same] == texts[:same] else 0
        fits = np.concatenate([fits[:same], np.full(len(texts) - same, -1, np.int8), [np.int8(0)]])
        kept[name, patterns] = list(texts), fits
    return np.asarray(fits)


def _of_handles(graph: Graph, ids: np.ndarray, identifiers: list[Any]) -> np.ndarray:
    """Return a mask of the tasks of these identifiers in the trace's map of debug handles."""
    handles = None if graph.trace is None else graph.trace.handles
    places = {} if handles is None else {each: place for place, each in enumerate(handles)}
    if handles is None:
        raise GraphError("this trace has no debug handles; give a map with --handles FILE")
    unknown = [each for each in identifiers if each not in places]
    if unknown:
        near = closest(str(unknown[0]), map(str, places))
        hint = f"Did you mean {near[0]!r:.60}?" if near else f"{len(places):,} are known."
        raise GraphError(f"no compiled piece has the identifier {unknown[0]!r:.60}. {hint}")
    return np.isin(read_column(graph, "handle", ids), [places[each] for each in identifiers])


def _fits(name: str, text: str, options: tuple[str, ...]) -> bool:
    if name in BY_REGEX:
        try:
            return any(re.search(option, text) for option in options)
        except re.error as error:
            raise GraphError(f"{name}: not a regular expression ({error})") from None
    if name in BY_GLOB:
        return any(fnmatch.fnmatchcase(text, option) for option in options)
    return text in options


def _known(name: str, options: Iterable[Any]) -> None:
    if not all(isinstance(option, str) for option in options):
        raise GraphError(f"{name} is matched by text, not by {options!r}")
    vocabulary = {"kind": KINDS, "phase": PHASES}.get(name)
    if vocabulary:
        for option in options:
            if option not in vocabulary:
                near = closest(option, vocabulary)
                hint = f". Did you mean {near[0]!r}?" if near else ""
                raise GraphError(f"unknown {name} {option!r}; choose from {', '.join(vocabulary)}{hint}")


def no_match(graph: Graph, words: str) -> str:
    """Return what to say when nothing matched: what is missing from the trace, and what to do."""
    lines = [f"no task matched {words or 'the selection'}."]
    columns = graph.columns
    if "phase=" in words and not (columns["phase"][graph.alive] >= 0).any():
        lines.append(
            "This trace has no phases: it has no optimizer or autograd ranges. Select by name or op."
        )
    if "layer=" in words:
        lines += _layers_meant(graph, words)
    if ("kernel" in words or "gpu" in words) and not device_work(graph)[graph.alive].any():
        lines.append("This trace holds no device work; it was recorded on the CPU only.")
    return "\n       ".join(lines)


def _layers_meant(graph: Graph, words: str) -> list[str]:
    """Return what to say of layers that were looked for, where the trace has none of them."""
    used = np.unique(graph.columns["layer"][graph.alive])
    layers = [graph.texts["layer"][code] for code in used.tolist() if code >= 0]
    if not layers:
        return ["This trace has no layers. Record it with `daydream collect`, or select by name or op."]
    said = []
    for typed in WANTED_LAYERS.findall(words):
        found = ast.literal_eval(typed)
        for wanted in [found] if isinstance(found, str) else found:
            if not fnmatch.filter(layers, wanted):
                near = nearest_layers(wanted, layers)
                hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
                said.append(f"No layer matches {wanted!r}.{hint}")
    if said:
        more = f" and {len(layers) - MOST_LAYERS:,} more" if len(layers) > MOST_LAYERS else ""
        said.append(f"Layers are {', '.join(layers[:MOST_LAYERS])}{more}.")
    return said


def nearest_layers(wanted: str, layers: Sequence[str]) -> list[str]:
    """Return patterns (or paths) like the one that was `wanted` which some of the layers match.

    The first part of the path that no layer has is spelled as the nearest one that layers have there.
    """
    parts = wanted.split(".")
    for place, part in enumerate(parts):
        before = ".".join(parts[:place])
        here = sorted({
            layer.split(".")[place] for layer in layers
            if layer.count(".") >= place and fnmatch.fnmatchcase(".".join(layer.split(".")[:place]), before)
        })  # fmt: skip
        if fnmatch.filter(here, part):
            continue
        plain = GLOB.sub("", part)
        spelled = [
            ".".join([*parts[:place], each + ("*" if part.endswith("*") else ""), *parts[place + 1 :]])
            for each in closest(plain, here, 3, 0.7)
        ]
        matched = [pattern for pattern in spelled if fnmatch.filter(layers, pattern)]
        if matched:
            return matched[:2]
        break
    return closest(GLOB.sub("", wanted).strip("."), layers, 3)
