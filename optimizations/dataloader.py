"""Data-loader workers: batches are made by other processes while the device computes."""

from __future__ import annotations

from daydream import Graph, GraphError
from daydream.transforms import stages
from daydream.wording import counted

STAGE = stages.INPUT
CODE = "DataLoader(dataset, num_workers=4, persistent_workers=True)"

WORKER_LOADER = r"_MultiProcessingDataLoaderIter|MultiProcessing"
POOL = "loader workers"


def dataloader(graph: Graph, *, workers: int | None = None, get_ms: float = 1.5) -> None:
    """Predict loading in worker processes, with batches ready when they are asked for.

    What the main thread did to make a batch goes to a lane of its own and runs ahead. With
    `workers` that lane gives a batch every 1/workers of the time one takes, so too few of
    them hold up the step; without, loading is hidden whole. On the main thread stays the
    fetching of a batch: `get_ms`, 1.2 to 1.7 ms measured for small batches waiting in the
    queue (torch 2.13.0, x86, one thread), more for large ones, whose shared memory has to be mapped.
    Device work of the loading phase and its launches stay where they are.

    Where workers load already, what a batch costs them is not recorded: only without
    `workers` there is an answer, that the main thread waits for no batch. Not modelled: that
    workers compete for cores and memory with the main process, that they run operators on one
    thread, the first epoch's start of processes, a limit to how far they run ahead.
    """
    if workers is not None and workers < 1:
        raise GraphError(f"workers must be 1 or more, not {workers}")
    loading = graph.select(kind="cpu", phase="data")
    loading.need("loading of data: no data-loader range or phase")
    threaded = loading.where(within=WORKER_LOADER)
    if len(threaded) and workers is not None:
        graph.does_not_apply("worker processes load already, and what a batch costs them is not recorded")
    device = graph.select(on="gpu", phase="data")
    loading = loading - loading.waiting() - device.launches()
    loading.need("loading on the CPU apart from its device work")
    batches = loading.group_by("step", "lane")
    time = batches.total("duration_ns") + batches.total("gap_ns")
    if time.max() <= get_ms * 1e6:
        graph.does_not_apply(f"loading takes no step more than the {get_ms:g} ms that fetching a batch costs")

    fetching = [min(ns, get_ms * 1e6) for ns in time]
    get = graph.insert_after(batches.last(), "fetch batch", duration_ns=fetching)
    if workers is None:
        loading.remove()
        return
    pool = loading.move(POOL, follows=False, held_for=False).scale(1 / workers, gaps=True)
    graph.link(pool.group_by("step", "lane").last(), get)
    pace = time.mean() / workers / 1e6
    graph.note(f"{counted(workers, 'worker')} can make a batch every {pace:,.1f} ms in the mean.")
