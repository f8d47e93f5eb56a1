"""Compressed gradients: all-reduces in 16 bits, with a cast before and behind each."""

from __future__ import annotations

from typing import Literal

import numpy as np

from daydream import Graph
from daydream.costs.achieved import memory_bandwidth
from daydream.costs.buckets import compute_lane
from daydream.costs.clusters import PROTOCOLS
from daydream.costs.kernels import floor_ns
from daydream.costs.work import itemsize
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
EXCLUDES = frozenset({"dgc", "blueconnect"})

ARRIVAL = r"^arrival$"  # where a member stands until all peers are there
WIDTH = 2
LEAST_NS = min(protocol.base_ns for protocol in PROTOCOLS)  # of any collective, however short


def compression(graph: Graph, *, dtype: Literal["float16", "bfloat16"] = "float16") -> None:
    """Predict all-reduces of gradients in 16 bits.

    As with torch's `fp16_compress` and `bf16_compress` hooks, a kernel on the compute stream casts a bucket
    down before its all-reduce, one behind it casts the result up; both bring their launches and take
    their bytes at the trace's own memory bandwidth. The all-reduce takes its time by the bytes that are
    left, but no less than the 6.6 us that any collective takes. float16 and bfloat16 differ in
    accuracy, not in time.

    Not modelled: convergence; waiting for peers in the trace of one rank is scaled like the transfer.
    """
    reduced = graph.select(kind="collective", collective="all_reduce", phase="backward")
    reduced = (reduced - reduced.where(name=ARRIVAL)).need("all-reduce in the backward pass")
    reduced = reduced.where(lambda tasks: tasks.bytes > 0).need("all-reduce of known size")
    width = np.array([itemsize(one or "float32") or 4 for one in reduced.dtype.tolist()])
    wide = width > WIDTH
    if not wide.any():
        graph.does_not_apply("its gradients are reduced in 16 bits or less already")
    reduced, width = graph.tasks(reduced.ids[wide]), width[wide]
    lane, rate = compute_lane(graph), memory_bandwidth(graph)
    if lane is None or rate is None:
        graph.does_not_apply("how fast a device would cast is not known: it shows no memory bandwidth")
    nbytes, left = reduced.bytes, WIDTH / width
    time = np.maximum(reduced.duration_ns * left, np.minimum(reduced.duration_ns, LEAST_NS))
    cast = floor_ns(graph) + nbytes * (1 + left) / rate

    parts = reduced.split(3, launched=True).ids.reshape(-1, 3)
    first, middle, last = (graph.tasks(part) for part in parts.T)
    first.set(name="cast down", kind="kernel", duration_ns=cast, gap_ns=0)
    middle.set(duration_ns=time, dtype=dtype, bytes=nbytes * left)
    last.set(name="cast up", kind="kernel", duration_ns=cast)
    if lane not in {
        name.removeprefix(f"rank {rank} ") for name, rank in zip(first.lane, first.rank, strict=True)
    }:
        first.move(lane, follows=False)
