"""No stragglers: collectives begin without waiting for the slowest rank."""

from __future__ import annotations

import numpy as np
from daydream.optimizations._gradient_collectives import transfers_of
from daydream.optimizations._stragglers import waiting_words

from daydream import Graph
from daydream.costs import bytes_of_message, find_cluster, workers_of
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
memory = unchanged

HUB = r"^last arrival$"  # what all members of a collective wait for
POINT_TO_POINT = ("send", "recv", "send_recv")  # a receiver does not straggle: it needs the data
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
    time = np.array([
        machines.time_ns(operation, bytes_of_message(operation, int(nbytes), members), members)
        for operation, nbytes in zip(known.collective.tolist(), known.bytes.tolist(), strict=True)
    ])  # fmt: skip
    waited = known.duration_ns > time
    if not waited.any():
        graph.does_not_apply(f"no collective took longer than it does on {machines.name}")
    late = graph.tasks(known.ids[waited])
    late.set(duration_ns=time[waited])
    graph.note(machines.describe())
    graph.note(
        f"{len(late)} of {len(collectives)} collectives took longer than that; the rest counts as waiting."
    )
