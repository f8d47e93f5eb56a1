"""Kernels and transfers that slow each other: by hand, and what holds for any graph."""

import numpy as np
import pytest
from graph.random_graphs import graphs
from hypothesis import given
from hypothesis import strategies as st

from daydream import Graph, simulate
from daydream.graph.calls import Coverage
from daydream.graph.tables import Lane
from daydream.simulate.contention import Contention

KERNEL, COLLECTIVE = 1, 4


def spans(graph, kernel=1.0, transfer=1.0, untouched=None):
    """Return start and end of every task by name; without `untouched`, all durations are those alone."""
    before = Graph() if untouched is None else untouched
    timeline = simulate(graph, contention=Contention(before, kernel, transfer))
    assert timeline.overlaps_settled
    times = zip(timeline.start_ns.tolist(), timeline.end_ns.tolist(), strict=True)
    return dict(zip(timeline.column("name").tolist(), times, strict=True))


def beside(kernel_ns, transfer_ns):
    """Return a kernel on one stream and a transfer on another, both from 0 on."""
    graph = Graph()
    graph.insert("kernel", kind="kernel", lane="stream 7", duration_ns=kernel_ns)
    graph.insert("transfer", kind="collective", lane="stream 8", duration_ns=transfer_ns)
    return graph


def test_a_kernel_loses_half_of_its_speed_while_a_transfer_runs():
    #  stream 8  |transfer 50      |
    #  stream 7  |25 of 100 is done|75 are left   |
    assert spans(beside(100, 50), 2) == {"kernel": (0, 125), "transfer": (0, 50)}
    # 100 at half speed would take 200, more than the transfer lasts
    assert spans(beside(100, 500), 2) == {"kernel": (0, 200), "transfer": (0, 500)}


def test_both_are_slowed_while_both_run():
    # At half speed the transfer takes 100; the kernel has then done 50 of its 100.
    assert spans(beside(100, 50), 2, 2) == {"kernel": (0, 150), "transfer": (0, 100)}
    # At a fifth less speed 50 take 62.5 (63); the kernel, at half speed, then has 68.5 left (131.5).
    assert spans(beside(100, 50), 2, 1.25) == {"kernel": (0, 132), "transfer": (0, 63)}
    # Whole ns settle: 2 and 3, 5 and 6 would follow each other for ever.
    assert spans(beside(2, 5), 1.25, 1.25) == {"kernel": (0, 2), "transfer": (0, 5)}


def test_a_transfer_that_begins_within_a_kernel_slows_the_rest_of_it():
    graph = beside(100, 30)
    graph.select(name="transfer").set(release_ns=60)
    # 60 alone, then 30 at a third (10), and 30 alone
    assert spans(graph, 3) == {"kernel": (0, 120), "transfer": (60, 90)}


def test_a_slowed_kernel_delays_what_waits_for_it_also_a_transfer():
    graph = beside(100, 50)
    graph.insert("next", kind="kernel", lane="stream 7", duration_ns=10)
    graph.insert("late", kind="collective", lane="stream 8", duration_ns=40, after=[0])
    found = spans(graph, 2)
    assert found["late"] == (125, 165)
    assert found["next"] == (125, 145)  # beside the second transfer, at half speed


def test_a_transfer_on_another_device_or_rank_slows_nothing():
    zero, one = (Lane(f"stream {device}", device=device, on_device=True) for device in (0, 1))
    for own, lane in ((zero, one), (one, zero), (zero, one._replace(rank=1))):
        graph = Graph()
        here = graph.add_lane(own)
        there = graph.add_lane(lane)
        graph.insert("kernel", kind="kernel", lane=here, duration_ns=100)
        graph.insert("transfer", kind="collective", lane=there, duration_ns=50)
        assert spans(graph, 2)["kernel"] == (0, 100)


def test_a_transfer_that_waits_for_another_rank_slows_nothing_before_it_begins():
    #  rank 1  |late 60            |
    #  rank 0  |kernel 100                |     the transfer of 40 begins at 60
    graph = Graph()
    lanes = [graph.add_lane(Lane(f"rank {n} stream", rank=n, on_device=True, device=n)) for n in (0, 1)]
    link = graph.add_lane(Lane("rank 0 stream 8", rank=0, on_device=True, device=0))
    graph.insert("kernel", kind="kernel", lane=lanes[0], duration_ns=100)
    graph.insert("late", kind="kernel", lane=lanes[1], duration_ns=60)
    graph.insert("transfer", kind="collective", lane=link, duration_ns=40, after=[1])
    # 60 alone, 20 in the 40 of the transfer, 20 alone
    assert spans(graph, 2) == {"kernel": (0, 120), "late": (0, 60), "transfer": (60, 100)}


def test_a_recorded_duration_already_holds_its_overlap():
    before = beside(100, 50)  # 25 of the kernel's work were done in the first 50
    assert spans(before, 2, untouched=before) == {"kernel": (0, 100), "transfer": (0, 50)}
    faster = before.copy()
    faster.select(kind="collective").scale(0.4)  # 10 in the first 20, 65 alone
    assert spans(faster, 2, untouched=before) == {"kernel": (0, 85), "transfer": (0, 20)}
    slower = before.copy()
    slower.select(kind="collective").scale(10)  # 75 at half speed
    assert spans(slower, 2, untouched=before) == {"kernel": (0, 150), "transfer": (0, 500)}
    gone = before.copy()
    gone.select(kind="collective").remove()
    assert spans(gone, 2, untouched=before) == {"kernel": (0, 75)}


def test_an_edited_duration_keeps_the_share_that_was_overlapped():
    before = beside(100, 100)  # a kernel of 50, at half speed all the time
    shorter = before.copy()
    shorter.select(kind="kernel").scale(0.6)
    assert spans(shorter, 2, untouched=before)["kernel"] == (0, 60)
    longer = before.copy()
    longer.select(kind="kernel").scale(3)  # 150 of work, 50 of them while the transfer lasts
    assert spans(longer, 2, untouched=before)["kernel"] == (0, 200)


def test_a_new_transfer_holds_as_much_overlap_as_those_recorded():
    before = beside(100, 50)  # 25 of work at half speed
    more = before.copy()
    more.insert("new", kind="collective", lane="stream 9", duration_ns=40)
    assert spans(more, 1, 2, untouched=before)["new"] == (0, 40)


# laws -------------------------------------------------------------------------------------------


@st.composite
def with_transfers(draw):
    """Return a random program in which some device work is a transfer, with times that can be divided."""
    graph = draw(graphs(scheduled=False))
    kernels = np.flatnonzero(graph.columns["kind"] == KERNEL)
    chosen = draw(st.lists(st.booleans(), min_size=len(kernels), max_size=len(kernels)))
    graph.columns["kind"][kernels[np.array(chosen, bool)]] = COLLECTIVE
    for name in ("duration_ns", "gap_ns", "release_ns"):
        graph.columns.put(name, graph.columns[name] * 100)
    return graph


FACTORS = st.sampled_from([1.0, 1.07, 1.25, 2.0, 5.0])


def ends(graph, **how):
    return simulate(graph, **how).end_ns


@given(with_transfers())
def test_factor_1_changes_nothing(graph):
    assert (ends(graph, contention=Contention(Graph(), 1.0, 1.0)) == ends(graph)).all()


@given(with_transfers(), FACTORS, FACTORS)
def test_an_untouched_graph_stays_as_it_was(graph, kernel, transfer):
    assert (ends(graph, contention=Contention(graph, kernel, transfer)) == ends(graph)).all()


@given(with_transfers(), FACTORS, FACTORS)
def test_contention_is_never_faster_than_none_and_no_slower_than_its_factor(graph, kernel, transfer):
    timeline = simulate(graph, contention=Contention(Graph(), kernel, transfer))
    assert timeline.overlaps_settled
    own = graph.columns["duration_ns"][timeline.task]
    factor = np.where(timeline.column("kind") == "kernel", kernel, transfer)
    took = timeline.end_ns - timeline.start_ns
    assert (took >= own).all()
    assert (took <= np.where(timeline.column("kind") == "cpu", own, own * factor) + 1).all()
    assert (timeline.end_ns >= simulate(graph).end_ns).all()


@given(with_transfers(), FACTORS, FACTORS)
def test_what_was_done_adds_up(graph, kernel, transfer):
    """A task's work is its time, less what it lost beside its counterparts as they were simulated."""
    timeline = simulate(graph, contention=Contention(Graph(), kernel, transfer))
    kinds = timeline.column("kind")
    for mine, others, factor in (("kernel", "collective", kernel), ("collective", "kernel", transfer)):
        tasks, beside_them = kinds == mine, kinds == others
        covered = Coverage(timeline.start_ns[beside_them], timeline.end_ns[beside_them])
        start, end = timeline.start_ns[tasks], timeline.end_ns[tasks]
        done = end - start - (1 - 1 / factor) * covered.within(start, end)
        assert done == pytest.approx(graph.columns["duration_ns"][timeline.task][tasks], abs=1.6)
