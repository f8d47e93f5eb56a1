"""Layers: the qualified module path of each row, and which forward operator a backward node belongs to."""

from __future__ import annotations

import re

import numpy as np

from daydream.collect.nesting import Nesting, nearest
from daydream.collect.phases import NODE_RANGE, OLD_NODE
from daydream.collect.recording import Recording
from daydream.trace import UNKNOWN

ACCUMULATE_GRAD = re.compile(r"AccumulateGrad$")


def link_forward(recording: Recording) -> np.ndarray:
    """Return for each backward node the last forward operator with its sequence number, else unknown.

    The number counts per forward thread. Several forward operators may carry it (a
    composite and its parts): the node belongs to the last one.
    """
    found = np.full(len(recording), UNKNOWN, np.int32)
    sequence = np.asarray(recording["sequence"])
    numbered = recording.is_kind("operator") & (sequence >= 0)
    backward = numbered & (
        recording.named(NODE_RANGE)
        | recording.named(OLD_NODE)
        | (np.asarray(recording["forward_thread"]) > 0)
    )
    nodes, forward = np.flatnonzero(backward), np.flatnonzero(numbered & ~backward)
    if not len(nodes) or not len(forward):
        return found
    start = recording["start_ns"]
    threads = recording.threads
    lanes = np.unique(threads[forward])
    lane_of_node = _forward_lanes(recording, nodes, forward, threads, lanes)
    key = _join(np.searchsorted(lanes, threads[forward]), sequence[forward])
    order = np.lexsort((forward, start[forward], key))
    forward, key = forward[order], key[order]
    wanted = _join(lane_of_node, sequence[nodes])
    # The last forward operator with this key that began before the node.
    both = np.lexsort((
        np.append(np.zeros(len(forward), np.int8), np.ones(len(nodes), np.int8)),
        np.append(start[forward], start[nodes]),
        np.append(key, wanted),
    ))  # fmt: skip
    is_node = both >= len(forward)
    slot = np.cumsum(~is_node)[is_node] - 1
    node = both[is_node] - len(forward)
    match = (slot >= 0) & (key[np.maximum(slot, 0)] == wanted[node])
    found[nodes[node[match]]] = forward[slot[match]]
    return found


def _join(lane: np.ndarray, sequence: np.ndarray) -> np.ndarray:
    return np.asarray(lane.astype(np.int64) << 40 | (sequence.astype(np.int64) & ((1 << 40) - 1)))


def _forward_lanes(
    recording: Recording, nodes: np.ndarray, forward: np.ndarray, threads: np.ndarray, lanes: np.ndarray
) -> np.ndarray:
    """Return for each node which of the forward threads its autograd thread id means.

    Kineto numbers forward threads its own way; with several, each id is taken to be
    the thread that holds most of its sequence numbers.
    """
    if len(lanes) == 1:
        return np.zeros(len(nodes), np.int64)
    sequence = np.asarray(recording["sequence"])
    ids = np.asarray(recording["forward_thread"])[nodes]
    lane = np.zeros(len(nodes), np.int64)
    for one in np.unique(ids).tolist():
        wanted = np.unique(sequence[nodes[ids == one]])
        hits = [np.isin(wanted, sequence[forward[threads[forward] == thread]]).sum() for thread in lanes]
        lane[ids == one] = int(np.argmax(hits))
    return lane


def find_layers(
    recording: Recording, nesting: Nesting, forward_of: np.ndarray
) -> tuple[np.ndarray, list[str]]:
    """Return each host row's layer as a code, and the layers; unknown where the file names none.

    Forward rows take the innermost module around them, backward rows the layer of
    their forward operator; a gradient is accumulated for the layer of the node before.
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
    if (forward_of >= 0).any():
        host = recording.is_kind("operator", "annotation", "runtime")
        module_layer = own.copy()
        node = np.flatnonzero(forward_of >= 0)
        own[node] = module_layer[forward_of[node]]
        _accumulate_like_node_before(recording, own, forward_of)
        # Inside a node: the innermost of module ranges (a recomputed forward) and nodes.
        holder = nearest((own >= 0) & host, nesting.parent)
        take = host & (own < 0) & (holder >= 0)
        own[take] = own[holder[take]]
    return own, texts


def _name_modules(
    recording: Recording, nesting: Nesting, modules: np.ndarray, own: np.ndarray, texts: list[str]
) -> None:
    """Give module rows their path: what the file says, else the names of the enclosing modules joined.

    A Python frame names one module object (`Conv2d_15`). Where it stands alone (a
    checkpointed block is run again by the autograd thread), its path is that of its other calls.
    """
    names = recording.texts_of("name", modules)
    name_of = {row: name or "" for row, name in zip(modules.tolist(), names, strict=True)}
    order = modules[np.lexsort((-nesting.duration_ns[modules], recording["start_ns"][modules]))].tolist()
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


def _accumulate_like_node_before(recording: Recording, own: np.ndarray, forward_of: np.ndarray) -> None:
    accumulate = np.flatnonzero(
        recording.is_kind("operator") & recording.named(ACCUMULATE_GRAD) & (forward_of < 0)
    )
    nodes = np.flatnonzero((forward_of >= 0) & (own >= 0))
    if not len(accumulate) or not len(nodes):
        return
    start, threads = recording["start_ns"], recording.threads
    rows = np.append(nodes, accumulate)
    order = np.lexsort((rows, start[rows], threads[rows]))
    is_node = order < len(nodes)
    slot = np.cumsum(is_node)[~is_node] - 1
    in_order = nodes[order[is_node]]
    target = rows[order[~is_node]]
    found = np.where(slot >= 0, in_order[np.maximum(slot, 0)], UNKNOWN)
    same = (found >= 0) & (threads[found] == threads[target])
    own[target[same]] = own[found[same]]
