"""Compressed gradients: fewer bits, low-rank factors, or the largest values only."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from math import prod
from typing import Any, Literal

from daydream.optimizations._gradient_collectives import (
    doubt_waiting,
    move_to_compute,
    sized_all_reduces,
    waiting_ns,
)

from daydream import Graph, GraphError, Groups, NotApplicableError, Selection
from daydream.costs import WAYS, floor_ns, memory_bandwidth, workers_of
from daydream.memory import Allocations, add_copies, gradient_bytes, parts_of
from daydream.model import BUCKET_MB, MIB, compute_lane, gradients_of, shapes_in
from daydream.transforms import stages

STAGE = stages.COMMUNICATION

WIDTH = 2
INDEX_BYTES = 4
# Values a gradient that deep gradient compression reads and writes (Lin et al., 2018, algorithm 1 with
# momentum correction): momentum (2 read, 1 written), its sum (2, 1), selection (1 read), clearing both (2
# written).
COMPRESS_VALUES = 9
LEAST_NS = min(way.base_ns for way in WAYS)  # of any collective, however short
SAVED = 2  # least factor by which factors must be smaller: `min_compression_rate` of torch's PowerSGDState
UNLIKE = 0.01  # sums of gradients and of their all-reduces that differ by more are of different things


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
    if rank is None:
        wide = reduced.itemsize > WIDTH
        if not wide.any():
            graph.does_not_apply("its gradients are reduced in 16 bits or less already")
        reduced = reduced[wide]
    lane, rate = _compute(graph)
    if rank is not None:
        _in_factors(graph, reduced, rank, lane, rate)
        return
    left = WIDTH / reduced.itemsize
    nbytes = reduced.bytes
    cast = floor_ns(graph) + nbytes * (1 + left) / rate
    narrow = {"duration_ns": _scaled(reduced, left), "dtype": dtype, "bytes": nbytes * left}
    _replace(reduced, lane, {"cast down": cast, "cast up": cast}, [narrow])


def dgc(graph: Graph, *, ratio: float = 0.001, workers: int | None = None) -> None:
    """Predict deep gradient compression (Daydream, section 5.2).

    Before each all-reduce of gradients a kernel on the compute stream selects `ratio` of the values; an
    all-gather of values and 32-bit indices takes the place of the all-reduce; a kernel after it adds
    those of all workers up. All bring their launches. An all-gather of n workers moves
    n/2 x ratio x (value + index) bytes for each value that the all-reduce moved, and its time
    goes with that, but not below the 6.6 us that any collective takes. The kernels take their bytes at
    the trace's own memory bandwidth: to select 9 values for each gradient, to add up one written and
    three values (and an index) for each that was sent.

    0.1% is the ratio of the paper (Lin et al., 2018) after its warm-up. `workers` is the job's if the
    trace has it. Memory: what was not sent is kept, with its momentum: two values a gradient, one where
    the optimizer has a momentum that they replace (Lin et al., algorithm 2). Not modelled: the sample
    that finds the threshold, convergence. Waiting for peers in the trace of one rank is scaled like the
    transfer; the range reaches to where all of it was waiting.

    Args:
        ratio: Share of the gradients that is sent.
        workers: Number of GPUs, if the trace does not show it.
    """
    if not 0 < ratio <= 1:
        raise GraphError(f"ratio must be above 0 and at most 1, not {ratio:g}")
    reduced = sized_all_reduces(graph)
    members = workers_of(graph, workers)
    lane, rate = _compute(graph)
    width = reduced.itemsize
    nbytes = reduced.bytes
    sent = ratio * nbytes / width
    share = members * sent * (width + INDEX_BYTES) / (2 * nbytes)
    gathered = (reduced.duration_ns * share).clip(LEAST_NS)
    select = floor_ns(graph) + COMPRESS_VALUES * nbytes / rate
    add_up = floor_ns(graph) + (nbytes + members * sent * (3 * width + INDEX_BYTES)) / rate
    gather = {"duration_ns": gathered, "name": "all-gather", "collective": "all_gather"}
    gather["bytes"] = sent * (width + INDEX_BYTES)
    _replace(reduced, lane, {"compress": select, "decompress": add_up}, [gather])
    graph.note(f"{members} workers send {ratio:.3g} of their gradients each.")


def _in_factors(graph: Graph, reduced: Selection, rank: int, lane: str, rate: float) -> None:
    """Put three kernels and two all-reduces in the place of each one that is compressed."""
    of_step = reduced.group_by("step", "rank")
    reduced, factors = _factors(graph, of_step, rank)
    if not len(reduced):
        graph.does_not_apply(f"no gradient has so many rows and columns that rank {rank} saves half of it")
    tensors, matrices, compressed, left, right = (
        reduced.group_by([*range(len(reduced))]).total(each) for each in zip(*factors, strict=True)
    )
    width = reduced.itemsize
    nbytes = reduced.bytes
    elements = nbytes / width
    rest = elements - compressed
    # Values read and written: the error is added (3) and the sum kept (2), P is made (1 and P); Q is made
    # (1, P and Q); the product is written (P, Q and 1), the new error too (3). What is not compressed
    # is copied together and back.
    made = {
        "make P": 5 * elements + compressed + left + 2 * rest,
        "make Q": compressed + left + right,
        "P times Q": 3 * elements + compressed + left + right + 2 * rest,
    }
    kernels = {name: floor_ns(graph) * matrices + values * width / rate for name, values in made.items()}
    sent = (left + rest) / elements, right / elements
    steps = len(set(reduced.step.tolist()))
    graph.note(
        f"{matrices.sum() / steps:,.0f} of {tensors.sum() / steps:,.0f} gradients per step "
        f"go as factors of rank {rank}: {100 * (sum(sent) * nbytes).sum() / nbytes.sum():.1f}% of "
        "the bytes. To make factors orthogonal and to launch for each matrix costs more than is counted."
    )
    both = [{"duration_ns": _scaled(reduced, part), "bytes": nbytes * part} for part in sent]
    _replace(reduced, lane, kernels, both)


def _replace(
    reduced: Selection,
    lane: str,
    kernels: dict[str, Any],
    transfers: list[dict[str, Any]],
) -> None:
    """Put kernels (name and ns) before, between and after transfers in the place of each all-reduce."""
    waited_ns = waiting_ns(reduced)
    count = len(kernels) + len(transfers)
    split = reduced.split(count, launched=True)
    parts = [split[place::count] for place in range(count)]
    for part, (name, time) in zip(parts[::2], kernels.items(), strict=True):
        part.set(name=name, kind="kernel", duration_ns=time)
    for part, columns in zip(parts[1::2], transfers, strict=True):
        part.set(**columns)
    parts[0].set(gap_ns=0)
    others = sum(columns["duration_ns"] for columns in transfers[1:])
    doubt_waiting(parts[1], (waited_ns - others).clip(0))
    move_to_compute(parts[0], lane)


def _compute(graph: Graph) -> tuple[str, float]:
    """Return the compute stream, and the bytes a ns that a kernel on it moves."""
    lane = compute_lane(graph)
    rate = memory_bandwidth(graph)
    if lane is None or rate is None:
        graph.does_not_apply("how fast a device would compress is not known: it shows no memory bandwidth")
    return lane, rate


def _scaled(reduced: Selection, left: Any) -> Any:
    """Return the time of all-reduces of a part of their bytes."""
    return (reduced.duration_ns * left).clip(reduced.duration_ns.clip(max=LEAST_NS))


def _factors(graph: Graph, of_step: Groups, rank: int) -> tuple[Selection, list[list[int]]]:
    """Return the all-reduces with gradients that are compressed, and what is in each.

    That is the number of its gradients, of those that are compressed, their values, and those of P and of Q.
    A gradient's first dimension gives the rows, all others together the columns. The gradients of a
    step fill its all-reduces in the order in which they are ready. Those of steps whose sums differ hold
    none here. Raises `NotApplicableError` where shapes are unknown or no step's sums agree.
    """
    gradients = gradients_of(graph)
    shapes = [(shapes_in(text) or [[]])[0] if text else [] for text in gradients.nodes.shapes]
    nbytes = [prod(shape) * width for shape, width in zip(shapes, gradients.nodes.itemsize, strict=True)]
    if not all(shapes) or nbytes != gradients.nbytes.tolist():
        raise NotApplicableError("the shapes of this trace's gradients are unknown; record it with shapes")
    found: dict[int, list[int]] = {}
    by_step: dict[Any, list[tuple[int, list[int]]]] = {}
    for step, *gradient in zip(gradients.step_and_rank, nbytes, shapes, strict=True):
        by_step.setdefault(step, []).append((gradient[0], gradient[1]))
    for step, members in by_step.items():
        reduced = of_step[step] if step in of_step.keys else of_step.tasks[:0]
        filled = [*accumulate(reduced.bytes.tolist())]
        total = sum(size for size, _ in members)
        if not filled or abs(total - filled[-1]) > UNLIKE * filled[-1]:
            continue
        before = 0
        for size, (rows, *others) in members:
            at = min(bisect_left(filled, before + size / 2), len(filled) - 1)
            before += size
            columns = prod(others)
            thin = min(rows, columns, rank)
            small = (rows + columns) * thin * SAVED < rows * columns
            holds = [1, small, small * rows * columns, small * rows * thin, small * columns * thin]
            old = found.get(int(reduced.ids[at]), [0] * len(holds))
            found[int(reduced.ids[at])] = [one + more for one, more in zip(old, holds, strict=True)]
    if not found:
        raise NotApplicableError(
            "the gradients of a step are not as large as what its all-reduces hold together"
        )
    some = [task for task in of_step.tasks.ids.tolist() if found.get(task, [0, 0])[1]]
    return graph.tasks(some), [found[task] for task in some]


def memory(held: Allocations, *, rank: int | None = None, **options: Any) -> None:
    """Hold compressed buckets besides, and with `rank` the errors that are fed back."""
    if rank is not None:  # torch's powerSGD_hook: `error_dict`, a flat tensor a bucket
        add_copies(held, 1.0)
        return
    backward = parts_of(held, held.where(phase="backward"), held["step"])
    for (own, _, step), until in zip(backward.keys.tolist(), backward.until.tolist(), strict=True):
        mine = held.where(kind="gradient") & (held["rank"] == own) & (held["step"] == step)
        like = mine.nonzero()[0][:1]
        if len(like):
            total = gradient_bytes(held, own, int(held["device"][like[0]])) // 2
            one = min(total, round(BUCKET_MB * MIB) // 2)
            nbytes = held.among(one, one, total)
            held.add(like, bytes=nbytes, begin=held["begin"][mine].max(), end=until, kind="temporary")


def _keep_unsent(held: Allocations, **options: Any) -> None:
    """Keep the part of gradients that was not sent, and its momentum."""
    add_copies(held, held.among(1.0, 2.0, 2.0))


COMMANDS = {
    "compression": {
        "EXCLUDES": {"dgc"},
        "CODE": "model.register_comm_hook(group, default_hooks.fp16_compress_hook)",
    },
    "dgc": {
        "CODE": "model.register_comm_hook(state, top_k_hook)  # a hook of your own",
        "memory": _keep_unsent,
    },
}
