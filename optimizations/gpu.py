"""Another GPU: every kernel's time on a device of the table, or by a factor."""

from __future__ import annotations

import re

import numpy as np

from daydream import Graph, GraphError
from daydream.costs import (
    OVER_LINK,
    device_of,
    find_device,
    is_matrix,
    names_fit,
    retime,
    retime_untyped,
    say_evidence,
    under_load,
)
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.HARDWARE
memory = unchanged

MODEL_ERROR = 0.2  # of kernels whose type is known: `graph_diff.MODEL_ERROR`
SMALL = 0.005  # of the kernels' time
NARROW = re.compile(r"^(b?float16|float8|int8)")


def gpu(graph: Graph, *, to: str | None = None, speedup: float | None = None) -> None:
    """Predict the step on another GPU, for example `to="h100"`.

    Kernels are retimed for the device `to` by the roofline: each keeps its share of the peak that bounds
    it, in arithmetic or in bandwidth, and its fixed cost becomes the other device's. A kernel of few blocks
    goes with the rates of the units that it runs on. Copies to and from the CPU go with the peak rate of
    PCIe, others with the memory's bandwidth. Products of unknown element type take the middle of what 32 and
    16 bits give, and the range covers both; 16 bits are bfloat16 where that is what other kernels run in.
    Products in a type that the device has no units for are refused, by shapes or by name. Peaks are the
    vendors' (`costs/devices.py` names its sources), between AMD and NVIDIA the part of them that benchmarks
    sustain; where that is not published of a device, the range is wider. How well this does between two GPUs
    is in docs/costs.md.
    With `speedup` all kernels and copies within the device take 1/speedup of their time instead.

    CPU work, launch latencies and collectives stay. Not modelled: other kernels that libraries
    pick for the device, formats that only it has, memory size, clocks under load.
    """
    if (to is None) == (speedup is None):
        raise GraphError("name a GPU by to, such as h100, or give a speedup: one of them")
    kernels = graph.select(kind=("kernel", "memcpy", "memset"))
    kernels.where(kind="kernel").need("kernels on a GPU: it was recorded on a CPU", lacks="device")
    if speedup is not None:
        if speedup <= 0:
            raise GraphError(f"speedup must be more than 0, not {speedup:g}")
        if speedup == 1:
            graph.does_not_apply("a speedup of 1 leaves the GPU as it is")
        (kernels - kernels.where(kind="memcpy", name=OVER_LINK)).scale(1 / speedup)
    elif to is not None:
        old, new = device_of(graph), find_device(to)
        if old == new:
            graph.does_not_apply(f"the trace was recorded on a {old.name} already")
        products = kernels.where(lambda tasks: is_matrix(graph, tasks))
        for dtype in sorted({dtype for dtype in products.dtype.tolist() if dtype}):
            new.peak(new.matrix_format(dtype))  # refuses a type that it has no units for
        say_evidence(graph, kernels.where(kind="kernel"))
        retimed = retime(graph, kernels, device=new)
        untyped, middle, off = retime_untyped(graph, kernels, device=new)
        kernels.set(duration_ns=retimed.duration_ns)
        held = under_load(old, new).doubt
        if held and len(
            on_matrix_units := products.where(lambda tasks: names_fit(tasks.dtype, NARROW.search))
        ):
            on_matrix_units.doubt(np.hypot(held, MODEL_ERROR))
            graph.note(
                f"How much of their peaks a {old.name} and a {new.name} hold under load is not known of "
                f"both: products may take {held:.0%} more or less."
            )
        if untyped.any():
            share = retimed.before_ns[untyped].sum() / max(retimed.before_ns.sum(), 1)
            doubt = np.sqrt(off**2 + MODEL_ERROR**2 + held**2)
            graph.tasks(kernels.ids[untyped]).set(duration_ns=middle).doubt(doubt)
            say = graph.note if share >= SMALL else graph.facts.rules.append
            say(
                f"Products of unknown element type take {share:.1%} of the kernels' time: the range covers "
                "32 and 16 bits."
            )
        graph.note(f"From a {old.name} to a {new.name}. {retimed.words()}")
    if len(graph.select(kind="collective")):
        graph.note("Collectives keep their time; `network` predicts a faster link.")
