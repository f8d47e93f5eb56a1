"""Bounds of fusion: what one kernel can contain, whatever names and sequence numbers say.

Sequence numbers count the nodes that a thread makes, so an operator that makes none has the number of the
next one that does, and two threads have the same numbers: a chain may be given a node that is not its
own, and with it half a backward pass. No fused kernel holds a matrix product, a collective or a copy over
the link; it runs on one stream, and nothing that it computes is waited for, or multiplied, in between.
"""

from __future__ import annotations

import numpy as np

from daydream.costs.device.fusion import parting_calls
from daydream.costs.kernel_names import MATRIX_CLASSES, OVER_LINK, kernels_are
from daydream.costs.kernels import work
from daydream.costs.operators import MATRIX_FAMILIES, operators_that
from daydream.graph.groups import Groups
from daydream.graph.selection import Selection


def can_fuse(groups: Groups) -> Groups:
    """Return the groups that one kernel can do: of one lane and step, no product in or between them."""
    if not len(groups):
        return groups
    tasks = groups.by_group
    graph = tasks.graph
    columns, number = graph.columns, np.repeat(np.arange(len(groups)), groups.sizes)
    starts = np.append(0, np.cumsum(groups.sizes))[:-1]
    first, last = (
        each(columns["order"][tasks.ids], starts)
        for each in (np.minimum.reduceat, np.maximum.reduceat)
    )
    allowed = np.ones(len(groups), bool)
    for name in ("lane", "step"):
        values = columns[name][tasks.ids]
        allowed &= np.minimum.reduceat(values, starts) == np.maximum.reduceat(values, starts)
    allowed[number[np.isin(tasks.ids, _unfusible(tasks).ids)]] = False
    lane = columns["lane"][groups.first().ids]
    for each in np.unique(lane).tolist():
        mine = np.flatnonzero(lane == each)
        mates = graph.tasks(graph.ids[columns["lane"][graph.ids] == each])
        parting = np.concatenate([_unfusible(mates).ids, parting_calls(graph, each)])
        points = np.sort(columns["order"][parting])
        crossed = np.searchsorted(points, last[mine]) - np.searchsorted(
            points, first[mine], side="right"
        )
        allowed[mine[crossed > 0]] = False
    return groups.where(allowed)


def _unfusible(tasks: Selection) -> Selection:
    """Return products, collectives and copies over the link among some tasks."""
    amounts = work(tasks.graph, tasks)
    products = tasks.where(lambda _: amounts.is_of(*MATRIX_FAMILIES))
    unknown = tasks.where(lambda _: amounts.is_of(None))
    by_name = unknown.where(kind="kernel").where(
        lambda kernels: kernels_are(kernels, *MATRIX_CLASSES, "collective", "partial sum")
    )
    by_name = by_name | unknown.where(op=operators_that(lambda op: op.is_matrix))
    return (
        products
        | by_name
        | tasks.where(kind="collective")
        | tasks.where(kind="memcpy", name=OVER_LINK)
    )
