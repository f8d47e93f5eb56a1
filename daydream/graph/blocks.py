"""Blocks: modules chosen by a pattern, each with all the modules inside it."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

NUMBERED = re.compile(r"^(|.*[._])\d+$")  # `blocks.3`, `BertLayer_3`, `3`


def matching_blocks(graph: Graph, patterns: str | Sequence[str]) -> list[str]:
    """Return the outermost modules whose path matches a pattern, in the order of their names.

    Modules that were called count; a name that only stands in their paths (`blocks` of
    `blocks.0`) counts where no called module matches.
    """
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    called = _paths(graph)
    above = {path[: at.start()] for path in called for at in re.finditer(r"\.", path)}
    found = [path for path in called if _fits(path, wanted)] or [
        path for path in above if _fits(path, wanted)
    ]
    return _outermost(found)


def repeated_blocks(graph: Graph) -> list[list[str]]:
    """Return the outermost modules that come numbered, such as `blocks.0`, `blocks.1`, a list a family."""
    families: dict[str, list[str]] = {}
    for path in _paths(graph):
        if found := NUMBERED.match(path):
            families.setdefault(found.group(1), []).append(path)
    several = [path for family in families.values() if len(family) > 1 for path in family]
    outermost = set(_outermost(several))
    kept = [[path for path in family if path in outermost] for family in families.values()]
    return [sorted(family, key=_number) for family in kept if len(family) > 1]


def block_of_layers(graph: Graph, patterns: str | Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Return for each layer code (and, last, for none) its block's number, -1 if in none, and the blocks."""
    blocks = matching_blocks(graph, patterns)
    place = {block: number for number, block in enumerate(blocks)}
    number = np.full(len(graph.texts["layer"]) + 1, -1)
    for code, path in enumerate(graph.texts["layer"]):
        parts = path.split(".")
        outer = (".".join(parts[: depth + 1]) for depth in range(len(parts)))
        number[code] = next((place[one] for one in outer if one in place), -1)
    return number, blocks


def _paths(graph: Graph) -> list[str]:
    recorded = [] if graph.trace is None else graph.trace.text("layer")
    return sorted({*recorded, *graph.texts["layer"]} - {""}, key=_by_number)


def _fits(path: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _outermost(paths: list[str]) -> list[str]:
    chosen = set(paths)
    return sorted(
        (path for path in chosen if not any(path[: at.start()] in chosen for at in re.finditer(r"\.", path))),
        key=_by_number,
    )


def _number(path: str) -> int:
    return int(re.findall(r"\d+", path)[-1])


def _by_number(path: str) -> list[tuple[int, str]]:
    """Sort `blocks.10` behind `blocks.9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]
