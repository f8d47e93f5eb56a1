"""Figures show the figures of the results, and need matplotlib only when they are drawn."""

import pytest

import daydream
from daydream.simulate.critical_path import PathCause

pytest.importorskip("matplotlib", reason="figures need the extra `notebook`")


def bars(axes, label):
    (container,) = [each for each in axes.containers if each.get_label() == label]
    return [bar.get_width() for bar in container]


def texts(labels):
    return [label.get_text() for label in labels]


def test_bars_are_where_the_time_goes_before_and_after(replay):
    comparison = daydream.whatif(replay, "amp")
    before, after = comparison.breakdowns()
    figure = comparison.plot()

    for side in (before, after):  # bars are named by the labels of causes
        side["by_cause"] = {PathCause(key).label: ns for key, ns in side["by_cause"].items()}
    for axes, part in zip(figure.axes, ("by_cause", "by_phase"), strict=True):
        names = texts(axes.get_yticklabels())
        assert axes.get_title() == part.replace("_", " ")
        for label, side in (("before", before), ("after", after)):
            drawn = dict(zip(names, bars(axes, label), strict=True))
            assert drawn.keys() <= {*before[part], *after[part], "the rest"}
            assert all(
                abs(drawn[name] - side[part].get(name, 0) / 1e6) < 0.001
                for name in drawn
                if name != "the rest"
            )
            assert sum(drawn.values()) == pytest.approx(sum(side[part].values()) / 1e6, abs=0.005)


def test_a_difference_is_drawn_like_a_prediction(replay):
    found = daydream.compare(daydream.whatif(replay, "scale", on="gpu", factor=0.5), replay)
    figure = found.plot()

    assert bars(figure.axes[1], "predicted")
    assert bars(figure.axes[1], "estimated")


def test_another_step_can_be_drawn(replay):
    numbers = sorted(step for copy, step in replay.timeline.step_times() if copy == replay.settled.copy)
    titles = [replay.plot(step=number).axes[0].get_title() for number in numbers]

    assert len(set(titles)) == len(numbers)
    with pytest.raises(daydream.GraphError, match="unknown step 99; the covered steps are"):
        replay.plot(step=99)
    assert replay.timeline.plot().axes


def test_a_ranking_shows_the_predicted_steps_the_best_on_top(replay):
    ranking = daydream.rank(replay, pairs=0)
    left, right = ranking.plot().axes
    best = ranking.optimizations[0]

    assert texts(left.get_yticklabels())[-1] == best.optimization
    assert left.patches[-1].get_width() == best.predicted_ns / 1e6
    assert len(right.lines) > 1


def test_a_notebook_gets_a_picture(replay):
    assert replay.plot()._repr_png_().startswith(b"\x89PNG")


def test_nothing_to_draw_is_said_not_raised():
    from daydream.predict.curves import Curves

    (axes,) = Curves([]).plot().axes
    assert "no part" in axes.texts[0].get_text()


def test_without_matplotlib_one_line_says_what_to_install(replay, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(daydream.DaydreamError, match=r"pip install -e '\.\[notebook\]'"):
        replay.plot()
