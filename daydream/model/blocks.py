"""Blocks: modules chosen by a pattern, each with all the modules inside it, or those a model repeats."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from daydream.graph.tables import phase_code
from daydream.lazy import regex

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

NUMBERED = regex(r"^(?:(?P<parent>.*)\.)?(?P<base>|[^.]*_)\d+$")  # `blocks.3`, `BertLayer_3`, `3`
TOGETHER = " + "  # a block of several modules is named by all of them: `2 + 3`

# Modules are of one kind if they share so many of the names of what is inside them. Dense layers of a
# transformer and those with experts share two of five, a residual block and one that also halves
# the size three of five, a block and the head behind it none.
ALIKE = 1 / 3


def matching_blocks(graph: Graph, patterns: str | Sequence[str]) -> list[str]:
    """Return the outermost modules whose path matches a pattern, in the order of their names.

    Modules that were called count; a name that only stands in their paths (`blocks` of
    `blocks.0`) counts where no called module matches. `2 + 3` is one block of two modules.
    """
    wanted = [patterns] if isinstance(patterns, str) else list(patterns)
    called = _paths(graph)
    together = [one for one in wanted if TOGETHER in one and set(one.split(TOGETHER)) & set(called)]
    above = {outer for path in called for outer in _around(path)}
    found = [path for path in called if _fits(path, wanted)] or [
        path for path in above if _fits(path, wanted)
    ]
    return sorted([*_outermost(found), *together], key=_by_number)


def repeated_blocks(graph: Graph) -> list[list[str]]:
    """Return the blocks that the model repeats, such as `blocks.0`, `blocks.1`, a list a family.

    These are modules with numbers and the same parent that are of one kind: with mostly the same modules
    inside, or, if they have none, the same operators. Where modules of several kinds follow each
    other in turn and have none inside, as in `Sequential(Linear, ReLU, Linear, ReLU)`, a block is what
    comes again, of several modules: `0 + 1`, `2 + 3`. What comes once is in no block, nor is what
    lies inside another block. Stages of more or fewer blocks, as `features.1` with `features.1.0` and
    `features.1.1`, are none: the blocks inside them are.
    """
    siblings: dict[str | None, list[str]] = {}
    called = _paths(graph)
    for path in called:
        if found := NUMBERED.match(path):
            siblings.setdefault(found["parent"], []).append(path)
    inside = _inside(called)
    operators = _operators(graph)
    begins = _first_runs(graph)
    families: list[list[str]] = []
    for paths in siblings.values():
        run = sorted(paths, key=lambda path: begins.get(path, -1))
        kinds = _kinds(run, inside, operators)
        whole = {kind for path, kind in zip(run, kinds, strict=True) if inside.get(path)}
        several = [kind for kind in sorted(whole) if kinds.count(kind) > 1]
        if several:
            of_kind: dict[int, list[str]] = {kind: [] for kind in several}
            for path, kind in zip(run, kinds, strict=True):
                if kind in of_kind:
                    of_kind[kind].append(path)
            families += of_kind.values()
        else:
            families.append(_in_turn(run, kinds))
    depth = _depths(called, families, inside)
    families = [
        family for family in families if not _are_stages([depth.get(path) for path in family])
    ]
    chosen = {path for family in families for block in family for path in block.split(TOGETHER)}
    outermost = set(_outermost(list(chosen)))
    kept = [
        [block for block in family if block.split(TOGETHER)[0] in outermost] for family in families
    ]
    return [sorted(family, key=_by_number) for family in kept if len(family) > 1]


def _depths(
    called: list[str],
    families: list[list[str]],
    inside: dict[str, set[str]],
) -> dict[str, int]:
    """Return the modules that consist of blocks of one family, or of a single block, and of how many."""
    children: dict[str, set[str]] = {}
    for path in called:
        children.setdefault(path.rpartition(".")[0], set()).add(path)
    repeated = [{path for path in family if path in inside} for family in families]

    def are_blocks(paths: set[str]) -> bool:
        alone = len(paths) == 1 and all(path in inside and NUMBERED.match(path) for path in paths)
        return alone or paths in repeated

    return {parent: len(paths) for parent, paths in children.items() if are_blocks(paths)}


def _are_stages(depths: list[int | None]) -> bool:
    """Tell whether all of a family consist of blocks, of more or fewer: blocks are equals."""
    return None not in depths and len(set(depths)) > 1


def block_of_layers(graph: Graph, patterns: str | Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Return which block each layer of the trace is in.

    Args:
        graph: the graph of the trace.
        patterns: shell patterns on module paths: `blocks.*`.

    Returns:
        by layer code, and at the end for no layer, the place of its block, -1 if in none, shape (layers +
        1,), int64; and the blocks.
    """
    block, blocks = block_of_paths(graph, patterns)
    return np.array([block(path) for path in (*graph.texts["layer"], None)]), blocks


def block_of_paths(
    graph: Graph, patterns: str | Sequence[str]
) -> tuple[Callable[[str | None], int], list[str]]:
    """Return a function from a module path to the place of its block, -1 if in none; and the blocks."""
    blocks = matching_blocks(graph, patterns)
    place = {path: number for number, block in enumerate(blocks) for path in block.split(TOGETHER)}

    @cache
    def block(path: str | None) -> int:
        outer = [*_around(path), path] if path else []
        return next((place[one] for one in outer if one in place), -1)

    return block, blocks


def _kinds(
    run: list[str],
    inside: dict[str, set[str]],
    operators: dict[str, set[str]],
) -> list[int]:
    """Return a number for the kind of each module; a module that is like one of a kind is of that kind."""
    members: list[list[tuple[str, bool, set[str]]]] = []
    found = []
    for path in run:
        match = NUMBERED.match(path)
        base = match["base"] if match else path
        names = inside.get(path) or operators.get(path, set())
        mine = (base, path in inside, names)
        like = [
            number for number, kind in enumerate(members) if any(_alike(mine, one) for one in kind)
        ]
        if not like:
            like = [len(members)]
            members.append([])
        kind = members[like[0]]
        if mine not in kind:
            kind.append(mine)
        found.append(like[0])
    return found


def _alike(one: tuple[str, bool, set[str]], other: tuple[str, bool, set[str]]) -> bool:
    if one[:2] != other[:2]:
        return False
    names = one[2]
    others = other[2]
    return names == others or len(names & others) >= ALIKE * len(names | others)


def _in_turn(run: list[str], kinds: list[int]) -> list[str]:
    """Return the blocks of a row of modules: the kinds that come again and again, as many modules as can be.

    Of several ways the shortest blocks count, and of these the first; no blocks where nothing comes again
    right behind itself.
    """
    best = 0
    chosen = (0, 1, 0)
    for length in range(1, len(kinds) // 2 + 1):
        again = 0
        for place in range(length, len(kinds)):
            again = again + 1 if kinds[place] == kinds[place - length] else 0
            times = again // length + 1
            if times > 1 and times * length > best:
                best = times * length
                chosen = place + 1 - length - again, length, times
    first, length, times = chosen
    return [
        TOGETHER.join(run[first + length * turn : first + length * (turn + 1)])
        for turn in range(times)
    ]


def _inside(called: list[str]) -> dict[str, set[str]]:
    """Return the modules inside each module that has any, by their paths in it without numbers."""
    found: dict[str, set[str]] = {}
    for path in called:
        for outer in _around(path):
            name = path[len(outer) + 1 :]
            found.setdefault(outer, set()).add(re.sub(r"_?\d+(?=\.|$)", "", name))
    return found


def _operators(graph: Graph) -> dict[str, set[str]]:
    """Return the operators that each module calls in the forward pass, without those that these call."""
    names: list[str | None]
    if graph.recorded.is_kind("operator").any():
        trace = graph.recorded
        texts = trace.text("layer")
        names = [*trace.text("name")]
        operator = trace.is_kind("operator")
        parent = trace["parent"]
        phases = np.array(
            [text in (None, "forward", "loss") for text in [*trace.text("phase"), None]]
        )
        outer = operator & ~((parent >= 0) & operator[parent]) & phases[trace["phase"]]
        rows = np.flatnonzero(outer & (trace["layer"] >= 0))
        pairs = np.stack([trace["layer"][rows], trace["name"][rows]])
    else:
        texts = graph.texts["layer"]
        names = [*graph.texts["op"]]
        ids = graph.ids[graph.phase[graph.ids] == phase_code("forward")]
        ids = ids[(graph.layer[ids] >= 0) & (graph.op[ids] >= 0)]
        pairs = np.stack([graph.layer[ids], graph.op[ids]])
    found: dict[str, set[str]] = {}
    for layer, name in np.unique(pairs, axis=1).T.tolist():
        found.setdefault(str(texts[layer]), set()).add(str(names[name]))
    return found


def _first_runs(graph: Graph) -> dict[str, int]:
    """Return where in program order the first task of each module, or of one inside it, stands."""
    columns = graph.columns
    ids = graph.ids
    first = np.full(len(graph.texts["layer"]) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, columns["layer"][ids], columns["order"][ids])
    found: dict[str, int] = {}
    for path, place in zip(graph.texts["layer"], first[:-1].tolist(), strict=True):
        for outer in [*_around(path), path]:
            found[outer] = min(place, found.get(outer, place))
    return found


def _paths(graph: Graph) -> list[str]:
    recorded = graph.recorded.text("layer")
    return sorted({*recorded, *graph.texts["layer"]} - {""}, key=_by_number)


def _fits(path: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _outermost(paths: list[str]) -> list[str]:
    chosen = set(paths)
    found = [path for path in chosen if chosen.isdisjoint(_around(path))]
    return sorted(found, key=_by_number)


def _around(path: str) -> list[str]:
    """Return the modules that a module is in, the outermost first: of `a.b.c` these are `a` and `a.b`."""
    return [path[: at.start()] for at in re.finditer(r"\.", path)]


def _by_number(path: str) -> list[tuple[int, str]]:
    """Sort `blocks.10` behind `blocks.9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]
