"""Graphs made by hand, small enough to draw."""

from daydream import Graph, simulate
from daydream.graph.tables import ALL_LANES


def starts(graph, **options):
    """Return when each task starts, by name."""
    timeline = simulate(graph, **options)
    return dict(zip(timeline.column("name").tolist(), timeline.start_ns.tolist(), strict=True))


def at(text):
    """Return starts from text: `a 0, b 5+3`."""
    tasks = (task.rsplit(" ", 1) for task in text.split(", "))
    return {name: sum(int(part) for part in start.split("+")) for name, start in tasks}


def names(tasks):
    return ", ".join(tasks.name)


def lane(graph, name):
    return names(graph.select(lane=name))


def kernels(graph):
    return graph.select(kind="kernel")


def named(graph, *exact):
    return graph.select(name=tuple(f"^{name}$" for name in exact))


KINDS = {"stream": "kernel", "link": "collective", "copies": "memcpy"}


def put(graph, name, lane, duration_ns, **how):
    """Insert a task of the kind that its lane has."""
    kind = KINDS.get(lane.split()[0], "cpu")
    return graph.insert(name, kind=kind, lane=lane, duration_ns=duration_ns, **how)


def _parsed(text):
    """Yield name, duration and gap of each task: `a 5, b 3 +2`, where a gap of 2 follows b."""
    for task in text.split(", "):
        name, duration, *gap = task.split()
        yield name, int(duration), int(gap[0]) if gap else 0


def thread(text):
    """Return a graph with one thread of tasks."""
    graph = Graph()
    for name, duration, gap in _parsed(text):
        graph.insert(name, kind="cpu", lane="thread 1", duration_ns=duration, gap_ns=gap)
    return graph


def launched(text, latency=4, cost=6, spacing=1):
    """Return a graph whose thread launches kernels on stream 7, one call each."""
    graph = Graph()
    graph.facts.launch_latency_ns, graph.facts.launch_cost_ns = latency, cost
    graph.insert("begin", kind="cpu", lane="thread 1", duration_ns=0)
    for name, duration, _ in _parsed(text):
        kernel = graph.insert(
            name, kind="kernel", lane="stream 7", duration_ns=duration, gap_ns=spacing,
            launch_after=graph.select(kind="cpu").last(),
        )  # fmt: skip
        graph.columns["name"][kernel.launches().ids] = graph.code("name", f"launch {name}")
    return graph


def with_sync(graph, lane=ALL_LANES, cost=3):
    """Add a call at the end of the thread that waits for all work launched before it; return its id."""
    number = lane if isinstance(lane, int) else graph.lane_id(lane)
    sync = int(graph.insert("sync", kind="cpu", lane="thread 1", duration_ns=cost).ids[0])
    graph.syncs.add(task=sync, lane=number, point=sync, latency_ns=0)
    return sync
