"""Draft: what rules look up by lane is that of all tasks, however they were added."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from small_graphs import named
from small_traces import launched, total, trace

from daydream import Trace
from daydream.graph.build import RULES, build
from daydream.graph.draft import Draft
from daydream.graph.tables import Lane

LANES = (
    Lane("thread 1"),
    Lane("stream 7", on_device=True),
    Lane("thread 2"),
    Lane("gloo 0", on_device=True, host=True),
)
tasks = st.lists(
    st.tuples(st.integers(0, len(LANES) - 1), st.integers(0, 9), st.integers(-1, 3)), max_size=12
)


def drafted():
    draft = Draft(Trace({}, {}))
    for lane in LANES:
        draft.add_lane(lane)
    return draft


def check(draft):
    in_order = np.argsort(draft.order, kind="stable")
    for number in range(len(LANES)):
        mine = in_order[draft.lane[in_order] == number]
        assert draft.on(number).tolist() == mine.tolist()
    assert draft.threads() == [lane for lane in (0, 2) if len(draft.on(lane))]
    assert [lane for lane, _ in draft.streams()] == [1] * bool(len(draft.on(1)))
    assert draft.launched().tolist() == np.flatnonzero(draft.launch >= 0).tolist()
    for thread in (0, 2):
        work = [task for task in in_order.tolist() if draft.launch[task] >= 0]
        mine = [task for task in work if draft.lane[draft.launch[task]] == thread]
        assert draft.launched_by(thread).tolist() == mine


@given(st.lists(tasks, min_size=1, max_size=4))
def test_tasks_are_found_by_lane_whenever_they_were_added(portions):
    draft = drafted()
    draft.add(4, lane=[0, 0, 2, 0], order=[1, 3, 5, 7])
    for portion in portions:
        lane, order, launch = np.array(portion, np.int64).reshape(-1, 3).T
        draft.add(len(portion), lane=lane, order=order, launch=launch)
        check(draft)


def test_a_task_that_moved_is_found_again():
    draft = drafted()
    draft.add(3, lane=0, order=[1, 2, 3])
    check(draft)
    draft.launch[1] = 0
    draft.move(1, lane=3, order=9)
    check(draft)


def test_the_rule_of_the_contributors_guide_finds_a_cause(monkeypatch):
    #  stream 7   |a: 10 to 50|
    #  stream 23     |poll, launched at 20: 51 to 60|
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    code = next(code for code in page.split("```")[1::2] if "def follow_polled" in code).removeprefix(
        "python"
    )
    names = {}
    exec(code, names)
    at = [name for name, _ in RULES].index("latencies") - 1
    rules = (*RULES[:at], ("polls", names["follow_polled"]), *RULES[at:])
    monkeypatch.setattr("daydream.graph.build.RULES", rules)
    recorded = trace(launched("a", 0, 10, 50), launched("poll", 20, 51, 60, stream=23))
    ends = []
    for without in ([], ["polls"]):
        graph = build(recorded, without=without)
        assert total(graph) == 60
        named(graph, "a").scale(0.5)
        ends.append(total(graph))
    assert ends == [40, 60]
