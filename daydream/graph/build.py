"""Build: from what was measured to what depends on what.

The rules, in the order they are applied. Each is one function with its reason in
its docstring; each can be left out by name (all parts by what is ahead of the dot), to see what it is worth.

| name | rule | file |
|---|---|---|
| `threads` | CPU time cut into tasks in thread order | `threads` |
| `streams` | device tasks in launch order | `streams` |
| `graphs.holes` | nodes of a CUDA graph that the profiler left out | `streams` |
| `gloo` | collectives on threads of the CPU: who begins them and who waits for them | `communication` |
| `fake_world` | collectives of a fake world: who begins them and who waits for them | `communication` |
| `blocked` | threads that the recording says were blocked: what ended the wait | `recurrent_waits` |
| `handoff` | a thread that wakes another and is blocked until it is done | `handoff` |
| `wakes` | a thread that goes on just behind a point of another, step after step | `recurrent_waits` |
| `queue` | a full launch queue blocks the launching call | `synchronization` |
| `lock` | a call is blocked until a call of another thread lets go of the driver | `recurrent_waits` |
| `synchronization` | blocking calls wait for the device | `synchronization` |
| `spins` | CPU time that ends with the device task launched before it, again and again | `recurrent_waits` |
| `launches` | what a long call does before it submits is CPU work, not latency | `streams` |
| `events.recorded` | a stream waits for an event of another: as the device recorded it | `events` |
| `events.known_streams` | where it recorded the waiting stream: for work not waited for yet | `events` |
| `events.program_order` | as the calls before and behind the wait tell | `events` |
| `events.forks` | of the one other stream that gets work later | `events` |
| `communication` | collectives of several ranks transfer when the last member has arrived | `communication` |
| `late_starts` | device work that begins late, just as work of another stream ends | `events` |
| `pauses` | where nothing was launched, work behind a pause follows what the device ended last | `streams` |
| `readings` | pauses that may be work or waits have both readings | `readings` |
| `background` | threads that nothing waits for complete no step | `threads` |
| `graphs.heads` | work ahead of a stream's first task, launched before the window | `streams` |
| `typical` | launch latency and start-up as they typically are | `streams` |
| `latencies` | launch latency and start-up of each device task as measured | `streams` |
| `fused` | a task for each operator and layer that owns a part of fused work | `streams` |
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from daydream.arrays import unique
from daydream.errors import GraphError
from daydream.graph.draft import Draft
from daydream.graph.graph import Graph
from daydream.graph.lower import CycleError, lower
from daydream.graph.rules.communication import match_ranks, run_on_threads, transfer_in_fake_world
from daydream.graph.rules.events import WAYS, follow_what_held
from daydream.graph.rules.readings import read_pauses
from daydream.graph.rules.recurrent_waits import (
    wait_for_lock,
    wait_for_wakers,
    wait_in_spins,
    wait_outside,
    wake_up,
)
from daydream.graph.rules.streams import (
    cut_long_calls,
    fill_heads,
    fill_holes,
    find_device_work,
    follow_the_device,
    measure_latencies,
    order_streams,
    part_fused,
    typical_latencies,
)
from daydream.graph.rules.synchronization import bound_queues, wait_in_calls
from daydream.graph.rules.threads import hand_over, order_threads, tell_background
from daydream.trace.trace import Trace

RULES: tuple[tuple[str, Callable[[Draft], None]], ...] = (
    ("threads", order_threads),
    ("streams", find_device_work),
    ("graphs.holes", fill_holes),
    ("streams", order_streams),
    ("gloo", run_on_threads),
    ("fake_world", transfer_in_fake_world),
    ("blocked", wait_for_wakers),
    ("handoff", hand_over),
    ("wakes", wake_up),
    ("blocked", wait_outside),
    ("queue", bound_queues),
    ("lock", wait_for_lock),
    ("synchronization", wait_in_calls),
    ("spins", wait_in_spins),
    ("launches", cut_long_calls),
    *WAYS.items(),
    ("communication", match_ranks),
    ("late_starts", follow_what_held),
    ("pauses", follow_the_device),
    ("readings", read_pauses),
    ("background", tell_background),
    ("graphs.heads", fill_heads),
    ("typical", typical_latencies),
    ("latencies", measure_latencies),
    ("fused", part_fused),
)


def build(trace: Trace, *, without: Collection[str] = ()) -> Graph:
    """Return the graph of a trace. `without` names rules to leave out (for measuring their worth).

    Returns:
        A `Graph` whose tasks take the recorded times, in ns, and start when their causes allow.

    Raises:
        GraphError: a rule of that name is unknown.

    """
    names = {name: {name, name.partition(".")[0]} for name, _ in RULES}
    unknown = set(without).difference(*names.values())
    if unknown:
        raise GraphError(f"unknown rule {min(unknown)!r}; the rules are {', '.join(names)}")
    draft = Draft(trace)
    for name, rule in RULES:
        if names[name].isdisjoint(without):
            rule(draft)
    graph = draft.finish()
    if "communication" not in without and len(unique(graph.ranks)) > 1:
        try:
            lower(graph)
        except CycleError:  # tasks would wait for themselves: no reason to refuse a job
            graph = build(trace, without=[*without, "communication"])
            lower(graph)  # a contradiction of other causes is an error, no note
            graph.facts.notes.append(
                "Collectives of the ranks could not be matched without a contradiction; each rank is "
                "simulated by itself."
            )
    return graph
