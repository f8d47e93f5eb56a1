"""Rules of dependency, one cause a file. Each has a test that leaves it out and sees replay get worse.

What the rules take for near, long, often and likely: each value with its unit and where it is from.
"""

from __future__ import annotations

# Clocks, in ns.
STREAM_CLOCK_NS = (
    3_000  # device times of two streams against each other; recordings in whole us are 1 us off
)
RETURN_CLOCK_NS = (
    5_000  # a call may seem to return this much before what it waited for; in whole us, 2 us
)
THREAD_CLOCK_NS = 2_000  # recordings in whole us overlap by this much

# Device work, in ns.
BACK_TO_BACK_NS = 10_000  # kernels follow each other by 1 to 2 us, copies and memsets by up to 10
LARGEST_QUEUED_NS = (
    12_000  # launched this long before its stream came free, a task was waiting there
)
LARGEST_STARTUP_NS = 50_000  # back-to-back tasks are 1 to 2 us apart, copies and memsets up to 10
# Assumed where no task of the trace follows another back to back. Medians: A100 1,024 ns, RTX 3070 Ti
# 1,376 ns, V100 1 to 3 us (whole us); consecutive kernels on MI300X leave no space between them.
USUAL_STARTUP_NS = {"cuda": 1_000}
USUAL_LATENCY_NS = (
    8_000  # where no launch met an idle stream: A100 8 to 12 us, V100 10, MI300X 13 to 20
)
LARGEST_LATENCY_NS = 200_000  # launches of an idle stream take 5 to 30 us, first uses more
LEAST_SAMPLES = 3  # launches or pairs of tasks, for a median
LONG_CALL_NS = 50_000  # a longer launch may do more than launch
LONG_CALL_TIMES = 4  # if it also takes so many times what calls of its name do
STAGED_LATENCY_NS = (
    20_000  # from submission to the start of a small pageable copy, V100 and RTX 2080 Ti
)

# Graphs of device work, in ns.
GRAPH_HOLE_NS = 10_000  # nodes of a graph follow each other in 0.5 to 2 us
HEAD_NS = 1_000_000  # launches of an idle stream take 5 to 30 us, first uses some hundred

# The launch queue.
NVIDIA_QUEUE_DEPTH = 1022  # launches; assumed where the trace never fills a queue
QUEUE_AHEAD_SHARE = (
    0.02  # of the calls that return at the depth; as many seem to be ahead if times are off
)
QUEUE_FULL_SHARE = 1 - 0.01  # of the depth: other commands than launches hold places, too
LEAST_BLOCKED = 2  # calls that must have been blocked to believe that the queue was full
QUEUE_BLOCKED_SHARE = 0.5  # of the calls that met a full queue
QUEUE_CHANCE = 0.1  # of any moment to lie so close behind the end of some device task
UNKNOWN_LAUNCH_NS = (
    25_000  # where no unblocked call shows the usual cost; twice as long is blocked for certain
)

# Calls that wait for the device.
# Where no synchronize of the trace found the device done. Those that do take 2 to 5 us in all (V100), of
# which the return is measured call by call.
SYNC_ENTRY_NS = 1_500

# Event waits between streams.
EVENT_NS = 20_000  # work that an event held back starts this soon after it
WAITS_SHARE = 0.9  # of the waits of a pattern, that the recorded times must allow
LEAST_EVENTS = 2  # waits of a pattern
HELD_LATE_NS = 50_000  # beyond all known causes
HELD_BEFORE_NS = 30_000  # the last blocks of a kernel take so long; 3 to 25 us (H800)
HELD_AFTER_NS = 10_000  # work behind an event begins so soon: 2 to 10 us (H800)
HELD_CHANCE = 0.01  # that as many late starts of a stream are so close

# Threads that wait for each other.
PAUSE_NS = 50_000  # shorter pauses and calls are a thread's own
WAKE_NS = 50_000  # from the end of what a thread waited for until it goes on: 15 to 60 us on two busy cores
COVERED_SHARE = 0.5  # of a pause through which others work, so that it may be a wait for them
IDLE_SHARE = 0.5  # of a thread's time in such pauses: it waits in them rather than works
WOKEN_NS = (
    100_000  # before a switch in, what another thread did that may have woken it: 2 to 63 us, A100
)
LEAST_PAUSES = 2  # of a kind that end alike
STEADY_SHARE = (
    0.2  # of the spread of what a thread waits, that its distance from the cause may vary
)
INSIDE_SHARE = 0.95  # of a worker's time that must lie in the caller's idle time
FILLED_SHARE = 0.5  # of that idle time that the worker must fill, in the median
SHORT_SHARE = (
    0.05  # of it: how much before and behind the worker's work is no sign of another cause
)
# Between a caller's last recorded call and the first of the thread it called lie the entry of `backward()`
# and nodes that launch nothing, and likewise at the end. Neither grows with the work: of 27 recordings whose
# operators tell the autograd thread the 80th percentiles are 0.02 to 1.45 ms, of 25 at most 7% of the
# stretch. Threads that do not call each other leave 44% of it and more, or 120 ms (DALI's, 10%).
STARTS_NS = 1_500_000
STARTS_SHARE = 0.15
SWITCH_NS = (
    5_000_000  # a thread woken in Python may wait so long for its turn (sys.getswitchinterval)
)
FORWARD_SHARE = 0.1  # of the time of a thread that runs backward passes for another one, at most

# Waits that recur.
FAR_NS = 300_000  # where only how steady it is speaks for it: 80 to 100 us between DALI's executors
LEAST_STEADY = 3  # pauses that have a spread
PAUSES_SHARE = 0.8  # of the pauses of a kind that must end so
PAUSE_CHANCE = 0.1  # of any moment to lie so close behind such a point; more would prove nothing
SPIN_NS = (
    100_000  # between the ends of what spins and of what it waits for: 25 to 70 us before (H800)
)
LEAST_LOCKED = 2  # calls of a name on a thread

# Collectives on threads of the CPU.
GLOO_POOL = 2  # threads of a pool: torch gives gloo two a network interface
GLOO_PAUSE_NS = 20_000  # shorter pauses do not tell that a thread waited; WAKE_NS: 15 to 60 us on two busy cores
