"""Build: from what was measured to what depends on what.

The rules, in the order they are applied. Each is one function with its reason in
its docstring; each can be left out by name, to see what it is worth.

| name | rule | file |
|---|---|---|
| (always) | CPU time cut into tasks in thread order; device tasks in launch order | `threads`, `streams` |
| `gloo` | collectives on threads of the CPU: who begins them and who waits for them | `gloo`, `gloo_waits` |
| `handoff` | a thread that wakes another and stands until it is done | `handoff` |
| `wakes` | a thread that goes on just behind a point of another, step after step | `wakes` |
| `graphs` | nodes of a CUDA graph, and the holes the profiler left among them | `device_graphs` |
| `queue` | a full launch queue blocks the launching call | `queue` |
| `lock` | a call stands until a blocking call of another thread lets go of the driver | `lock` |
| `synchronization` | blocking calls wait for the device | `synchronization` |
| `spins` | CPU time that ends with the device task launched before it, again and again | `spins` |
| `launches` | what a long call does before it submits is CPU work, not latency | `launches` |
| `events` | a stream waits for an event of another | `events` |
| `communication` | collectives of several ranks transfer when the last member has arrived | `communication` |
| `late_starts` | device work that begins just as long work of another stream ends | `late_starts` |
| `pauses` | where nothing was launched, work behind a pause follows what the device ended last | `pauses` |
| `latencies` | launch latency and start-up of each device task as measured, not typical | `latencies` |
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from daydream.errors import GraphError
from daydream.graph.builder import GraphBuilder
from daydream.graph.graph import Graph
from daydream.graph.rules.communication import meet
from daydream.graph.rules.device_graphs import fill_heads, link_nodes
from daydream.graph.rules.doubtful import leave_out_doubtful
from daydream.graph.rules.events import wait_for_events
from daydream.graph.rules.fused_parts import part_fused
from daydream.graph.rules.gloo import run_on_threads
from daydream.graph.rules.handoff import hand_over, tell_background
from daydream.graph.rules.late_starts import follow_what_held
from daydream.graph.rules.latencies import measure_latencies
from daydream.graph.rules.launches import cut_long_calls
from daydream.graph.rules.lock import wait_for_lock
from daydream.graph.rules.pauses import follow_the_device
from daydream.graph.rules.queue import bound_queues
from daydream.graph.rules.spins import wait_in_spins
from daydream.graph.rules.streams import order_streams
from daydream.graph.rules.synchronization import wait_in_calls
from daydream.graph.rules.threads import order_threads
from daydream.graph.rules.wakes import wake_up
from daydream.trace.trace import Trace

RULES = {
    "gloo": run_on_threads,
    "handoff": hand_over,
    "wakes": wake_up,
    "graphs": link_nodes,
    "queue": bound_queues,
    "lock": wait_for_lock,
    "synchronization": wait_in_calls,
    "spins": wait_in_spins,
    "launches": cut_long_calls,
    "events": wait_for_events,
    "communication": meet,
    "late_starts": follow_what_held,
    "pauses": follow_the_device,
}


def build(trace: Trace, *, without: Collection[str] = ()) -> Graph:
    """Return the graph of a trace. `without` names rules to leave out (for measuring their worth).

    Returns:
        A `Graph` whose tasks take the recorded times, in ns, and start when their causes allow.

    Raises:
        GraphError: a rule of that name is unknown.

    """
    unknown = set(without) - set(RULES) - {"latencies"}
    if unknown:
        raise GraphError(f"unknown rule {min(unknown)!r}; the rules are {', '.join(RULES)}, latencies")
    graph = Graph(trace)
    graph.texts = {name: list(trace.text(name)) for name in graph.texts}
    graph.steps = [dict(step) for step in trace.metadata.get("steps", [])]
    builder = GraphBuilder(trace, graph)
    order_threads(builder)
    order_streams(builder, holes="graphs" not in without)
    for name, rule in RULES.items():
        if name not in without:
            rule(builder)
    tell_background(builder)
    builder.settle_events()
    if "graphs" not in without:
        fill_heads(builder)
    builder.event_latency_ns = np.zeros(graph.size, np.int64)
    measure_latencies(builder, measured="latencies" not in without)
    for (target, _), row in zip(builder.event_pairs, builder.event_rows, strict=True):
        graph.waits["latency_ns"][row] = builder.event_latency_ns[target]
    if len({lane.rank for lane in graph.lanes}) > 1:
        leave_out_doubtful(graph)
    part_fused(graph)
    graph.columns.join()
    return graph
