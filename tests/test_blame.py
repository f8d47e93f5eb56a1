"""Blame: made jobs whose slowness is known, to the nanosecond; on recorded ones the costs add up."""

import pytest
from graph.jobs import job
from shared import shared_replay

import daydream
from daydream import NotApplicableError


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
