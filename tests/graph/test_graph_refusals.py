"""What a graph refuses, in which words, and what lint finds."""

import networkx as nx
import pytest
from small_graphs import at, launched, put, starts, thread, with_sync

from daydream import Graph, GraphError, NoMatchError, replay, simulate

# -- what is refused, and how ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "edit",
    [
        lambda none: none.scale(2),
        lambda none: none.set(duration_ns=1),
        lambda none: none.remove(),
        lambda none: none.replace("x", duration_ns=1),
        lambda none: none.head(1),
        lambda none: none.last(),
    ],
)
def test_an_edit_that_matches_nothing_says_what_was_looked_for(edit):
    graph = thread("a 5")
    with pytest.raises(NoMatchError, match=r"no task matched kind='cpu', name='gemm'\."):
        edit(graph.select(kind="cpu", name="gemm"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"phase": "backward"}, "This trace has no phases"),
        ({"layer": "encoder.*"}, "This trace has no layers"),
        ({"kind": "kernel"}, "This trace holds no device work"),
        ({"on": "gpu"}, "This trace holds no device work"),
    ],
)
def test_what_the_trace_lacks_is_said(words, why):
    graph = thread("a 5")
    with pytest.raises(NoMatchError, match="no task matched") as raised:
        graph.select(**words).scale(2)
    assert why in str(raised.value)


def test_of_many_layers_the_first_are_listed():
    graph = Graph()
    for number in range(10):
        graph.insert("a", kind="cpu", lane="thread 1", duration_ns=1, layer=f"l{number}")
    with pytest.raises(NoMatchError, match="l5 and 4 more"):
        graph.select(layer="encoder").scale(2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"kind": "kernal"}, "unknown kind 'kernal'; choose from cpu, kernel, memcpy, memset, collective"),
        (
            {"phase": "fwd"},
            "unknown phase 'fwd'; choose from data, forward, loss, backward, optimizer, other",
        ),
        ({"on": "tpu"}, "on='tpu'; choose cpu or gpu"),
        ({"name": "("}, "name: not a regular expression"),
        ({"colour": "red"}, "tasks have no column 'colour'"),
    ],
)
def test_a_word_that_means_nothing_is_refused(words, message):
    with pytest.raises(GraphError) as raised:
        thread("a 5").select(**words)
    assert message in str(raised.value)


def test_an_unknown_kind_cannot_be_inserted():
    with pytest.raises(GraphError, match="unknown kind 'gpu'; the kinds are cpu, kernel"):
        Graph().insert("x", kind="gpu", lane="stream 7", duration_ns=1)


def test_a_cycle_names_a_task_in_it():
    graph = thread("a 5")
    put(graph, "x", "worker", 1)
    put(graph, "y", "worker", 1, after=[1], before=[1])

    words = (
        "the graph has a cycle of 2 tasks: 'x' comes before 'y' (on worker, which runs in program order), "
        "before 'x' (by an edge that was put in)"
    )
    with pytest.raises(GraphError) as raised:
        simulate(graph)
    assert str(raised.value) == words
    assert graph.lint() == [words + "."]


# -- lint --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "task", "value", "problem"),
    [
        ("duration_ns", "^b$", -3, "1 task with a negative duration_ns, 'b' first."),
        ("gap_ns", "^[ab]$", -1, "2 tasks with a negative gap_ns, 'a' first."),
        ("alive", "launch a", False, "1 device task without the call that launched them, 'a' first"),
        ("lane", "^a$", 9, "1 task on a lane that is not there, 'a' first; make it with `lane_id`."),
        ("launch", "^b$", 2, "1 device task launched by device work, 'b' first; only CPU tasks launch."),
        ("order", "^a$", -5, "1 device task ahead of their launch in program order, 'a' first"),
    ],
)
def test_lint_finds_what_cannot_be(column, task, value, problem):
    graph = launched("a 20, b 20")
    ids = graph.select(name=task).ids
    (graph.alive if column == "alive" else graph.columns[column])[ids] = value

    assert [found.startswith(problem) for found in graph.lint()] == [True]


@pytest.mark.parametrize(
    ("kind", "lane", "problem"),
    [
        ("cpu", "stream 7", "1 CPU task on a lane of the device, 'x' first."),
        ("kernel", "thread 1", "1 device task on a CPU thread, 'x' first."),
    ],
)
def test_lint_finds_tasks_on_a_lane_of_the_other_side(kind, lane, problem):
    graph = launched("a 20")
    graph.insert("x", kind=kind, lane=lane, duration_ns=1)

    assert graph.lint() == [problem]


# -- graphs to networkx and back -------------------------------------------------------------------------


def test_nodes_are_tasks_and_edges_are_causes():
    #  thread 1  |begin|launch a 6| ......... |sync 3|
    #  stream 7            +4 |a 20           |
    graph = launched("a 20")
    sync = with_sync(graph)
    graph.columns["step"][:] = [0, 0, 0, -1]
    graph.steps = [{"name": "step", "start_ns": 0, "end_ns": 27, "covered": True, "measured_ns": 24}]
    digraph = graph.to_networkx()
    call, a = (int(graph.select(name=name).ids[0]) for name in ("launch a", "^a$"))

    assert digraph.nodes[a] == {
        "lane": "stream 7", "kind": "kernel", "name": "a", "duration_ns": 20, "gap_ns": 1, "release_ns": 0,
        "step": 0, "phase": None, "layer": None,
    }  # fmt: skip
    assert digraph.nodes[sync]["step"] is None
    assert digraph.edges[call, a] == {
        "cause": "launch", "latency_ns": 4, "from_start": True, "delay_ns": 4}  # fmt: skip
    assert digraph.edges[a, sync] == {
        "cause": "sync", "latency_ns": 0, "from_start": False, "delay_ns": 20}  # fmt: skip
    assert digraph.edges[call, sync] == {
        "cause": "lane", "latency_ns": 0, "from_start": False, "delay_ns": 6}  # fmt: skip
    again = Graph.from_networkx(digraph)
    assert simulate(again).step_times() == simulate(graph).step_times() == {(0, 0): 24}
    assert replay(again).start_error_ns == {"p50": 0, "p95": 0}  # when they ran is not recorded


def test_a_graph_can_be_written_down_as_nodes_and_edges():
    #  cpu   |load 10|gap 2|next 1|
    #  gpu         +3 |gemm 7|            3 after the start of load
    digraph = nx.DiGraph()
    digraph.add_node("load", lane="cpu", duration_ns=10, gap_ns=2)
    digraph.add_node(
        "gemm", lane="gpu", duration_ns=7, kind="kernel", name="sgemm", phase="forward", layer="fc"
    )
    digraph.add_node("next", lane="cpu", duration_ns=1)
    digraph.add_edge("load", "gemm", latency_ns=3, from_start=True)
    graph = Graph.from_networkx(digraph)

    assert starts(graph) == at("load 0, sgemm 3, next 12")
    assert graph.select(kind="kernel", phase="forward", layer="f*").lane.tolist() == ["gpu"]
    assert [(lane.name, lane.on_device) for lane in graph.lanes] == [("cpu", False), ("gpu", True)]
    assert graph.lint() == []


def test_tasks_of_a_lane_run_in_the_order_of_the_nodes_as_far_as_edges_allow():
    digraph = nx.DiGraph()
    for node in "abc":
        digraph.add_node(node, lane="cpu", duration_ns=1)
    assert starts(Graph.from_networkx(digraph)) == at("a 0, b 1, c 2")

    digraph.add_edge("c", "a")
    assert starts(Graph.from_networkx(digraph)) == at("b 0, c 1, a 2")


def nodes(**attributes):
    digraph = nx.DiGraph([("x", "y")])
    digraph.add_node("x", lane="cpu", duration_ns=1)
    digraph.add_node("y", **{"lane": "cpu", "duration_ns": 1, **attributes})
    return digraph


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"lane": None}, "node 'y': it has no lane; nodes need a lane and a duration_ns"),
        ({"duration_ns": None}, "node 'y': it has no duration_ns; nodes need a lane and a duration_ns"),
        ({"duration_ns": -1}, "node 'y': duration_ns cannot be negative (-1 ns)"),
        ({"kind": "gpu"}, "node 'y': unknown kind 'gpu'; the kinds are cpu, kernel"),
    ],
)
def test_a_node_that_cannot_be_a_task_is_named(attributes, message):
    with pytest.raises(GraphError) as raised:
        Graph.from_networkx(nodes(**attributes))
    assert message in str(raised.value)


def test_a_cycle_is_refused_by_name():
    digraph = nodes()
    digraph.add_edge("y", "x")
    with pytest.raises(GraphError, match=r"the graph has a cycle: node '[xy]' waits for itself"):
        Graph.from_networkx(digraph)
