"""DDP's buckets in a trace that tells neither their sizes nor which gradients they hold.

Nsight Systems records a bucket as a kernel of NCCL and no operator around it. How large it is follows
from how long it took, on links of known speed. Its gradients became ready between the launch of the bucket
before and its own, on the thread that runs the backward pass: a bucket is launched from the hook of its last
gradient.
"""

from __future__ import annotations

import numpy as np

from daydream import Graph, Selection
from daydream.costs import Cluster
from daydream.model import Gradients

LEAST, MOST = 2**10, 2**36  # bytes of an all-reduce; no more than a GPU's memory


def bytes_of_duration(old: Selection, cluster: Cluster, members: int) -> np.ndarray:
    """Return the bytes of each all-reduce, by the shortest time of its place in all steps.

    Recorded times hold waiting for peers, the shortest one least; so it is the most that was moved.
    """
    sizes = np.geomspace(LEAST, MOST, 200)
    times = np.maximum.accumulate([cluster.all_reduce_ns(size, members) for size in sizes])
    place = np.arange(len(old)) - np.searchsorted(old.step, old.step)
    shortest = np.zeros(len(old))
    for each in np.unique(place).tolist():
        shortest[place == each] = old.duration_ns[place == each].min()
    return np.rint(np.interp(shortest, times, sizes)).astype(np.int64)


def work_of_buckets(
    graph: Graph, old: Selection, nbytes: np.ndarray, lane: str
) -> tuple[Gradients, np.ndarray]:
    """Return stand-ins for gradients, and the recorded all-reduce that each was in.

    Kernels on `lane` that its thread launched since the bucket before share a bucket's bytes equally.
    """
    columns = graph.columns
    order, calls = columns["order"], old.launch
    work = graph.select(kind="kernel", lane=lane).where(lambda tasks: tasks.launch >= 0)
    work = work.where(lambda tasks: np.isin(columns["lane"][tasks.launch], columns["lane"][calls]))
    ids = work.need("backward kernels from the thread that launches its all-reduces").ids
    within = np.minimum(np.searchsorted(order[calls], order[columns["launch"][ids]]), len(old) - 1)
    mine = (columns["step"][ids] == old.step[within]) & (order[columns["launch"][ids]] < order[calls][within])
    ids, within = ids[mine], within[mine]
    empty = np.setdiff1d(np.arange(len(old)), within)  # nothing was launched since the one before
    before = np.maximum(np.searchsorted(within, empty) - 1, 0)
    ids, within = np.append(ids, ids[before]), np.append(within, empty)
    in_order = np.argsort(within, kind="stable")
    ids, within = ids[in_order], within[in_order]
    nodes = old.of(ids, "work of the backward pass", ordered=True)
    return Gradients(nodes, nodes, shared_equally(nbytes, within)), within


def shared_equally(total: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Return whole numbers, one for each entry of `within`, that add up to the total of each group."""
    members = np.bincount(within, minlength=len(total))
    place = np.arange(len(within)) - np.searchsorted(within, within)  # groups lie together, in order
    share, rest = np.divmod(total, np.maximum(members, 1))
    return share[within] + (place < rest[within])
