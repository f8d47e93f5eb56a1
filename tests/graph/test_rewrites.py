"""Groups and the edits that put work elsewhere, each on a graph small enough to draw."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Literal
from zipfile import ZipFile

import numpy as np
import pytest
from small_graphs import at, kernels, lane, launched, named, names, put, starts, thread, with_sync

import daydream
from daydream import Graph, GraphError, NoMatchError, NotApplicableError, simulate
from daydream.transforms import registry, stages
from daydream.transforms.compose import apply, in_order, parse
from daydream.transforms.real_change import lines_of, why_not_offered
from daydream.transforms.registry import describe, find

# -- groups ------------------------------------------------------------------------------------------


def test_groups_come_in_the_order_of_their_first_tasks():
    graph = launched("a 20, b 10, c 5, d 1")
    kernels(graph).set(layer=["up", "down", "up", None], step=[0, 0, 1, 1])
    groups = kernels(graph).group_by("layer")

    assert groups.keys == ["up", "down"]
    assert [each.name.tolist() for each in groups] == [["a", "c"], ["b"]]
    assert groups.sizes.tolist() == [2, 1]
    assert groups.total("duration_ns").tolist() == [25, 10]
    assert names(groups.first()) == "a, b"
    assert names(groups.last()) == "c, b"
    assert names(groups.tasks) == "a, b, c"
    assert names(groups["down"]) == "b"
    assert {key: len(each) for key, each in groups.items()} == {"up": 2, "down": 1}
    assert groups.where(groups.sizes > 1).keys == ["up"]
    assert groups.where(lambda each: each.total("duration_ns") < 20).total("duration_ns").tolist() == [10]


def test_runs_are_full_when_their_sum_reaches_the_size_and_end_with_a_step():
    graph = launched("a 10, b 10, c 10, d 10, e 10, f 10, g 10")
    kernels(graph).set(bytes=[40, 70, 0, 29, 100, 30, 30], step=[0, 0, 0, 0, 0, 1, 1])
    runs = kernels(graph).runs(100, of="bytes")

    assert ["".join(run.name) for run in runs] == ["ab", "cde", "fg"]
    assert runs.total("bytes").tolist() == [110, 129, 60]
    several = kernels(graph).runs([30, 100], of="bytes")
    assert ["".join(run.name) for run in several] == ["a", "bcde", "f", "g"]
    assert several.keys == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    with pytest.raises(GraphError, match="sizes above 0"):
        kernels(graph).runs(0, of="bytes")


# -- split -------------------------------------------------------------------------------------------


def test_what_follows_a_task_follows_its_last_part():
    #  thread 1  |a 5|a 5|b|     link  |x| from 10
    graph = thread("a 10 +3, b 5")
    put(graph, "x", "link", 9, after=[0])
    graph.select(name="a").split(2)

    assert starts(graph) == at("a 5, b 13, x 10")


# -- move --------------------------------------------------------------------------------------------


def test_cpu_tasks_move_to_threads_and_device_work_to_streams():
    graph = launched("a 20")
    with pytest.raises(GraphError, match="'thread 1' is a CPU thread"):
        kernels(graph).move("thread 1")
    with pytest.raises(GraphError, match="cannot go to one lane"):
        graph.select().move("new")
    with pytest.raises(NotApplicableError, match="on 'stream 7' already"):
        kernels(graph).move("stream 7")
    graph.select(name="launch a").move("thread 2")
    assert graph.lint() == []


def test_a_call_that_waited_for_another_lane_does_not_wait_for_what_is_there_forever():
    #  thread 1  |launch a|launch x|sync|: for stream 8, where x takes 90. First a moves, then x
    graph = launched("a 20")
    put(graph, "x", "stream 8", 90, launch_after=named(graph, "launch a"))
    with_sync(graph, "stream 8")
    named(graph, "a").move("copies")
    assert starts(graph)["sync"] == 6 + 4 + 90
    named(graph, "x").move("elsewhere", held_for=False)
    assert starts(graph)["sync"] == 6 + 6


# -- waits and edges ---------------------------------------------------------------------------------


def test_links_can_be_dropped():
    graph = thread("a 5, b 5")
    put(graph, "x", "link", 9)
    graph.link(graph.select(name="b"), graph.select(name="x"))
    assert starts(graph)["x"] == 10
    graph.unlink(graph.select(name="b"), graph.select(name="x"))
    assert starts(graph)["x"] == 0
    with pytest.raises(NotApplicableError, match="no edge leads from name='b' to name='x'"):
        graph.unlink(graph.select(name="b"), graph.select(name="x"))
    with pytest.raises(GraphError, match="cannot link 2 tasks with 3"):
        graph.link([0, 1], [0, 1, 2])


# -- repeat ------------------------------------------------------------------------------------------


def test_parts_that_one_call_launches_get_a_call_in_each_group_that_goes_elsewhere():
    #  thread 1  |begin|launch a|launch x|launch y|     stream 7  |a up|a down|x|y|: one call launches both
    graph = launched("a 20, x 5, y 5")
    parts = named(graph, "a").split(2)
    parts.set(layer=["up", "down"])
    x, y = named(graph, "x", "y").ids
    parts.group_by("layer").repeat(before=graph.tasks(np.array([y, x])))

    assert lane(graph, "thread 1") == "begin, launch a, launch a, launch x, launch a, launch y"
    layers = graph.select(lane="stream 7").layer.tolist()
    assert layers == ["up", "down", "down", None, "up", None]
    assert graph.lint() == []


def test_links_among_repeated_tasks_are_repeated():
    graph = thread("a 5, b 5")
    put(graph, "x", "link", 9, after=[0], before=[1])
    assert starts(graph)["b"] == 14
    graph.select().repeat()

    assert len(graph.links) == 4
    assert simulate(graph).makespan_ns == 2 * (5 + 9 + 5)


def test_what_may_be_a_wait_may_be_one_in_each_repetition():
    #  thread 1  |a 5|pause 7|a 5|pause 7|      thread 2  |long 20 ...|   the pause may be a wait for long
    graph = thread("a 5, pause 7")
    put(graph, "long", "thread 2", 20)
    graph.write("doubt", np.array([1]), 1.0)
    graph.doubtful.add(src=2, dst=1)
    graph.select().repeat()

    for reading, ends in (
        (graph, [12, 24]),
        (graph.released(), [20, 40]),
    ):  # with the long task that it follows
        timeline = simulate(reading)
        assert timeline.end_ns[timeline.column("name") == "pause"].tolist() == ends


# -- set, scale, query -------------------------------------------------------------------------------


def test_what_the_work_is_can_be_set():
    graph = launched("a 20, b 10")
    both = kernels(graph)
    both.set(name=["x", "y"], kind="memset", phase="optimizer", layer=["l", None], dtype="float16", bytes=8)

    assert names(both) == "x, y"
    assert both.kind.tolist() == ["memset", "memset"]
    assert both.phase.tolist() == ["optimizer", "optimizer"]
    assert both.layer.tolist() == ["l", None]
    assert both.dtype.tolist() == ["float16", "float16"]
    assert both.bytes.tolist() == [8, 8]
    twin = graph.copy()
    twin.select(kind="memset").set(bytes=9)
    assert both.bytes.tolist() == [8, 8]
    with pytest.raises(GraphError, match="CPU tasks cannot become device work"):
        both.set(kind="cpu")
    with pytest.raises(GraphError, match="nor the other way round"):
        graph.select(kind="cpu").set(kind="kernel")
    graph.select(kind="cpu").set(kind="cpu")


def test_a_query_is_a_pandas_expression_on_columns():
    pytest.importorskip("pandas")
    graph = launched("a 20, b 10")
    kernels(graph).set(phase=["forward", "backward"])

    assert names(graph.select().query("duration_ns > 5 and phase == 'backward'")) == "b"
    assert names(graph.select().query("duration_ns >= @least", least=20)) == "a"
    assert names(graph.select().query("kind == 'kernel'").query("name.str.startswith('b')")) == "b"
    for wrong in ("durations > 5", "duration_ns >", "duration_ns"):
        with pytest.raises(GraphError, match="duration"):
            graph.select().query(wrong)
    with pytest.raises(NoMatchError, match="no task matched kind='kernel', 'duration_ns > 99'"):
        kernels(graph).query("duration_ns > 99").scale(2)


# Several optimizations at once: order, exclusion, options, and what makes no sense.


def halve(graph, *, factor=0.5):
    """Halve."""
    graph.select().scale(factor)


def add(graph, *, times=1, how: Literal["up", "down"] = "up", loud=False, name=None):
    """Add."""
    tasks = graph.select()
    tasks.set(duration_ns=tasks.duration_ns + (times if how == "up" else -times))


def idle(graph):
    """Do nothing."""


def absent(graph):
    graph.select(name="gemm").scale(2)


def quiet(graph):
    """Write a column, by no word."""
    graph.columns.put("duration_ns", graph.duration_ns * 2)


def one_task():
    graph = Graph()
    put(graph, "a", "thread 1", 100)
    return graph


def result(*optimizations, **options):
    graph = one_task()
    apply(optimizations, graph, options)
    return int(graph.select().duration_ns[0])


def test_stages_decide_the_order_then_names():
    first = replace(describe(add), stage=stages.WORK)
    later = replace(describe(halve), stage=stages.PRECISION)

    assert result(first, later) == result(later, first) == 51  # 101 / 2, rounded half up
    assert [each.name for each in in_order([later, first])] == ["add", "halve"]
    same = [replace(each, stage=stages.FUSION) for each in (later, first)]
    assert [each.name for each in in_order(same)] == ["add", "halve"]


def test_each_that_ships_has_a_stage_a_summary_and_options_of_plain_types():
    for name in registry.names():
        optimization = find(name)
        assert optimization.stage in stages.TITLES
        assert optimization.stage != stages.OWN, f"{name} names no STAGE"
        assert optimization.summary
        assert optimization.excludes <= set(registry.names()), f"{name} excludes what is not there"
        for option in optimization.options:
            assert option.type in (int, float, bool, str)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("amp+", "'amp+' has an empty part"),
        ("", "names nothing"),
        ("amp+amp", "'amp+amp' names amp twice"),
        (3, "a name, a function, or a list of them"),
        (["amp", 3], "a name, a function, or a list of them"),
        ("amp+apm", "unknown optimization 'apm'. Did you mean 'amp'?"),
    ],
)
def test_what_names_nothing_is_refused(spec, message, tmp_path, monkeypatch):
    (tmp_path / "made.egg-info" / "entry_points.txt").mkdir(parents=True)  # names no optimization either
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(daydream.DaydreamError) as raised:
        parse(spec)
    assert message in str(raised.value)


def test_changes_can_be_made_together_if_each_has_its_lines():
    one, two = (replace(describe(each), code=each.__name__) for each in (halve, add))

    assert lines_of([one, two]) == "halve; add"
    assert lines_of([one, replace(two, code="")]) is lines_of([]) is None
    assert why_not_offered(one, one_task()) is None


def test_exclusion_counts_both_ways():
    one, two = describe(halve), describe(add)
    for pair in (
        [replace(one, excludes=frozenset({"add"})), two],
        [one, replace(two, excludes=frozenset({"halve"}))],
    ):
        with pytest.raises(GraphError, match="halve and add exclude each other"):
            parse(pair)
        with pytest.raises(GraphError, match="add and halve exclude each other"):
            apply(pair[::-1], one_task(), {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"times": 1.5}, "times must be a whole number, not 1.5"),
        ({"times": "x"}, "times must be a whole number, not 'x'"),
        ({"how": "sideways"}, "how must be one of up, down, not 'sideways'"),
        ({"name": 3}, "name must be a text, not 3"),
        ({"time": 3}, "add has no option 'time'; it has times, how, loud, name"),
        ({"times": 3, "add.times": 3}, "option 'times' is given twice"),
    ],
)
def test_options_of_the_wrong_type_are_refused(options, message):
    with pytest.raises(GraphError) as raised:
        result(describe(add), **options)
    assert str(raised.value) == message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "x", None, [1]])
def test_a_number_is_finite(value):
    with pytest.raises(GraphError, match="factor must be a"):
        result(describe(halve), factor=value)


def test_whole_numbers_do_as_numbers_and_none_where_it_is_the_default():
    assert result(describe(halve), factor=2) == 200
    assert result(describe(add), name=None, times=5) == 105
    assert result(describe(add), **{"add.times": 5}) == 105


def test_what_is_installed_in_an_archive_is_found(tmp_path, monkeypatch):
    with ZipFile(tmp_path / "made.zip", "w") as file:
        file.writestr("made-1.dist-info/METADATA", "Name: made")
        file.writestr("made-1.dist-info/entry_points.txt", f"[{registry.ENTRY_POINTS}]\nmade = made:made")
    monkeypatch.syspath_prepend(tmp_path / "made.zip")
    assert "made" in [each.name for each in registry._entry_points()]


def test_times_that_nothing_asked_for_are_named():
    graph = one_task()
    graph.times = SimpleNamespace(answers=0)
    apply([describe(halve)], graph, {})
    assert "holds none that this prediction asks for" in graph.facts.notes[0]


def test_who_edits_nothing_does_not_apply():
    with pytest.raises(NotApplicableError, match="idle found nothing to change in this trace"):
        result(describe(idle))
    with pytest.raises(NotApplicableError, match="idle found nothing"):
        result(describe(halve), describe(idle))
    for others, who in (([], ""), ([describe(halve)], "absent: ")):
        with pytest.raises(daydream.NoMatchError, match=f"^{who}no task matched"):
            result(describe(absent), *others)
    assert result(describe(halve), factor=1) == 100
    assert result(describe(quiet)) == 200
