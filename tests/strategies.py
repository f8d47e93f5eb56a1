"""Plans for tests: drawn by hand in one line a task, or at random with every feature a plan can have."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from daydream.graph.plan import Cause, Plan

STORED_CAUSES = [cause for cause in Cause if cause not in {Cause.LANE, Cause.RELEASE}]


class Task(NamedTuple):
    """A task of a plan drawn by hand."""

    lane: int
    duration: int
    gap: int = 0
    release: int = 0


class Edge(NamedTuple):
    """An edge of a plan drawn by hand."""

    src: int
    dst: int
    latency: int = 0
    from_start: bool = False
    cause: Cause = Cause.USER


def written(tasks, edges="", priority=None):
    """Return the plan of a text: `LANE DURATION +GAP @RELEASE, ...` and `SRC>DST LATENCY start CAUSE, ...`.

    From one on, `start` and a cause may be left out; an edge counts from the end of its source then.
    """
    found, links = [], []
    for task in filter(None, tasks.split(", ")):
        lane, duration, *more = task.split()
        given = {each[0]: int(each[1:]) for each in more}
        found.append(Task(int(lane), int(duration), given.get("+", 0), given.get("@", 0)))
    for edge in filter(None, edges.split(", ")):
        between, *more = edge.split()
        numbers = [int(each) for each in more if not each.isalpha()]
        causes = [Cause[each] for each in more if each.isupper()]
        ends = map(int, between.split(">"))
        links.append(Edge(*ends, sum(numbers), "start" in more, *causes))
    return drawn(found, links, priority)


def drawn(tasks, edges, priority=None):
    """Return a plan of these tasks; `priority` maps each scheduled lane to its tasks, most urgent first."""
    urgency = np.zeros(len(tasks), np.int64)
    for ranked in (priority or {}).values():
        urgency[ranked] = np.arange(len(ranked))
    of_tasks = np.array(tasks, np.int64).reshape(len(tasks), 4).T
    of_edges = np.array(edges, np.int64).reshape(len(edges), 5).T
    return Plan.from_edges(*of_tasks, *of_edges, scheduled=priority or (), priority=urgency)


@st.composite
def plans(
    draw,
    *,
    max_tasks=16,
    max_lanes=4,
    max_time=8,
    least_latency=-5,
    scheduled=False,
):
    """Return a plan: edges with latencies (from start or end), gaps, releases, zero durations.

    With `scheduled`, at least one lane has a policy, with few distinct priorities so that ties happen.
    """
    n = draw(st.integers(1, max_tasks))
    lanes = draw(st.integers(1, max_lanes))

    def column(values):
        return draw(st.lists(values, min_size=n, max_size=n))

    def edge(dst):
        source, latency = st.integers(0, dst - 1), st.integers(least_latency, max_time)
        return st.builds(Edge, source, st.just(dst), latency, st.booleans(), st.sampled_from(STORED_CAUSES))

    tasks = [
        Task(*columns)
        for columns in zip(
            column(st.integers(0, lanes - 1)),
            column(st.integers(0, max_time)),
            column(st.sampled_from([0, 0, 1, 3])),
            column(st.sampled_from([0, 0, 0, 5, 20])),
            strict=True,
        )
    ]
    edges = draw(st.lists(st.integers(1, n - 1).flatmap(edge), max_size=2 * n)) if n > 1 else []
    plan = drawn(tasks, edges)
    if not scheduled:
        return plan
    policy = draw(st.sets(st.integers(0, lanes - 1), min_size=1))
    return Plan.from_edges(
        plan.lane, plan.duration_ns, plan.gap_ns, plan.release_ns,
        plan.edge_src, plan.edge_dst, plan.edge_latency_ns, plan.edge_from_start, plan.edge_cause,
        scheduled=policy, priority=column(st.integers(0, 2)),
    )  # fmt: skip
