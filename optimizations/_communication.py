"""Collectives: another network, no waiting for stragglers, perfect overlap, one a level of the network."""

from __future__ import annotations

from bisect import bisect
from itertools import chain, compress
from math import ceil

from daydream.optimizations._gradient_collectives import (
    REDUCTIONS,
    doubt_waiting,
    modelled,
    sized_all_reduces,
    transfers_of,
    waiting_ns,
)

from daydream import Graph, GraphError, Selection
from daydream.costs import bytes_of_message, find_cluster, machine_of, workers_of
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
memory = unchanged


def network(graph: Graph, *, bandwidth_factor: float = 1.0, latency_ns: float = 0.0) -> None:
    """Predict the step time on a network of another bandwidth or latency.

    The transfer of each collective takes 1/`bandwidth_factor` of its time, and `latency_ns`
    more. Waiting for peers is not scaled where the ranks were recorded together: it comes out
    of the simulation. Waiting for ranks that were not recorded cannot be told from the transfer and is
    scaled with it, so that the gain of a faster network is an upper bound there; the range reaches to
    where all of it was waiting.

    Assumes that collectives are bound by bandwidth: the latency that is in the recorded times
    is scaled too. Not modelled: another algorithm that the library would choose.

    Args:
        bandwidth_factor: How many times the bandwidth.
        latency_ns (ns): Latency to add to each collective.
    """
    if bandwidth_factor <= 0 or latency_ns < 0:
        raise GraphError(
            f"bandwidth_factor must be above 0 and latency_ns 0 or more, "
            f"not {bandwidth_factor:g} and {latency_ns:g}"
        )
    collectives = graph.select(kind="collective")
    collectives.need("collectives", lacks="ranks")
    transfers = transfers_of(collectives)
    transfers.need("transfers of collectives")
    if bandwidth_factor == 1 and latency_ns == 0:
        graph.does_not_apply("a bandwidth_factor of 1 and no latency leave the network as it is")
    waited_ns = waiting_ns(transfers)
    transfers.set(duration_ns=transfers.duration_ns / bandwidth_factor + latency_ns)
    doubt_waiting(transfers, waited_ns)
    if waited_ns.any():
        graph.note(
            "Not all ranks were recorded together: what transfers took may be waiting for peers; "
            "the range reaches to that."
        )


POINT_TO_POINT = ("send", "recv", "send_recv")  # the receiver needs what comes: the next stage of a pipeline
HIDDEN = "{}, hidden"  # the lane that carries what a stream carried
# What waited goes on within some launch latencies of a transfer's end, what came by chance mostly does not.
SOON = 4


def overlap(graph: Graph) -> None:
    """Predict a job whose communication is perfectly hidden behind its other work.

    Transfers still need their time: a step is no shorter than those of one stream take together. But
    nothing waits for them, and they wait for nothing. So this is the most that a better order, a
    prefetch or another bucket size can gain; less to transfer can gain more. Launches and copies
    around the transfers stay, and so do messages between two ranks, and, where the forward pass
    reduces, its reductions and gathers: parts of a layer, which the next one works on.

    Where several ranks were recorded together, a rank still waits for those that arrive later: hide that
    too with `overlap+no-stragglers`. What one rank recorded of its transfers holds such waiting: the
    range reaches to where all of it was.

    Refused where recorded transfers held up nothing: no call and no kernel that had been launched
    before began or returned with the end of one.
    """
    collectives = graph.select(kind="collective").need("collectives", lacks="ranks")
    transfers = transfers_of(collectives)
    transfers = transfers - transfers.where(collective=POINT_TO_POINT)
    transfers.need("collectives but messages from one rank to another")
    if len(transfers.where(phase="forward", collective=REDUCTIONS)):
        transfers = transfers - transfers.where(phase="forward", collective=(*REDUCTIONS, "all_gather"))
        transfers.need("collectives but those of parts of a layer, whose result the next layer works on")
    transfers = transfers.where(lambda tasks: (tasks.duration_ns > 0) & (tasks.step >= 0))
    transfers.need("transfers that take time within a step")
    if (transfers.row >= 0).all() and not modelled(graph) and not _held_up(graph, transfers):
        graph.does_not_apply(
            "its communication is hidden already: no call and no kernel that had been launched before a "
            "transfer ended waited for it"
        )

    together = transfers.group_by("step", "lane")
    at: dict[tuple[int, int], int] = {}
    for tasks in (graph.select(), graph.select(kind="cpu")):  # CPU tasks where a rank has some
        begin = tasks.group_by("step", "rank")
        at |= zip(begin.keys, begin.first().ids.tolist(), strict=True)
    first = together.first()
    where = [at[key] for key in zip(first.step.tolist(), first.rank.tolist(), strict=True)]
    graph.insert_after(
        graph.tasks(where),
        "transfers",
        kind="collective",
        launched=False,
        gap_ns=0,
        lane=[HIDDEN.format(lane) for lane in first.lane.tolist()],
        duration_ns=together.total("duration_ns"),
        bytes=together.total("bytes"),
    )
    busiest = max(
        tasks.total("duration_ns") / len(set(tasks.step.tolist())) for tasks in transfers.group_by("lane")
    )
    waited_ns = waiting_ns(transfers)
    transfers.set(duration_ns=0)
    doubt_waiting(transfers, waited_ns)
    if len(set(collectives.rank.tolist())) > 1:
        graph.note("Ranks still wait for those that arrive later; add no-stragglers to hide that too.")
    elif waited_ns.any():
        graph.note("One rank was recorded: waiting for peers is in its transfers, and hidden with them.")
    graph.note(
        f"Transfers of one stream take {busiest / 1e6:,.3f} ms per step on average; no step is shorter than "
        "its own."
    )


def _held_up(graph: Graph, transfers: Selection) -> bool:
    """Return whether something waited for a transfer, by the recorded times."""
    ends = sorted((transfers.measured_start_ns + transfers.measured_duration_ns).tolist())
    soon = SOON * max(graph.facts.launch_latency_ns, 1)
    work = graph.select(on="gpu") - graph.select(kind="collective")
    work = work.where(lambda tasks: (tasks.launch >= 0) & (tasks.row >= 0))
    calls = graph.select(kind="cpu").waiting().where(lambda tasks: tasks.row >= 0)
    returned = calls.measured_start_ns + calls.measured_duration_ns
    asked = chain(graph.tasks(work.launch).measured_start_ns, calls.measured_start_ns)
    for began, went_on in zip(asked, chain(work.measured_start_ns, returned), strict=True):
        before = bisect(ends, went_on)
        end = ends[before - 1]  # of the transfer that ended last
        if before and went_on - end <= soon and began + soon < end:
            return True
    return False


MOST_RANKS = 8  # that a sentence lists


def waiting_words(graph: Graph, hubs: Selection) -> str:
    """Return a sentence on what ranks lost by waiting for the last member of collectives, as recorded."""
    last = set(hubs.ids.tolist())
    pairs = zip(graph.links["src"].tolist(), graph.links["dst"].tolist(), strict=True)
    arrivals, ends = zip(*(pair for pair in pairs if pair[1] in last), strict=True)
    waited = graph.tasks(ends).measured_start_ns - graph.tasks(arrivals).measured_start_ns
    ranks = graph.tasks(arrivals).group_by("rank")
    lost = sorted(zip(ranks.keys, ranks.total(waited.clip(0)).astype(int).tolist(), strict=True))
    each = ", ".join(f"rank {rank} {ns / 1e6:,.2f} ms" for rank, ns in lost[:MOST_RANKS])
    more = f" and {len(lost) - MOST_RANKS} more" if len(lost) > MOST_RANKS else ""
    return f"In the recording collectives waited for their last member: {each}{more}."


HUB = r"^last arrival$"  # what all members of a collective wait for
KNOWN = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")


def no_stragglers(graph: Graph, *, cluster: str | None = None, workers: int | None = None) -> None:
    """Predict a job whose ranks never wait for each other, as if all arrived together.

    With several ranks in the trace each member transfers as soon as it arrives itself; how long
    the transfer takes stays. Each rank's step is then what its own work allows: the slowest rank's
    is what the job would still take. Messages between two ranks (pipelines) still wait: the data comes
    from the other.

    In the trace of one rank waiting cannot be told from transferring. There a `cluster` is needed: a
    collective then takes no longer than on these machines (with as many nodes as the `workers`
    need; the job's if the trace shows it), and what it took beyond that counts as waiting.

    Args:
        cluster (NAME): Network whose time is left, such as dgx-h100:4.
        workers: Number of GPUs, if the trace does not show it.
    """
    collectives = graph.select(kind="collective").need("collectives", lacks="ranks")
    hubs = graph.select(kind="cpu", name=HUB)
    if len(hubs):
        transfers = transfers_of(collectives)
        between_two = transfers.where(collective=POINT_TO_POINT)
        graph.note(waiting_words(graph, hubs))
        graph.unlink(hubs, (transfers - between_two).need("collective but messages from one rank to another"))
        return
    if cluster is None:
        graph.does_not_apply(
            "one rank was recorded, and its waiting cannot be told from its transfers; import the traces of "
            "several ranks together, or say with --cluster what transfers should take"
        )
    members = workers_of(graph, workers)
    machines = find_cluster(cluster).holding(members)
    known = collectives.where(collective=KNOWN).where(lambda tasks: tasks.bytes > 0)
    known.need("collective of known operation and size")
    transfer = [
        machines.time_ns(operation, bytes_of_message(operation, nbytes, members), members)
        for operation, nbytes in zip(known.collective, known.bytes.tolist(), strict=True)
    ]
    longer = known.duration_ns > transfer
    late = known[longer]
    if not len(late):
        graph.does_not_apply(f"no collective took longer than it does on {machines.name}")
    late.set(duration_ns=[*compress(transfer, longer)])
    graph.note(machines.describe())
    graph.note(
        f"{len(late)} of {len(collectives)} collectives took longer than that; the rest counts as waiting."
    )


BETWEEN = "between nodes"


def blueconnect(graph: Graph, *, cluster: str | None = None, workers: int | None = None) -> None:
    """Predict hierarchical all-reduces (Cho et al., 2019; Daydream, section 5.2).

    Each all-reduce becomes a reduce-scatter inside the nodes, one between them, an all-gather between
    them and one inside, each with its launch. Every GPU of a node takes its share across, so that the
    way out of a node carries the data once. The two levels are lanes of their own: a bucket
    may cross the network while another is summed inside the nodes.

    The parts share the time of the all-reduce as their times stand to that of a plain all-reduce of
    the same size on `cluster` (machines of the trace's GPU if not given). `workers` is the job's
    if the trace shows it. Waiting for peers in the trace of one rank is scaled like the transfer.

    Args:
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
        workers: Number of GPUs, if the trace does not show it.
    """
    reduced = sized_all_reduces(graph)
    members = workers_of(graph, workers)
    machines = find_cluster(cluster or machine_of(graph)).holding(members)
    inside = min(members, machines.gpus_per_node)
    nodes = ceil(members / inside)
    if nodes == 1 or inside == 1:
        graph.does_not_apply(
            f"{members} workers on machines of {machines.gpus_per_node} GPUs have one level of network only"
        )
    levels = (  # name, members of the group, of them in a node, how much less is moved, and put in by each
        ("reduce-scatter inside", inside, None, 1, 1),
        ("reduce-scatter across", nodes, 1, inside, inside),
        ("all-gather across", nodes, 1, inside, members),
        ("all-gather inside", inside, None, 1, inside),
    )
    sizes = reduced.bytes.tolist()
    recorded = reduced.duration_ns.tolist()
    plain = [machines.time_ns("all_reduce", nbytes, members) for nbytes in sizes]
    streams = dict.fromkeys(reduced.lane.tolist())

    parts = reduced.split(len(levels), launched=True)
    for place, (name, group, per_node, less, given) in enumerate(levels):
        operation = name.partition(" ")[0].replace("-", "_")
        time = [machines.time_ns(operation, nbytes / less, group, per_node=per_node) for nbytes in sizes]
        parts[place :: len(levels)].set(
            name=name,
            duration_ns=[ns * part / whole for ns, part, whole in zip(recorded, time, plain, strict=True)],
            collective=operation,
            bytes=[nbytes // given for nbytes in sizes],
        )
    (parts[1 :: len(levels)] | parts[2 :: len(levels)]).move(BETWEEN)
    for stream in streams:
        if (graph.select(lane=stream).kind == "collective").all():
            graph.schedule(stream, key=lambda tasks: 0 * tasks.ids)  # first come, first served
    graph.note(machines.describe())


COMMANDS = {
    "overlap": {
        "CODE": "work = dist.all_reduce(tensor, async_op=True)  # work.wait() where it is needed",
    },
    "blueconnect": {
        "EXCLUDES": {"compression", "dgc"},
        "CODE": "dist.reduce_scatter_tensor(part, grads, group=node); dist.all_reduce(part, group=across)",
    },
}
