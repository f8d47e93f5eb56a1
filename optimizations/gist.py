"""Gist: feature maps are kept encoded between the forward and the backward pass."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import floor_ns
from daydream.memory import Allocations, calls_that_made, in_phase, parts_of, place_before, put_away, renumber
from daydream.model import input_bytes, makers_and_users
from daydream.transforms import stages

STAGE = stages.MEMORY
CODE = "torch.autograd.graph.saved_tensors_hooks(encode, decode)"

FORWARD = r"^aten::(relu_?|clamp_min_?|max_pool2d)$"
BACKWARD = r"(Relu|Threshold|ClampMin|MaxPool\w*)Backward\d*$"


def gist(graph: Graph, *, ratio: float = 2.0) -> None:
    """Predict the encoding of stored activations (Daydream, section 5.2).

    Behind each ReLU and max pooling of the forward pass a kernel encodes its output, `ratio`
    times smaller; before the backward pass of that layer another one decodes it. Both bring
    their launches. The layer's own kernel reads and writes a feature map once, so encoding
    (read it, write 1/ratio) and decoding take (1 + 1/ratio) / 2 of its time above the fixed
    cost of a kernel. A ratio of 2 is the half-width floats of Gist's delayed precision
    reduction, 32 its one bit a value of a ReLU whose sign is all that is needed.

    Memory: from the next call of the forward pass to the layer's backward pass such an output takes
    1/`ratio` of its bytes.

    Not modelled: sparse formats, whose ratio depends on the data; decoding inside the
    consumer's kernel; what lossy encodings do to convergence.

    Args:
        ratio: How many times smaller an encoded activation is.
    """
    if ratio < 1:
        raise GraphError(f"ratio must be 1 or more, not {ratio:g}")
    work = graph.select(kind="kernel", phase=("forward", "backward"))
    work.need("kernels in the forward and backward pass", lacks="device")
    calls, nodes = makers_and_users(work, FORWARD, BACKWARD, "ReLU or max pooling")
    made, floor = calls.last(), floor_ns(graph)
    fixed = np.minimum(floor, made.duration_ns)
    time = fixed + (made.duration_ns - fixed) * (1 + 1 / ratio) / 2
    nbytes = input_bytes(calls)

    graph.insert_after(made, "encode", duration_ns=time)
    graph.insert_before(nodes.first(), "decode", duration_ns=time)
    if (nbytes > 0).all():
        saved = nbytes.sum() * (1 - 1 / ratio) / len(made.group_by("step"))
        graph.note(f"Feature maps take {saved / 2**20:,.0f} MiB less between the passes.")
    else:
        graph.note("How much memory that saves is not known: the trace has no shapes.")


def memory(held: Allocations, *, ratio: float = 2.0) -> None:
    """Let outputs of ReLU and max pooling be encoded between the two passes."""
    every = parts_of(held, in_phase(held, "forward"), held["step"], calls_that_made(held, ""))
    call = calls_that_made(held, FORWARD)
    backward = parts_of(held, (call >= 0) & in_phase(held, "backward"), held["step"], call)
    rows = np.flatnonzero((call >= 0) & in_phase(held, "forward") & held.where(kind="activation"))
    begins = np.sort(every.first)
    at = np.searchsorted(begins, held["begin"][rows], side="right")
    gone = place_before(held, np.append(begins, [begins[-1:] + 1] * 2)[at + 1])  # the next call has read it
    keys = np.stack([held["rank"], held["repeat"], held["step"], call], axis=1)[rows]
    node = backward.find(keys)
    back = np.where(node >= 0, np.append(backward.first, 0)[node], -np.inf)
    put_away(held, rows, gone, back, left=1 / ratio)
    renumber(held)
