"""How long ranks stood waiting for the last to arrive, and their threads in calls behind that."""

from __future__ import annotations

import numpy as np

from daydream import Graph, Selection

MOST_RANKS = 8  # that a sentence lists


def waited_for_others_ns(graph: Graph, hubs: Selection) -> dict[int, int]:
    """Return, by rank, how long its collectives stood until the last member was there, as recorded, ns."""
    links, begun = graph.links, graph.columns["measured_start_ns"]
    rows = np.flatnonzero(np.isin(links["dst"], hubs.ids))
    arrival, hub = links["src"][rows], links["dst"][rows]
    return _by_rank(graph, arrival, np.maximum(begun[hub] - begun[arrival], 0))


def blocked_ns(graph: Graph) -> dict[int, int]:
    """Return, by rank, how long threads stood in calls that wait for the device, ns.

    All ranks count, also those of which no step can be judged: each holds up the others.
    """
    columns, table = graph.columns, graph.syncs
    returns = table["task"]
    rows, starts = columns["row"], columns["measured_start_ns"]
    returns = np.unique(returns[graph.alive[returns] & (rows[returns] >= 0)])
    # A blocking call is two tasks of one row: the call, and its return, which waits.
    calls = np.flatnonzero((columns["kind"] == 0) & np.isin(rows, rows[returns]) & (rows >= 0))
    calls = calls[~np.isin(calls, returns)]
    call_of = dict(zip(rows[calls].tolist(), calls.tolist(), strict=True))
    entered = np.array([call_of.get(row, -1) for row in rows[returns].tolist()], np.int64)
    returns, entered = returns[entered >= 0], entered[entered >= 0]
    stood = starts[returns] - starts[entered] - columns["duration_ns"][entered]
    return _by_rank(graph, returns, np.maximum(stood, 0))


def _by_rank(graph: Graph, tasks: np.ndarray, ns: np.ndarray) -> dict[int, int]:
    ranks = np.array([lane.rank for lane in graph.lanes], np.int64)[graph.columns["lane"][tasks]]
    return {rank: int(ns[ranks == rank].sum()) for rank in np.unique(ranks).tolist()}


def waiting_words(graph: Graph, hubs: Selection) -> str:
    """Return a sentence on what all ranks together lost by waiting for each other in the recording."""
    waited, blocked = waited_for_others_ns(graph, hubs), blocked_ns(graph)
    each = ", ".join(f"rank {rank} {ns / 1e6:,.2f} ms" for rank, ns in list(waited.items())[:MOST_RANKS])
    more = f" and {len(waited) - MOST_RANKS} more" if len(waited) > MOST_RANKS else ""
    return (
        f"In the recording collectives waited for their last member: {each}{more}. Threads of all "
        f"ranks spent {sum(blocked.values()) / 1e6:,.2f} ms in calls that wait for the device."
    )
