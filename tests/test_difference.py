"""Two steps side by side: traces small enough to add up by hand, laws for any work, public pairs."""

from collections import Counter
from math import isclose, pi

import pytest
from graph.jobs import job
from graph.small_traces import launched, op, trace
from hypothesis import given
from hypothesis import strategies as st
from shared import shared_replay, shared_trace, view_text

import daydream
from daydream import GraphError, NotApplicableError, compare_series
from daydream.predict.compare import ROWS, Work, changes_by, student

US = 1_000
STEPS = (0, 100, 200, 300)


def step(at, *kernels, layer="fc", operator="aten::mm"):
    """One operator that launches kernels of (name, us), one after the other."""
    rows, start = [op(operator, at, at + 40, op=operator, layer=layer)], at + 10
    for number, (name, time) in enumerate(kernels):
        there = {"op": operator, "layer": layer}
        rows += launched(name, at + 6 * number + 1, start, start + time, **there)
        start += time + 1
    return rows


def one_step(*kernels, **how):
    """A trace of two steps, of which the first does not count."""
    return trace(step(0), step(100, *kernels, **how), steps=(0, 100, 200))


def of(parts):
    return {(each.before, each.after): each for each in parts}


def figures(change):
    return change.before_count, change.after_count, change.before_ns / US, change.after_ns / US


def test_counts_and_times_are_means_over_the_covered_steps():
    #                step 0 does not count    step 1                              step 2
    before = trace(
        step(0, ("gemm", 9)), step(100, ("gemm", 4), ("gemm", 6)), step(200, ("gemm", 2)), steps=STEPS
    )
    after = trace(step(0), step(100, ("gemm", 5)), step(200, ("gemm", 7)), steps=STEPS)

    (kernel,) = daydream.compare(before, after).kernels
    assert figures(kernel) == ((2 + 1) / 2, 1, (4 + 6 + 2) / 2, (5 + 7) / 2)
    assert (kernel.change_ns, kernel.state) == (0, "changed")  # as much time, but not as often


def test_a_kernel_of_another_name_in_the_same_layer_and_operator_has_replaced_it():
    before = one_step(("gemm32", 20), ("gemm32", 10), ("relu", 3))
    after = one_step(("gemm16", 8), ("relu", 3), ("cast", 1))

    first, second = daydream.compare(before, after).kernels
    assert (first.before, first.after, first.state) == (("gemm32",), ("gemm16", "cast"), "replaced")
    assert figures(first) == (2, 2, 30, 9)
    assert (second.before, second.after, second.state) == (("relu",), ("relu",), "same")


def test_what_is_new_or_vanished_is_named():
    before = trace(
        step(0),
        step(100, ("gemm", 20)),
        step(150, ("pad", 5), layer="head", operator="aten::pad"),
        steps=(0, 100, 200),
    )
    after = trace(
        step(0),
        step(100, ("gemm", 20)),
        step(150, ("sort", 7), layer="tail", operator="aten::sort"),
        steps=(0, 100, 200),
    )

    found = daydream.compare(before, after)
    assert [each.before for each in found.vanished] == [("pad",)]
    assert [each.after for each in found.new] == [("sort",)]
    text = view_text(found)
    assert "new: sort" in text
    assert "vanished: pad" in text


def test_what_else_is_different_is_said():
    gpu = trace(
        step(0), step(100, ("gemm", 20)), steps=(0, 100, 200), versions={"torch": "2.4"}, world_size=1
    )
    cpu = trace(
        op("aten::mm", 0, 40, op="aten::mm"), op("aten::mm", 100, 160, op="aten::mm"), steps=(0, 100, 200),
        versions={"torch": "2.5"}, world_size=8,
    )  # fmt: skip
    notes = " ".join(daydream.compare(gpu, cpu, names=("gpu", "cpu")).notes)

    assert "The work of gpu is that of its GPU, of cpu that of the CPU" in notes
    assert "torch 2.4 and 2.5" in notes
    assert "The size of the job is 1 and 8." in notes
    assert "Only one of the two knows layers; cpu" in notes
    assert "gpu and cpu cover a single step" in notes


def test_a_trace_is_not_different_from_itself():
    same = one_step(("gemm", 20), ("relu", 3))
    found = daydream.compare(same, same, names=("t", "t"))

    assert found.change_ns == 0
    assert {
        each.state for part in (found.layers, found.operators, found.kernels, found.cpu) for each in part
    } == {"same"}
    assert [found.before.name, found.after.name] == ["t (before)", "t (after)"]


def test_the_table_holds_every_part():
    pytest.importorskip("pandas")
    found = daydream.compare(one_step(("gemm32", 20)), one_step(("gemm16", 5)))
    table = found.to_pandas()

    assert set(table["part"]) == {"phase", "cause", "layer", "operator", "kernel", "cpu"}
    (kernel,) = table[table["part"] == "kernel"].to_dict("records")
    assert (kernel["name"], kernel["state"], kernel["change_ns"]) == (
        "gemm32 -> gemm16",
        "replaced",
        -15 * US,
    )


# Laws -------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([None, "a", "b", "c"])
NAMED = st.sampled_from(["x", "y", "z"])
WORK = st.lists(st.builds(Work, NAMES, NAMES, NAMED, st.integers(1, 9), st.integers(0, 10**6)))


@given(WORK, WORK)
def test_nothing_is_lost_and_nothing_counts_twice(before, after):
    for what in ROWS:
        found = changes_by(what, before, after)
        assert sum(each.before_ns for each in found) == sum(each.ns for each in before)
        assert sum(each.after_ns for each in found) == sum(each.ns for each in after)
        assert sum(each.before_count for each in found) == sum(each.runs for each in before)
        assert sum(each.after_count for each in found) == sum(each.runs for each in after)


@given(WORK, WORK)
def test_the_other_way_round_every_change_is_the_opposite(before, after):
    for what in ROWS:
        there, back = Counter(), Counter()
        for each in changes_by(what, before, after):
            there[frozenset(each.before), frozenset(each.after)] += each.change_ns
        for each in changes_by(what, after, before):
            back[frozenset(each.after), frozenset(each.before)] -= each.change_ns
        assert dict(there) == dict(back)


# Public pairs -----------------------------------------------------------------------------------------


def compared(before, after):
    return daydream.compare(shared_trace(f"kineto/{before}.json.gz"), shared_trace(f"kineto/{after}.json.gz"))


# A series of runs: which is the first slower one, and how likely that is by chance.


QUIET = (100, 120)


def series(*cpu, **how):
    return compare_series(
        [job(6, cpu=(100, each), **how) for each in cpu], [f"run {n}" for n in range(len(cpu))]
    )


@pytest.mark.parametrize(
    ("t", "freedom", "chance"),
    [
        (1.0, 1, 0.25),  # Cauchy: 1/2 - atan(1) / pi
        (2.0**0.5, 2, 0.5 - 2.0**0.5 / (2 * (2 + 2) ** 0.5)),
        (3.0**0.5, 3, 0.5 - (pi / 4 + 0.5) / pi),
        (2.776445, 4, 0.025),  # tables
        (1.812461, 10, 0.05),
        (-1.812461, 10, 0.95),
    ],
)
def test_chances_of_students_t(t, freedom, chance):
    assert isclose(student(t, freedom), chance, abs_tol=1e-6)


def test_the_first_slower_run_is_found():
    # means 121 and 141, within both +-1: s^2 = (2 + 2) / 4; t = 20 / sqrt(1/3 + 1/3), 15 pairs of ends
    found = series(120, 121, 122, 140, 141, 142)

    assert found.first_slow == "run 3"
    assert [run.slow for run in found.runs] == [False] * 3 + [True] * 3
    assert [run.step_ns for run in found.runs] == [130_000, 131_000, 132_000, 150_000, 151_000, 152_000]
    step = found.step
    assert (step.before_ns, step.after_ns, step.change_ns) == (131_000, 151_000, 20_000)
    assert step.spread_ns == 1_000
    assert isclose(step.chance, 15 * student(20 / (2 / 3) ** 0.5, 4))


@pytest.mark.parametrize(
    ("cpu", "first"),
    [
        ((120, 121, 119, 150, 120, 121), "run 3"),  # a single one between others
        ((120, 128, 122, 130, 121, 129), None),  # they only scatter
        ((140, 141, 120, 121), None),  # a faster one
    ],
)
def test_runs_of_other_shapes(cpu, first):
    found = series(*cpu)

    assert (found.first_slow, found.step is None) == (first, first is None)
    assert [run.slow for run in found.runs] == [f"run {number}" == first for number in range(len(cpu))]


def test_operators_of_the_slower_runs_are_named():
    # Where there is a device its work is compared: kernels take longer, transfers do not.
    found = compare_series([job(6, gpu=(each, each)) for each in (200, 201, 260, 261)], ["a", "b", "c", "d"])

    assert found.first_slow == "c"
    assert [(each.name, each.change_ns) for each in found.operators] == [("k", 60_000)]


def test_two_runs_are_no_series():
    with pytest.raises(GraphError, match="three runs or more"):
        series(120, 121)


# Blame: made jobs whose slowness is known, to the nanosecond; on recorded ones the costs add up.


def parts(found):
    return [(each.who, each.work, each.longer_ns, each.saving_ns, each.cost_ns) for each in found.parts]


def adds_up(found):
    return found.replayed_ns == found.balanced_ns + found.others_ns + sum(
        each.cost_ns for each in found.parts
    )


@pytest.mark.parametrize(("columns", "work"), [({}, "CPU work"), ({"phase": "data"}, "loading")])
def test_a_slow_rank_costs_what_it_is_slower(columns, work):
    #  a step of rank r: |cpu[r]|launch 5|launch 5|; both meet in the all-reduce, so the longer one counts
    found = daydream.blame(job(6, cpu=(100, 120), **columns))

    assert found.replayed_ns == 120_000 + 2 * 5_000
    assert found.balanced_ns == 100_000 + 2 * 5_000
    assert parts(found) == [("rank 1", work, 20_000, 20_000, 20_000)]
    assert found.ns_by_rank == {"rank 1": 20_000}
    assert found.ns_by_work == {work: 20_000}
    assert found.others_ns == 0


def test_slowness_that_other_work_hides_costs_nothing():
    found = daydream.blame(job(6, cpu=(100, 120), gpu=(60, 50)))

    # Rank 0's kernel takes 10 us more, and is done 100 + 5 + 60 us after the step began: before rank 1's.
    assert parts(found) == [
        ("rank 1", "CPU work", 20_000, 20_000, 20_000),
        ("rank 0", "kernels", 10_000, 0, 0),
    ]


def test_what_two_parts_hide_from_each_other_is_shared():
    #  gpu    |k 200|1|all-reduce 20|1|: a step takes 222; cpu of rank 1: 210 + 10 = 220
    found = daydream.blame(job(8, cpu=(100, 290), gpu=(280, 100)))
    by_hand = {"now": 280 + 1 + 20 + 1, "without the kernel": 290 + 10, "without the CPU work": 302}

    assert found.replayed_ns == 1_000 * by_hand["now"]
    both = found.replayed_ns - found.balanced_ns
    assert found.balanced_ns == 1_000 * (100 + 1 + 20 + 1)
    assert parts(found) == [
        ("rank 0", "kernels", 180_000, 2_000, (2_000 + both) // 2),
        ("rank 1", "CPU work", 190_000, 0, (both - 2_000) // 2),
    ]
    assert adds_up(found)


def test_of_a_pipeline_stages_are_compared():
    found = daydream.blame(job(6, cpu=(100, 120), pipeline=True))

    (stage,) = found.parts
    assert (stage.who, stage.work, stage.longer_ns) == ("stage 1", "CPU work", 20_000)
    assert stage.saving_ns == stage.cost_ns == found.replayed_ns - found.balanced_ns > 0
    assert found.ns_by_stage == {"stage 1": stage.cost_ns}


def test_one_rank_has_nobody_to_be_compared_with():
    with pytest.raises(NotApplicableError, match="one rank was recorded"):
        daydream.blame("examples/mlp_cpu.json.gz")


def test_costs_of_recorded_ranks_add_up():
    found = daydream.blame(shared_replay("formats/kineto_distributed/mi300_ddp_4ranks_unfused"))

    assert adds_up(found)
    assert found.parts[0].who == "rank 3"
    for costs in (found.ns_by_rank, found.ns_by_stage, found.ns_by_work):
        assert sum(costs.values()) == sum(each.cost_ns for each in found.parts)
