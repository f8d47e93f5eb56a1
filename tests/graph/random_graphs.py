"""Random graphs with every word of the program: launches, syncs, waits, queues, hand-offs, links."""

from functools import partial

import numpy as np
from hypothesis import strategies as st

from daydream import Graph
from daydream.graph.plan import Cause
from daydream.graph.tables import ALL_LANES, ORDER_STEP, Lane

THREADS = 3
STREAMS = 3
WORK = 4  # program-order distance from a call to the device work it launched
TIMES = st.integers(0, 9)
LATENCIES = st.integers(-3, 9)

ACTIONS = st.one_of(
    st.tuples(st.just("run"), TIMES),
    st.tuples(
        st.just("launch"),
        TIMES,
        st.integers(0, STREAMS - 1),
        st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=2),
    ),
    st.tuples(st.just("sync"), TIMES, st.sampled_from([ALL_LANES, 0, 1, 2]), st.integers(-2, 3)),
    st.tuples(st.just("wait"), TIMES, st.integers(0, STREAMS - 1), st.integers(0, STREAMS - 1), LATENCIES),
)


@st.composite
def graphs(draw, *, max_actions=14, scheduled=False):
    """Return a graph of a random program; with `scheduled` some streams run by priority."""
    graph = Graph()
    threads = [graph.add_lane(Lane(f"thread {number}")) for number in range(THREADS)]
    streams = [graph.add_lane(Lane(f"stream {number}", on_device=True)) for number in range(STREAMS)]
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = draw(TIMES), draw(TIMES)
    calls = []
    for place, action in enumerate(draw(st.lists(ACTIONS, min_size=1, max_size=max_actions))):
        call = _add(
            graph, f"call {place}", 0, draw(st.sampled_from(threads)), place * ORDER_STEP, draw(TIMES)
        )
        graph.columns["duration_ns"][call] = action[1]
        if action[0] == "launch":
            _, _, stream, works = action
            for duration, latency in works:
                work = _add(
                    graph, f"kernel {place}", 1, streams[stream], place * ORDER_STEP + WORK, draw(TIMES)
                )
                graph.columns["launch"][work] = call
                graph.columns["duration_ns"][work], graph.columns["latency_ns"][work] = duration, latency
        elif action[0] == "sync":
            _, _, lane, latency = action
            waited = lane if lane == ALL_LANES else streams[lane]
            graph.syncs.add(
                task=call, lane=waited, point=draw(st.sampled_from([*calls, call])), latency_ns=latency
            )
        elif action[0] == "wait":
            _, _, source, target, latency = action
            graph.waits.add(
                record=draw(st.sampled_from([*calls, call])), source=streams[source], wait=call,
                target=streams[target], latency_ns=latency,
            )  # fmt: skip
        calls.append(call)
    for stream in draw(st.sets(st.sampled_from(streams))):
        graph.queue_depth[stream] = draw(st.integers(1, 3))
    _link(draw, graph)
    for lane in draw(st.sets(st.sampled_from(streams), min_size=1)) if scheduled else ():
        priority = draw(st.lists(st.integers(0, 2), min_size=graph.size, max_size=graph.size))
        graph.scheduled[lane] = partial(_given, np.array(priority))
    released = draw(st.lists(st.sampled_from([0, 0, 0, 0, 25]), min_size=graph.size, max_size=graph.size))
    graph.columns["release_ns"][:] = released
    return graph


def _add(graph, name, kind, lane, order, gap):
    return int(graph.add(1, name=graph.code("name", name), kind=kind, lane=lane, order=order, gap_ns=gap)[0])


def _link(draw, graph):
    """Tie later tasks to earlier ones, as users and hand-offs do."""
    ids = graph.ids.tolist()
    pairs = st.tuples(st.integers(0, len(ids) - 1), st.integers(0, len(ids) - 1)).filter(
        lambda p: p[0] < p[1]
    )
    if len(ids) > 1:
        for a, b in draw(st.lists(pairs, max_size=5)):
            cause = draw(st.sampled_from([Cause.USER, Cause.HANDOFF]))
            graph.link(
                [ids[a]], [ids[b]], latency_ns=draw(LATENCIES), from_start=draw(st.booleans()), cause=cause
            )


def _given(priority, tasks):
    return priority[tasks.ids]
