"""Syncs, queues and event waits are words of the program, looked up after edits, in each copy of a window."""

import pytest
from small_graphs import at, kernels, launched, named, put, starts, thread, with_sync

from daydream import GraphError, simulate

# -- words of the program, resolved after the edits --------------------------------------------------


def test_a_sync_waits_for_an_inserted_kernel_and_no_longer_for_a_removed_one():
    #  thread 1  |launch a 6|launch b 6| ......... |sync 3|
    #  stream 7     +4 |a 20       |1|b 20         |
    graph = launched("a 20, b 20")
    with_sync(graph)
    assert starts(graph)["sync"] == 4 + 20 + 1 + 20

    named(graph, "b").remove()
    assert starts(graph)["sync"] == 4 + 20

    put(graph, "x", "stream 7", 9, launch_after=graph.select(name="launch a"))
    assert starts(graph)["sync"] == 4 + 20 + 1 + 9

    kernels(graph).remove()
    assert starts(graph) == at("begin 0, sync 0")


def test_a_sync_does_not_wait_for_work_launched_behind_it():
    graph = launched("a 20")
    sync = with_sync(graph)
    put(graph, "x", "stream 7", 9, launch_after=sync)

    assert starts(graph)["sync"] == 4 + 20
    assert starts(graph)["x"] == 24 + 3 + 4


def test_a_sync_of_one_stream_does_not_wait_for_another():
    #  thread 1  |launch 6|launch 6| |sync 3|
    #  stream 7     +4 |a 20         |
    #  stream 8               |x 90 ...
    graph = launched("a 20")
    put(graph, "x", "stream 8", 90, launch_after=graph.select(name="launch a"))
    with_sync(graph, "stream 7")
    assert starts(graph)["sync"] == 4 + 20

    with_sync(graph)  # of the device
    assert simulate(graph).makespan_ns == 6 + 4 + 90 + 3


def test_a_full_queue_blocks_the_launch_whatever_was_inserted_or_removed():
    #  a queue of one: each launch waits for the end of the kernel before it
    #  thread 1  |launch a 6|  |launch b 6| ...
    #  stream 7     +4 |a 20   |   +4 |b 20
    graph = launched("a 20, b 20, c 20", spacing=0)
    graph.queue_depth[graph.lane_id("stream 7")] = 1
    times = starts(graph)
    assert [times[f"launch {x}"] for x in "abc"] == [0, 24, 24 + 24]

    put(graph, "x", "stream 7", 5, launch_after=graph.select(name="launch a"))
    times = starts(graph)
    assert (times["launch"], times["x"], times["launch b"]) == (24, 24 + 4, 24 + 4 + 5)

    graph.select(name="x").remove()
    named(graph, "b").remove()
    times = starts(graph)
    assert [times[f"launch {x}"] for x in "ac"] == [0, 24]


def test_work_inserted_into_a_graph_launch_does_not_hold_back_that_launch():
    #  one call launches a and a2, x comes between them; a queue of one
    graph = launched("a 20, b 20", spacing=0)
    put(graph, "a2", "stream 7", 5, after=[named(graph, "a")])
    graph.columns["launch"][graph.select(name="a2").ids] = graph.select(name="launch a").ids
    graph.queue_depth[graph.lane_id("stream 7")] = 1
    put(graph, "x", "stream 7", 3, after=[named(graph, "a")])

    times = starts(graph)
    assert (times["launch a"], times["x"], times["a2"], times["launch b"]) == (0, 24, 24 + 3, 27 + 5)


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


def test_a_stream_waits_for_the_work_before_the_record():
    graph = waiting_streams()
    assert starts(graph)["c"] == 4 + 50 + 3

    put(graph, "x", "stream 7", 10, launch_after=graph.select(name="launch a"))
    assert starts(graph)["c"] == 4 + 50 + 1 + 10 + 3  # launched before the record: waited for too

    graph.select(name="^(a|x)$").remove()
    assert starts(graph)["c"] == 2 + 6 + 2 + 4  # nothing left to wait for: its own launch decides


@pytest.mark.parametrize("call", ["record", "wait"])
def test_the_order_between_streams_outlives_its_calls(call):
    graph = waiting_streams()
    graph.select(name=call).remove()

    assert starts(graph)["c"] == 4 + 50 + 3


# -- a window that is repeated -----------------------------------------------------------------------


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


def test_a_release_counts_in_the_first_copy_only():
    graph = thread("a 5, b 5")
    graph.select(name="b").set(release_ns=100)
    order = graph.columns["order"]

    timeline = simulate(graph, copies=2, window=(int(order[1]), int(order[1]) + 1))
    assert timeline.start_ns.tolist() == [0, 100, 105]


def test_repeating_needs_a_window():
    with pytest.raises(GraphError, match="repeating needs a window"):
        simulate(thread("a 5"), copies=2)
