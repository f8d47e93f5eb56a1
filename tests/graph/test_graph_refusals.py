"""What a graph refuses, in which words, and what lint finds."""

import pytest
from small_graphs import launched, put, thread

from daydream import Graph, GraphError, NoMatchError, simulate

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
