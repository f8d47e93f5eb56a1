"""The critical path adds up to the end it explains."""

from hypothesis import given
from hypothesis import strategies as st
from strategies import plans, written

from daydream.graph.plan import Cause
from daydream.simulate import engine
from daydream.simulate.critical_path import critical_path

LAUNCH, SYNC, LANE, RELEASE = Cause.LAUNCH, Cause.SYNC, Cause.LANE, Cause.RELEASE


def explain(plan, sink=None):
    """Return the path as rows (task, cause, delay, task time)."""
    path = critical_path(plan, *engine.run(plan), sink)
    columns = (path.task, path.cause, path.delay_ns, path.task_ns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


# -- drawn by hand ---------------------------------------------------------------------------------


def launch_and_synchronize():
    #  lane 0  |0 launch 5|gap 1|2 sync 2 ....|3: 7|
    #  lane 1      +3 |1 kernel 30         | +2
    return written("0 5 +1, 1 30, 0 2, 0 7", "0>1 3 start LAUNCH, 1>2 2 SYNC")


def test_the_path_leads_from_launch_over_kernel_to_the_thread_that_waited():
    assert explain(launch_and_synchronize()) == [
        (0, RELEASE, 0, 0),  # the kernel counts from the launch's start, so its duration is not on the path
        (1, LAUNCH, 3, 30),
        (2, SYNC, 2, 2),
        (3, LANE, 0, 7),
    ]  # 3 + 30 + 2 + 2 + 7 = 44


def test_the_path_counts_gaps_and_the_release_of_its_first_task():
    plan = written("0 5 +2 @4, 0 6 +9, 1 1")
    assert explain(plan) == [(0, RELEASE, 4, 5), (1, LANE, 2, 6)]  # 4 + 5 + 2 + 6 = 17


def test_of_equal_causes_an_edge_goes_first_then_the_least_cause_then_the_least_source():
    #  0, 1, 2 and 3 all end at 5, and 4 on the lane of 3 follows them all
    tasks = "0 5, 1 5, 2 5, 3 5, 3 1 @5"
    found = explain(written(tasks, "0>4 QUEUE, 2>4 SYNC, 1>4 SYNC"))
    assert found == [(1, RELEASE, 0, 5), (4, SYNC, 0, 1)]
    assert explain(written(tasks)) == [(3, RELEASE, 0, 5), (4, LANE, 0, 1)]


def test_on_a_scheduled_lane_the_path_goes_back_in_the_order_that_came_out():
    #  link  |1: 3|0: 4|      1 is more urgent
    plan = written("0 4, 0 3", priority={0: [1, 0]})
    assert explain(plan) == [(1, RELEASE, 0, 3), (0, LANE, 0, 4)]


# -- laws over random plans ------------------------------------------------------------------------


@given(plans() | plans(scheduled=True), st.data())
def test_the_path_adds_up_to_the_end_of_its_sink(plan, data):
    start, end = engine.run(plan)
    sink = data.draw(st.integers(0, len(plan) - 1))
    path = critical_path(plan, start, end, sink)
    assert path.task[-1] == sink
    assert path.cause[0] == RELEASE
    assert path.delay_ns[0] == start[path.task[0]] == plan.release_ns[path.task[0]]
    assert int(path.delay_ns.sum() + path.task_ns.sum()) == end[sink]


@given(plans() | plans(scheduled=True))
def test_every_hop_is_a_cause_that_the_plan_holds(plan):
    start, end = engine.run(plan)
    path = critical_path(plan, start, end)
    gap = plan.gap_ns.tolist()
    columns = (plan.edge_src, plan.edge_dst, plan.edge_cause, plan.edge_latency_ns, plan.edge_from_start)
    stored = set(zip(*(column.tolist() for column in columns), strict=True))
    hops = zip(
        path.task[:-1], path.task[1:], path.cause[1:], path.delay_ns[1:], path.task_ns[:-1], strict=True
    )
    for before, task, cause, delay, task_ns in (map(int, hop) for hop in hops):
        if cause == LANE:
            assert plan.lane[before] == plan.lane[task]
            assert (delay, task_ns) == (gap[before], plan.duration_ns[before])
        else:
            by_start = (before, task, cause, delay, True) in stored and task_ns == 0
            by_end = (before, task, cause, delay, False) in stored and task_ns == plan.duration_ns[before]
            assert by_start or by_end
