"""Compressed gradients: all-reduces in 16 bits with a cast before and behind each, or of low-rank factors."""

from __future__ import annotations

from typing import Literal

import numpy as np
from daydream.optimizations._gradient_collectives import (
    doubt_waiting,
    move_to_compute,
    sized_all_reduces,
    waiting_ns,
)
from daydream.optimizations._low_rank import factors_of

from daydream import Graph, GraphError, Selection
from daydream.costs import PROTOCOLS, floor_ns, itemsize, memory_bandwidth
from daydream.memory import Allocations, add_copies, gradient_bytes, parts_of
from daydream.model import BUCKET_MB, MIB, compute_lane
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
EXCLUDES = frozenset({"dgc", "blueconnect"})
CODE = "model.register_comm_hook(group, default_hooks.fp16_compress_hook)"

WIDTH = 2
LEAST_NS = min(protocol.base_ns for protocol in PROTOCOLS)  # of any collective, however short


def compression(
    graph: Graph, *, dtype: Literal["float16", "bfloat16"] = "float16", rank: int | None = None
) -> None:
    """Predict all-reduces of gradients in 16 bits, or with `rank` of their low-rank factors (PowerSGD).

    As with torch's `fp16_compress` and `bf16_compress` hooks, a kernel on the compute stream casts a bucket
    down before its all-reduce, one after it casts the result up; both bring their launches and take
    their bytes at the trace's own memory bandwidth. The all-reduce takes its time by the bytes that are
    left, but no less than the 6.6 us that any collective takes. The two of `dtype` differ in
    accuracy, not in time.

    With `rank` r a gradient of n x m values is exchanged as n x r values, then as m x r (Vogels et al.,
    2019; torch's `powerSGD_hook`, where r is 1 if not given), unless that saves less than half. A bucket then
    takes two all-reduces, one after the other, the first with what is not compressed; kernels before,
    between and after them pass over the gradients as the hook of torch 2.13.0 does, with error feedback.
    Left out is that each matrix has products and launches of its own (a fixed cost of a kernel is
    counted, CPU time is not), and to make the columns of the factors orthogonal: an upper bound.

    Memory: each bucket on its way is held in 16 bits besides; with `rank` what was not sent is kept, as
    large as all gradients, and the factors.

    Not modelled: convergence. Waiting for peers in the trace of one rank is scaled like the transfer; the
    range reaches to where all of it was waiting.

    Args:
        dtype: 16-bit type of the exchange.
        rank: Rank of PowerSGD's factors, in place of 16 bits.
    """
    if rank is not None and rank < 1:
        raise GraphError(f"rank must be 1 or more, not {rank}")
    reduced = sized_all_reduces(graph)
    lane, rate = compute_lane(graph), memory_bandwidth(graph)
    width = np.array([itemsize(one or "float32") or 4 for one in reduced.dtype.tolist()])
    if rank is None:
        wide = width > WIDTH
        if not wide.any():
            graph.does_not_apply("its gradients are reduced in 16 bits or less already")
        reduced, width = graph.tasks(reduced.ids[wide]), width[wide]
    if lane is None or rate is None:
        graph.does_not_apply("how fast a device would compress is not known: it shows no memory bandwidth")
    if rank is not None:
        _in_factors(graph, reduced, width, rank, lane, rate)
        return
    nbytes, left = reduced.bytes, WIDTH / width
    cast = floor_ns(graph) + nbytes * (1 + left) / rate
    waited_ns, time = waiting_ns(reduced), _scaled(reduced, left)

    parts = reduced.split(3, launched=True).ids.reshape(-1, 3)
    first, middle, last = (graph.tasks(part) for part in parts.T)
    first.set(name="cast down", kind="kernel", duration_ns=cast, gap_ns=0)
    middle.set(duration_ns=time, dtype=dtype, bytes=nbytes * left)
    doubt_waiting(middle, waited_ns)
    last.set(name="cast up", kind="kernel", duration_ns=cast)
    move_to_compute(first, lane)


def _in_factors(
    graph: Graph, reduced: Selection, width: np.ndarray, rank: int, lane: str, rate: float
) -> None:
    """Put three kernels and two all-reduces in the place of each one that is compressed."""
    factors = factors_of(graph, reduced, rank)
    some = factors.matrices > 0
    if not some.any():
        graph.does_not_apply(f"no gradient has so many rows and columns that rank {rank} saves half of it")
    reduced, width, factors = graph.tasks(reduced.ids[some]), width[some], factors.where(some)
    elements = reduced.bytes / width
    rest = elements - factors.compressed
    fixed = floor_ns(graph) * factors.matrices
    # Values read and written: the error is added (3) and the sum kept (2), P is made (1 and P); Q is made
    # (1, P and Q); the product is written (P, Q and 1), the new error too (3). What is not compressed
    # is copied together and back.
    left, right = factors.left, factors.right
    make = fixed + (5 * elements + factors.compressed + left + 2 * rest) * width / rate
    middle = fixed + (factors.compressed + left + right) * width / rate
    back = fixed + (3 * elements + factors.compressed + left + right + 2 * rest) * width / rate
    sent, sent_right = (left + rest) / elements, right / elements
    time, time_right = _scaled(reduced, sent), _scaled(reduced, sent_right)
    nbytes, waited_ns = reduced.bytes, waiting_ns(reduced)
    steps = len(set(reduced.step.tolist()))
    graph.note(
        f"{factors.matrices.sum() / steps:,.0f} of {factors.tensors.sum() / steps:,.0f} gradients per step "
        f"go as factors of rank {rank}: {100 * ((sent + sent_right) * nbytes).sum() / nbytes.sum():.1f} % of "
        "the bytes. To make factors orthogonal and to launch for each matrix costs more than is counted."
    )

    parts = reduced.split(5, launched=True).ids.reshape(-1, 5)
    first, p, between, q, last = (graph.tasks(part) for part in parts.T)
    first.set(name="make P", kind="kernel", duration_ns=make, gap_ns=0)
    p.set(duration_ns=time, bytes=nbytes * sent)
    between.set(name="make Q", kind="kernel", duration_ns=middle)
    q.set(duration_ns=time_right, bytes=nbytes * sent_right)
    doubt_waiting(p, np.maximum(waited_ns - time_right, 0))
    last.set(name="P times Q", kind="kernel", duration_ns=back)
    move_to_compute(first, lane)


def _scaled(reduced: Selection, left: np.ndarray) -> np.ndarray:
    """Return the time of all-reduces of a part of their bytes."""
    time: np.ndarray = np.maximum(reduced.duration_ns * left, np.minimum(reduced.duration_ns, LEAST_NS))
    return time


def memory(
    held: Allocations, *, dtype: Literal["float16", "bfloat16"] = "float16", rank: int | None = None
) -> None:
    """Hold compressed buckets besides, and with `rank` the errors that are fed back."""
    if rank is not None:  # torch's powerSGD_hook: `error_dict`, a flat tensor a bucket
        add_copies(held, 1.0)
        return
    backward = parts_of(held, held.where(phase="backward"), held["step"])
    for (own, _, step), until in zip(backward.keys.tolist(), backward.until.tolist(), strict=True):
        mine = held.where(kind="gradient") & (held["rank"] == own) & (held["step"] == step)
        like = np.flatnonzero(mine)[:1]
        if len(like):
            total = gradient_bytes(held, own, int(held["device"][like[0]])) // 2
            one = min(total, round(BUCKET_MB * MIB) // 2)
            nbytes = held.among(one, one, total)
            held.add(like, bytes=nbytes, begin=held["begin"][mine].max(), end=until, kind="temporary")
