"""The first screen of whatif, explain and replay: the answer first, all of it on a usual terminal."""

from __future__ import annotations

import math
import shlex
from functools import cache, partial
from html import escape
from itertools import pairwise
from pathlib import Path

import pytest
from graph.small_traces import op, trace
from shared import shared_replay

import daydream
from daydream.errors import DaydreamError
from daydream.predict.breakdown import parts_of_change
from daydream.predict.compare import compare
from daydream.predict.suggest import WhatIfResult, suggestion
from daydream.report.html.page import page
from daydream.report.html.ranking import whatifs
from daydream.report.notebook import html
from daydream.report.text import answer
from daydream.report.text.difference import difference_text
from daydream.report.text.explain import explain_text
from daydream.report.text.layout import height
from daydream.report.text.numbers import step_change_text
from daydream.report.text.overview import overview
from daydream.report.text.overview_text import info_text
from daydream.report.text.peak_memory import about_memory
from daydream.report.text.ranking import ranking_text
from daydream.report.text.results import replay_text, whatif_text
from daydream.report.text.sweep import sweep_text
from daydream.transforms.registry import names

COLUMNS, LINES = 80, 24
EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = (
    "kineto/a100_resnet_ddp_rank0of2.json.gz",
    "kineto/v100_recsys_rank1of2_copy_waits.json.gz",
    "kineto/v100_resnet50_loader_workers_0.json.gz",
    "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz",
    "kineto/v100_dlrm_4_of_8_ranks",
    "kineto/h100_bert_small_inference.json.gz",
    "kineto/gpu_user_annotation.json.gz",
    "odd/cpu_only.json.gz",
)
WHATIFS = ("amp", "amp+compile", "cuda-graphs", "fused-optimizer")


RECORDING = {
    "event_ns": {"forward": 1000, "backward": 1000, "optimizer": 1000}, "input_ns": 0, "module_ns": 0,
    "annotation_ns": 0, "inside_ns": 200, "before_share": 0.75, "heads": [], "step_hooks_ns": 0,
}  # fmt: skip


def small_run(factor=1.0):
    """Three steps of 20 us, 2 of them recording; without a profiler they took 18, times the factor."""
    rows = [
        part for at in (0, 20, 40)
        for part in (op("a", at, at + 8, phase="forward"), op("b", at + 12, at + 18, phase="forward"))
    ]  # fmt: skip
    times = [round(factor * 18_000)] * 3
    return trace(rows, steps=(0, 20, 40, 60), profiler_cost=RECORDING, unprofiled_step_ns=times)


def lines(screen, *commands):
    """Lines of a terminal on which commands were typed or suggested, with the prompt below."""
    typed = sum(math.ceil(len(f"next: daydream {shlex.join(words)}") / COLUMNS) for words in commands)
    return typed + height(screen.blocks, COLUMNS) + 1


def screens(replay, name):
    """Yield each command of a trace with its lines."""
    trace = ("--trace", name)
    then = ("explain", *trace)
    yield "replay", lines(replay_text(replay), ("replay", *trace), then)
    for asked in WHATIFS:
        try:
            comparison = daydream.whatif(replay, asked)
        except DaydreamError:
            continue
        found = suggestion(comparison)
        words = ("whatif", asked, *trace)
        following = [*words, "-o", f"{asked}.json.gz"]
        if found is not None:
            following = ["whatif", f"{asked}+{found.optimization}", *trace, *found.command[3:]]
        yield asked, lines(whatif_text(comparison, suggestion=found), words, following)
    explanation = daydream.explain(replay)
    ranking = daydream.rank(replay, pairs=3)
    best = next((each for each in ranking.optimizations if each.saving_ns > 0), None)
    following = then if best is None or best.changes_nothing else ("whatif", best.optimization, *trace)
    yield "rank", lines(ranking_text(ranking, top=5, fitted=True), ("rank", *trace), following)
    found = overview(replay.graph.trace)
    yield "info", lines(info_text(found), ("info", name), then)
    difference = compare(replay, replay, names=(name, name))
    yield "compare", lines(difference_text(difference, top=3, fitted=True), ("compare", name, name))
    best = next((cost.best for cost in explanation.worth_it if cost.best is not None), None)
    following = then if best is None else (*best.command[1:], *trace)
    yield "explain", lines(explain_text(explanation), ("explain", *trace), following)


@cache
def shared_example(name):
    return daydream.replay(EXAMPLES / name)


def too_long(replay, name):
    return {asked: taken for asked, taken in screens(replay, name) if taken > LINES}


@pytest.mark.parametrize("name", ["mlp_cpu.json.gz", "synthetic_gpt_gpu.json.gz"])
def test_an_answer_about_an_example_fits_one_screen(name):
    replay = shared_example(name)

    assert too_long(replay, f"examples/{name}") == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC)
def test_an_answer_about_a_public_trace_fits_one_screen(name):
    assert too_long(shared_replay(name), "trace.json.gz") == {}
    # What is shown does not depend on the trace's name, so a long one that wraps costs a line.
    wrapped = too_long(shared_replay(name), name)
    assert all(taken == LINES + 1 for taken in wrapped.values())


def test_the_answer_comes_first_in_one_line(replay):
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    first, *_ = whatif_text(comparison).splitlines()

    low = comparison.replayed_ns / comparison.predicted_high_ns
    high = comparison.replayed_ns / comparison.predicted_low_ns
    assert comparison.basis == "estimated"  # the trace does not say what recording cost
    assert first == (
        f"scale: {comparison.replayed_ns / 1e6:.3f} -> {comparison.predicted_ns / 1e6:.3f} ms per step, "
        f"{comparison.speedup:.2f}x (90 % interval {low:.2f} to {high:.2f}x); "
        "replay error 0.00 %"
    )


def test_the_headline_is_the_step_without_the_profiler_where_the_trace_knows_it():
    def halve_b(graph):
        graph.select(name="^b$").scale(0.5)

    # Recorded 20 us, of which 2 are recording; it was measured to take 18 without. Half of b is 2.9.
    screen = whatif_text(daydream.whatif(small_run(), halve_b)).splitlines()

    assert screen[0].startswith("halve-b: 18.00 -> 15.10 us per step, 1.19x (90 % ")
    assert "  with the profiler: 20.00 -> 17.00 us, 1.18x, replay error 0.00 %" in screen


def test_where_the_step_was_measured_without_a_profiler_the_prediction_starts_from_that():
    def add(graph):
        graph.insert_after(graph.select(name="^a$"), "new work", kind="cpu", duration_ns=3_000)

    # The correction finds 18 us; it took 9. What the change adds is 3 on either.
    found = whatif_text(daydream.whatif(small_run(factor=0.5), add))

    assert found.startswith("add: 9.00 -> 12.00 us per step, 0.75x")


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ((10, 10, 10, 12), ""),  # the mean is 5 % above the median
        ((10, 10, 10, 10, 50, 30), "2 of 6 steps take 4.0x the median"),
        ((10, 10, 10, 18), "1 of 4 steps takes 1.8x the median"),
        ((20, 20, 20, 4), "1 of 4 steps takes 0.2x the median"),
        ((10, 10, 10, 14, 14.9), "steps take 1.00x to 1.49x the median"),
    ],
)
def test_a_headline_says_why_its_mean_is_far_from_the_median(times, said):
    ends = [10 + sum(times[:n]) for n in range(len(times) + 1)]
    rows = [op("a", start, end, phase="forward") for start, end in pairwise(ends)]
    replay = daydream.replay(trace([op("first", 0, 10), *rows], steps=(0, *ends)))
    assert [step.measured_ns for step in replay.steps] == [round(1000 * each) for each in times]

    for screen in (
        replay_text(replay),
        whatif_text(daydream.whatif(replay, "scale", factor=0.5)),
        ranking_text(daydream.rank(replay, pairs=0, with_curves=False), top=5),
        explain_text(daydream.explain(replay)),
    ):
        found = [line for line in screen.splitlines()[:3] if line.startswith("  the step is the mean: ")]
        assert found == ([f"  the step is the mean: {said}"] if said else [])


def test_phases_and_layers_stand_behind_verbose(replay):
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    short, long = whatif_text(comparison), whatif_text(comparison, verbose=True)

    assert "by phase" in long
    assert "by phase" not in short
    assert long.splitlines()[0] == short.splitlines()[0]
    assert "with the profiler: 3.1" in long  # the recorded step
    assert "tasks" in long.split("options")[1]


def test_what_changes_by_cause_adds_up_and_takes_twelve_lines_at_most(replay):
    comparison = daydream.whatif(replay, "amp")
    before, after = parts_of_change(comparison)
    for most in (1, 3, 8):
        (_, *rows, whole) = answer.change_rows(before, after, most)

        assert len(rows) <= most + 1
        assert sum(float(row[1]) for row in rows) == pytest.approx(float(whole[1]), abs=0.002)
        assert sum(float(row[3]) for row in rows) == pytest.approx(float(whole[3]), abs=0.004)
    assert 1 + answer.MOST_CAUSES + 1 + 1 <= 12


def test_notes_about_the_recording_are_counted_and_those_about_the_prediction_told():
    replay = shared_replay("kineto/v100_resnet50_loader_workers_0.json.gz")
    comparison = daydream.whatif(replay, "pinned-memory")
    text = " ".join(whatif_text(comparison).split())

    recorded = replay.notes
    (of_memory,) = comparison.memory.recording_notes
    told = (*recorded, of_memory)
    own = [note for note in comparison.notes if note not in told]
    assert not any(note in text for note in recorded)
    assert of_memory not in text
    assert "2 notes about the recording: daydream info -v" in text
    assert "1 note about recorded memory: daydream memory -v" in text
    assert own
    assert all(f"note: {note}" in text for note in own)
    whole = " ".join(whatif_text(comparison, verbose=True).split())
    assert all(note in whole for note in comparison.notes)


def test_a_sweep_counts_notes_about_recorded_memory():
    replay = shared_replay("kineto/v100_resnet50_loader_workers_0.json.gz")
    sweep = daydream.sweep(replay.graph.trace, "batch-size", {"factor": [1, 2]})
    (of_memory,) = about_memory(each.memory for each in sweep.scenarios)
    text = " ".join(str(sweep_text(sweep, top=10)).split())

    assert of_memory not in text
    assert "1 note about recorded memory: daydream memory -v" in text


def test_a_prediction_that_says_nothing_leads_with_that_and_why():
    comparison = daydream.whatif(
        shared_replay("kineto/mi300x_sglang_decode_graph_replay.json.gz"), "scale", on="gpu", factor=0.5
    )
    first, *rest = whatif_text(comparison).splitlines()

    assert first.startswith("scale: cannot be predicted from this trace; replay error")
    assert f"because {comparison.reason}" in " ".join(" ".join(rest).split())
    assert not any("change" in line.split() for line in rest)
    assert suggestion(comparison) is None


@pytest.mark.parametrize("asked", ["amp", "scale"])
def test_what_is_suggested_saves_what_is_said_on_top_of_the_change(replay, asked):
    given = {"on": "gpu", "factor": 0.5} if asked == "scale" else {"math_speedup": 2.5}
    comparison = daydream.whatif(replay, asked, **given)
    found = suggestion(comparison, options=given)

    both = daydream.whatif(replay, f"{asked}+{found.optimization}", **given, **found.options)
    assert found.saving_ns == comparison.predicted_ns - both.predicted_ns > 0
    assert found.optimization not in asked
    assert f"try next: {found.optimization} saves" in whatif_text(comparison, suggestion=found)


@pytest.mark.parametrize("made", ["amp", "fused-adam", "amp+remove-sync", "flash-attention"])
def test_what_is_suggested_saves_more_than_any_other_code_change_that_rank_has(made):
    replay = shared_example("synthetic_gpt_gpu.json.gz")
    found = suggestion(daydream.whatif(replay, made))

    for each in daydream.rank(replay, pairs=0, with_curves=False).optimizations:
        if each.code is None or each.optimization in made:
            continue
        try:
            both = daydream.whatif(replay, f"{made}+{each.optimization}")
        except DaydreamError:
            continue
        assert both.predicted_ns >= found.predicted_ns, each.optimization


def test_a_suggestion_carries_the_mark_that_rank_gives_it():
    replay = shared_example("synthetic_gpt_gpu.json.gz")
    comparison = daydream.whatif(replay, "amp")
    found = WhatIfResult("flash-attention", {}, 100, 90)
    of_the_same_work = WhatIfResult("remove-sync", {}, 100, 90)
    text = whatif_text(comparison, suggestion=found)

    assert "  try next: flash-attention saves 0.010 us more, 1.11x [other work]\n" in text
    assert "  [other work]: the step computes something else (batch, layers, algorithm)" in text
    assert "[other work]" not in whatif_text(comparison, suggestion=of_the_same_work)


def test_nothing_is_suggested_that_the_change_excludes_or_holds_already(replay):
    everything = "amp+cuda-graphs"
    found = suggestion(daydream.whatif(replay, everything))

    assert found is None or found.optimization not in {"amp", "autocast", "tf32", "cuda-graphs"}


def test_of_a_very_long_recording_nothing_more_is_simulated(replay, monkeypatch):
    comparison = daydream.whatif(replay, "amp")
    monkeypatch.setattr("daydream.predict.suggest.MOST_TASKS", 10)

    assert suggestion(comparison) is None


@pytest.mark.parametrize("text", [replay_text, partial(replay_text, verbose=True)])
def test_a_replay_leads_with_its_error(replay, text):
    first, start, second, *_ = text(replay).splitlines()

    assert first.startswith("replayed 3.1")
    assert first.endswith(": error 0.00 %, worst step 0.00 %")
    assert start.startswith("  predictions start from   estimated ")
    assert (
        second
        == "  A replay is the recording simulated without a change. Predictions start from it: what it gets"
    )


def test_explain_names_the_bound_then_the_cost_its_command_and_its_code(replay):
    explanation = daydream.explain(replay)
    text = explain_text(explanation)
    best = explanation.worth_it[0].best

    at = [
        text.index(part) for part in ("CPU", "step time", "what could be avoided", shlex.join(best.command))
    ]
    assert at == sorted(at)
    assert text.index("in code: ") > at[-1]
    assert text.index("what a step waits for (the critical path)") > at[-1]
    assert "\noff the critical path" not in text


def test_a_range_on_both_sides_of_1x_is_undecided():
    assert step_change_text(100, 100, 90, 110).endswith(", 1.00x (may help or hurt: 0.91 to 1.11x)")
    assert step_change_text(1000, 980, 960, 1001).endswith(", 1.02x (90 % interval 1.00 to 1.04x)")
    assert step_change_text(100, 80, 70, 90).endswith(", 1.25x (90 % interval 1.11 to 1.43x)")
    assert step_change_text(100, 120, 110, 130).endswith(", 0.83x (90 % interval 0.77 to 0.91x)")


def test_explain_and_rank_choose_the_same_name_of_one_change():
    replay = shared_example("mlp_cpu.json.gz")
    named = {answer.optimization for cost in daydream.explain(replay).avoidable for answer in cost.whatifs}
    ranked = daydream.rank(replay, pairs=0, with_curves=False)

    assert "fused-adam" in named & {each.optimization for each in ranked.optimizations}
    assert not {"fused-optimizer"} & (named | {each.optimization for each in ranked.optimizations})


def test_steps_that_all_replay_exactly_have_no_worst_one():
    rows = [op("a", 10 * n, 10 * n + 8) for n in range(31)]
    replay = daydream.replay(trace(rows, steps=tuple(range(0, 311, 10))))
    assert len(replay.steps) > 12
    assert f"  each of the {len(replay.steps)} steps replays with an error of 0.00 %\n" in replay_text(replay)
    assert "worst of" in replay_text(replay, verbose=True)
    replay.steps[7].error = 10.0

    assert f"worst of {len(replay.steps)} steps; --json has them all" in replay_text(replay)


def test_what_info_leaves_out_stands_behind_verbose():
    found = overview(shared_replay("kineto/v100_recsys_rank1of2_copy_waits.json.gz").graph.trace)
    short, whole = info_text(found), info_text(found, verbose=True)

    assert "-v adds: events, runs on, launches, waits, collectives and 7 notes" in short
    assert "-v adds" not in whole
    for name in (
        "trace",
        "device",
        "events",
        "runs on",
        "steps",
        "launches",
        "waits",
        "phases",
        "collectives",
    ):
        assert f"\n  {name} " in whole
    assert whole.count("\n  - ") == 7


def test_the_optimizations_left_out_are_counted_alike_in_text_and_html():
    ranking = daydream.rank(shared_example("synthetic_gpt_gpu.json.gz"), with_curves=False)
    count = len(ranking.optimizations_left_out)

    assert count + len(ranking.optimizations) == len(names())
    assert f"{count} that were left out" in ranking_text(ranking, top=5)
    assert f"{count} others, and why" in whatifs(ranking)


def test_html_and_notebook_lead_with_the_sentences_of_the_text():
    replay = shared_example("synthetic_gpt_gpu.json.gz")
    comparison = daydream.whatif(replay, "amp")
    text = whatif_text(comparison)
    code, bottleneck = (
        next(line for line in text.splitlines() if line.startswith(f"  {head}: "))[2:]
        for head in ("in code", "bottleneck then")
    )

    for found in (page(replay, comparison), html(comparison)):
        at = [found.index(escape(each)) for each in (text.splitlines()[0], code, bottleneck)]
        assert at == sorted(at)
        assert at[-1] < found.index("<table")
    assert escape(replay_text(replay).splitlines()[0]) in page(replay)
    assert escape(replay_text(replay).splitlines()[0]) in html(replay)
