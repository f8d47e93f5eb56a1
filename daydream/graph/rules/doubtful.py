"""Doubtful matches: what was inferred between ranks and cannot be, as tasks would wait for each other.

Which rows of several ranks are one collective, and what a synchronizing call waits for, is told from order
and times. Where a program could not have run so, one of the matches on the cycle is wrong. It is left out,
what it covered is kept as it was recorded, and it is counted: one wrong match is no reason to refuse a job.
"""

from __future__ import annotations

import numpy as np

from daydream.graph.cycles import CycleError
from daydream.graph.graph import Graph
from daydream.graph.lower import lower
from daydream.graph.plan import Cause
from daydream.graph.tables import CPU
from daydream.text import counted

MOST = 100  # matches that are left out, one after the other


def leave_out_doubtful(graph: Graph) -> None:
    """Leave out matches between ranks until no task waits for itself; what else is wrong stays."""
    left_out = {Cause.COMMUNICATION: 0, Cause.SYNC: 0}
    for _ in range(MOST):
        try:
            lower(graph)
            break
        except CycleError as error:
            cause = _leave_out_one(graph, error.edges)
            if cause is None:
                break
            left_out[cause] += 1
    graph.facts.doubtful_matches = sum(left_out.values())
    said = [
        counted(left_out[cause], what)
        for cause, what in ((Cause.COMMUNICATION, "collective"), (Cause.SYNC, "synchronizing call"))
        if left_out[cause]
    ]
    if said:
        graph.note(
            f"{' and '.join(said)} could not be matched between ranks without a contradiction; they are kept "
            "as recorded, and their ranks do not wait for each other there."
        )


def _leave_out_one(graph: Graph, edges: list[tuple[int, int, Cause]]) -> Cause | None:
    """Leave out one match of a cycle and return its cause; None if the cycle has no such match."""
    ranks = [lane.rank for lane in graph.lanes]
    lanes = graph.columns["lane"]
    for before, call, cause in edges:
        if cause == Cause.SYNC and ranks[lanes[before]] != ranks[lanes[call]]:
            _keep_call(graph, call)
            return cause
    for hub, _, cause in edges:
        if cause == Cause.COMMUNICATION and graph.columns["kind"][hub] == CPU:
            _keep_members(graph, hub)
            return cause
    return None


def _keep_call(graph: Graph, call: int) -> None:
    """Let a call wait for nothing, and keep its recorded time up to where its return begins."""
    columns, table = graph.columns, graph.syncs
    row, order, begun = columns["row"], columns["order"], columns["measured_start_ns"]
    entries = np.flatnonzero((row == row[call]) & (columns["kind"] == CPU) & (order < order[call]))
    for entry in entries[-1:].tolist():
        columns["duration_ns"][entry] = begun[call] - begun[entry]
    table.keep(table["task"] != call)
    graph.facts.unresolved_syncs += 1
    graph.touch()


def _keep_members(graph: Graph, hub: int) -> None:
    """Let each member of a meeting stand as long as it stood in the recording, and wait for no other."""
    columns, links = graph.columns, graph.links
    begun = columns["measured_start_ns"]
    arrivals = links["src"][links["dst"] == hub]
    members = links["dst"][links["src"] == hub]
    for arrival in arrivals.tolist():
        mine = members[columns["lane"][members] == columns["lane"][arrival]]
        for member in mine[:1].tolist():
            columns["duration_ns"][arrival] = begun[member] - begun[arrival]
    links.keep((links["src"] != hub) & (links["dst"] != hub))
    graph.touch()
