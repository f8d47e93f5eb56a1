"""What runs when on graphs small enough to draw, and what each edit makes of them: the sums written out."""

import numpy as np
import pytest
from small_graphs import at, kernels, lane, launched, named, names, put, starts, thread, with_sync

from daydream import Graph, GraphError, NoMatchError, simulate
from daydream.graph.plan import Cause
from daydream.graph.tables import Lane


def shown(graph):
    """Return what each lane runs and when, in order: `{"thread 1": [("a", 0), ("b", 5)]}`."""
    timeline, found = simulate(graph), {}
    columns = (timeline.column("lane").tolist(), timeline.column("name").tolist(), timeline.start_ns.tolist())
    for where, name, start in zip(*columns, strict=True):
        found.setdefault(where, []).append((name, start))
    return found


def lanes(text):
    """Return the same from text: `thread 1: a 0, b 3+2 | stream 7: k 4`."""
    pairs = (lane.split(": ") for lane in text.split(" | "))
    tasks = {lane: [task.rsplit(" ", 1) for task in tasks.split(", ")] for lane, tasks in pairs}
    return {lane: [(name, sum(map(int, at.split("+")))) for name, at in each] for lane, each in tasks.items()}


def one_call(text, **how):
    """Return a graph whose call for `a` launches `a2` of 5 ns, too, as for a CUDA graph."""
    graph = launched(text, **how)
    put(graph, "a2", "stream 7", 5, after=[named(graph, "a")])
    graph.columns["launch"][named(graph, "a2").ids] = named(graph, "launch a").ids
    return graph


def launched_by_the_first():
    graph = thread("call 6")
    k = put(graph, "k", "stream 7", 1)
    graph.write("launch", k.ids, 0)
    return graph


def queue(graph, depth=1):
    graph.queue_depth[graph.lane_id("stream 7")] = depth
    return graph


def synced(text, lane=None):
    graph = launched(text)
    with_sync(graph, *([lane] if lane else []))
    return graph


def with_facts(graph, **facts):
    for name, value in facts.items():
        setattr(graph.facts, name, value)
    return graph


def handed_over():
    #  thread 1  |a 5|              |b 5|c 5|       waits for the end of y
    #  worker        |x 7|gap 1|y 7|
    graph = thread("a 5, b 5, c 5")
    put(graph, "x", "worker", 7, gap_ns=1)
    put(graph, "y", "worker", 7)
    graph.link([0], [3], cause=Cause.HANDOFF)
    graph.link([4], [1], cause=Cause.HANDOFF)
    return graph


def linked():
    graph = thread("a 5, b 5")
    put(graph, "x", "worker", 50)
    put(graph, "y", "worker", 1)
    graph.link([2], [1])
    return graph


def waiting_streams():
    #  thread 1  |launch a 6|record 2|launch b 6|wait 2|launch c 6|
    #  stream 7     +4 |a 50                         |1|b 50
    #  stream 8                                      |c 5|            c waits for a, not for b
    graph = launched("a 50")
    record = put(graph, "record", "thread 1", 2)
    b = put(graph, "b", "stream 7", 50, launch_after=record)
    wait = put(graph, "wait", "thread 1", 2, after=[b.launches()])
    put(graph, "c", "stream 8", 5, launch_after=wait)
    graph.waits.add(
        record=record.ids[0], source=graph.lane_id("stream 7"), wait=wait.ids[0],
        target=graph.lane_id("stream 8"), latency_ns=3,
    )  # fmt: skip
    return graph


def two(*lane):
    """Return a graph with a kernel, one of 90 ns on another stream behind it, and a sync."""
    graph = launched("a 20")
    put(graph, "x", "stream 8", 90, launch_after=named(graph, "launch a"))
    with_sync(graph, *lane)
    return graph


def repeated_with_its_wait(graph):
    put(graph, "end", "thread 1", 1)
    again = graph.select(name=("launch a", "^a$", "sync")).repeat(2)
    assert graph.column("repeat", again.ids).tolist() == [1, 1, 1, 2, 2, 2]


def fused(graph, **how):
    kernels(graph).set(step=[0, 0, 0, 1, 2])
    kernels(graph).group_by("step").fuse("f", op="aten::fused", **how)


def behind_a_node(graph):
    both = kernels(graph)
    both.group_by("kind").share_launch("cudaGraphLaunch")
    graph.insert_after(both, "q", duration_ns=5)


def with_untraced():
    graph = with_facts(launched("a 20"), startup_ns=3)
    put(graph, "k", "stream 7", 10)
    return graph


def both_sides(graph):
    graph.insert_before(kernels(graph), "check", kind="cpu", duration_ns=3)
    graph.insert_after(kernels(graph), "log", kind="cpu", duration_ns=4)


def beside_cpu_tasks(graph):
    graph.insert_after(named(graph, "a"), "x", duration_ns=2)
    graph.insert_after(named(graph, "b"), "k", kind="kernel", lane="stream 7", duration_ns=2)


def stopped(graph):
    put(graph, "next", "thread 1", 1)
    calls = graph.select(kind="cpu").waiting()
    assert names(calls) == "sync"
    calls.stop_waiting()
    with pytest.raises(NoMatchError, match="none of these calls waits"):
        calls.stop_waiting()


def behind(graph, after, name="x", lane="stream 7", ns=9, **how):
    put(graph, name, lane, ns, launch_after=graph.select(name=after), **how)


AB = "a 20, b 20"
ABC = "a 20, b 10, c 20"
# Each launch takes 6, its kernel starts 4 after it began and 1 behind the kernel before it; a sync takes 3.
CASES = {
    "work without a launch is held to its release": (
        Graph,
        lambda g: put(g, "k", "stream 7", 4, release_ns=11),
        "stream 7: k 11",
    ),
    # -- hand-off and links
    "the caller waits for the worker": (
        handed_over,
        None,
        "thread 1: a 0, b 13+7, c 20+5 | worker: x 5, y 5+7+1",
    ),
    "y is now the first to be woken": (
        handed_over,
        lambda g: named(g, "x").remove(),
        "thread 1: a 0, b 5+7, c 17 | worker: y 5",
    ),
    "a worker that is gone is not waited for": (
        handed_over,
        lambda g: g.select(lane="worker").remove(),
        "thread 1: a 0, b 5, c 10",
    ),
    "a link goes with its task": (
        linked,
        lambda g: named(g, "x").remove(),
        "thread 1: a 0, b 5 | worker: y 0",
    ),
    # -- insert
    "work that brings its launch runs behind what its predecessor launched": (
        lambda: launched(AB),
        lambda g: behind(g, "launch a", ns=7, gap_ns=1),
        "thread 1: begin 0, launch a 0, launch 6, launch b 12 | stream 7: a 4, x 4+20+1, b 25+7+1",
    ),
    "behind each kernel comes one, with its launch": (
        lambda: launched(AB),
        lambda g: g.insert_after(kernels(g), "q", duration_ns=5),
        (
            "thread 1: begin 0, launch a 0, launch 6, launch b 12, launch 18"
            " | stream 7: a 4, q 4+20+1, b 25+5, q 30+20+1"
        ),
    ),
    "beside work of no known launch comes work without one": (
        with_untraced,
        lambda g: g.insert_after(kernels(g), "q", duration_ns=5),
        "thread 1: begin 0, launch a 0, launch 6 | stream 7: a 4, q 4+20+1, k 25+5+3, q 33+10",
    ),
    "a collective has no start-up cost": (
        with_untraced,
        lambda g: g.insert_after(named(g, "a"), "reduce", kind="collective", duration_ns=5),
        "thread 1: begin 0, launch a 0, launch 6 | stream 7: a 4, reduce 4+20+1, k 25+5",
    ),
    "before a task on another lane it holds it": (
        lambda: launched(AB),
        lambda g: g.insert_before(named(g, "b"), "fetch", kind="memcpy", lane="copies", duration_ns=50),
        "thread 1: begin 0, launch a 0, launch 6, launch b 12 | stream 7: a 4, b 10+50 | copies: fetch 6+4",
    ),
    "what waits for it is named": (
        lambda: launched(AB),
        lambda g: g.insert_after(
            kernels(g).head(1), "off", kind="memcpy", lane="copies", duration_ns=50, before=named(g, "b")
        ),
        "thread 1: begin 0, launch a 0, launch 6, launch b 12 | stream 7: a 4, b 24+50 | copies: off 4+20",
    ),
    "beside CPU tasks come CPU tasks, or work with its launch": (
        lambda: with_facts(thread("a 5, b 5"), launch_latency_ns=4, launch_cost_ns=6),
        beside_cpu_tasks,
        "thread 1: a 0, x 5, b 7, launch 12 | stream 7: k 12+4",
    ),
    "beside a node of a device graph it is one more node": (
        lambda: launched(AB),
        behind_a_node,
        "thread 1: begin 0, cudaGraphLaunch 0 | stream 7: a 4, q 4+20+1, b 25+5, q 30+20+1",
    ),
    # -- remove, replace, set, scale
    "a kernel's launch goes with it": (
        lambda: launched(AB),
        lambda g: named(g, "a").remove(),
        "thread 1: begin 0, launch b 0 | stream 7: b 4",
    ),
    "a launch with work left stays": (
        lambda: one_call("a 20"),
        lambda g: named(g, "a").remove(),
        "thread 1: begin 0, launch a 0 | stream 7: a2 0",
    ),
    "a launch without any goes": (
        lambda: one_call("a 20"),
        lambda g: named(g, "a", "a2").remove(),
        "thread 1: begin 0",
    ),
    "one task takes the place of several": (
        lambda: launched("a 20, b 20, c 20, d 20"),
        lambda g: g.select(name="^[abc]$").replace("one", duration_ns=9),
        "thread 1: begin 0, launch a 0, launch d 6 | stream 7: one 4, d 4+9+1",
    ),
    "halves are rounded up": (
        lambda: thread("a 6 +2, b 3"),
        lambda g: named(g, "a").set(duration_ns=7.5, gap_ns=1),
        "thread 1: a 0, b 8+1",
    ),
    "scale leaves gaps alone": (
        lambda: thread("a 6 +2, b 3, c 1"),
        lambda g: g.select().scale(0.5),
        "thread 1: a 0, b 3+2, c 5+2",
    ),
    "unless asked": (
        lambda: thread("a 6 +2, b 3, c 1"),
        lambda g: g.select().scale(0.5, gaps=True),
        "thread 1: a 0, b 3+1, c 4+2",
    ),
    # -- fuse, share a launch, split
    "each group is fused into its first task": (
        lambda: launched("a 20, b 10, c 5, d 7, e 1"),
        fused,
        "thread 1: begin 0, launch a 0, launch d 6, launch e 12 | stream 7: f 4, f 4+35+1, f 40+7+1",
    ),
    "one call launches the work of a group": (
        lambda: launched("a 3, b 3, c 3"),
        lambda g: kernels(g).group_by("kind").share_launch("graph launch"),
        "thread 1: begin 0, graph launch 0 | stream 7: a 4, b 4+3+1, c 8+3+1",
    ),
    "parts add up and the gap is behind the last": (
        lambda: launched("a 20, b 10"),
        lambda g: named(g, "a").split(3),
        "thread 1: begin 0, launch a 0, launch b 6 | stream 7: a 4, a 4+7, a 11+7, b 18+6+1",
    ),
    "parts with launches of their own": (
        lambda: with_facts(launched("a 20, b 10"), startup_ns=2),
        lambda g: named(g, "a").split(2, launched=True),
        "thread 1: begin 0, launch a 0, launch 6, launch b 12 | stream 7: a 4, a 4+10+2, b 16+10+1",
    ),
    # -- move
    "a moved task keeps its place among its causes": (
        lambda: launched(ABC),
        lambda g: named(g, "b").move("copies"),
        "thread 1: begin 0, launch a 0, launch b 6, launch c 12 | stream 7: a 4, c 24+10 | copies: b 4+20",
    ),
    "it need not follow": (
        lambda: launched(ABC),
        lambda g: named(g, "b").move("copies", follows=False),
        "thread 1: begin 0, launch a 0, launch b 6, launch c 12 | stream 7: a 4, c 4+20+1 | copies: b 6+4",
    ),
    "a call that waited for the lane waits for what moved": (
        lambda: synced("a 20, b 100", "stream 7"),
        lambda g: named(g, "b").move("copies"),
        "thread 1: begin 0, launch a 0, launch b 6, sync 24+100 | stream 7: a 4 | copies: b 24",
    ),
    # -- repeat
    "work is done again with its launches and waits": (
        lambda: synced("a 20"),
        repeated_with_its_wait,
        (
            "thread 1: begin 0, launch a 0, sync 24, launch a 27, sync 51, launch a 54, sync 78, end 81"
            " | stream 7: a 4, a 27+4, a 54+4"
        ),
    ),
    "also where the first task of all launches it": (
        launched_by_the_first,
        lambda g: g.select().repeat(),
        "thread 1: call 0, call 6 | stream 7: k 0, k 6",
    ),
    # -- calls that wait
    "a sync waits for all launched before it": (
        lambda: synced(AB),
        None,
        "thread 1: begin 0, launch a 0, launch b 6, sync 25+20 | stream 7: a 4, b 25",
    ),
    "and no longer for what is gone": (
        lambda: synced(AB),
        lambda g: named(g, "b").remove(),
        "thread 1: begin 0, launch a 0, sync 24 | stream 7: a 4",
    ),
    "but for what is new": (
        lambda: synced("a 20"),
        lambda g: behind(g, "launch a"),
        "thread 1: begin 0, launch a 0, launch 6, sync 24+1+9 | stream 7: a 4, x 24+1",
    ),
    "if it was launched before": (
        lambda: synced("a 20"),
        lambda g: behind(g, "sync"),
        "thread 1: begin 0, launch a 0, sync 24, launch 27 | stream 7: a 4, x 27+4",
    ),
    "or for nothing": (lambda: synced(AB), lambda g: kernels(g).remove(), "thread 1: begin 0, sync 0"),
    "one of the device does": (
        two,
        None,
        "thread 1: begin 0, launch a 0, launch 6, sync 10+90 | stream 7: a 4 | stream 8: x 10",
    ),
    "a call that stops waiting keeps its own cost": (
        lambda: synced("a 20"),
        stopped,
        "thread 1: begin 0, launch a 0, sync 6, next 9 | stream 7: a 4",
    ),
    # -- a queue of one, no start-up cost: each launch waits for the end of the kernel before it
    "a full queue blocks the launch": (
        lambda: queue(launched("a 20, b 20, c 20", spacing=0)),
        None,
        "thread 1: begin 0, launch a 0, launch b 24, launch c 48 | stream 7: a 4, b 28, c 52",
    ),
    "also for what was inserted": (
        lambda: queue(launched(AB, spacing=0)),
        lambda g: behind(g, "launch a", ns=5),
        "thread 1: begin 0, launch a 0, launch 24, launch b 28+5 | stream 7: a 4, x 24+4, b 33+4",
    ),
    "not for what was removed": (
        lambda: queue(launched("a 20, b 20, c 20", spacing=0)),
        lambda g: named(g, "b").remove(),
        "thread 1: begin 0, launch a 0, launch c 24 | stream 7: a 4, c 28",
    ),
    "work within a graph launch does not hold that launch back": (
        lambda: queue(one_call(AB, spacing=0)),
        lambda g: put(g, "x", "stream 7", 3, after=[named(g, "a")]),
        "thread 1: begin 0, launch a 0, launch b 27+5 | stream 7: a 4, x 24, a2 24+3, b 32+4",
    ),
    "CPU work beside device work runs where that is launched": (
        lambda: launched(AB),
        both_sides,
        (
            "thread 1: begin 0, check 0, launch a 3, log 9, check 13, launch b 16, log 22"
            " | stream 7: a 3+4, b 7+20+1"
        ),
    ),
    "it need not be waited for": (
        lambda: launched("a 20, b 100, c 20"),
        lambda g: named(g, "b").move("copies", held_for=False),
        "thread 1: begin 0, launch a 0, launch b 6, launch c 12 | stream 7: a 4, c 4+20+1 | copies: b 24",
    ),
    # -- streams that wait
    "a stream waits for the work before the record": (waiting_streams, None, "stream 8: c 4+50+3"),
    "also for what was launched before it since": (
        waiting_streams,
        lambda g: behind(g, "launch a", ns=10),
        "stream 8: c 4+50+1+10+3",
    ),
    "else its own launch decides": (
        waiting_streams,
        lambda g: named(g, "a").remove(),
        "stream 8: c 2+6+2+4",
    ),
    "the order outlives the record": (
        waiting_streams,
        lambda g: named(g, "record").remove(),
        "stream 8: c 4+50+3",
    ),
    "and the move of what it waits for": (
        waiting_streams,
        lambda g: named(g, "a").move("copies", held_for=False),
        "stream 8: c 4+50+3",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_by_hand(case):
    make, edit, expected = CASES[case]
    graph = make()
    simulate(graph)
    if edit is not None:
        edit(graph)
    found = shown(graph)
    assert {lane: found[lane] for lane in lanes(expected)} == lanes(expected)
    assert len(found) == len(lanes(expected)) or make is waiting_streams
    assert graph.lint() == []


def test_a_task_inserted_on_a_scheduled_lane_later_is_asked_for_its_key_too():
    graph = thread("a 1")
    put(graph, "x", "link", 10, after=[0])
    graph.schedule("link", key="duration_ns")
    put(graph, "y", "link", 9, after=[0])

    assert starts(graph) == at("a 0, y 1, x 10")


@pytest.mark.parametrize("given", [[1], np.array([1]), [3], [-1]])
@pytest.mark.parametrize("where", ["after", "before"])
def test_a_task_that_was_removed_cannot_be_named(where, given):
    graph = thread("a 5, b 5")
    graph.select(name="b").remove()

    with pytest.raises(GraphError, match=f"task {given[0]} is not in the graph; it may have been removed"):
        put(graph, "x", "thread 1", 1, **{where: given})


@pytest.mark.parametrize("factor", [-1, float("nan"), float("inf")])
def test_a_factor_that_means_nothing_is_refused(factor):
    with pytest.raises(GraphError, match="a factor must be 0 or more, not"):
        thread("a 6 +2").select(kind="cpu").scale(factor)


@pytest.mark.parametrize("column", ["duration_ns", "gap_ns", "release_ns", "latency_ns"])
def test_negative_times_cannot_be_set(column):
    graph = thread("a 6 +2")
    with pytest.raises(GraphError, match=f"{column} cannot be negative"):
        graph.select(kind="cpu").set(**{column: -1})
    assert starts(graph) == {"a": 0}


def test_a_copy_is_independent():
    graph = launched("a 20, b 20")
    simulate(graph)
    twin = graph.copy()
    named(twin, "a").remove()
    named(twin, "b").scale(2)
    put(twin, "x", "thread 9", 1)

    assert starts(graph) == at("begin 0, launch a 0, a 4, launch b 6, b 25")
    assert [lane.name for lane in graph.lanes] == ["thread 1", "stream 7"]
    assert simulate(twin).makespan_ns == 4 + 40


def test_selections_combine():
    graph = launched("a 20, b 10")
    a, both = named(graph, "a"), kernels(graph)

    assert (names(a | both), names(a & both), names(both - a)) == ("a, b", "a", "b")
    assert names(both.where(lambda tasks: tasks.duration_ns > 15)) == "a"
    assert names(both.launches()) == "launch a, launch b"
    assert both.total("duration_ns") == 30


def test_a_graph_notes_what_was_edited_and_not_what_was_looked_up():
    copy = Graph().copy()
    lane = copy.lane_id("thread")
    copy.add(1, lane=lane, layer=copy.code("layer", "a"))
    assert len(copy.select(layer="a", kind="cpu")) == 1
    assert not copy.edited_by
    copy.select(layer="a", kind="cpu").scale(0.5)
    assert list(copy.edited_by) == [(("kind", ("cpu",)), ("layer", ("a",)))]
    assert not Graph().copy().edited_by


def test_no_two_lanes_have_one_name():
    graph = Graph()
    numbers = [graph.add_lane(Lane("thread 7", rank)) for rank in (0, 1, 2)]
    assert [lane.name for lane in graph.lanes] == ["thread 7", "thread 7 (2)", "thread 7 (3)"]
    assert [graph.lane_id(graph.lanes[number].name) for number in numbers] == [0, 1, 2]


def test_durations_and_columns_are_one_or_one_for_each():
    graph = launched("a 20, b 20")
    graph.columns["step"][:] = [0, 0, 0, 1, 1]
    new = graph.insert_after(
        kernels(graph), "q", duration_ns=[3.5, 8], bytes=[100, 200], dtype="bfloat16", layer=["x", None]
    )

    assert new.duration_ns.tolist() == [4, 8]
    assert new.bytes.tolist() == [100, 200]
    assert new.dtype.tolist() == ["bfloat16", "bfloat16"]
    assert new.layer.tolist() == ["x", None]
    assert new.step.tolist() == new.launches().step.tolist() == [0, 1]
    assert names(kernels(graph).where(dtype="bfloat16")) == "q, q"
    assert graph.select(name="^[ab]$").bytes.tolist() == [-1, -1]


@pytest.mark.parametrize("behind", [True, False])
def test_there_is_room_however_close_the_neighbours_are(behind):
    graph = thread("a 1, b 1, c 1")
    graph.columns["order"][:] = [5, 5, 6]
    insert = graph.insert_after if behind else graph.insert_before
    for name in "xyz":
        insert(graph.select(name="[abc]"), name, duration_ns=1)

    expected = "azyxbzyxczyx" if behind else "xyzaxyzbxyzc"
    assert lane(graph, "thread 1") == ", ".join(expected)


def test_of_several_ranks_each_has_its_own_lane():
    graph = Graph()
    for rank in range(2):
        number = graph.lane_id(f"rank {rank} stream 7", on_device=True, rank=rank)
        graph.insert("a", kind="kernel", lane=number, duration_ns=10)
    graph.insert_after(kernels(graph), "reduce", kind="collective", lane="link", duration_ns=5)

    assert [each.name for each in graph.lanes[2:]] == ["rank 0 link", "rank 1 link"]
    assert graph.select(lane="link").rank.tolist() == [0, 1]
    assert len(graph.select(lane="stream 7")) == 2
    graph.schedule("link", key="duration_ns")
    assert sorted(graph.scheduled) == [2, 3]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"duration_ns": [1, 2, 3]}, "duration_ns: 3 values for 2 tasks"),
        ({"duration_ns": -1}, "cannot be negative"),
        ({"duration_ns": "long"}, "a number of nanoseconds, not 'long'"),
        ({"duration_ns": 1, "kind": "gpu"}, "unknown kind 'gpu'"),
        ({"duration_ns": 1, "lane": "thread 1"}, "'thread 1' is a CPU thread"),
        ({"duration_ns": 1, "colour": "red"}, "cannot give tasks 'colour'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(how, message):
    graph = launched("a 20, b 20")
    before = starts(graph)
    with pytest.raises(GraphError, match=message):
        graph.insert_after(kernels(graph), "q", **how)
    assert starts(graph) == before


def test_a_task_that_was_removed_has_no_neighbours():
    graph = launched("a 20, b 20")
    gone = named(graph, "a")
    gone.remove()

    with pytest.raises(GraphError, match="1 of 1 tasks were removed since they were selected: name="):
        graph.insert_after(gone, "q", duration_ns=1)
    with pytest.raises(GraphError, match="were removed"):
        graph.link(gone, named(graph, "b"))
    with pytest.raises(GraphError, match="a task of another graph was given"):
        graph.insert_after(kernels(graph.copy()), "q", duration_ns=1)


# -- a window that is repeated ---------------------------------------------------------------------------


def test_copies_of_a_window_follow_each_other_and_the_gap_that_led_in_leads_on():
    #  thread 1  |a 5|gap 3|b 5|gap 1|c 5|gap 9|      the window is b and c
    #            |a 5|gap 3|b 5|gap 1|c 5|gap 3|b 5|gap 1|c 5|
    graph = thread("a 5 +3, b 5 +1, c 5 +9")
    order = graph.columns["order"]
    window = (int(order[1]), int(order[2]) + 1)

    timeline = simulate(graph, copies=2, window=window)
    assert timeline.column("name").tolist() == ["a", "b", "c", "b", "c"]
    assert timeline.copy.tolist() == [0, 0, 0, 1, 1]
    assert timeline.start_ns.tolist() == [0, 8, 14, 14 + 5 + 3, 28]


def test_a_full_queue_reaches_from_one_copy_into_the_next():
    #  stream 7 runs behind: a queue of two, so the second copy of a's launch waits for the first of a
    graph = launched("a 20, b 20", spacing=0)
    graph.queue_depth[graph.lane_id("stream 7")] = 2
    order = graph.columns["order"]
    window = (int(order[1]), int(order.max()) + 1)

    timeline = simulate(graph, copies=2, window=window)
    names, copies = timeline.column("name").tolist(), timeline.copy.tolist()
    began = {
        (name, copy): start
        for name, copy, start in zip(names, copies, timeline.start_ns.tolist(), strict=True)
    }
    assert began[("launch a", 1)] == 4 + 20
    assert began[("a", 1)] == 4 + 20 + 20
    assert began[("launch b", 1)] == 4 + 20 + 20


def test_graphs_that_differ_in_times_only_have_the_same_queues():
    graph = launched(AB)
    slower = graph.copy()
    slower.select().scale(2)
    assert slower.differs_in_times_only(graph)
    assert not queue(slower).differs_in_times_only(graph)
