"""Data-loader workers: batches are made by other processes while the device computes."""

from __future__ import annotations

import numpy as np

from daydream import Graph, GraphError, Selection
from daydream.memory import unchanged
from daydream.model import (
    LoaderWaits,
    loads_by_processes,
    recorded_waits,
    untraced_waits,
)
from daydream.transforms import counted, stages

STAGE = stages.INPUT
CODE = "DataLoader(dataset, num_workers=workers, persistent_workers=True)"
memory = unchanged

POOL = "loader workers"
MOST_STEPS = 0.8  # wait where the main thread loads: every step but a few whose gap another call hides


def dataloader(
    graph: Graph, *, workers: int | None = None, get_ms: float = 1.5, recorded: int | None = None
) -> None:
    """Predict loading in worker processes, with batches ready when they are asked for.

    What the main thread did to make a batch goes to a lane of its own and runs ahead. With
    `workers` that lane gives a batch every 1/workers of the time one takes, so too few of
    them hold up the step; without, loading is hidden whole. On the main thread stays the
    fetching of a batch: `get_ms`, 1.2 to 1.7 ms measured for small batches waiting in the
    queue (torch 2.13.0, x86, one thread), more for large ones, whose shared memory has to be mapped.
    Device work of the loading phase and its launches stay where they are.

    Where no loader was recorded, as by Nsight Systems, the wait for a batch is the longest untraced
    stretch before a step's first copy to the device. Where workers load already and the program waits
    for them, a batch costs a worker the time between batches, times the workers. `recorded` is how
    many there are (0: the main thread loads); by default as the pattern of waits shows: so many
    batches come at once. Without pattern, the main thread is assumed to load. A ranking asks for twice as
    many as load already: how many hide loading depends on the machine's cores.

    Not modelled: that workers compete for cores, disk and memory with each other and the main process,
    that they run operators on one thread, the start of processes, a limit to how far they run ahead.

    Args:
        workers: Worker processes; by default loading is hidden.
        get_ms (ms): Time to fetch a batch from a worker.
        recorded: Workers in the trace, if unclear (0: none).
    """
    if workers is not None and workers < 1:
        raise GraphError(f"workers must be 1 or more, not {workers}")
    if recorded is not None and recorded < 0:
        raise GraphError(f"recorded must be 0 or more, not {recorded}")
    loading, waits = _loading(graph)
    least = get_ms * 1e6
    if waits.time_ns.max(initial=0) <= least:
        longest = waits.time_ns.max(initial=0) / 1e6
        graph.does_not_apply(
            f"no step waits longer than {longest:.2f} ms for its data, and fetching a batch from workers "
            f"costs {get_ms:g} ms (--get-ms): workers would save nothing"
        )
    if workers is None and loading is not None and loads_by_processes(loading):
        seen = waits.workers()
        now = "" if seen is None else f", {seen} of them as batches come in bursts"
        graph.note(
            f"Worker processes load already{now}: this is the step with loading hidden whole; --workers "
            "predicts so many of them."
        )
    before = None if workers is None else _workers_of(graph, loading, waits, recorded, least)
    if before == 0 and loading is not None and len(waits.tasks.group_by("rank", "step")) < len(waits.tasks):
        graph.does_not_apply(
            "several threads load already, as DALI's do: what of it torch's workers would do is not known"
        )

    get = graph.insert_after(
        waits.tasks, "fetch batch", duration_ns=np.minimum(waits.time_ns, least), gap_ns=0
    )
    if before is None or workers is None:
        _take_out(loading, waits)
        return
    if before == 0 and loading is not None:
        pool = loading.move(POOL, follows=False, held_for=False).scale(1 / workers, gaps=True)
        graph.link(pool.group_by("step", "lane").last(), get)
        pace = waits.time_ns.mean() / workers
    else:
        cost = waits.batch_cost_ns(before, least) / workers
        made = graph.insert_after(waits.tasks, "load batch", kind="cpu", duration_ns=cost, gap_ns=0)
        _take_out(loading, waits)
        graph.link(made.move(POOL, follows=False, held_for=False), get)
        pace = cost.mean()
    graph.note(f"{counted(workers, 'worker')} can make a batch every {pace / 1e6:,.1f} ms on average.")


def suggested_options(graph: Graph) -> dict[str, int] | None:
    """Return twice the workers that load already, nothing where the main thread does; None where unknown."""
    loading = graph.select(kind="cpu", phase="data")
    if not len(loading) or not loads_by_processes(loading):
        return {}
    seen = recorded_waits(graph, loading).workers()
    return None if seen is None else {"workers": 2 * seen}


def _loading(graph: Graph) -> tuple[Selection | None, LoaderWaits]:
    """Return the recorded CPU work of loading, None where there is none, and the waits for batches."""
    loading = graph.select(kind="cpu", phase="data")
    if not len(loading):
        waits = untraced_waits(graph)
        if not len(waits.time_ns):
            graph.does_not_apply("no step waits for a batch: none has untraced time before its first copy")
        graph.note(
            "No loader was recorded: the longest untraced time before each step's first copy to the device "
            f"is assumed to be the wait for its batch, {waits.time_ns.mean() / 1e6:,.1f} ms on average."
        )
        return None, waits
    device = graph.select(on="gpu", phase="data")
    loading = loading - loading.waiting() - device.launches()
    loading.need("loading on the CPU apart from its device work")
    return loading, recorded_waits(graph, loading)


def _workers_of(
    graph: Graph, loading: Selection | None, waits: LoaderWaits, recorded: int | None, least_ns: float
) -> int:
    """Return how many workers load in the recording; 0 where the main thread does."""
    threaded = loading is not None and loads_by_processes(loading)
    if recorded is not None:
        if threaded and not recorded:
            raise GraphError("recorded must be 1 or more: worker processes load in this trace")
        return recorded
    if loading is not None and not threaded:
        return 0
    seen = waits.workers()
    if seen is not None:
        graph.note(
            f"Batches come in bursts of {seen}, as from {counted(seen, 'worker')}. Were there more or fewer, "
            "give them by --recorded."
        )
        return seen
    if threaded or float(np.mean(waits.time_ns > least_ns)) < MOST_STEPS:
        graph.does_not_apply(
            "worker processes load already, and what a batch costs them is not recorded.\n"
            "       Say by --recorded how many there are."
        )
    graph.note(
        "Which process loads is not recorded: the main thread is assumed to. Give workers by --recorded."
    )
    return 0


def _take_out(loading: Selection | None, waits: LoaderWaits) -> None:
    """Take the loading, or the untraced waiting, off the main thread."""
    if loading is None:
        waits.take_away()
    else:
        loading.remove()
