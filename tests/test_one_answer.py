"""One question, one answer: laws that hold on every trace, whatever the truth is.

They are tried on the examples, on random programs and, with the slow tests, on public traces.
"""

import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pytest
from graph.random_machines import recipes
from graph.small_graphs import kernels
from hypothesis import HealthCheck, given, settings
from shared import TRACES
from view_text import view_text

import daydream
from daydream.agents.questions import brief
from daydream.errors import DaydreamError, NoMatchError
from daydream.report.format import speedup, time_text
from daydream.report.html.page import render
from daydream.report.views.step import step_figures

ROOT = Path(__file__).parents[1]
EXAMPLES = [ROOT / "examples" / name for name in (
    "mlp_cpu.json.gz", "synthetic_gpt_gpu.json.gz", "train_gpt_h200.parquet",
)]  # fmt: skip
LARGEST = 300_000  # bytes of a public trace; of the others every fourth one, chosen by its name
FIGURES = ("replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup")


def public():
    """Return public traces that are not large, each a case of the slow tests."""
    sys.path.insert(0, str(ROOT / "validation"))
    from sanity import sources

    small = [path for _, path in sources(TRACES) if path.is_file() and path.stat().st_size < LARGEST]
    found = [path for path in small if crc32(path.name.encode()) % 4 == 1]
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip("the public traces are not at hand"))]
    return [pytest.param(path, id=str(path.relative_to(TRACES)), marks=pytest.mark.slow) for path in found]


@pytest.fixture(scope="module", params=[*EXAMPLES, *public()], ids=lambda path: getattr(path, "name", None))
def replay(request):
    try:
        return daydream.replay(daydream.load(request.param))
    except DaydreamError as error:
        pytest.skip(f"this trace has no answer: {error}")


@pytest.fixture(scope="module")
def ranking(replay):
    return daydream.rank(replay, pairs=0, with_curves=False)


def figures(answer):
    return {name: getattr(answer, name) for name in FIGURES}


def test_every_place_gives_the_same_answer(replay, ranking):
    best = [(each.optimization, each.options, each) for each in ranking.optimizations[:2]]
    for name, options, row in [*best, ("scale", {"factor": 0.5}, None)]:
        found = daydream.whatif(replay, name, **options)
        document = json.loads(json.dumps(found.to_json()))
        assert figures(found).items() <= document.items()
        if row is not None:
            assert figures(row) == figures(found)
        agent = brief("whatif", document, {})
        assert {name: agent[name] for name in FIGURES} == {**figures(found), "speedup": agent["speedup"]}
        if not found.predicted_ns:
            continue
        assert found.speedup == found.replayed_ns / found.predicted_ns
        assert agent["speedup"] == round(found.speedup, 4)
        times = speedup(found.replayed_ns, found.predicted_ns)
        screen = str(view_text(found))
        first = re.search(r": (\S+) -> (\S+ \S+) per step, (\S+) \(", screen)
        assert first[3] == times
        last = re.findall(r"^ +the step +(\S+) +(\S+) +\S+$", screen, re.MULTILINE)[-1]
        assert (first[1], first[2].split()[0]) == last
        html = render("blocks.jinja", [step_figures(found)])
        now = "estimated" if found.basis == "estimated" else "replayed"
        for what, figure in ((now, found.replayed_ns), ("predicted", found.predicted_ns)):
            assert f"{what}</span> <strong>{time_text(figure)}<" in html
        assert f"speedup</span> <strong>{times}<" in html
        assert repr(found).endswith(f", {found.speedup:.2f}x>")
        for side, ns in (("before", found.replayed_ns), ("after", found.predicted_ns)):
            parts = document[side]["ns_by_cause"].values()
            assert sum(parts) == pytest.approx(ns, rel=1e-4, abs=len(replay.graph.steps))


def test_a_saving_of_explain_is_that_of_the_what_if_and_what_it_names_first_is_ranked(replay, ranking):
    answers = [each for cost in daydream.explain(replay).avoidable for each in cost.whatifs]
    for each in answers:
        if each.saving_ns is not None:
            alone = daydream.whatif(replay, each.optimization, **each.options)
            assert each.saving_ns == alone.replayed_ns - alone.predicted_ns
    rows = {each.optimization: each for each in ranking.optimizations}
    for cost in daydream.explain(replay).avoidable:
        if cost.best is not None:
            assert cost.best.optimization in rows
            row = rows[cost.best.optimization]
            assert row.options != cost.best.options or row.saving_ns == cost.best.saving_ns
            break


def slower_cpu(graph):
    graph.select(on="cpu").scale(4)


def faster(graph):
    graph.select().scale(0.5)


def and_nothing(change):
    """Return a change with edits behind it that change nothing."""

    def changed(graph):
        change(graph)
        tasks = graph.select()
        tasks.set(dtype=tasks.dtype)
        tasks.scale(1)

    return changed


def answers(replay, *changes):
    found = []
    for change in changes:
        try:
            answer = daydream.whatif(replay, change)
        except DaydreamError as error:
            found.append(type(error))
        else:
            found.append((figures(answer), answer.after.step_times()))
    return found


def assert_it_holds_whatever_was_asked(replay):
    """Ask two questions in both orders, of copies that other questions and edits came before."""
    expected = answers(replay, slower_cpu, faster)
    again = daydream.replay(replay.graph.trace)
    other = again.graph.copy()
    work = kernels(other)
    if len(work):
        with suppress(NoMatchError):  # a table of kernels alone has no launches
            work.launches().split(2)
        work.first().remove()
    assert answers(again, faster, slower_cpu) == expected[::-1]
    assert answers(again, and_nothing(slower_cpu), and_nothing(faster)) == expected
    assert answers(again, slower_cpu, faster) == expected


def test_no_answer_depends_on_edits_that_change_nothing_or_on_what_was_asked(replay):
    assert_it_holds_whatever_was_asked(replay)


@settings(derandomize=True, max_examples=4, suppress_health_check=list(HealthCheck))
@given(recipe=recipes())
def test_of_a_random_program_neither(recipe, tmp_path):
    path = recipe.machine().run(steps=11).write(tmp_path / "trace.json", 6, 9)
    assert_it_holds_whatever_was_asked(daydream.replay(daydream.load(path)))
