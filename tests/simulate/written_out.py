"""Ranks written out: one plan that holds every task of every rank.

As in a graph of several ranks' traces, a member of a collective is an arrival and a transfer, and
the transfers of a group begin with the last of its arrivals:

    rank 0   ...|arrival|          |transfer|        arrivals and hubs take no time
    hub                  `--> hub --'
    rank 1   ........|arrival|     |transfer|

Tasks of all ranks stand together in the order of the plan, so their ids are in a topological
order and lie near each other in memory. It takes ranks times the memory of the plan;
`daydream.simulate.ranks` gives the same times without.
"""

import numpy as np

from daydream.errors import GraphError
from daydream.graph.plan import Cause, Plan
from daydream.simulate.ranks import ALL_MEET


def explicit(plan, factors, row):
    """Return the plan of all ranks, and the id in it of each task on each rank, tasks x ranks.

    Lane k of rank r is k times the number of ranks + r; each hub has a lane of its own behind those.
    Raises `GraphError` for a plan with a policy on a lane.
    """
    if plan.scheduled:
        raise GraphError(
            "a lane that is scheduled by priority picks among all its tasks: "
            "a collective on it cannot be written out as an arrival and a transfer"
        )
    count = factors.shape[1]
    rank = np.arange(count)
    meets = row == ALL_MEET
    meeting = np.flatnonzero(meets)
    size = np.where(meets, 2 * count + 1, count)
    base = np.cumsum(size) - size
    arrive = base[:, None] + rank
    begin = arrive.copy()
    begin[meeting] += count + 1

    total = int(size.sum())
    lane, duration, gap, release = (np.zeros(total, np.int64) for _ in range(4))
    lane[arrive] = lane[begin] = plan.lane[:, None] * np.int64(count) + rank
    by = np.append(factors, np.ones((1, count)), axis=0)[row]  # the last is that of collectives
    duration[begin], gap[begin] = (
        np.floor(ns[:, None] * by + 0.5).astype(np.int64) for ns in (plan.duration_ns, plan.gap_ns)
    )
    release[arrive] = plan.release_ns[:, None]

    hub = base[meeting] + count
    lane[hub] = plan.lanes * count + np.arange(len(hub))
    met = np.tile(hub[:, None], count)
    none = np.zeros(len(meeting), np.int64)
    own = (plan.edge_latency_ns, plan.edge_from_start, plan.edge_cause)
    through = (none, none > 0, none + Cause.COMMUNICATION)
    edges = [
        (begin[plan.edge_src], arrive[plan.edge_dst], *own),
        (arrive[meeting], met, *through),
        (met, begin[meeting], *through),
    ]
    src, dst = (np.concatenate([part[side].reshape(-1) for part in edges]) for side in (0, 1))
    others = (np.concatenate([np.repeat(part[column], count) for part in edges]) for column in (2, 3, 4))
    return Plan.from_edges(lane, duration, gap, release, src, dst, *others), begin
