"""Wake-ups between threads that run side by side, and the driver's lock between them."""

import pytest
from shared import shared_trace
from small_graphs import named
from small_traces import PID, call, kernel, launched, note, op, row, starts, trace

import daydream
from daydream import build
from daydream.graph.plan import Cause
from daydream.trace.schema import BY_CLOCK, OFF_CPU

PERIOD = 2_000


def loader_trace(*more, decode_after=80, copy_after=20, uneven=50):
    #  thread 1  |main 300, 350 or 400|   idle until the next period   |main
    #  thread 2                        80 |decode 200|
    #  thread 3                                       20 |copy 100|
    rows = []
    for n in range(6):
        done = PERIOD * n + 300 + uneven * (n % 3)
        decoded = done + decode_after + 200
        rows += [
            op("main", PERIOD * n, done),
            op("decode", decoded - 200, decoded, tid=2),
            op("copy", decoded + copy_after, decoded + copy_after + 100, tid=3),
        ]
    return trace(rows, *more)


def test_each_thread_of_a_loader_begins_when_the_one_before_it_is_done():
    graph = build(loader_trace())
    named(graph, "main").scale(0)

    #  the last main begins 5 x 2,000 less 300 + 350 + 400 + 300 + 350 of work
    assert starts(graph)["main"] == 10_000 - 1_700
    assert starts(graph)["decode"] == 8_300 + 80
    assert starts(graph)["copy"] == 8_380 + 200 + 20


def test_a_pause_that_may_be_a_wait_is_released_behind_what_ended_in_it():
    #  thread 1  |a 200|      b 200     |a 200|      b 200     |   four times
    #  thread 2         20 |work 100|           pause       |work
    rows = [
        [op("a", at, at + 200), op("b", at + 200, at + 400), op("work", at + 220, at + 320, tid=2)]
        for at in range(0, 1_600, 400)
    ]
    graph = build(trace(rows), without=["handoff", "wakes"])
    assert starts(graph.released())["work"] == 1_420
    named(graph, "a").scale(0)

    assert [starts(each)["work"] for each in (graph, graph.released())] == [1_420, 3 * 200 + 20]


def test_a_thread_can_be_woken_at_the_beginning_of_a_task():
    rows = []
    for n in range(6):
        at = PERIOD * n + 100 * (n % 3)
        rows += [op("main", at, at + 900), op("decode", at + 10, at + 110, tid=2)]
    graph = build(trace(rows))
    assert graph.links["from_start"].all()
    named(graph, "main").scale(2)

    #  of the last main, which 5 x 900 more work put off; its own end counts for nothing
    assert starts(graph)["main"] == 10_200 + 4_500
    assert starts(graph)["decode"] == 14_700 + 10


def doubtful_ns(graph):
    found = graph.duration_ns * graph.doubt + graph.gap_ns * graph.gap_doubt
    return found[found > 0].tolist()


def test_such_pauses_are_doubtful():
    assert doubtful_ns(build(loader_trace(uneven=0))) == 5 * [(PERIOD - 200) * 1_000]
    assert not doubtful_ns(build(loader_trace()))


# -- the driver's lock ---------------------------------------------------------------------------------


def lock_trace(*more, times=2):
    #  thread 1  |5|  |copy of a few bytes to pageable memory: until the kernel is done, 1,010|
    #  stream 7     |k: 10 to 1,000                                                   |2|
    #  thread 2            |copy of pinned memory, from 100 to 1,060 .............................|next 40|
    #  stream 16                                                                                  |copy 99|
    rows = []
    for n in range(times):
        at = PERIOD * n
        ids = 10 * n
        rows += [
            *launched("k", at, at + 10, at + 1_000),
            call("cudaMemcpyAsync", at + 20, at + 1_010, ids + 2),
            kernel("Memcpy DtoH (Device -> Pageable)", at + 1_000, at + 1_002, ids + 2, kind="memcpy"),
            call("cudaMemcpyAsync", at + 100, at + 1_060, ids + 3, tid=2),
            kernel(
                "Memcpy HtoD (Pinned -> Device)", at + 1_061, at + 1_160, ids + 3, kind="memcpy", stream=16
            ),
            op("next", at + 1_060, at + 1_100, tid=2),
        ]
    return trace(rows, *more)


def test_a_call_that_needs_the_driver_returns_behind_the_one_that_holds_it():
    graph = build(lock_trace())
    assert (graph.links["cause"] == Cause.LOCK).tolist() == [True, True]
    assert starts(graph)["next"] == 3_060

    named(graph, "k").scale(0.5)
    #  k ends at 505, the small copy at 507, its call returns at 515 and the next
    #  begins 990 later; again 515, and then 50
    assert starts(graph)["next"] == 515 + 990 + 515 + 50


def test_calls_that_return_while_another_blocks_show_that_nothing_holds_them():
    between = [
        [
            call("cudaMemcpyAsync", at + 30, at + 36, at + 7, tid=2),
            kernel("Memcpy HtoD (Pinned -> Device)", at + 35, at + 40, at + 7, kind="memcpy", stream=16),
        ]
        for at in (0, PERIOD)
    ]
    assert not (build(lock_trace(*between)).links["cause"] == Cause.LOCK).any()


# -- spinning ------------------------------------------------------------------------------------------


def spinning_trace(*, longer=500, steps=()):
    #  thread 1   |launch 5|dispatch: spins until 30 before the end of its kernel|empty 4|dispatch 6|
    #  stream 7            |k: from 100 to 2,530 and more                            ...|
    rows = []
    for n in range(4):
        at = 10_000 * n
        spun = 2_500 + longer * n
        rows += [
            note("dispatch", at, at + spun + 10),
            *launched("k", at, at + 100, at + spun + 30),
            op("empty", at + spun, at + spun + 4),
        ]
    return trace(rows, steps=steps)


def test_a_cpu_that_spins_goes_on_with_the_kernel_it_launched():
    graph = build(spinning_trace())
    named(graph, "k").scale(0.5)

    #  of 2,500, 3,000, 3,500 and 4,000 less 70 of spinning, half is saved
    assert starts(graph)["empty"] == 34_000 - (2_430 + 2_930 + 3_430 + 3_930) / 2


def test_cpu_time_that_always_lasts_as_long_is_kept_and_doubted():
    graph = build(spinning_trace(longer=0))
    assert doubtful_ns(graph) == 4 * [2_495_000]
    named(graph, "k").scale(0.5)

    assert starts(graph)["empty"] == 32_500


def test_a_doubtful_wait_widens_the_range_and_is_said():
    replay = daydream.replay(spinning_trace(longer=0, steps=(0, 10_000, 20_000, 30_000, 40_000)))
    half = daydream.whatif(replay, "scale", on="gpu", factor=0.5)

    assert any("with all such waits the step takes 8.785 ms" in note for note in half.notes)
    #  where the CPU did wait for the kernel, the step gets shorter by half of it
    assert half.predicted_low_ns <= half.predicted_ns - 1_215_000


# -- both readings ---------------------------------------------------------------------------------------


def pausing_trace(*, kernel_us=990, ran_us=None):
    #  thread 1   |launch 10|   nothing recorded, 990    |launch 10|   ...
    #  stream 7        |k: 990 or less .................||k
    rows = [launched("k", 1_000 * n, 1_000 * n + 10, 1_000 * n + 10 + kernel_us) for n in range(8)]
    if ran_us is not None:
        time = {"pid": PID, "tid": 1, "cpu_ns": round(1_000 * ran_us)}
        rows += [[row("blocked", BY_CLOCK, 1_000 * n, 1_000 * n + 1_000, **time)] for n in range(8)]
    return trace(rows)


def test_a_thread_that_pauses_while_the_device_works_has_two_readings():
    graph = build(pausing_trace())
    assert doubtful_ns(graph) == 7 * [995_000]
    slower = graph.copy()
    slower.select(kind="cpu").scale(2, gaps=True)
    assert slower.released().gap_ns[slower.gap_doubt > 0].tolist() == 7 * [0]
    assert slower.released().duration_ns.tolist() == slower.duration_ns.tolist()
    slower.select(name="Launch").set(gap_ns=5)  # given, not recorded
    assert not doubtful_ns(slower)
    named(graph, "k").scale(0.5)

    assert starts(graph)["k"] == 7_010
    assert starts(graph.released())["k"] == 7 * (495 + 1) + 10  # launched ahead, 1 us between kernels


@pytest.mark.parametrize(
    ("kernel_us", "ran_us", "doubtful", "last"),
    [
        (990, 1_000, 0, 7 * 500 + 10),  # it worked
        (100, 20, 0, 7 * (2.5 + 995) + 10),  # it waited for nothing recorded; a call takes 5
        (990, 20, 7, 7 * (2.5 + 995) + 10),  # or for the device, perhaps
        (990, 500, 7, 7 * 500 + 10),  # half of the time: not known
    ],
)
def test_how_long_a_thread_ran_tells_what_its_pauses_are(kernel_us, ran_us, doubtful, last):
    graph = build(pausing_trace(kernel_us=kernel_us, ran_us=ran_us))
    assert len(doubtful_ns(graph)) == doubtful
    named(graph, "k").scale(0)
    graph.select(kind="cpu").scale(0.5, gaps=True)

    assert starts(graph)["k"] == pytest.approx(last, abs=0.1)


# -- late starts ---------------------------------------------------------------------------------------


def full_device_trace(*apart):
    #  thread 1   |launch a|launch b|
    #  stream 7        |a: 500, fills the device |
    #  stream 8                             20 before its end: |b 100 |
    rows = []
    for n, before in enumerate(apart):
        at = 5_000 * n
        rows += [
            *launched("a", at, at + 10, at + 510),
            *launched("b", at + 6, at + 510 - before, at + 610 - before, stream=8),
            op("step", at + 2_000, at + 2_100),
        ]
    return trace(rows)


def test_a_kernel_that_found_the_device_full_begins_as_the_one_before_it_ends():
    graph = build(full_device_trace(20, 15, 25, 20))
    assert graph.facts.unexplained == 0
    assert starts(graph)["b"] == 15_490

    named(graph, "a").scale(0.5)
    assert starts(graph)["b"] == 15_010 + 250 - 20


def test_late_starts_that_nothing_ends_with_keep_their_delay():
    graph = build(full_device_trace(20, 250, 330, 140))
    named(graph, "a").scale(0.5)

    assert starts(graph)["b"] == 15_000 + 370
    # Other work ran all through it, so it may have been a wait for that: launched at 6, latency 10.
    assert starts(graph.released())["b"] == 15_000 + 16


# -- recorded evidence ---------------------------------------------------------------------------------


def off(start, end, waker=None, name=OFF_CPU):
    return row("blocked", name, start, end, pid=PID, tid=2, waker=waker)


#  thread 1  |main 900                         |
#  thread 2  |first 100|   off the CPU from 110 to 980 |20|next 50
TWO = [op("main", 0, 900), op("aten::first", 0, 100, tid=2), op("next", 1_000, 1_050, tid=2)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # one instance of a hand-over, 80 behind the end of the other thread's task: 450 + 80 + 10
        ([*TWO, off(110, 980, 1)], 540),
        ([*TWO, off(110, 980)], 540),
        # a thread of which nothing else is known, or nobody: 50 + 5, then 870 that stay
        ([*TWO[1:], op("main", 0, 300), off(110, 980, 3)], 925),
        ([*TWO[1:], op("main", 0, 300), off(110, 980, name="read")], 925),
        # a timer, though another thread ends a task just before: 50 + 5 + 870
        ([*TWO, off(110, 980, name="sleep")], 925),
        # what is read between two waits is work, half as long: 50 + 5 + 290 + 50 + 480
        ([*TWO, op("rows", 400, 500, tid=2), off(110, 980, name="connection.poll")], 875),
        # points of the other thread are everywhere: nobody knows, and the length stays
        ([*TWO[1:], *(op("main", 50 * n, 50 * n + 20) for n in range(20)), off(110, 980)], 925),
    ],
)
def test_what_ended_a_blocked_interval_tells_what_it_waited_for(rows, expected):
    graph = build(trace(rows), without=["handoff", "wakes"])
    assert starts(graph)["next"] == 1_000
    graph.select(kind="cpu").scale(0.5, gaps=True)

    assert starts(graph)["next"] == pytest.approx(expected, abs=0.001)


def test_two_waits_in_one_range_are_each_cut_out_of_it():
    #  thread 1  |a 300  |      |b 500 to 600|
    #  thread 2  |range to 1,000: blocked 50 to 310 and 320 to 620|next
    rows = [
        op("a", 0, 300),
        op("b", 500, 600),
        note("range", 0, 1_000, tid=2),
        op("next", 1_000, 1_050, tid=2),
        off(50, 310, 1),
        off(320, 620, 1),
    ]
    graph = build(trace(rows), without=["handoff", "wakes"])
    named(graph, "range").scale(0)

    assert starts(graph)["next"] == 620
    assert not doubtful_ns(graph)


def test_a_wait_for_threads_that_nobody_is_known_to_have_ended_has_both_readings():
    graph = build(trace([op("main", 0, 2_000), *TWO[1:], off(110, 980, name="queue.get")]))

    assert doubtful_ns(graph) == pytest.approx([870_000], rel=1e-3)
    assert starts(graph)["next"] == 1_000
    assert starts(graph.released())["next"] == pytest.approx(1_000 - 870, rel=1e-2)


def test_where_it_is_recorded_who_ran_regularity_explains_no_time_on_a_cpu():
    assert not (build(loader_trace(off(0, 60))).links["cause"] == Cause.HANDOFF).any()


@pytest.mark.parametrize(
    ("name", "faster"),
    [
        ("vit_a100/dali", 1.99),
        ("vit_a100/dali_amp_bf16", 1.96),
        ("unet3d_a100/baseline", 1.06),
    ],
)
def test_evidence_alone_tells_what_threads_of_public_traces_wait_for(name, faster):
    recording = daydream.load(shared_trace(f"pairs/{name}.sqlite.gz"))
    replay = daydream.replay(build(recording, without=["handoff", "wakes", "spins", "lock"]))

    assert abs(replay.error) < 0.001
    assert daydream.whatif(replay, "scale", on="gpu", factor=0.5).speedup == pytest.approx(faster, abs=0.01)
    # what waits for worker processes goes no faster with a faster CPU
    assert daydream.whatif(replay, "scale", on="cpu", factor=0.0).speedup < 1.02


def test_where_every_pause_is_alike_a_distant_point_explains_nothing():
    #  anything is at the same distance from anything: 80 us behind the main thread may be chance
    assert not (build(loader_trace(uneven=0)).links["dst"] == 0).any()
    links = build(loader_trace(uneven=0)).links["cause"]
    assert len(links) == 5  # the copies, 20 us behind each decode but the first
