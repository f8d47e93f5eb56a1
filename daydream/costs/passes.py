"""How many values kernels pass over, by their names and grids: torch's element-wise and multi-tensor kernels.

An element-wise kernel has a block for so many elements of its result (ATen's `CUDALoops.cuh`: 4 a thread
unless its name says otherwise, since torch 2.7 twice as many of vectorized ones). A multi-tensor kernel's
functor names how many lists it reads and which it writes.
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import unique
from daydream.costs.kernels import grid_blocks
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection
from daydream.lazy import regex

ELEMENTWISE = regex(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel<(?:\(int\))?(\d+), (?:\(int\))?(\d+)")
VECTORIZED = regex(r"(?:vectorized|unrolled)_elementwise_kernel<(?:\(int\))?(\d+)")
THREADS, EACH = 128, 4  # of torch's element-wise kernels: threads a block, elements a thread
# Since torch 2.7 vectorized kernels have 8 elements a thread (`elems_per_thread`). It shows by vectors of 8
# (on Hopper and Blackwell), unrolled kernels that name how many elements they have, or CUDA 12.8: torch 2.6
# was built for 12.6 at most.
EACH_SINCE_2_7 = 8
SINCE_2_7 = regex(
    r"vectorized_elementwise_kernel<8,|unrolled_elementwise_kernel<.*std::array<char ?\*, \d+ul>, \d+,"
)
CUDA_SINCE_2_7 = 12_070
FUSED = regex(r"Fused\w+MathFunctor<\w+, (?:\(int\))?(\d+)")
# Of a functor: the type, the lists, how many of them it reads, which one it writes.
MULTI_TENSOR = regex(
    r"multi_tensor_apply.*Functor<[\w:]+, (?:\(int\))?\d+, (?:\(int\))?(\d+), (?:\(int\))?\d+>"
)
WEIGHT_GRADIENT = r"gemm\w*_nt(?:_|\b)|wgrad"
FLOAT = 4  # bytes of a parameter
LEAST_SHARE = 0.1  # of the longest kind of pass: shorter ones are over counters of steps


def elements_a_thread(graph: Graph) -> int:
    """Return how many elements a thread of torch's vectorized kernels works out at least, by its version."""
    if any(SINCE_2_7.search(name) for name in graph.texts["name"]):
        return EACH_SINCE_2_7
    versions = {} if graph.trace is None else graph.trace.metadata.get("versions") or {}
    cuda = str(versions.get("cuda_runtime_version") or "")
    return EACH_SINCE_2_7 if cuda.isdigit() and int(cuda) > CUDA_SINCE_2_7 else EACH


def elements_a_block(name: str, each: int = EACH) -> int:
    """Return how many elements of the result a block of an element-wise kernel works out, 0 for others.

    Args:
        name: a kernel's.
        each: elements a thread of vectorized kernels.
    """
    found = VECTORIZED.search(name)
    if found:
        return THREADS * max(each, int(found[1]))
    found = ELEMENTWISE.search(name)
    return int(found[1]) * int(found[2]) if found else 0


def values_moved(name: str) -> int:
    """Return how many values a multi-tensor kernel reads and writes for each element, 0 for others.

    A fused update reads all of its lists and writes all but the gradients.
    """
    found = FUSED.search(name)
    if found:
        return 2 * int(found[1]) - 1
    found = MULTI_TENSOR.search(name)
    return int(found[1]) + 1 if found else 0


def value_ns(update: Selection) -> float | None:
    """Return what a multi-tensor update takes a step for each value that it moves of all parameters, ns.

    By the kernels that move them fastest: others pass several times. None where there are no such kernels.
    """
    kinds = [group for group in update.group_by("name") if values_moved(group.name[0] or "")]
    steps = max(len(unique(update.step)), 1)
    time = np.array([group.total("duration_ns") / steps for group in kinds])
    values = np.array([values_moved(group.name[0] or "") for group in kinds])
    counted = time >= LEAST_SHARE * time.max(initial=0)
    return float((time[counted] / values[counted]).min()) if counted.any() else None


def updated_by_grids(update: Selection, blocks: np.ndarray) -> tuple[int, int]:
    """Return tensors and elements that one step updates, by the element-wise kernels of its loop, else -1.

    Each kind of kernel runs at least once for each tensor. Small tensors are counted as whole blocks.
    """
    names, each = [name or "" for name in update.name.tolist()], elements_a_thread(update.graph)
    known = {name: elements_a_block(name, each) for name in set(names)}
    elements = np.array([known[name] for name in names], np.int64) * np.maximum(blocks, 0)
    steps = max(len(unique(update.step)), 1)
    found = []
    for name, block in known.items():
        mine = elements[np.array([one == name for one in names])]
        if mine.max() == elements.max(initial=0) > block:
            found.append((int(mine.sum()) // steps, len(mine) // steps))
    return min(found)[::-1] if found else (-1, -1)


def updated_mb(graph: Graph) -> float | None:
    """Return how many MiB of parameters one step updates, by the grids of its kernels, else None."""
    update = graph.select(kind="kernel", phase="optimizer")
    elements = updated_by_grids(update, grid_blocks(graph, update))[1] if len(update) else -1
    return None if elements < 0 else elements * FLOAT / 2**20


def weight_products(graph: Graph) -> np.ndarray:
    """Return the backward kernels that compute gradients of weights, in program order.

    cuBLAS names the layouts of both factors: of torch's row-major linear layers the forward product is `tn`,
    the gradient of the input `nn`, that of the weight `nt`. cuDNN's convolutions say `wgrad`.
    """
    kernels = graph.select(kind="kernel", phase="backward").where(lambda tasks: tasks.launch >= 0)
    return kernels.where(name=WEIGHT_GRADIENT).ids
