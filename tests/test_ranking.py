"""Ranking: optimizations in order of what they save, pairs, reasons; and curves, by hand."""

from dataclasses import replace

import pytest
from graph.small_traces import op, trace
from two_streams import steps
from view_text import view_text

import daydream
from daydream import GraphError, NotApplicableError
from daydream.transforms.registry import describe, names


def halve_long(graph):
    """Halve the long kernel."""
    graph.select(name="^long_kernel").scale(0.5)


def halve_data(graph):
    graph.select(name="data").scale(0.5)


def slow_data(graph):
    graph.select(name="data").scale(2)


def nothing(graph):
    raise NotApplicableError("this trace has no tasks of that kind")


def broken(graph):
    raise RuntimeError("a mistake")


def asks(graph, *, factor, kind):
    graph.select(kind=kind).scale(factor)


ALL = [slow_data, nothing, halve_long, broken, asks, halve_data]


@pytest.fixture(scope="module")
def ranking():
    return daydream.rank(steps(), ALL)


def test_optimizations_are_sorted_by_what_they_save(ranking):
    found = [(each.optimization, each.saving_ns, each.predicted_ns) for each in ranking.optimizations]

    # The long kernel halved ends at 36, before the short one: 66 - 51 = 15 are saved.
    assert found == [
        ("halve-data", 16_000, 84_000), ("halve-long", 15_000, 85_000), ("slow-data", -32_000, 132_000)
    ]  # fmt: skip
    assert ranking.replayed_ns == 100_000
    assert ranking.optimizations[0].speedup == 100 / 84


def test_the_best_are_tried_together(ranking):
    found = [(each.optimization, each.saving_ns) for each in ranking.pairs]
    assert found == [("halve-data+halve-long", 31_000)]


def test_curves_show_where_it_stops_paying(ranking):
    curves = {(curve.sort, curve.name): curve for curve in ranking.curves}

    data = curves["operator", "data"]
    assert (data.own_ns, data.step_ns) == (32_000, (100_000, 92_000, 84_000, 76_000, 68_000))
    assert (data.knee, data.saving_ns) == (0.0, 32_000)
    long = curves["kernel", "long_kernel"]
    assert (long.own_ns, long.step_ns) == (60_000, (100_000, 85_000, 85_000, 85_000, 85_000))
    assert (long.knee, long.saving_ns) == (0.75, 15_000)
    short = curves["kernel", "short_kernel"]
    assert (short.own_ns, short.knee, short.saving_ns) == (40_000, None, 0)


def test_a_point_of_a_curve_is_the_what_if_with_that_factor(ranking):
    for curve in ranking.curves:
        if curve.sort not in {"operator", "kernel"}:
            continue
        word = "op" if curve.sort == "operator" else "name"
        for factor, step_ns in zip(curve.factors[1:], curve.step_ns[1:], strict=True):
            asked = {word: f"^{curve.name}$", "factor": factor}
            assert step_ns == daydream.whatif(ranking.replay, "scale", **asked).predicted_ns


def test_two_that_exclude_each_other_are_no_pair(ranking):
    chosen = [replace(describe(halve_long), excludes=frozenset({"halve-data"})), halve_data]
    found = daydream.rank(ranking.replay, chosen, with_curves=False)

    assert found.pairs == []
    assert "exclude each other" in found.left_out["halve-data+halve-long"]


def test_a_trace_without_steps_is_refused():
    with pytest.raises(GraphError, match="no step"):
        daydream.rank(trace([op("data", 0, 90)]))


def test_every_optimization_that_ships_is_ranked_or_has_a_reason(ranking):
    complete = daydream.rank(ranking.replay, pairs=2, with_curves=False)

    singles = {name for name in complete.left_out if "+" not in name}
    assert sorted({each.optimization for each in complete.optimizations} | singles) == names()
    assert not [reason for reason in complete.left_out.values() if reason.startswith("it failed")]
    assert len(complete.pairs) <= 2


def test_what_hardly_changes_the_step_is_no_gain(ranking):
    def hardly(graph):
        graph.select(name="data").scale(0.999)

    found = daydream.rank(ranking.replay, [hardly, halve_data, slow_data], with_curves=False)
    assert [each.changes_nothing for each in found.optimizations] == [False, True, False]
    assert found.pairs == []
    screen = view_text(found, top=1, verbose=True)
    assert "\n  slower: slow-data 0.76x\n  no gain: hardly\n" in screen


def test_it_becomes_a_data_frame(ranking):
    pytest.importorskip("pandas")
    frame = ranking.to_pandas()

    assert frame.optimization.tolist()[:3] == ["halve-data", "halve-long", "slow-data"]
    assert frame.saving_ns.tolist() == [16_000, 15_000, -32_000, 31_000]


def test_of_two_that_are_the_same_change_one_is_left_out():
    def twin(name, factor, excludes=(), note=None):
        def change(graph):
            graph.select(name="^long_kernel").scale(factor)
            if note:
                graph.note(note)

        return replace(describe(change, name), excludes=frozenset(excludes))

    one, other = twin("one", 0.5, note="with a caveat"), twin("other", 0.5, {"one"})
    slower, apart = twin("slower", 0.75, {"one"}), twin("apart", 0.5)

    ranking = daydream.rank(steps(), [one, other, slower, apart], with_curves=False)

    assert [each.optimization for each in ranking.optimizations] == ["apart", "other", "slower"]
    assert ranking.left_out["one"] == "the same change as other in this trace"
    assert not any("one" in pair.optimization.split("+") for pair in ranking.pairs)
