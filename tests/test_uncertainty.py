"""The range of a prediction: what each cause adds, and that a change of nothing adds none."""

from math import hypot, sqrt

import pytest
from graph.small_traces import repeated, rows, trace
from msgspec.structs import replace
from two_streams import STEP

import daydream
from daydream.graph.tables import Facts
from daydream.predict.basis import variation
from daydream.predict.graph_diff import MODEL_ERROR, Affected
from daydream.predict.interval import unknown_ns

#  thread 1  |work 60|rest 40|        a step: 100 us, the second 2 longer and the last 2 shorter
ONE_THREAD = """
    op work 0 60 op=work
    op rest 60 100 op=rest
    op work 100 160 op=work
    op rest 160 202 op=rest
    op work 202 262 op=work
    op rest 262 302 op=rest
    op work 302 362 op=work
    op rest 362 400 op=rest
"""


def steps_of_one_thread():
    return trace(ONE_THREAD, steps=(0, 100, 202, 302, 400))


def steps_behind_a_kernel(long="kernel"):
    return repeated(STEP.replace(" 66", f" 66 kind={long}"), 100)


def halve(name):
    def change(graph):
        graph.select(name=name).scale(0.5)

    return change


def test_another_run_of_the_same_work_counts_by_what_the_step_waits_for():
    # settled: 8 of CPU until the long kernel begins, 60 of it, 32 of data: 2 of each 100 are its return
    found = daydream.whatif(steps_behind_a_kernel(), halve("short_kernel"))  # hidden
    waits = found.waited_for_ns
    assert waits["GPU"] == 60_000
    assert waits["CPU"] == 40_000
    assert found.uncertainty.rerun == pytest.approx(hypot(0.05 * 40_000, 0.02 * 60_000))
    # what both sides have in common decides nothing about whether the step can be predicted
    assert replace(found.uncertainty, variation=0.0, rerun=0.0, recording=0.0).ends(0) == [0.0, 0.0]
    on_cpu = daydream.whatif(steps_of_one_thread(), halve("work"))
    assert on_cpu.uncertainty.rerun == 0.0  # part of the errors measured on CPUs


# -- the causes ------------------------------------------------------------------------------------


def test_what_has_no_known_cause_carries_a_step_no_further_than_the_change_moves_it():
    facts = Facts(unexplained_ns=150, untraced_ns=50)  # of 1,000 recorded: a fifth
    assert unknown_ns(facts, 1_000, 100, Affected(moved=80.0)) == 20.0
    assert unknown_ns(facts, 1_000, 100, Affected(moved=5.0)) == 5.0
    assert unknown_ns(facts, 1_000, 100, Affected()) == 0.0


def loading_steps(load, between=0):
    #  thread 1  |load|first 5|between|second 5|sync ......... 2|
    #  stream 7          +6 |first 60 |
    #  stream 8                          +6 |second 40     |
    behind = load + 5 + between
    end = max(load + 66, behind + 46) + 2
    step = f"""
        op aten::load 0 {load} op=aten::load
        op aten::between {load + 5} {behind} op=aten::between
        launch first {load} {load + 6} {load + 66}
        launch second {behind} {behind + 6} {behind + 46} stream=8
        call cudaDeviceSynchronize {behind + 5} {end}
    """
    return repeated(step, end)


def test_no_interval_reaches_below_the_busiest_streams_work():
    found = daydream.whatif(loading_steps(900), lambda g: g.select(name="load").scale(0))
    # of 900 that are gone, 126 may be wrong; the first kernel's 60 stay, or 2 % less in another run
    assert found.predicted_ns == 68_000
    assert found.predicted_low_ns == 0.98 * 60_000
    assert found.predicted_high_ns > 68_000 + 0.14 * 900_000


@pytest.mark.parametrize("metadata", [{}, {"emulated": {"device": "H100 SXM", "cpu": "typical"}}])
def test_work_that_may_wait_for_another_stream_has_two_readings(metadata):
    recorded = loading_steps(10, between=70)
    recorded.metadata |= metadata
    replay = daydream.replay(recorded)
    first, second = (replay.graph.select(name=f"^{name}$").ids for name in ("first", "second"))
    replay.graph.doubtful.add(src=first, dst=second)
    found = daydream.whatif(replay, lambda graph: graph.select(name="between").scale(0))

    assert found.predicted_ns == 78_000  # load, first, return
    if metadata:  # nothing that a model's CPU does is in doubt
        assert found.released is None
    else:
        assert found.predicted_high_ns == 118_000  # and second behind it


@pytest.mark.parametrize("steps", [1, 2])
def test_a_drivers_start_up_in_the_only_step_is_no_part_of_the_step_of_the_answers(steps):
    #  thread 1  |cudaStreamCreate 9,000|launch 6|launch 6|launch 6|  ...  |data 900|     a step: 10,000
    launches = rows("launch k 9000 9006 9008", times=10, every=10)
    data = rows("op data 9100 10000 op=data\nop data 10000 20000 op=data")[:steps]
    made = trace("call cudaStreamCreate 0 9000", launches, data, steps=(0, 10_000, 20_000)[: steps + 1])
    made.metadata["steps"][0]["covered"] = True
    found = daydream.whatif(made, "cpu", speedup=2.0)
    said = "Start-up is left out of the only step: 9 ms in 1 call into the driver, which a later step does"
    assert any(note.startswith(said) for note in found.notes) == (steps == 1)
    if steps == 1:  # the call takes 5 us as the launches do: 1,005 us are left of 10,000
        assert (found.basis, found.measured_ns, found.replay.measured_ns) == ("estimated", None, 10_000_000)
        assert (found.replayed_ns, found.predicted_ns) == (1_005_000, 502_500)
        assert found.recorded.replayed_ns == 10_000_000
    else:
        assert found.basis == "recorded"


def test_all_of_the_transfers_of_one_rank_may_be_waiting_for_peers():
    #  stream 7     +6 |transfer 60 -> 30|
    #  stream 8           +6 |k short 40         |      sync ends 2 behind it: 51 + 2 + 32 of data = 85
    found = daydream.whatif(steps_behind_a_kernel("collective"), "network", bandwidth_factor=2)
    assert (found.replayed_ns, found.predicted_ns) == (100_000, 85_000)
    # If all was waiting the transfer still takes 60: 6 + 60 + 2 + 32. No link makes it shorter than half.
    assert (found.uncertainty.waiting, found.uncertainty.model) == (15_000, 0)
    assert found.predicted_high_ns > found.replayed_ns
    rest = hypot(found.uncertainty.rerun, found.uncertainty.recording)
    assert found.predicted_ns - found.predicted_low_ns == pytest.approx(rest, abs=1)
    # A link of half the bandwidth: 6 + 120 + 2 + 32 = 160, or as recorded if all was waiting, and no longer.
    slower = daydream.whatif(steps_behind_a_kernel("collective"), "network", bandwidth_factor=0.5)
    assert (slower.predicted_ns, slower.uncertainty.waiting) == (160_000, -60_000)
    assert slower.predicted_low_ns < slower.replayed_ns
    longer = hypot(slower.uncertainty.model, slower.uncertainty.rerun, slower.uncertainty.recording)
    assert slower.predicted_high_ns - slower.predicted_ns == pytest.approx(longer, abs=1)
    # Of a step that is nearly all transfer nothing is told.
    told = replace(found.uncertainty, waiting=80_000.0).reason(found)
    assert told == "not all ranks were recorded, and 80% of the step may be waiting for them"
    # Who scales them says what they take then.
    given = daydream.whatif(steps_behind_a_kernel("collective"), "scale", kind="collective", factor=0.5)
    assert given.predicted_ns == found.predicted_ns
    assert given.predicted_high_ns < given.replayed_ns


# -- what a change touches ---------------------------------------------------------------------------


def test_touched_time_is_told_apart_by_how_it_came_about():
    def change(graph):
        graph.select(name="^rest").remove()
        work = graph.select(name="^work").group_by("step").repeat(1)
        work.scale(0.5)
        graph.select(name="^work").first().set(duration_ns=10_000)

    replay = daydream.replay(steps_of_one_thread())
    found = daydream.whatif(replay, change).affected
    # The first step does not count: it has no predecessor. The others lose 42, 40, 38 and repeat 60 at half.
    assert found == Affected(moved=40_000.0, copied=30_000.0)


def test_times_that_are_set_and_tasks_that_are_inserted_are_a_models():
    def change(graph):
        graph.select(name="^work").set(duration_ns=50_000)
        graph.insert_after(graph.select(name="^rest"), "more", duration_ns=7_000)
        graph.insert_after(
            graph.select(name="^rest"), "send", kind="collective", lane="link", duration_ns=3_000
        )

    found = daydream.whatif(steps_of_one_thread(), change).affected
    assert found.computed == 57_000.0
    assert found.transfers == 3_000.0
    assert (found.moved, found.copied, found.kernels) == (0.0, 0.0, 0.0)


# -- the range of a prediction -----------------------------------------------------------------------


def test_half_of_a_tasks_time_may_be_off_by_its_sorts_error():
    comparison = daydream.whatif(steps_of_one_thread(), halve("^work"))
    assert comparison.predicted_ns == 70_000
    assert comparison.uncertainty.model == pytest.approx(MODEL_ERROR["moved"] * 30_000, abs=1)
    width = comparison.uncertainty.ends(0)[1]
    assert comparison.predicted_low_ns == round(70_000 - width)
    assert comparison.predicted_high_ns == round(70_000 + width)


def test_removed_work_is_missed_where_it_was():
    comparison = daydream.whatif(steps_of_one_thread(), lambda graph: graph.select(name="^rest").remove())
    assert comparison.predicted_ns == 60_000
    # A completion sees what is missed before it: of these steps 40, 42 and 40 us.
    assert comparison.uncertainty.model == pytest.approx(
        MODEL_ERROR["moved"] * (40 + 42 + 40) / 3 * 1e3, abs=1
    )


def test_a_model_that_doubts_its_times_widens_the_range_and_never_narrows_it():
    def change(error):
        def set_to_50_us(graph):
            graph.select(name="long_kernel", kind="kernel").set(duration_ns=50_000).doubt(error)

        return set_to_50_us

    replay = daydream.replay(steps_behind_a_kernel())
    widths = [daydream.whatif(replay, change(error)).uncertainty.model for error in (0.5, 0.3, 0.0)]
    usual = MODEL_ERROR["kernels"]
    assert widths[2] == pytest.approx(usual * 50_000, rel=0.02)
    assert [width / widths[2] for width in widths] == [
        pytest.approx(e / usual, rel=0.001) for e in (0.5, 0.3, usual)
    ]
    affected = daydream.whatif(replay, change(0.5)).affected
    assert affected.doubt == pytest.approx((0.5 - usual) * affected.kernels)
    assert affected.together == affected.kernels + affected.waits  # a doubt is no time affected


def test_what_stays_hidden_does_not_widen_the_range():
    replay = daydream.replay(steps_behind_a_kernel())
    hidden, decides = (daydream.whatif(replay, halve(name)) for name in ("^short_kernel", "^data"))
    assert hidden.affected == Affected(kernels=20_000.0)
    assert hidden.uncertainty.model == 0.0
    assert decides.affected.moved == 16_000.0
    assert decides.uncertainty.model == pytest.approx(MODEL_ERROR["moved"] * 16_000, abs=1)


# -- an answer knows its worth -----------------------------------------------------------------------


def test_a_range_that_reaches_from_nothing_to_the_step_as_it_is_is_no_answer():
    replay = daydream.replay(steps_behind_a_kernel())
    replay.graph.facts.unexplained_ns = 400_000  # all of what was recorded
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.0)  # 60 of 100 us go, or none of them

    document = comparison.to_json()
    assert comparison.reason == "delays without a known cause may carry it by 60% of the step"
    for name in ("predicted_ns", "predicted_low_ns", "predicted_high_ns", "typical_predicted_ns", "speedup"):
        assert document[name] is None
    assert document["reason"] == comparison.reason
    assert all(step["predicted_ns"] is None for step in document["steps"])
    assert "cannot be predicted" in repr(comparison)


def test_more_steps_tell_their_mean_better():
    assert variation([[100]]) == 0.0
    assert variation([[100, 100, 100]]) == 0.0
    assert variation([[-100, 100]]) == 0.0
    # standard deviation 10 about 100, times Student's t of 4 degrees of freedom
    assert variation([[90, 90, 100, 110, 110]]) == pytest.approx(2.132 * 0.1 / sqrt(5))
    assert variation([[90, 110] * 20]) < variation([[90, 110] * 4]) < variation([[90, 110]])


def test_steps_of_other_work_do_not_make_the_mean_uncertain():
    # an optimizer every other step: 10 about 100 and 20 about 200, so 5 * 100 + 5 * 400 over 8 degrees
    kinds = [[90, 90, 100, 110, 110], [180, 180, 200, 220, 220]]
    assert variation([[100, 100, 100], [200]]) == 0.0
    assert variation(kinds) == pytest.approx(1.860 * sqrt(4 * (100 + 400) / 8) / sqrt(10) / 150)


# -- emulated steps: another CPU is another one before and after -------------------------------------------


def emulated_steps(kernel):
    #  thread 1  |launch 2|work 58 ...............|sync|        a step: of CPU, or of the kernel
    #  stream 7      +6 |k kernel                |
    end = max(62, kernel + 8)
    step = f"launch k 0 6 {6 + kernel}\nop work 2 60 op=work\ncall cudaDeviceSynchronize 60 {end}"
    emulated = {"device": "H100 SXM", "cpu": "typical", "other_cpus": [1.8, 1 / 1.8]}
    return repeated(step, end, emulated=emulated)


def test_the_speedup_of_an_emulated_step_has_the_same_cpu_before_and_after():
    found = daydream.whatif(emulated_steps(kernel=10), "scale", on="gpu", factor=0.9)  # the CPU decides
    assert found.predicted_high_ns > 1.7 * found.predicted_ns
    assert found.predicted_low_ns < 0.6 * found.predicted_ns
    assert 0.9 < found.speedup_low <= found.speedup <= found.speedup_high < 1.1
    document = found.to_json()
    assert [document["speedup_low"], document["speedup_high"]] == [found.speedup_low, found.speedup_high]


def test_a_faster_cpu_shows_a_gpu_whose_speedup_counts():
    # The kernel of 50 is hidden by 60 of CPU; by a fast one's 33 it is not, and to halve it saves 17 of 50.
    hidden = daydream.whatif(emulated_steps(kernel=50), "scale", on="gpu", factor=0.5)
    assert hidden.speedup == pytest.approx(1, abs=0.05)
    assert 1.3 < hidden.speedup_high < 2.2
    assert hidden.speedup_low > 0.9
    # A recorded step's range is that of its step.
    recorded = daydream.whatif(steps_behind_a_kernel(), halve("long_kernel"))
    ends = recorded.predicted_high_ns, recorded.predicted_low_ns
    assert [recorded.speedup_low, recorded.speedup_high] == [
        pytest.approx(recorded.replayed_ns / end, rel=1e-4) for end in ends
    ]
