"""Build: from what was measured to what depends on what.

The rules, in the order they are applied. Each is one function with its reason in
its docstring; each can be left out by name, to see what it is worth.

| name | rule | file |
|---|---|---|
| `threads` | CPU time cut into tasks in thread order | `threads` |
| `streams` | device tasks in launch order | `streams` |
| `gloo` | collectives on threads of the CPU: who begins them and who waits for them | `gloo` |
| `handoff` | a thread that wakes another and is blocked until it is done | `handoff` |
| `wakes` | a thread that goes on just behind a point of another, step after step | `recurrent_waits` |
| `graphs` | nodes of a CUDA graph, and what the profiler left out among and ahead of them | `device_graphs` |
| `queue` | a full launch queue blocks the launching call | `queue` |
| `lock` | a call is blocked until a call of another thread lets go of the driver | `recurrent_waits` |
| `synchronization` | blocking calls wait for the device | `synchronization` |
| `spins` | CPU time that ends with the device task launched before it, again and again | `recurrent_waits` |
| `launches` | what a long call does before it submits is CPU work, not latency | `latencies` |
| `events` | a stream waits for an event of another | `events` |
| `communication` | collectives of several ranks transfer when the last member has arrived | `communication` |
| `late_starts` | device work that begins just as long work of another stream ends | `events` |
| `pauses` | where nothing was launched, work behind a pause follows what the device ended last | `streams` |
| `readings` | pauses that may be work or waits have both readings | `readings` |
| `background` | threads that nothing waits for complete no step | `threads` |
| `typical` | launch latency and start-up as they typically are | `latencies` |
| `latencies` | launch latency and start-up of each device task as measured | `latencies` |
| `fused` | a task for each operator and layer that owns a part of fused work | `fused_parts` |
| `doubtful` | matches between ranks that contradict each other are left out | `communication` |
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from daydream.errors import GraphError
from daydream.graph.draft import Draft
from daydream.graph.graph import Graph
from daydream.graph.rules.communication import leave_out_doubtful, match_ranks
from daydream.graph.rules.device_graphs import fill_heads, fill_holes, link_nodes
from daydream.graph.rules.events import follow_what_held, wait_for_events
from daydream.graph.rules.fused_parts import part_fused
from daydream.graph.rules.gloo import run_on_threads
from daydream.graph.rules.handoff import hand_over
from daydream.graph.rules.latencies import cut_long_calls, measure_latencies, typical_latencies
from daydream.graph.rules.queue import bound_queues
from daydream.graph.rules.readings import read_pauses
from daydream.graph.rules.recurrent_waits import wait_for_lock, wait_in_spins, wake_up
from daydream.graph.rules.streams import find_device_work, follow_the_device, order_streams
from daydream.graph.rules.synchronization import wait_in_calls
from daydream.graph.rules.threads import order_threads, tell_background
from daydream.trace.trace import Trace

RULES: tuple[tuple[str, Callable[[Draft], None]], ...] = (
    ("threads", order_threads),
    ("streams", find_device_work),
    ("graphs", fill_holes),
    ("streams", order_streams),
    ("gloo", run_on_threads),
    ("handoff", hand_over),
    ("wakes", wake_up),
    ("graphs", link_nodes),
    ("queue", bound_queues),
    ("lock", wait_for_lock),
    ("synchronization", wait_in_calls),
    ("spins", wait_in_spins),
    ("launches", cut_long_calls),
    ("events", wait_for_events),
    ("communication", match_ranks),
    ("late_starts", follow_what_held),
    ("pauses", follow_the_device),
    ("readings", read_pauses),
    ("background", tell_background),
    ("graphs", fill_heads),
    ("typical", typical_latencies),
    ("latencies", measure_latencies),
    ("fused", part_fused),
    ("doubtful", leave_out_doubtful),
)


def build(trace: Trace, *, without: Collection[str] = ()) -> Graph:
    """Return the graph of a trace. `without` names rules to leave out (for measuring their worth).

    Returns:
        A `Graph` whose tasks take the recorded times, in ns, and start when their causes allow.

    Raises:
        GraphError: a rule of that name is unknown.

    """
    names = dict(RULES)
    unknown = set(without) - set(names)
    if unknown:
        raise GraphError(f"unknown rule {min(unknown)!r}; the rules are {', '.join(names)}")
    draft = Draft(trace)
    for name, rule in RULES:
        if name not in without:
            rule(draft)
    return draft.finish()
