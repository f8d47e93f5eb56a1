"""Several optimizations at once: order, exclusion, options, and what makes no sense."""

from dataclasses import replace
from typing import Literal

import pytest
from small_graphs import put

import daydream
from daydream import Graph, GraphError, NotApplicableError
from daydream.transforms import stages
from daydream.transforms.compose import apply, in_order, parse
from daydream.transforms.registry import describe, find, names


def halve(graph, *, factor=0.5):
    """Halve."""
    graph.select().scale(factor)


def add(graph, *, times=1, how: Literal["up", "down"] = "up", loud=False, name=None):
    """Add."""
    tasks = graph.select()
    tasks.set(duration_ns=tasks.duration_ns + (times if how == "up" else -times))


def idle(graph):
    """Do nothing."""


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
    for name in names():
        optimization = find(name)
        assert optimization.stage in stages.TITLES
        assert optimization.stage != stages.OWN, f"{name} names no STAGE"
        assert optimization.summary
        assert optimization.excludes <= set(names()), f"{name} excludes what is not there"
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


def test_who_edits_nothing_does_not_apply():
    with pytest.raises(NotApplicableError, match="idle found nothing to change in this trace"):
        result(describe(idle))
    with pytest.raises(NotApplicableError, match="idle found nothing"):
        result(describe(halve), describe(idle))
    assert result(describe(halve), factor=1) == 100
    assert result(describe(quiet)) == 200
