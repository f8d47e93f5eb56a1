"""Deep gradient compression: workers exchange the largest gradients only."""

from __future__ import annotations

import numpy as np
from daydream.optimizations._gradient_collectives import (
    doubt_waiting,
    move_to_compute,
    sized_all_reduces,
    waiting_ns,
)

from daydream import Graph, GraphError
from daydream.costs import PROTOCOLS, floor_ns, itemsize, memory_bandwidth, workers_of
from daydream.memory import Allocations, add_copies
from daydream.model import compute_lane
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
EXCLUDES = frozenset({"compression", "blueconnect"})
CODE = "model.register_comm_hook(state, top_k_hook)  # a hook of your own"

INDEX_BYTES = 4
# Values a gradient that compression reads and writes (Lin et al., 2018, algorithm 1 with momentum
# correction): momentum (2 read, 1 written), its sum (2, 1), selection (1 read), clearing both (2 written).
COMPRESS_VALUES = 9
LEAST_NS = min(protocol.base_ns for protocol in PROTOCOLS)  # of any collective, however short


def dgc(graph: Graph, *, ratio: float = 0.001, workers: int | None = None) -> None:
    """Predict deep gradient compression (Daydream, section 5.2).

    Before each all-reduce of gradients a kernel on the compute stream selects `ratio` of the values; an
    all-gather of values and 32-bit indices takes the place of the all-reduce; a kernel after it adds
    those of all workers up. All bring their launches. An all-gather of n workers moves
    n/2 x ratio x (value + index) bytes for each value that the all-reduce moved, and its time
    goes with that, but not below the 6.6 us that any collective takes. The kernels take their bytes at
    the trace's own memory bandwidth: to select 9 values for each gradient, to add up one written and
    three values (and an index) for each that was sent.

    0.1 % is the ratio of the paper (Lin et al., 2018) after its warm-up. `workers` is the job's if the
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
    lane, rate = compute_lane(graph), memory_bandwidth(graph)
    if lane is None or rate is None:
        graph.does_not_apply("how fast a device would compress is not known: it shows no memory bandwidth")
    width = np.array([itemsize(dtype or "float32") or 4 for dtype in reduced.dtype.tolist()])
    nbytes, time, waited_ns = reduced.bytes, reduced.duration_ns, waiting_ns(reduced)
    sent = ratio * nbytes / width
    gathered = np.maximum(time * (members * sent * (width + INDEX_BYTES) / (2 * nbytes)), LEAST_NS)
    select = floor_ns(graph) + COMPRESS_VALUES * nbytes / rate
    add_up = floor_ns(graph) + (nbytes + members * sent * (3 * width + INDEX_BYTES)) / rate

    parts = reduced.split(3, launched=True).ids.reshape(-1, 3)
    first, middle, last = (graph.tasks(part) for part in parts.T)
    first.set(name="compress", kind="kernel", duration_ns=select, gap_ns=0)
    middle.set(
        name="all-gather", duration_ns=gathered, collective="all_gather", bytes=sent * (width + INDEX_BYTES)
    )
    doubt_waiting(middle, waited_ns)
    last.set(name="decompress", kind="kernel", duration_ns=add_up)
    move_to_compute(first, lane)
    graph.note(f"{members} workers send {ratio:.3g} of their gradients each.")


def memory(held: Allocations, *, ratio: float = 0.001, workers: int | None = None) -> None:
    """Keep the part of gradients that was not sent, and its momentum."""
    add_copies(held, held.among(1.0, 2.0, 2.0))
