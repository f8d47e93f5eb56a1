"""Chains of operator calls that belong to one logical operation, and their fusion into one kernel each.

A chain is found in program order: every call gets a letter by its operator's name, and a
regular expression over the letters says which calls are one operation. The backward
nodes of a chain are found by the sequence numbers that autograd gives both.

Bounds of fusion: what one kernel can contain, whatever names and sequence numbers say.

Sequence numbers count the nodes that a thread makes, so an operator that makes none has the number of the
next one that does, and two threads have the same numbers: a chain may be given a node that is not its
own, and with it half a backward pass. No fused kernel holds a matrix product, a collective or a copy over
the link; it runs on one stream, and nothing that it computes is waited for, or multiplied, in between.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

import numpy as np

from daydream.arrays import distinct_rows, places, run_starts, take, unique
from daydream.costs.device.call_scaling import memory_bandwidth, works
from daydream.costs.kernels import floor_ns, work
from daydream.costs.operators import (
    MATRIX_CLASSES,
    MATRIX_FAMILIES,
    OVER_LINK,
    kernels_are,
    operators_that,
)
from daydream.costs.workload.calls import innermost_makers, nodes, of_rows, rows_above
from daydream.costs.workload.operator import itemsize
from daydream.errors import NotApplicableError
from daydream.graph.calls import call_rows, instances, shapes_in, unrecorded_launches
from daydream.graph.graph import Graph
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection
from daydream.model.captured import remove_with_operators

REDUCTIONS = ("reduction", "softmax", "normalization")
CAST = r"^aten::(to|_to_copy)$"
OTHER = "."  # letter of work that no word names
BETWEEN = "\n"  # no pattern matches across lanes and steps
NEARLY_ALL = 0.95  # of a function's forward work: then its one node is that work's


def work_tasks(graph: Graph) -> Selection:
    """Return the tasks that do the work: device work, or without any the CPU's.

    Raises:
        NotApplicableError: the trace records no operators.
    """
    if not graph.recorded.is_kind("operator").any():
        raise NotApplicableError(
            "this trace records no operators, so which kernels belong together is not known"
        )
    if unrecorded_launches(graph):
        raise NotApplicableError("calls of this trace launched device work that was not recorded")
    device = graph.select(on="gpu")
    return device if len(device) else graph.select(kind="cpu")


def find_chains(
    graph: Graph,
    words: Mapping[str, str],
    pattern: str,
    *,
    unseen: Selection | None = None,
    one_kernel: bool = True,
) -> Groups:
    """Return the work of forward calls that follow each other on a lane as a pattern says, a group a chain.

    Work of no word parts a chain, but for `unseen` tasks, and on the CPU views, allocations and calls that
    only call others. Forward passes that a checkpoint runs again count too. A chain holds two calls at least.

        find_chains(graph, {"x": r"^aten::(exp|amax|sub)$", "s": r"^aten::sum$"}, "x+sx*")

    Args:
        graph: the graph of the trace.
        words: letter -> regular expression on names of operators; the first that matches; of nested calls the
            outermost that has one.
        pattern: regular expression over the letters.
        unseen: tasks that part no chain.
        one_kernel: leave out chains with something that one kernel cannot do (`daydream.model.chains`).

    Returns:
        `Groups`, a group a chain.
    """
    tasks = _forward(graph, work_tasks(graph))
    letters, call = _letters(tasks, words)
    if unseen is not None:
        letters[tasks.is_in(unseen)] = ""
    chains = matched(tasks, letters, pattern, call)
    return can_fuse(chains) if one_kernel else chains


def matched(
    tasks: Selection, letters: np.ndarray, pattern: str, call: np.ndarray | None = None
) -> Groups:
    """Return tasks that follow each other on a lane in a step as a pattern says, a group for each match.

    Args:
        tasks: in program order.
        letters: one a task, "" for what is not seen: on a CPU it goes with what is around it.
        pattern: regular expression over the letters; two at least are a match.
        call: the number of each task's call, whose tasks are one letter; -1 for none. By default each is a letter.
    """
    lane, step = (
        getattr(tasks.graph, name)[tasks.ids].astype(np.int64) for name in ("lane", "step")
    )
    place = lane * (int(step.max(initial=0)) + 2) + step
    order = np.argsort(place, kind="stable")
    tasks = tasks.of(tasks.ids[order], tasks.words, ordered=True)
    letters = letters[order]
    seen = np.flatnonzero(letters != "")
    moved = run_starts(place[order][seen])
    starts = np.ones(len(seen), bool)
    if call is not None:
        own = call[order][seen]
        starts = moved | run_starts(own) | (own < 0)
    at = (
        np.cumsum(starts.astype(np.int64) + moved) - 1
    )  # a separator stands before each lane and step
    text = np.char.add(np.where(moved, BETWEEN, ""), letters[seen].astype(str))[starts]
    matches = [found for found in re.finditer(pattern, "".join(text)) if len(found[0]) > 1]
    of_letter = np.full(int(at[-1]) + 1 if len(at) else 0, -1)
    for number, found in enumerate(matches):
        of_letter[slice(*found.span())] = number
    chain = np.full(len(tasks), -1)
    chain[seen] = of_letter[at]
    if (tasks.kind == "cpu").all():  # views between two calls of a chain go with it
        hidden = np.flatnonzero(letters == "")
        known = np.concatenate([[-1], chain[seen], [-1]])
        next_seen = np.searchsorted(seen, hidden)
        before = known[next_seen]
        behind = known[next_seen + 1]
        chain[hidden] = np.where(before == behind, before, -1)
    return Groups(tasks, chain, list(range(len(matches))))


def backward_chains(chains: Groups) -> Groups:
    """Return the work of the autograd nodes of each chain's calls, a group a chain that has any.

    The key of a group is that of its chain. Empty where the trace has no sequence numbers.

    Raises:
        NotApplicableError: the calls are part of a compiled call or a custom function, which has one node for
            all that is in it.
    """
    graph = chains.tasks.graph
    trace = graph.recorded
    rank = trace["rank"]
    sequence = trace["sequence"]
    parent = trace["parent"]
    is_node = nodes(trace)
    work = chains.by_group
    number = np.repeat(np.arange(len(chains)), chains.sizes)
    up = graph.row[work.ids]
    found_rows = []
    found_places = []
    while (
        climbing := (up >= 0) & ~is_node[up]
    ).any():  # a node around it is not its own: it recomputes
        known = np.flatnonzero(climbing & (sequence[up] >= 0))
        found_rows.append(up[known])
        found_places.append(known)
        up = np.where(climbing, parent[up], -1)
    rows, places = (
        np.concatenate([np.zeros(0, np.int64), *each]) for each in (found_rows, found_places)
    )
    own = _has_own_node(graph, rows, number[places], work.duration_ns[places])
    keys = list(zip(rank[rows].tolist(), sequence[rows].tolist(), strict=True))
    chain_of = {
        key: chain
        for key, chain, is_own in zip(keys, number[places].tolist(), own, strict=True)
        if is_own
    }
    tasks = work_tasks(graph)
    node = innermost_makers(trace, graph.row[tasks.ids])
    there = np.flatnonzero((node >= 0) & is_node[node])
    of_node = list(zip(rank[node[there]].tolist(), sequence[node[there]].tolist(), strict=True))
    shared = set(of_node)
    unknown = {
        place
        for key, place, is_own in zip(keys, places.tolist(), own, strict=True)
        if not is_own and key in shared
    }
    if unknown - set(places[own].tolist()):
        raise NotApplicableError(
            "the backward pass of these calls is part of one node, of a compiled call or custom function "
            "with others in it: which of it is theirs is not recorded"
        )
    found = np.full(len(tasks), -1)
    found[there] = [chain_of.get(key, -1) for key in of_node]
    return Groups(tasks, found, chains.keys)


def _has_own_node(graph: Graph, rows: np.ndarray, chain: np.ndarray, ns: np.ndarray) -> np.ndarray:
    """Tell whether the node that each row makes is of its chain alone: bool, an entry a row.

    That of a library's operator is. A compiled call or another `autograd.Function` is one node for all
    the operators in it: it is the chain's if nearly all of that work, `ns` of it from each task below, is.
    """
    trace = graph.recorded
    whole = of_rows(trace, "name", lambda text: "::" not in text)[rows]
    if not whole.any():
        return ~whole
    parent = trace["parent"]
    total = np.zeros(len(trace))
    tasks = work_tasks(graph).where(
        lambda each: each.kind != "collective"
    )  # what it waits for is no work
    up = graph.row[tasks.ids]
    while (there := up >= 0).any():
        np.add.at(total, up[there], tasks.duration_ns[there])
        up = np.where(there, parent[up], -1)
    _, which = distinct_rows([rows, chain])
    together = np.bincount(which, ns)[which]
    return ~whole | (together >= NEARLY_ALL * total[rows])


def one_pass_ns(graph: Graph, chains: Groups, tensors: int) -> np.ndarray:
    """Return the time of each chain as one kernel that moves so many of its largest tensor, ns.

    The first is read in the type of the chain's first call, the others are in that of its
    last. Bytes go at the bandwidth that the trace's own streaming work reaches, or the chain's own
    reductions if these are slower (a sum over few rows), behind the fixed cost of a kernel. Where
    sizes are unknown, and on a CPU at least (its arithmetic stays), a chain takes as long as
    its longest call; never more than all of them together.
    """
    parts = chains.by_group
    together = chains.total("duration_ns")
    if not len(chains):
        return together
    on_cpu = bool((parts.kind == "cpu").all())
    starts = np.append(0, np.cumsum(chains.sizes))[:-1]
    longest = _longest_call(chains) if on_cpu else np.maximum.reduceat(parts.duration_ns, starts)
    rate = memory_bandwidth(graph, "cpu" if on_cpu else "gpu")
    texts, which = places(parts.shapes.astype(str))
    sizes = [max(map(prod, shapes_in(text)), default=-1) for text in texts.tolist()]  # -1: unknown
    largest = np.maximum.reduceat(np.array(sizes, np.int64)[which], starts)
    widths = [
        np.array([itemsize(name) or 0 for name in ends.dtype.tolist()])
        for ends in _typed_ends(chains)
    ]
    nbytes = largest * (widths[0] + (tensors - 1) * widths[1])
    known = (largest > 0) & (widths[0] > 0) & (widths[1] > 0)
    if rate is None:
        return np.minimum(longest, together)
    floor = 0.0 if on_cpu else floor_ns(graph)
    streamed = floor + nbytes / np.minimum(rate, _reduction_rate(parts, starts, floor))
    time = np.where(known, np.maximum(streamed, longest if on_cpu else 0), longest)
    return np.minimum(time, together)


def fuse_chains(chains: Groups, name: str, duration_ns: np.ndarray) -> Selection:
    """Put one kernel, or on a CPU one operator, in the place of each chain; return them.

    The first call stays with its launch; the others go with theirs and with their CPU time.
    """
    first = chains.first()
    behind = chains.last().gap_ns
    on_cpu = (first.kind == "cpu").all()
    remove_with_operators(chains.tasks - first)
    first.set(name=name, duration_ns=duration_ns)
    return first.set(gap_ns=behind) if on_cpu else first


def fuse_passes(chains: Groups, name: str, *, forward: int, backward: int) -> str:
    """Fuse each chain, and the backward nodes of its calls, to one kernel each.

    Args:
        chains: work of forward calls (`find_chains`).
        name: what the new kernels are called.
        forward: how many tensors the forward kernel reads and writes.
        backward: likewise the backward kernel.

    Returns:
        a sentence on what became of them, for `graph.note`.
    """
    graph = chains.tasks.graph
    nodes = can_fuse(backward_chains(chains))
    count = len(chains.tasks) + len(nodes.tasks)
    before = chains.total("duration_ns").sum()
    before += nodes.total("duration_ns").sum()
    after = fuse_chains(chains, name, one_pass_ns(graph, chains, forward)).total("duration_ns")
    if len(nodes):
        after += fuse_chains(nodes, f"{name} backward", one_pass_ns(graph, nodes, backward)).total(
            "duration_ns"
        )
    said = (
        f"{count:,} tasks of {before / 1e6:,.3f} ms become {len(chains):,} forward, {len(nodes):,} backward "
        f"of {after / 1e6:,.3f} ms."
    )
    if (chains.tasks.kind == "cpu").all():
        said += " On a CPU that is the least they can take: the longest of their parts, which compute as much."
    if not len(nodes) and len(graph.select(phase="backward")):
        said += " Which backward work is theirs is not known (no sequence numbers), so it stays."
    return said


def _forward(graph: Graph, tasks: Selection) -> Selection:
    """Return the work of neither the optimizer nor autograd nodes; what a checkpoint runs again is in."""
    rest = tasks - tasks.where(phase=("optimizer", "data"))
    row = innermost_makers(graph.recorded, graph.row[rest.ids])
    return rest.where(lambda _: (row < 0) | ~nodes(graph.recorded)[row])


def _letters(tasks: Selection, words: Mapping[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the letter of each task ("" for what does no work), and the number of its call, -1 for none."""
    graph = tasks.graph
    trace = tasks.graph.recorded
    union = "|".join(f"(?:{pattern})" for pattern in words.values())
    rows = call_rows(graph, tasks.ids, union)
    call = instances(graph, tasks.ids, union)

    def letter(text: str) -> str:
        return next((key for key, value in words.items() if re.search(value, text)), OTHER)

    found = take(of_rows(trace, "name", letter, none=OTHER), rows, OTHER)
    casts = call_rows(graph, tasks.ids, CAST) >= 0
    # A copy changes no type; what a product casts are its own operands, as autocast makes them.
    found[
        casts
        & (
            (tasks.kind == "memcpy")
            | (call_rows(graph, tasks.ids, operators_that(lambda op: op.is_matrix)) >= 0)
        )
    ] = OTHER
    parent = trace["parent"]
    working = trace.is_kind("operator") & of_rows(trace, "name", works)
    above = rows_above(parent, np.flatnonzero(working))
    inside = np.append(working | above, False)
    alone = np.append(working & ~above, False)
    own = np.where(rows >= 0, inside[rows], alone[graph.row[tasks.ids]])
    return np.where((tasks.kind == "cpu") & ~own, "", found), call


def _longest_call(chains: Groups) -> np.ndarray:
    """Return the time of the longest operator call of each chain; its inner calls are their own."""
    parts = chains.by_group
    number = np.repeat(np.arange(len(chains)), chains.sizes)
    first, which = distinct_rows([number, parts.call])
    time = np.bincount(which, parts.duration_ns, len(first))
    longest = np.zeros(len(chains))
    np.maximum.at(longest, number[first], time)
    return longest


def _reduction_rate(parts: Selection, starts: np.ndarray, floor: float) -> np.ndarray:
    """Return bytes/ns that the reductions of each chain reach together, infinite where it has none."""
    amounts = work(parts.graph, parts)
    reduces = amounts.is_of(*REDUCTIONS) & (amounts.nbytes > 0)
    body = np.where(reduces, np.maximum(parts.duration_ns - floor, 0), 0)
    time = np.add.reduceat(body, starts)
    nbytes = np.add.reduceat(np.where(reduces, amounts.nbytes, 0), starts)
    return np.where(time > 0, nbytes / np.maximum(time, 1e-9), np.inf)


def _typed_ends(chains: Groups) -> tuple[Selection, Selection]:
    """Return the first and the last task of known element type of each chain, else its first and last."""
    parts = chains.by_group
    typed = chains.span(parts.where(lambda tasks: tasks.dtype != None))  # noqa: E711 - an array of texts
    if len(typed) != len(chains):
        return chains.first(), chains.last()
    return typed.first(), typed.last()


def can_fuse(groups: Groups) -> Groups:
    """Return the groups that one kernel can do: of one lane and step, no product in or between them."""
    if not len(groups):
        return groups
    tasks = groups.by_group
    graph = tasks.graph
    columns = graph.columns
    number = np.repeat(np.arange(len(groups)), groups.sizes)
    starts = np.append(0, np.cumsum(groups.sizes))[:-1]
    first, last = (
        each(columns["order"][tasks.ids], starts)
        for each in (np.minimum.reduceat, np.maximum.reduceat)
    )
    allowed = np.ones(len(groups), bool)
    for name in ("lane", "step"):
        values = columns[name][tasks.ids]
        allowed &= np.minimum.reduceat(values, starts) == np.maximum.reduceat(values, starts)
    allowed[number[tasks.is_in(_unfusible(tasks))]] = False
    lane = columns["lane"][groups.first().ids]
    for each in unique(lane).tolist():
        mine = np.flatnonzero(lane == each)
        mates = graph.tasks(graph.ids[columns["lane"][graph.ids] == each])
        from daydream.costs.device.fusion import parting_calls

        parting = np.concatenate([_unfusible(mates).ids, parting_calls(graph, each)])
        points = np.sort(columns["order"][parting])
        crossed = np.searchsorted(points, last[mine]) - np.searchsorted(
            points, first[mine], side="right"
        )
        allowed[mine[crossed > 0]] = False
    return groups.where(allowed)


def _unfusible(tasks: Selection) -> Selection:
    """Return products, collectives and copies over the link among some tasks."""
    amounts = work(tasks.graph, tasks)
    products = tasks.where(lambda _: amounts.is_of(*MATRIX_FAMILIES))
    unknown = tasks.where(lambda _: amounts.is_of(None))
    by_name = unknown.where(kind="kernel").where(
        lambda kernels: kernels_are(kernels, *MATRIX_CLASSES, "collective", "partial sum")
    )
    by_name = by_name | unknown.where(op=operators_that(lambda op: op.is_matrix))
    return (
        products
        | by_name
        | tasks.where(kind="collective")
        | tasks.where(kind="memcpy", name=OVER_LINK)
    )
