"""Rankings, sweeps, throughput: every row is what whatif says, and one answer everywhere."""

import json
import re
import sys
from contextlib import suppress
from dataclasses import replace
from zlib import crc32

import pytest
from graph.random_machines import recipes
from graph.small_graphs import kernels
from graph.small_traces import op, repeated, trace
from hypothesis import HealthCheck, given, settings
from machine.programs import PROGRAMS, multi_stream
from shared import EXAMPLES, TRACES, view_text
from two_streams import steps

import daydream
from daydream import GraphError, NotApplicableError
from daydream.agents.questions import brief
from daydream.errors import DaydreamError, NoMatchError
from daydream.parallel import Engine
from daydream.report.blocks import speedup, time_text
from daydream.report.page import render
from daydream.report.views.step import step_figures
from daydream.transforms.registry import describe, names

# Ranking: optimizations in order of what they save, pairs, reasons; and curves, by hand


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


# Sweeps: every combination once, each as its what-if, refused ones with their reason, on any engine


OWN = """
def {name}(graph, *, part: str = "long", factor: float = 0.5, times: int = 1, fail: bool = False):
    \"\"\"Scale a kernel.\"\"\"
    print("no result")
    if fail:
        raise RuntimeError("as asked")
    graph.select(name=part).scale(factor**times)
"""


def steps_of():
    #  thread 1  |long 5|data ...        a step of 100
    #  stream 7     |long 60    |
    return repeated("launch long_kernel 0 6 66\nop data 10 100 op=data", 100)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "step.json.gz"
    return daydream.load(PROGRAMS["multi_stream"]().run(steps=6).write(path, 2, 5))


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "my_own.py"
    path.write_text(OWN.format(name="my_own"), encoding="utf-8")
    return str(path)


SCALES = {"factor": [0.5, 1.0, 0.25], "on": ["cpu", "gpu"]}


@pytest.fixture(scope="module")
def found(recorded):
    return daydream.sweep(recorded, "scale", SCALES)


def test_each_scenario_is_the_what_if_with_its_options(recorded, found):
    before = daydream.replay(recorded)

    for each in found.scenarios:
        alone = daydream.whatif(before, "scale", **each.options)
        for figure in ("replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup"):
            assert getattr(each, figure) == getattr(alone, figure)
        assert (each.changed, each.inserted, each.removed) == (alone.changed, alone.inserted, alone.removed)
        assert list(each.notes) == [note for note in alone.notes if note not in before.notes]
    [one] = found.traces
    assert (one.measured_ns, one.replay_error) == (before.basis_measured_ns, before.basis_error)
    assert one.replayed_ns == found.scenarios[0].replayed_ns


def test_a_trace_that_cannot_be_replayed_takes_nothing_from_the_others():
    none = trace([op("data", 0, 90)])
    found = daydream.sweep([steps_of(), none], "scale", {"factor": [0.5, 0.25]}, on="cpu")

    assert [each.reason is None for each in found.traces] == [True, False]
    assert len(found.scenarios) == len(found.refused) == 2
    assert all("no step" in each.reason for each in found.refused)
    with pytest.raises(GraphError, match="no step"):
        daydream.sweep(none, "scale", {"factor": [0.5, 0.25]}, on="cpu")


def test_one_that_fails_loses_no_other(own):
    found = daydream.sweep(steps_of(), own, {"fail": [True, False], "times": [1, 2]})

    assert [each.reason for each in found.refused] == ["my_own.py, line 6: RuntimeError: as asked"] * 2
    assert len(found.scenarios) == 2


@pytest.mark.parametrize(
    ("values", "options", "said"),
    [
        ({}, {}, "several values"),
        ({"on": "cpu"}, {}, "needs a list of values"),
        ({"factor": [0.5, 0.5]}, {}, "given 0.5 twice"),
        ({"factor": [0.5]}, {"scale.factor": 2.0}, "given twice"),
        ({"on": ["cpu", "gpu"]}, {}, "needs --factor"),
        ({"factor": list(range(1001)), "kind": [str(n) for n in range(1000)]}, {}, "1,001,000 scenarios"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_read(values, options, said):
    with pytest.raises(GraphError, match=said):
        daydream.sweep("there-is-no-such-file.json", "scale", values, **options)


@pytest.mark.parametrize("engine", ["processes:2", pytest.param("dask:2", id="dask", marks=pytest.mark.slow)])
def test_the_engine_changes_nothing(recorded, own, engine):
    if engine.startswith("dask"):
        pytest.importorskip("distributed", reason="needs the extra `dask`")
    two = {"one": recorded, "other": steps_of()}
    # a file of a user's own goes with the question
    question = own, {"times": [1, 2, 3], "fail": [True, False]}
    if engine != "processes:2":
        question = "scale", {"factor": [0.5, 1.0, 0.25, 0.1], "on": ["cpu", "gpu"]}
    here = daydream.sweep(two, *question)

    assert daydream.sweep(two, *question, engine=engine).to_json() == here.to_json()
    assert here.refused


def test_what_cannot_be_sent_to_workers_is_told(recorded, tmp_path):
    with pytest.raises(GraphError, match="is a Replay, which is not sent"):
        daydream.sweep(daydream.replay(recorded), "scale", SCALES, engine="processes:1")
    described = tmp_path / "lab.toml"
    described.touch()
    elsewhere = Engine("dask", address="tcp://host:8786")
    with pytest.raises(DaydreamError, match="is a file of this machine"):
        daydream.sweep(recorded, "scale", SCALES, name=str(described), engine=elsewhere)


def test_a_value_has_to_be_one_of_the_choices():
    with pytest.raises(GraphError, match="model must be one of bytes, sum, not 'best'"):
        daydream.sweep("there-is-no-such-file.json", "fused-adam", {"model": ["sum", "best"]})


# Throughput: what a second of training covers, where a change alters what a step covers


H200 = "examples/train_gpt_h200.parquet"  # batches of 8 sequences of 256 tokens, in one pass a step


@pytest.fixture(scope="module")
def replayed():
    return daydream.replay(H200)


def twice_as_long(graph, *, times=4.0, unit="samples"):
    kernels(graph).scale(2)
    graph.covers(times, unit)


def test_a_step_that_covers_four_times_the_samples_in_twice_the_time_gives_twice_the_throughput(replayed):
    found = daydream.whatif(replayed, twice_as_long)

    rate = found.throughput
    assert rate.unit == "samples"
    assert rate.gain == pytest.approx(4 * found.replayed_ns / found.predicted_ns)
    assert rate.before_per_s == pytest.approx(8 / (found.replayed_ns / 1e9))
    assert rate.after_per_s == pytest.approx(4 * 8 / (found.predicted_ns / 1e9))


def test_tokens_are_those_of_all_samples(replayed):
    found = daydream.whatif(replayed, twice_as_long, unit="tokens")

    assert found.throughput.unit == "tokens"
    assert found.throughput.before_per_s == pytest.approx(8 * 256 / (found.replayed_ns / 1e9))


def test_a_sweep_is_sorted_by_throughput_unless_by_step(replayed):
    asked = ["ddp", {"workers": [2, 8]}]

    by_throughput = daydream.sweep(replayed, *asked, bandwidth=100.0)
    by_step = daydream.sweep(replayed, *asked, bandwidth=100.0, sort="step")

    assert [each.options["workers"] for each in by_throughput.scenarios] == [8, 2]
    assert [each.options["workers"] for each in by_step.scenarios] == [2, 8]


# One question, one answer: laws that hold on every trace, whatever the truth is


SHIPPED = [EXAMPLES / name for name in (
    "mlp_cpu.json.gz", "synthetic_gpt_gpu.json.gz", "train_gpt_h200.parquet",
)]  # fmt: skip
LARGEST = 300_000  # bytes of a public trace; of the others every fourth one, chosen by its name
FIGURES = ("replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns", "speedup")


def public():
    """Return public traces that are not large, each a case of the slow tests."""
    from sanity import sources

    small = [path for _, path in sources(TRACES) if path.is_file() and path.stat().st_size < LARGEST]
    found = [path for path in small if crc32(path.name.encode()) % 4 == 1]
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip("the public traces are not at hand"))]
    return [pytest.param(path, id=str(path.relative_to(TRACES)), marks=pytest.mark.slow) for path in found]


@pytest.fixture(scope="module", params=[*SHIPPED, *public()], ids=lambda path: getattr(path, "name", None))
def replay(request):
    try:
        return daydream.replay(daydream.load(request.param))
    except DaydreamError as error:
        pytest.skip(f"this trace has no answer: {error}")


@pytest.fixture(scope="module")
def ranked_program(replay):
    return daydream.rank(replay, pairs=0, with_curves=False)


def figures(answer):
    return {name: getattr(answer, name) for name in FIGURES}


def test_every_place_gives_the_same_answer(replay, ranked_program):
    best = [(each.optimization, each.options, each) for each in ranked_program.optimizations[:2]]
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


def test_a_saving_of_explain_is_that_of_the_what_if_and_what_it_names_first_is_ranked(replay, ranked_program):
    answers = [each for cost in daydream.explain(replay).avoidable for each in cost.whatifs]
    for each in answers:
        if each.saving_ns is not None:
            alone = daydream.whatif(replay, each.optimization, **each.options)
            assert each.saving_ns == alone.replayed_ns - alone.predicted_ns
    rows = {each.optimization: each for each in ranked_program.optimizations}
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


def test_each_says_what_decides_then(ranking):
    #                 the long kernel of 84; data, sync and two launches of 85; data, sync and a launch of 132
    bounds = [("GPU", 60 / 84), ("CPU", (32 + 2 + 5 + 6) / 85), ("CPU", (64 + 2 + 6) / 132)]
    assert [(each.bound, each.bound_share) for each in ranking.optimizations] == bounds
    # Without any CPU cost 66 are left, without the device 52: neither bounds the step, as `explain` says.
    assert (ranking.bound, ranking.bound_share) == ("turns", 0.0)
    assert daydream.explain(ranking.replay).bound == "turns"


# Growth: a recording twice as long takes twice the work, counted in calls and never timed.
#
# Work that does not depend on the length drops out of differences: from 8 to 16 steps as much more is done
# as from 4 to 8, twice over. What grows as the square would come out as four times.


STEPS = (4, 8, 16)
MOST = 2.2  # times the calls for twice the steps; 2 where growth is linear
QUESTIONS = {
    "replay": lambda trace: daydream.replay(trace).to_json(),
    "what-if": lambda trace: daydream.whatif(trace, "amp").to_json(),
    "what-if that removes": lambda trace: daydream.whatif(trace, "fused-adam").to_json(),
    "rank": lambda trace: daydream.rank(trace).to_json(),
    "explain": lambda trace: daydream.explain(trace).to_json(),
}


def calls_of(work):
    """Return how many functions are called, those of C too."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("growth")
    run = multi_stream(layers=3).run(steps=max(STEPS) + 2)
    return [run.write(folder / f"{steps}.json.gz", 1, steps) for steps in STEPS]


@pytest.mark.parametrize("question", QUESTIONS)
def test_twice_the_steps_take_twice_the_calls(files, question):
    traces = [daydream.load(file) for file in files]
    ask = QUESTIONS[question]
    ask(traces[0])  # modules are imported, patterns compiled
    few, more, most = (calls_of(lambda trace=trace: ask(trace)) for trace in traces)
    assert few < more < most
    assert most - more <= MOST * (more - few)


def test_import_of_twice_the_steps_takes_twice_the_calls(files):
    daydream.load(files[0])
    few, more, most = (calls_of(lambda file=file: daydream.load(file)) for file in files)
    assert few < more < most
    assert most - more <= MOST * (more - few)
