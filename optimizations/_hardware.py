"""Other hardware: another GPU, CPU or host link, kernels at their bound, any work by a factor."""

from __future__ import annotations

from math import inf

import numpy as np
from daydream.optimizations._gradient_collectives import doubt_waiting, modelled, transfers_of, waiting_ns

from daydream import Graph, GraphError, Selection
from daydream.costs import (
    OVER_LINK,
    TO_DEVICE,
    TO_HOST,
    Device,
    at_peak_ns,
    counted_conflicts,
    device_of,
    find_device,
    floor_ns,
    is_matrix,
    link_bandwidth,
    missing_tables,
    moved_transfers,
    retime,
    retime_untyped,
    say_evidence,
    simulated_times,
)
from daydream.memory import unchanged
from daydream.transforms import counted, stages

STAGE = stages.HARDWARE

memory = unchanged

MODEL_ERROR = 0.2  # of kernels whose type is known: `graph_diff.MODEL_ERROR`
SMALL = 0.005  # of the kernels' time


def gpu(graph: Graph, *, to: str | None = None, speedup: float | None = None) -> None:
    """Predict the step on another GPU, for example `to="h100"`.

    Products, attention and experts in 16 and 8 bits, and collectives within a node, go with what their
    nearest sizes take on both devices in public tables, where the extra `gpus` is installed; other such
    collectives with a model of NCCL on the machines that both GPUs stand in as a rule. All other kernels are
    retimed for the device `to` by the roofline: each keeps its share of the peak that bounds it,
    in arithmetic or in bandwidth, and its fixed cost becomes the other device's. A kernel of few blocks
    goes with the rates of the units that it runs on. Copies to and from the CPU go with the peak rate of
    PCIe, others with the memory's bandwidth. Products of unknown element type take the middle of what 32 and
    16 bits give, and the range covers both; 16 bits are bfloat16 where that is what other kernels run in.
    Products in a type that the device has no units for are refused, by shapes or by name. Peaks are the
    vendors' (`costs/devices.py` names its sources), between AMD and NVIDIA the part of them that benchmarks
    sustain. Between GPUs of other units, products that nobody measured may be off by half. How well this does
    between two GPUs is in docs/costs.md.
    With `speedup` all kernels and copies within the device take 1/speedup of their time instead.

    CPU work, launch latencies and collectives between nodes stay. Not modelled: other kernels that libraries
    pick for the device, formats that only it has, memory size, clocks under load.

    Args:
        to (GPU): The other GPU, such as h100.
        speedup: How many times as fast, in place of --to.
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
        old = device_of(graph)
        new = find_device(to)
        if old == new:
            graph.does_not_apply(f"the trace was recorded on a {old.name} already")
        products = kernels.where(lambda tasks: is_matrix(graph, tasks))
        for dtype in sorted({dtype for dtype in products.dtype.tolist() if dtype}):
            new.peak(new.matrix_format(dtype))  # refuses a type that it has no units for
        say_evidence(graph, kernels.where(kind="kernel"))
        retimed = retime(graph, kernels, device=new)
        untyped, middle, off = retime_untyped(graph, kernels, device=new)
        kernels.set(duration_ns=retimed.duration_ns)
        known = retimed.doubt > 0
        if known.any():
            kernels[known].doubt(retimed.doubt[known])
            if missing := missing_tables(old, new):
                graph.note(missing)
        if untyped.any():
            share = retimed.before_ns[untyped].sum() / max(retimed.before_ns.sum(), 1)
            kernels[untyped].set(duration_ns=middle).doubt(np.hypot(off, MODEL_ERROR))
            say = graph.note if share >= SMALL else graph.facts.rules.append
            say(
                f"Products of unknown element type take {share:.1%} of the kernels' time: the range covers "
                "32 and 16 bits."
            )
        graph.note(f"From a {old.name} to a {new.name}. {retimed.words()}")
    transfers = graph.select(kind="collective")
    moved = 0 if to is None or modelled(graph) else _move_transfers(transfers, find_device(to))
    if len(transfers) > moved:
        graph.note("Collectives keep their time; `network` predicts a faster link.")


def _move_transfers(transfers: Selection, device: Device) -> int:
    """Give collectives their times among GPUs of another kind, and return of how many these are known."""
    graph = transfers.graph
    ratio, off, measured = moved_transfers(graph, transfers, device)
    moved = transfers[ratio > 0]
    if not len(moved):
        return 0
    waited = waiting_ns(moved)
    moved.set(duration_ns=moved.duration_ns * ratio[ratio > 0]).doubt(off[ratio > 0])
    doubt_waiting(moved, waited)
    for times, how in (
        (measured == 1, "NCCL was measured to on both GPUs"),
        (measured == 0, f"a model of NCCL says of {device_of(graph).machine} and {device.machine}"),
    ):
        if times.any():
            few, many = ratio[times].min(), ratio[times].max()
            some = counted(int(times.sum()), "collective")
            graph.note(f"{some} within a node take {few:.2f} to {many:.2f} times as long, as {how}.")
    return len(moved)


def cpu(graph: Graph, *, speedup: float) -> None:
    """Predict the step with a CPU that is `speedup` times as fast.

    Operators, Python, calls into the driver and the untraced time between them take 1/speedup
    of their time, on every thread. Waits, for the device or for another thread, are not scaled: they
    come out of the simulation. Device work, launch latencies and collectives stay.

    Assumes that all CPU work gains alike: give the ratio of single-thread rates for a trace with
    device work; without, memory bandwidth and number of cores count too. Untraced time that is
    a wait for a disk, a network or another process is scaled with the rest.

    Args:
        speedup: How many times as fast the CPU is.
    """
    if not speedup > 0:
        raise GraphError(f"speedup must be more than 0, not {speedup:g}")
    if speedup == 1:
        graph.does_not_apply("a speedup of 1 leaves the CPU as it is")
    tasks = graph.select(kind="cpu").need("work on the CPU")
    # Rounded up: a task is never more than `speedup` times as short, however many are under a nanosecond.
    time, gaps = (-(-ns / speedup * (1 - 1e-12) // 1) for ns in (tasks.duration_ns, tasks.gap_ns))
    tasks.set(duration_ns=time, gap_ns=gaps)


WAYS = {"HtoD": TO_DEVICE, "DtoH": TO_HOST}


def pcie(graph: Graph, *, bandwidth: float, recorded: float | None = None) -> None:
    """Predict copies between CPU and device over a link of `bandwidth` GB/s in each direction.

    A copy's time on the link is its bytes at the `recorded` bandwidth, by default that which the
    trace's pinned copies reach in its direction, else 3/4 of the device's PCIe rate. That part
    of its time changes; the rest, a fixed cost and for pageable memory the staging by
    the CPU, stays. Both are what copies reach, not what the link is sold for: about 12 GB/s on
    PCIe 3, 24 on PCIe 4, 48 on PCIe 5 (3/4 of 16, 32 and 64).

    Not modelled: several devices that share a link, kernels and collectives that cross it.

    Args:
        bandwidth (GB/s): Bandwidth between CPU and GPU.
        recorded (GB/s): Recorded bandwidth, if the trace does not show it.
    """
    for name, value in (("bandwidth", bandwidth), ("recorded", recorded)):
        if value is not None and not value > 0:
            raise GraphError(f"{name} must be more than 0 GB/s, not {value:g}")
    copies = graph.select(kind="memcpy", name=tuple(WAYS.values()))
    copies.need("copies between CPU and device", lacks="device")
    copies.where(lambda tasks: tasks.bytes > 0).need("copies whose bytes are known")
    said = []
    for way, pattern in WAYS.items():
        mine = copies.where(lambda tasks: tasks.bytes > 0, name=pattern)
        if not len(mine):
            continue
        rate = recorded or link_bandwidth(graph, way)
        if rate is None:
            graph.does_not_apply("the bandwidth of the trace's link is not known; give --recorded in GB/s")
        if rate == bandwidth:
            continue
        on_link = (mine.bytes / rate).clip(max=mine.duration_ns)
        mine.set(duration_ns=mine.duration_ns - on_link + on_link * rate / bandwidth)
        said.append(f"{counted(len(mine), 'copy', 'copies')} {way} from {rate:,.1f} to {bandwidth:,.1f} GB/s")
    if not said:
        graph.does_not_apply(f"the trace's link has {bandwidth:g} GB/s already")
    graph.note(f"{'; '.join(said)}.")


def scale(
    graph: Graph,
    *,
    factor: float,
    on: str | None = None,
    kind: str | None = None,
    name: str | None = None,
    op: str | None = None,
    layer: str | None = None,
    phase: str | None = None,
    only_gaps: bool | None = None,
) -> None:
    """Multiply the durations of the selected tasks by a factor; 0 removes their time.

    `on` is cpu or gpu; `kind` a kind of task (cpu, kernel, memcpy, memset, collective);
    `name` and `op` are regular expressions on task and operator names, `layer` a shell
    pattern, `phase` a phase. What all of them select is scaled by `factor`. For CPU tasks selected as
    such, the untraced time after them is scaled too, or with `only_gaps` nothing else; waits
    are never scaled: they come out of the simulation. Transfers that the CPU's threads run (gloo) are
    communication: `on` does not select them, `kind` does.

    Args:
        factor: What durations are multiplied by; 0 removes them.
        on (SIDE): cpu or gpu.
        kind (KIND): cpu, kernel, memcpy, memset or collective.
        name (REGEX): Tasks, by name.
        op (REGEX): Tasks, by operator.
        layer (GLOB): Tasks, by module: blocks.*.
        phase (PHASE): forward, loss, backward, optimizer or data.
        only_gaps: Scale only untraced time after tasks.
    """
    if factor == 1:
        graph.does_not_apply("a factor of 1 leaves every task as it is")
    tasks = graph.select(on=on, kind=kind, name=name, op=op, layer=layer, phase=phase)
    if on == "cpu" and kind is None:
        tasks = tasks - tasks.where(kind="collective")
    if only_gaps:
        tasks = tasks.where(lambda each: each.gap_ns > 0).need("untraced time after these tasks")
    gaps = bool(only_gaps) or "cpu" in (on, kind)
    tasks.scale(factor, durations=not only_gaps, gaps=gaps)


def roofline(graph: Graph, *, reach: float = 0.8) -> None:
    """Predict kernels that all reach a part of the peak that bounds them.

    A kernel's bound is what its FLOP take at the device's peak or its bytes at its bandwidth, whichever is
    longer; `reach` 0.8 gives it 1/0.8 of that, but not less than the smallest kernels take. Kernels that are
    better already stay. FLOP and bytes are those that were counted, else those of shapes; kernels of which
    one of the two is unknown stay, and how much of the time that is, is said.

    It is a bound for all of the kernels' own work: no kernel of a smaller one is foreseen. Not modelled:
    fusion, which takes bytes away (`compile`), and clocks under load.

    Args:
        reach: Share of the roofline that kernels reach.
    """
    if not 0 < reach <= 1:
        raise GraphError(f"reach must be above 0 and at most 1, not {reach:g}")
    kernels = graph.select(kind="kernel")
    kernels.need("kernels: peaks of CPUs are not known", lacks="device")
    device_of(graph)  # raises where its peaks are unknown
    say_evidence(graph, kernels)
    bound = at_peak_ns(graph, kernels)
    whole = max(kernels.total("duration_ns"), 1)
    known = kernels[bound < inf]
    unknown = kernels[~(bound < inf)]
    if not len(known):
        graph.does_not_apply("of no kernel FLOP and bytes are known; record shapes, or give --counters")
    old = known.duration_ns
    new = (bound[bound < inf] / reach).clip(old.clip(max=floor_ns(graph)), old).round()
    gaining = known[new < old]
    stay = known[new >= old]
    if not len(gaining):
        graph.does_not_apply(f"every kernel of known work reaches {reach:g} of its bound already")
    before = gaining.total("duration_ns")
    gaining.set(duration_ns=new[new < old])
    graph.note(
        f"{len(gaining):,} kernels of {before / 1e6:,.3f} ms become "
        f"{gaining.total('duration_ns') / 1e6:,.3f} ms at {reach:g} of their bound; {len(stay):,} "
        f"({stay.total('duration_ns') / whole:.1%} of the time) are as good already. Unknown, and left as "
        f"they are: {len(unknown):,} ({unknown.total('duration_ns') / whole:.1%})."
    )


def bank_conflicts(graph: Graph) -> None:
    """Predict kernels whose accesses to shared memory (LDS) no longer meet in the same bank.

    Of each kernel that counters tell of, the part of its cycles that was lost to bank conflicts goes: AMD's
    LDSBankConflict, else the cycles of conflicts over those from its begin to its end on all units
    (`SQ_LDS_BANK_CONFLICT` and `GRBM_GUI_ACTIVE`; `l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum` and
    `sm__cycles_elapsed`). It is the most that can be gained: a conflict that something else hides costs
    nothing. Kernels without these counters stay, and how much of the time that is, is said.

    Not modelled: the padding's shared memory, and what it costs in occupancy.
    """
    kernels = graph.select(kind="kernel")
    kernels.need("kernels: only a GPU has banks of shared memory", lacks="device")
    share = counted_conflicts(graph, kernels)
    known = int((share < inf).sum())
    if not known:
        graph.does_not_apply(
            "no kernel has counters of bank conflicts; count them, and give the file by --counters "
            "(LDSBankConflict; l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum and sm__cycles_elapsed.sum)"
        )
    lost = kernels[share > 0]
    rest = kernels[~(share < inf)]
    if not len(lost):
        graph.does_not_apply(f"the {known:,} kernels with counters have no bank conflicts")
    whole = max(kernels.total("duration_ns"), 1)
    before = lost.duration_ns
    gone = (before * share[share > 0]).sum()
    lost.set(duration_ns=(before * (1 - share[share > 0])).round())
    graph.note(
        f"Bank conflicts take {gone / 1e6:,.3f} ms of {len(lost):,} kernels, {gone / whole:.1%} of the "
        f"kernels' time: an upper bound. {len(rest):,} kernels ({rest.total('duration_ns') / whole:.1%} of "
        "the time) have no counters of them and stay."
    )


def collective_times(graph: Graph, *, collective_times: str) -> None:
    """Predict the step with the times that a network simulator found for its collectives.

    `collective_times` is the simulator's file for the Chakra files that daydream wrote (`-o job.et`) of
    this trace and of what stands before this in `a+b`: ASTRA-sim's log, or a table with the header
    `rank,node,duration_ns`. A transfer takes from the moment when the last rank issued it until its own rank
    is done, so that waiting for peers is not counted twice. The file of one rank may stand for all.

    Collectives that the file does not have keep their time. The rest of the step is daydream's: threads,
    streams and the launch queue, which network simulators do not have.

    Args:
        collective_times (FILE): Times from a network simulator: a log or a table.
    """
    transfers = transfers_of(graph.select(kind="collective")).need("collectives", lacks="ranks")
    found, durations = simulated_times(graph, transfers, collective_times)
    graph.tasks(found).set(duration_ns=durations)
    kept = len(transfers) - len(found)
    graph.note(
        f"{len(found)} of {counted(len(transfers), 'collective')} take what {collective_times} says"
        f"{f'; {kept} keep their time' if kept else ''}."
    )


COMMANDS = {
    "roofline": {
        "STAGE": stages.KERNELS,
        "CODE": "# a better kernel: torch.compile with max-autotune, another library, or your own",
    },
    "bank-conflicts": {
        "STAGE": stages.KERNELS,
        "CODE": "# pad or swizzle the tiles that the kernel keeps in shared memory (LDS)",
    },
}
