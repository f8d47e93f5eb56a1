"""Input: loading by workers, copies from pinned memory, copies ahead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream import Graph, GraphError, Selection
from daydream.costs import PAGEABLE, TO_DEVICE, link_bandwidth
from daydream.memory import unchanged
from daydream.model import LoaderWaits, loads_by_processes, recorded_waits, untraced_waits
from daydream.transforms import counted, stages

if TYPE_CHECKING:
    from daydream.memory import Allocations

memory = unchanged

STAGE = stages.INPUT

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

    get = graph.insert_after(waits.tasks, "fetch batch", duration_ns=waits.time_ns.clip(max=least), gap_ns=0)
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


def _suggested_options_dataloader(graph: Graph) -> dict[str, int] | None:
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
    if threaded or (waits.time_ns > least_ns).mean() < MOST_STEPS:
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


def pinned_memory(graph: Graph, *, bandwidth: float | None = None) -> None:
    """Predict `pin_memory=True` with `non_blocking=True` for the copies to the device.

    A copy from pageable memory is staged by the driver, so the CPU waits in the call until
    the stream is done, and again in the synchronization after it. From pinned memory it is
    an asynchronous launch of the trace's usual cost, at `bandwidth` GB/s: by default that of
    the trace's own pinned copies, else 3/4 of the device's PCIe rate. No copy gets slower.

    Not modelled: the copy into pinned memory, which the loader's pin thread does during the
    step, and the memory it takes. Copies back to the CPU still wait: their values are read.

    Args:
        bandwidth (GB/s): Bandwidth of copies from pinned memory.
    """
    copies = graph.select(kind="memcpy", name=TO_DEVICE)
    copies.need("copies to the device", lacks="device")
    copies = copies.where(name=PAGEABLE)
    if not len(copies):
        graph.does_not_apply("every copy to the device comes from pinned memory already")
    if bandwidth is not None and bandwidth <= 0:
        raise GraphError(f"bandwidth must be above 0 GB/s, not {bandwidth:g}")
    rate = link_bandwidth(graph, "HtoD") if bandwidth is None else bandwidth
    if rate is None:
        graph.does_not_apply("the trace has no pinned copies and an unknown device; give --bandwidth in GB/s")

    known = copies.where(lambda tasks: tasks.bytes >= 0)
    if len(known):
        known.set(duration_ns=(known.bytes / rate).clip(max=known.duration_ns))
    copies.set(name="Memcpy HtoD (Pinned -> Device)")
    calls = copies.launches()
    inside = graph.select(kind="cpu", call=set(calls.call.tolist()) - {-1})
    waits = (inside | calls).waiting()
    if len(waits):
        waits.stop_waiting()
    # A blocking call has its return as a second task, and the operator's own synchronization comes behind it.
    if len(waits - calls):
        (waits - calls).remove()
    if len(calls):
        calls.set(duration_ns=calls.duration_ns.clip(max=graph.facts.launch_cost_ns))
    source = "as asked" if bandwidth else "as pinned copies of this trace or its device do"
    graph.note(f"{counted(len(copies), 'copy', 'copies')} to the device at {rate:,.4g} GB/s, {source}.")


STREAM = "prefetch stream"


def prefetch(graph: Graph, *, least_kb: float = 64.0) -> None:
    """Predict inputs that are copied one step ahead on their own stream.

    Copies to the device of at least `least_kb` that share a stream with kernels move to a
    stream of their own, and no kernel waits for them: the batch of a step was copied during
    the one before. So they cost nothing until they take longer than a step. That needs pinned
    memory and `non_blocking=True`: copies from pageable memory change as by pinned-memory.
    Smaller copies are assumed to be scalars and indices of the computation.

    Memory: a batch is on the device from when the one before it is.

    Not modelled: kernels that the link's traffic slows.

    Args:
        least_kb (KiB): Smallest copy that counts as input.
    """
    copies = graph.select(kind="memcpy", name=TO_DEVICE, phase=("data", "forward", "other", "optimizer"))
    copies.need("copies to the device before the backward pass", lacks="device")
    copies = copies.on_lanes_of(graph.select(kind="kernel"))
    if not len(copies):
        graph.does_not_apply("copies to the device have a stream of their own already")
    copies = copies.where(lambda tasks: tasks.bytes >= least_kb * 1024)
    copies.need(f"copies to the device of {least_kb:g} KiB or more on a stream with kernels")
    if len(copies.where(name=PAGEABLE)):
        pinned_memory(graph)
    copies.move(STREAM, follows=False, held_for=False)
    megabytes = copies.total("bytes") / max(len(copies.group_by("step")), 1) / 1e6
    graph.note(f"{megabytes:,.3g} MB per step are copied ahead.")


def _memory_prefetch(held: Allocations, *, least_kb: float = 64.0) -> None:
    """Let inputs be on the device from when those of the step before are."""
    from daydream.memory import AFTER, BEFORE  # asked only where memory was recorded

    inputs = held.where(kind="input", on="gpu")
    rows = (inputs & (held["recorded_bytes"] >= least_kb * 1024)).nonzero()[0].tolist()
    first: dict[tuple[int, int], int] = {}
    for row in rows:
        step = held["rank"][row], held["step"][row]
        first[step] = min(held["begin"][row], first.get(step, AFTER))
    for row in rows:
        held["begin"][row] = first.get((held["rank"][row], held["step"][row] - 1), BEFORE)


COMMANDS = {
    "dataloader": {
        "CODE": "DataLoader(dataset, num_workers=workers, persistent_workers=True)",
        "suggested_options": _suggested_options_dataloader,
    },
    "pinned-memory": {
        "CODE": 'DataLoader(dataset, pin_memory=True); batch.to("cuda", non_blocking=True)',
    },
    "prefetch": {
        "CODE": 'with torch.cuda.stream(copies): following = batch.to("cuda", non_blocking=True)',
        "memory": _memory_prefetch,
    },
}
