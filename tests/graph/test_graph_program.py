"""A window that is repeated: its syncs, queues and event waits are looked up in each copy."""

from small_graphs import launched, thread

from daydream import simulate


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
