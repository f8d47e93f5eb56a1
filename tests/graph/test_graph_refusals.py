"""What a graph refuses, in which words, and what lint finds."""

import pytest
from small_graphs import launched, thread, with_sync

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


def test_need_says_what_the_trace_has_not():
    with pytest.raises(NoMatchError, match="this trace has no optimizer kernels"):
        Graph().select(kind="kernel").need("optimizer kernels")


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


def test_an_unknown_phase_cannot_be_inserted():
    with pytest.raises(GraphError, match="unknown phase 'fwd'; the phases are data, forward"):
        Graph().insert("x", kind="cpu", lane="thread 1", duration_ns=1, phase="fwd")


def test_a_cycle_names_a_task_in_it():
    graph = thread("a 5")
    graph.insert("x", kind="cpu", lane="worker", duration_ns=1)
    graph.insert("y", kind="cpu", lane="worker", duration_ns=1, after=[1], before=[1])

    words = (
        "the graph has a cycle of 2 tasks: 'x' comes before 'y' (on worker, which runs in program order), "
        "before 'x' (by an edge that was put in)"
    )
    with pytest.raises(GraphError) as raised:
        simulate(graph)
    assert str(raised.value) == words
    assert graph.lint() == [words + "."]


def test_tasks_behind_a_cycle_are_not_blamed():
    graph = thread("a 5, b 5")
    graph.insert("x", kind="cpu", lane="worker", duration_ns=1, after=[1], before=[0])

    with pytest.raises(GraphError, match="the graph has a cycle"):
        simulate(graph)


# -- lint --------------------------------------------------------------------------------------------


def test_a_sound_graph_has_no_problems():
    graph = launched("a 20, b 20")
    with_sync(graph)
    assert graph.lint() == []


@pytest.mark.parametrize("column", ["launch", "lane", "kind", "order"])
def test_lint_of_a_copy_finds_what_was_written(column):
    graph = launched("a 20, b 20")
    other = graph.copy()
    assert graph.lint() == other.lint() == []

    other.write(column, slice(None), {"launch": 3, "lane": 9, "kind": 2, "order": 7 - graph.order}[column])

    assert other.lint()
    assert graph.lint() == []


def test_lint_of_a_copy_finds_tasks_that_went():
    graph = launched("a 20, b 20")
    other = graph.copy()
    assert graph.lint() == other.lint() == []

    other.write("alive", 1, False)  # the launch of the first

    assert other.lint()


def test_lint_finds_negative_times():
    graph = thread("a 5, b 5")
    graph.columns["duration_ns"][1] = -3
    graph.columns["gap_ns"][:] = -1

    assert graph.lint() == [
        "1 task with a negative duration_ns, 'b' first.",
        "2 tasks with a negative gap_ns, 'a' first.",
    ]


def test_lint_finds_work_that_lost_its_launch():
    graph = launched("a 20")
    graph.select(name="launch a").remove()

    (problem,) = graph.lint()
    assert problem == (
        "1 device task without the call that launched them, 'a' first; removing work removes its launch."
    )


def test_lint_finds_cpu_tasks_on_a_stream():
    graph = launched("a 20")
    graph.insert("x", kind="cpu", lane="stream 7", duration_ns=1)

    assert graph.lint() == ["1 CPU task on a lane of the device, 'x' first."]


def test_lint_finds_device_work_on_a_thread():
    graph = launched("a 20")
    graph.insert("x", kind="kernel", lane="thread 1", duration_ns=1)

    assert graph.lint() == ["1 device task on a CPU thread, 'x' first."]


def test_lint_finds_launches_that_make_no_sense():
    graph = launched("a 20, b 20")
    a, b = (int(graph.select(name=name).ids[0]) for name in ("^a$", "^b$"))
    graph.columns["launch"][b] = a
    assert graph.lint() == ["1 device task launched by device work, 'b' first; only CPU tasks launch."]

    graph = launched("a 20, b 20")
    graph.columns["order"][a] = -5
    assert graph.lint() == [
        (
            "1 device task ahead of their launch in program order, 'a' first; "
            "calls in between would not see them."
        )
    ]


def test_lint_finds_lanes_that_are_not_there():
    graph = launched("a 20")
    graph.columns["lane"][2] = 9
    assert graph.lint() == ["1 task on a lane that is not there, 'a' first; make it with `lane_id`."]


def test_a_cycle_through_a_lane_says_so():
    graph = thread("a 5, b 5")
    graph.link(graph.select(name="b"), graph.select(name="a"))

    assert graph.lint() == [
        (
            "the graph has a cycle of 2 tasks: 'a' comes before 'b' (on thread 1, which runs in program "
            "order), before 'a' (by an edge that was put in)."
        )
    ]
