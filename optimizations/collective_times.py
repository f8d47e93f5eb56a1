"""Collectives that take as long as a network simulator says."""

from __future__ import annotations

from daydream.optimizations._gradient_collectives import transfers_of

from daydream import Graph
from daydream.costs import simulated_times
from daydream.memory import unchanged
from daydream.transforms import counted, stages

STAGE = stages.HARDWARE
memory = unchanged


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
