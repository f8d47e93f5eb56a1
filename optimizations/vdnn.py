"""vDNN: feature maps wait for the backward pass in CPU memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import Operator, link_bandwidth, nodes_that, operators_that
from daydream.memory import (
    Allocations,
    calls_that_made,
    in_phase,
    input_of_parts,
    parts_of,
    put_away,
    renumber,
)
from daydream.model import input_bytes, makers_and_users
from daydream.transforms import stages

STAGE = stages.MEMORY
CODE = "torch.autograd.graph.save_on_cpu(pin_memory=True)"

OFFLOAD, PREFETCH = "vdnn offload", "vdnn prefetch"


def vdnn(
    graph: Graph, *, layers: Literal["conv", "all"] = "conv", ahead: int = 1, bandwidth: float | None = None
) -> None:
    """Predict the offloading of feature maps to CPU memory (Daydream, section 5.2).

    The input of each convolution (with `layers` all, of linear layers too) is copied to the CPU while
    the layer computes, from the start of its first kernel on; the next such layer starts when that copy is
    done, as the memory is freed then (Rhu et al., 2016). In the backward pass it comes back from when the
    layer `ahead` places before its use begins; the layer that needs it waits, so a late prefetch stalls.
    Copies go at `bandwidth` GB/s on two lanes of their own, prefetches in the order they are needed; by
    default at the rate of the trace's pinned copies, else 3/4 of the device's PCIe. The last layer's
    input stays, as its backward pass comes first.

    Memory: these inputs are gone from where the next such layer starts to where they are copied back.

    Not modelled: kernels that the copies slow, the larger batch that the memory allows.
    """
    if ahead < 1:
        raise GraphError(f"ahead must be 1 or more, not {ahead}")
    if bandwidth is not None and bandwidth <= 0:
        raise GraphError(f"bandwidth must be above 0 GB/s, not {bandwidth:g}")
    work = graph.select(on="gpu", phase=("forward", "backward"))
    work.need("device work in the forward and backward pass", lacks="device")
    fits, words = _layers(layers)
    calls, nodes = makers_and_users(work, operators_that(fits), nodes_that(fits), words)
    nbytes = input_bytes(calls)
    if (nbytes < 0).any():
        graph.does_not_apply("the trace does not say how large feature maps are; record it with shapes")
    step = calls.first().step
    places = np.arange(len(step))
    last = np.array([places[step == one].max() for one in step.tolist()])
    offloaded = places[places < last]
    if not len(offloaded):
        graph.does_not_apply("no step has two such layers, and the input of the last one stays")
    rates = [link_bandwidth(graph, way) if bandwidth is None else bandwidth for way in ("DtoH", "HtoD")]
    if None in rates:
        graph.does_not_apply("the link to the CPU is unknown; give --bandwidth in GB/s")
    needed = offloaded[::-1]  # of one start the copy that is needed first goes first
    first, use = calls.first(), nodes.first()
    begins = graph.tasks(use.ids[np.minimum(needed + ahead, last[needed])])
    to_cpu, to_device = (rate for rate in rates if rate)

    computing = graph.tasks(first.ids[offloaded])
    offloads = graph.insert_after(
        computing, "offload", kind="memcpy", lane=OFFLOAD, duration_ns=nbytes[offloaded] / to_cpu,
        bytes=nbytes[offloaded], before=graph.tasks(first.ids[offloaded + 1]),
    )  # fmt: skip
    prefetches = graph.insert_after(
        begins, "prefetch", kind="memcpy", lane=PREFETCH, duration_ns=nbytes[needed] / to_device,
        bytes=nbytes[needed], before=graph.tasks(use.ids[needed]),
    )  # fmt: skip
    for beside, copies in ((computing, offloads), (begins, prefetches)):
        graph.unlink(beside, copies)  # they run beside that work, not behind it
        graph.link(beside, copies, from_start=True)
    graph.schedule(PREFETCH, key="order")
    saved = nbytes[offloaded].sum() / len(np.unique(step))
    graph.note(
        f"Up to {saved / 2**20:,.0f} MiB of feature maps per step wait outside of the device's memory."
    )


def _layers(layers: str) -> tuple[Callable[[Operator], bool], str]:
    """Return which operators are of these layers, and what they are called."""
    if layers == "conv":
        return lambda op: op.formula == "convolution", "convolutions"
    return lambda op: op.formula == "convolution" or op.is_linear, "convolutions or linear layers"


def memory(
    held: Allocations,
    *,
    layers: Literal["conv", "all"] = "conv",
    ahead: int = 1,
    bandwidth: float | None = None,
) -> None:
    """Let the inputs of layers be gone between the two passes."""
    call = calls_that_made(held, operators_that(_layers(layers)[0]))
    forward, backward = (
        parts_of(held, (call >= 0) & in_phase(held, phase), held["step"], call)
        for phase in ("forward", "backward")
    )
    mate = backward.find(forward.keys)
    place = np.lexsort((forward.first, *forward.keys[:, 2::-1].T))
    place = place[mate[place] >= 0]  # the layers of a step, one after the other
    step = np.unique(forward.keys[place, :3], axis=0, return_inverse=True)[1].reshape(-1)
    last = np.searchsorted(step, step, side="right") - 1
    at = np.arange(len(place))
    inputs = input_of_parts(held, forward)[place]
    gone = forward.first[place[np.minimum(at + 1, last)]]
    back = backward.first[mate[place[np.minimum(at + ahead, last)]]]
    offloaded = (at < last) & (inputs >= 0)
    put_away(held, inputs[offloaded], gone[offloaded], back[offloaded])
    renumber(held)
