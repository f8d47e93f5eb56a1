"""Small traces that show what each rule is for; times in microseconds."""

from small_traces import call, kernel, launched, op, trace


def full_queue_trace():
    #  a queue of two; c is taken when a ends (105), d when b ends (206), e when c ends (307)
    #  thread 1  |a 5|b 5|c: wait 95, 5|d: wait 96, 5|e: wait 96, 5|
    #  stream 7      |a 100        |1|b 100       |1|c 100      |1|d 100 ...
    calls = [(0, 5), (5, 10), (10, 110), (110, 211), (211, 312)]
    kernels = [(5 + 101 * place, 105 + 101 * place) for place in range(5)]
    return trace(
        [call("cudaLaunchKernel", *at, place) for place, at in enumerate(calls)],
        [kernel("abcde"[place], *at, place) for place, at in enumerate(kernels)],
    )


def blocked(name, *more, work="a", returned=120):
    #  thread 1  |launch 5|gap 5|name: enters at 10, the device is done at 110, returns at 120|after 5|
    #  stream 7          |a 100 ......................................|
    return trace(
        launched(work, 0, 10, 110),
        call(name, 10, returned, 99),
        op("after", returned, returned + 5),
        *more,
    )


def long_launch_trace():
    #  thread 1  |5|5|5|launch: loads its module 300 long, submits at its end|after 5|
    #  stream 7                                                         |k 10|
    usual = [launched(f"k{n}", 20 * n, 20 * n + 6, 20 * n + 10) for n in range(5)]
    return trace(
        usual,
        """
            call cudaLaunchKernel 100 400 correlation=9
            kernel k 401 411 correlation=9
            op after 400 405
        """,
    )


def waiting_trace(*more):
    #  thread 1  |launch a|record|wait|launch b|      ten times, every 400
    #  stream 7      |a: 10 to 210|
    #  stream 8                     |b: 212 to 232|
    rows = []
    for n, at in enumerate(range(0, 4_000, 400)):
        ids = 10 * n
        rows += [
            *launched("a", at, at + 10, at + 210),
            call("cudaEventRecord", at + 6, at + 7, ids + 2),
            call("cudaStreamWaitEvent", at + 8, at + 9, ids + 3),
            *launched("b", at + 10, at + 212, at + 232, stream=8),
        ]
    return trace(rows, *more)


def graph_trace(*nodes):
    """Return a trace of one graph launch at 0 with (name, start, end, stream) nodes."""
    return trace(
        call("cudaGraphLaunch", 0, 8, 1),
        [kernel(name, start, end, 1, stream=stream) for name, start, end, stream in nodes],
    )


def ranks_trace(*, skew=0, other="reduce"):
    #  rank 0  stream 7  |a: 10 to 20|reduce: 21 to 91 (70: 50 waiting, 20 transfer)|
    #  rank 1  stream 7  |a: 10 to 70|                        |reduce: 71 to 91     |
    return trace(
        launched("a", 0, 10, 20, rank=0), launched("reduce", 6, 21, 91, rank=0, kind="collective"),
        launched("a", 0, 10, 70, rank=1), launched(other, 6, 71, 91 + skew, rank=1, kind="collective"),
    )  # fmt: skip


def backward_trace(steps=1, *more):
    #  thread 1  |forward 10|2|......... 26 .........|2|step 10|
    #  thread 2               |node 14|gap 2|node 10 |
    evaluate = "autograd::engine::evaluate_function: "
    rows = []
    for at in range(0, 100 * steps, 100):
        rows += [
            op("forward", at, at + 10),
            op(evaluate + "Mul", at + 12, at + 26, tid=2),
            op(evaluate + "Add", at + 28, at + 38, tid=2),
            op("step", at + 40, at + 50),
        ]
    return trace(rows, *more)


def latency_trace():
    #  launches of an idle stream start 7, 8, 9, 30 later; of a busy one right behind the task before
    rows = []
    for at, latency in [(0, 7), (100, 8), (200, 9), (300, 30)]:
        first = at + latency
        rows += [
            *launched("first", at, first, first + 40),
            *launched("second", at + 6, first + 42, first + 52),
        ]
    return trace(rows)


def unlaunched_trace():
    #  no calls; a collective waits for a product of another stream, and the next product for it
    #  stream 7  |a 100      |              |c 100: 142 to 242|
    #  stream 8              |b: 102 to 140|                  |b: 244 to 282|
    return trace(
        """
            kernel a 0 100
            kernel b 102 140 stream=8
            kernel c 142 242
            kernel b 244 282 stream=8
        """,
    )
