"""Perfect overlap: what communication costs beyond the work that it could be hidden behind."""

from __future__ import annotations

import numpy as np
from daydream.optimizations._gradient_collectives import (
    REDUCTIONS,
    doubt_waiting,
    transfers_of,
    waiting_ns,
)

from daydream import Graph, Selection
from daydream.memory import unchanged
from daydream.transforms import stages

STAGE = stages.COMMUNICATION
CODE = "work = dist.all_reduce(tensor, async_op=True)  # work.wait() where it is needed"
memory = unchanged

POINT_TO_POINT = ("send", "recv", "send_recv")  # the next stage of a pipeline works on what comes
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
    if (transfers.row >= 0).all() and not _held_up(graph, transfers):
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
        graph.tasks(np.array(where)), "transfers", kind="collective", launched=False, gap_ns=0,
        lane=[HIDDEN.format(lane) for lane in first.lane.tolist()], duration_ns=together.total("duration_ns"),
        bytes=together.total("bytes"),
    )  # fmt: skip
    busiest = max(
        tasks.total("duration_ns") / len(set(tasks.step.tolist())) for tasks in transfers.group_by("lane")
    )
    waited_ns = waiting_ns(transfers)
    transfers.set(duration_ns=0)
    doubt_waiting(transfers, waited_ns)
    if len(set(collectives.rank.tolist())) > 1:
        graph.note("Ranks still wait for those that arrive later; add no-stragglers to hide that too.")
    elif (transfers.row >= 0).any():
        graph.note("One rank was recorded: waiting for peers is in its transfers, and hidden with them.")
    graph.note(
        f"Transfers of one stream take {busiest / 1e6:,.3f} ms per step on average; no step is shorter than "
        "its own."
    )


def _held_up(graph: Graph, transfers: Selection) -> int:
    """Return how many transfers something waited for, by the recorded times."""
    ends = np.sort(transfers.measured_start_ns + transfers.measured_duration_ns)
    soon = SOON * max(graph.facts.launch_latency_ns, 1)
    work = graph.select(on="gpu") - graph.select(kind="collective")
    work = work.where(lambda tasks: (tasks.launch >= 0) & (tasks.row >= 0))
    calls = graph.select(kind="cpu").waiting().where(lambda tasks: tasks.row >= 0)
    asked = np.concatenate([graph.columns["measured_start_ns"][work.launch], calls.measured_start_ns])
    went_on = np.concatenate([work.measured_start_ns, calls.measured_start_ns + calls.measured_duration_ns])
    before = np.searchsorted(ends, went_on, side="right") - 1  # the transfer that ended last
    end = ends[np.maximum(before, 0)]
    waited = (before >= 0) & (went_on - end <= soon) & (asked + soon < end)
    return int(waited.sum())
