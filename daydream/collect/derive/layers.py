"""Layers: the qualified module path of each row, and which forward operator a backward node belongs to."""

from __future__ import annotations

import numpy as np

from daydream.arrays import last_before, unique
from daydream.collect.derive.by_parameter import (
    Layers,
    own_accumulated,
    own_bucket_rows,
    own_updates,
)
from daydream.collect.derive.nesting import Nesting, nearest
from daydream.collect.derive.phases import NODE_RANGE, OLD_NODE
from daydream.collect.derive.recording import Recording
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN

AUTOGRAD_THREADS = "autograd_threads"  # metadata of a recording: thread id by autograd's own id
ACCUMULATE_GRAD = regex(r"AccumulateGrad$")


def link_forward(recording: Recording) -> np.ndarray:
    """Return for each backward node the last forward operator with its sequence number, else unknown.

    The number counts per forward thread. Several forward operators may carry it (a
    composite and its parts): the node belongs to the last one.
    """
    found = np.full(len(recording), UNKNOWN, np.int32)
    sequence = np.asarray(recording["sequence"])
    numbered = recording.is_kind("operator") & (sequence >= 0)
    backward = numbered & (
        recording.named(NODE_RANGE, "operator")
        | recording.named(OLD_NODE, "operator")
        | (np.asarray(recording["forward_thread"]) > 0)
    )
    nodes = np.flatnonzero(backward)
    forward = np.flatnonzero(numbered & ~backward)
    if not len(nodes) or not len(forward):
        return found
    start = recording["start_ns"]
    threads = recording.threads
    lanes = unique(threads[forward])
    lane_of_node = _forward_lanes(recording, nodes, forward, threads, lanes)
    key = _join(np.searchsorted(lanes, threads[forward]), sequence[forward])
    wanted = _join(lane_of_node, sequence[nodes])
    found[nodes] = np.append(forward, UNKNOWN)[
        last_before(key, start[forward], wanted, start[nodes])
    ]
    return found


def _join(lane: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    return np.asarray(lane.astype(np.int64) << 40 | (sequence.astype(np.int64) & ((1 << 40) - 1)))


def _forward_lanes(
    recording: Recording,
    nodes: np.ndarray,
    forward: np.ndarray,
    threads: np.ndarray,
    lanes: np.ndarray,
) -> np.ndarray:
    """Return for each node which of the forward threads its autograd thread id means.

    Autograd numbers forward threads its own way. Where the recording does not tell which is which,
    each id is taken to be the thread that holds most of its sequence numbers.
    """
    if len(lanes) == 1:
        return np.zeros(len(nodes), np.int64)
    told: dict[int, int] = recording.metadata.get(AUTOGRAD_THREADS, {})
    tids = recording["tid"][forward[np.unique(threads[forward], return_index=True)[1]]].tolist()
    sequence = np.asarray(recording["sequence"])
    ids = np.asarray(recording["forward_thread"])[nodes]
    lane = np.zeros(len(nodes), np.int64)
    for one in unique(ids).tolist():
        if told.get(one) in tids:
            lane[ids == one] = tids.index(told[one])
            continue
        wanted = unique(sequence[nodes[ids == one]])
        hits = [
            np.isin(wanted, sequence[forward[threads[forward] == thread]]).sum() for thread in lanes
        ]
        lane[ids == one] = int(np.argmax(hits))
    return lane


def find_layers(
    recording: Recording, nesting: Nesting, forward_of: np.ndarray, phase: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return each host row's layer as a code, and the layers; unknown where the file names none.

    Forward rows take the innermost module around them, backward rows the layer of
    their forward operator; a gradient is accumulated for the layer of the node before,
    or for the parameter's owner where the run's parameters are known. So is an update.
    A bucket's rows get their `phase` here too: nothing but the buckets tells them.
    """
    texts: list[str] = list(recording.text("layer"))
    own = np.array(recording["layer"], np.int32)
    modules = np.flatnonzero(recording.is_kind("module"))
    if len(modules):
        _name_modules(recording, nesting, modules, own, texts)
        inside = (own < 0) & (nesting.module >= 0)
        own[inside] = own[nesting.module[inside]]
    if not (own >= 0).any():
        return own, []
    layers = Layers(own, texts)
    accumulated = np.flatnonzero(recording.named(ACCUMULATE_GRAD, "operator") & (forward_of < 0))
    if (forward_of >= 0).any():
        host = recording.is_kind("operator", "annotation", "runtime")
        _node_layers(recording, nesting.parent, own, forward_of)
        threads = recording.threads
        nodes = np.flatnonzero((forward_of >= 0) & (own >= 0))
        # The node that ran last before each on its thread; rows are in the order of their starts.
        before = np.append(nodes, UNKNOWN)[
            last_before(threads[nodes], nodes, threads[accumulated], accumulated)
        ]
        own[accumulated[before >= 0]] = own[before[before >= 0]]
        own_accumulated(recording, accumulated, before, layers)
        _like_inner_row(nesting.parent, own, accumulated, accumulated)
        # Inside a node: the innermost of module ranges (a recomputed forward) and nodes.
        holder = nearest((own >= 0) & host, nesting.parent)
        take = host & (own < 0) & (holder >= 0)
        own[take] = own[holder[take]]
    own_updates(recording, nesting.parent, phase, accumulated, layers)
    own_bucket_rows(recording, nesting.parent, phase, layers)
    return own, texts


def _node_layers(
    recording: Recording, parent: np.ndarray, own: np.ndarray, forward_of: np.ndarray
) -> None:
    """Give backward nodes the layer of their forward operator."""
    node = np.flatnonzero(forward_of >= 0)
    own[node] = own.copy()[forward_of[node]]
    # A gradient of a gradient: the forward operator ran inside another node, and is that one's.
    around = nearest(forward_of >= 0, parent)
    while len(missing := node[own[node] < 0]):
        origin = around[forward_of[missing]]
        known = (origin >= 0) & (own[origin] >= 0)
        if not known.any():
            break
        own[missing[known]] = own[origin[known]]
    # The range around a node whose hooks run first has lost its number.
    ranges = np.flatnonzero(recording.named(NODE_RANGE) & (own < 0))
    _like_inner_row(parent, own, node[own[node] >= 0], ranges)


def _like_inner_row(
    parent: np.ndarray, own: np.ndarray, inner: np.ndarray, outer: np.ndarray
) -> None:
    """Give each of the outer rows the layer of the inner row directly inside it."""
    inside = inner[(parent[inner] >= 0) & np.isin(parent[inner], outer)]
    own[parent[inside]] = own[inside]


def _name_modules(
    recording: Recording, nesting: Nesting, modules: np.ndarray, own: np.ndarray, texts: list[str]
) -> None:
    """Give module rows their path: what the file says, else the names of the enclosing modules joined.

    A Python frame names one module object (`Conv2d_15`). Where it stands alone (a
    checkpointed block is run again by the autograd thread), its path is that of its other calls.
    """
    names = recording.texts_of("name", modules)
    name_of = {row: name or "" for row, name in zip(modules.tolist(), names, strict=True)}
    order = modules[
        np.lexsort((-nesting.duration_ns[modules], recording["start_ns"][modules]))
    ].tolist()
    said = {row: texts[own[row]] for row in order if own[row] >= 0}
    paths = dict(said)
    elsewhere: dict[str, set[str]] = {}
    for row in order:
        above = paths.get(int(nesting.parent[row]))
        if row not in said:
            paths[row] = f"{above}.{name_of[row]}" if above else name_of[row]
        if above:
            elsewhere.setdefault(name_of[row], set()).add(paths[row])
    codes = {text: code for code, text in enumerate(texts)}
    for row in order:
        if row not in said:
            above = paths.get(int(nesting.parent[row]))
            known = elsewhere.get(name_of[row], set())
            alone = next(iter(known)) if len(known) == 1 else name_of[row]
            paths[row] = f"{above}.{name_of[row]}" if above else alone
        if paths[row] not in codes:
            codes[paths[row]] = len(texts)
            texts.append(paths[row])
        own[row] = codes[paths[row]]
