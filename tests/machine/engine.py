"""A tiny exact machine: CPU threads and a GPU that run a training program.

It is the truth that predictions are tested against: run a program, write the profiler
trace of a few steps, then run it again with other kernel durations, CPU costs or queue
depths and see what really happens. It imports nothing from daydream. Integer nanoseconds.

- A thread runs its instructions one after another; every row of a thread is a span of its time.
- A stream runs its tasks in launch order. A task starts at the latest of: its arrival (unblocked
  start of the launching call + launch latency), the end of the task before it on the stream +
  spacing, and every event its stream was told to wait for + event latency.
- A stream holds at most `queue_depth` launches in flight, from the call's unblocked start to the
  end of the work; a graph launch is one. A launching call that finds the queue full blocks at
  entry, then takes its cost.
- A synchronizing call takes its entry cost, waits for the work launched before the call began,
  then takes its return cost. An event is complete when the work recorded before it is.
- Where the driver has a lock, a copy from or to pageable memory holds it until it returns, and a
  launching call of another thread stands until then before it takes its cost.
- A thread that takes from an empty channel is off the CPU until something is put there, and then
  takes a while to wake.
- A kernel may write a word in device memory when it ends; a thread that reads the word spins until
  then, or sleeps between looks at it.

Threads act in the order of time, ties in the order of their creation: no chance involved.
Jitter is a factor drawn once per instance, the same in every re-run. So is the latency of a hand-off,
where the machine has a range for it: the scheduler's time, which no faster CPU shortens. Where batches
vary, a factor each scales the device work, the Python time and the sleep for it, of every thread; every
`period` batches the factors come again, so that the mean over as many steps is that of all.
"""

import heapq
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import Any

Body = Generator[bool, None, None]
Instruction = Callable[["Thread"], Body]
READY, BLOCKED = True, False  # what a thread yields: call me at my time, or when somebody wakes me


@dataclass(frozen=True)
class Costs:
    """What the machine's own parts cost, in ns. The first group is CPU cost, the second nothing scales."""

    launch: int = 5_200
    graph_launch: int = 13_000
    memcpy: int = 6_400
    memset: int = 4_700
    record: int = 1_300
    wait_event: int = 1_100
    query: int = 1_800
    sync_entry: int = 1_700
    sync_return: int = 3_900
    copy_return: int = 5_100
    free_entry: int = 4_300
    free_return: int = 7_700
    wake: int = 9_000  # a thread that stood at an empty channel
    step_gap: int = 2_000  # untraced, between two steps

    launch_latency: int = 3_600  # shorter than the call: a kernel can start before the call returns
    spacing: int = 1_100
    graph_spacing: int = 600
    event_latency: int = 1_400


@dataclass
class Row:
    """A span of a thread (`lane` is its name) or a task of a stream (`lane` is its number)."""

    category: str
    name: str
    lane: str | int
    start: int
    step: int
    end: int = -1
    wait: int = 0  # of `end - start`, the time it only stood blocked
    correlation: int = 0
    external: int = 0
    args: dict[str, Any] = field(default_factory=dict)
    sync: dict[str, Any] | None = None


@dataclass(frozen=True)
class Blocked:
    """Time that a thread was off the CPU, from its last instruction until it ran again."""

    thread: str
    start: int
    end: int
    cause: str  # "queue", "synchronize", "lock", "device memory" or "outside"
    waker: str | None = None  # the thread that ended it


@dataclass(frozen=True)
class Task:
    """Device work to launch."""

    category: str
    name: str
    ns: int
    args: dict[str, Any]
    writes: str = ""  # a word in device memory


class Stream:
    """What a stream has been given so far."""

    def __init__(self):
        self.launch_ends = []  # one a launch, never decreasing
        self.last_end = None  # of the last task
        self.waits_until = 0  # the events the next task waits for

    @property
    def complete(self):
        """When everything given to the stream so far is done."""
        return max(self.last_end or 0, self.waits_until)

    def free_slot(self, depth):
        """When the queue takes one more launch."""
        return self.launch_ends[-depth] if len(self.launch_ends) >= depth else 0


class Thread:
    """A CPU thread: its clock, its open ranges, its own chance."""

    def __init__(self, run, name, order, body=None):
        self.run, self.name, self.order = run, name, order
        self.body = body
        self.now = 0
        self.open = []
        self.turn = 0  # of the batch that it works on
        self.woken_by = ""
        self._random = random.Random(f"{run.machine.seed} {name}")

    def jittered(self, ns):
        sigma = self.run.machine.jitter
        return scaled(ns, self._random.lognormvariate(0.0, sigma)) if sigma else ns

    def spend(self, ns):
        self.now += scaled(self.jittered(ns), self.run.cpu)

    def varied(self, ns):
        """Return the time of work that depends on the batch."""
        machine = self.run.machine
        chance = random.Random(f"{machine.seed} batch {self.turn % machine.period}")
        return scaled(ns, 1 + machine.variation * chance.uniform(-1, 1)) if machine.variation else ns

    def hand_off(self):
        """Draw how long the thread takes to run again once it may; always as often, waiting or not."""
        span = self.run.machine.hand_off
        return round(self._random.uniform(*span)) if span else 0

    def block(self, until, cause, waker=None, *, since=None):
        """Be off the CPU until a time."""
        began = self.now if since is None else since
        self.now = until
        self.run.blocked.append(Blocked(self.name, began, until, cause, waker))

    def begin(self, category, name, args=None):
        run = self.run
        row = Row(category, name, self.name, self.now, run.step, args=args or {})
        if category == "cuda_runtime":
            row.correlation = next(run.ids)
            row.external = self.open[-1].external if self.open else row.correlation
        else:
            row.external = next(run.ids)
            self.open.append(row)
        run.host.append(row)
        return row

    def finish(self, row):
        row.end = self.now
        if row.category != "cuda_runtime":
            self.open.pop()


def scaled(ns, factor):
    return math.floor(ns * factor + 0.5)


@dataclass(frozen=True)
class Program:
    """What the threads run: the main thread's step, and others that go on until main ends.

    Threads that `kineto.IDS` does not name are of another process, which is in no trace.
    """

    step: Callable[[int], Sequence[Instruction]]
    others: Mapping[str, Callable[[], Iterable[Instruction]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """A program with the machine it runs on; `run` it as often as you like."""

    program: Program
    queue_depth: int = 1022
    seed: int = 0
    jitter: float = 0.0  # sigma of the log-normal factor on every cost and duration
    costs: Costs = Costs()
    steps: int = 32
    driver_lock: bool = False
    blocking_sync: bool = False  # a synchronizing call sleeps; else it spins
    hand_off: tuple[int, int] | None = None  # ns until a thread runs again, drawn per instance; else `wake`
    variation: float = 0.0  # of a batch's work, up and down, as a share
    period: int = 5  # batches

    def run(self, gpu=1.0, cpu=1.0, queue_depth=None, steps=None):
        """Run all steps; `gpu` scales the durations of device work, `cpu` every CPU cost."""
        return Run(self, gpu, cpu, queue_depth or self.queue_depth, steps or self.steps)


def _serve_backward(thread):
    """What the autograd thread does: run the programs that are handed to it."""
    run = thread.run
    while True:
        for instruction in (yield from run.take(thread, "backward")):
            yield from instruction(thread)
        yield from run.put(thread, "backward done", None)


class Run:
    """What happened: the rows of the host and the device, and when each step was complete."""

    def __init__(self, machine, gpu, cpu, queue_depth, steps):
        self.machine, self.gpu, self.cpu = machine, gpu, cpu
        self.queue_depth, self.costs = queue_depth, machine.costs
        self.host = []
        self.device = []
        self.step_starts = []  # of the main thread
        self.step_ends = []
        self.step = 0
        self.ids = count(1)
        self.streams = defaultdict(Stream)
        self.events = {}  # complete, stream, record's correlation
        self.lock_free = 0  # when the call that holds the driver's lock returns
        self.lock_holder = ""
        self.blocked = []
        self.words = defaultdict(deque)  # when each is written
        self.launch_starts = {}  # correlation -> unblocked start of the launching call
        self._channels = defaultdict(deque)
        self._standing = defaultdict(deque)
        self._ready = []
        self._execute_threads(steps)

    def _execute_threads(self, steps):
        main, autograd = Thread(self, "main", 0), Thread(self, "autograd", 1)
        main.body, autograd.body = self._main(main, steps), _serve_backward(autograd)
        threads = [main, autograd]
        for order, (name, instructions) in enumerate(self.machine.program.others.items(), start=2):
            thread = Thread(self, name, order)
            thread.body = (step for instruction in instructions() for step in instruction(thread))
            threads.append(thread)
        self._ready = [(0, thread.order, thread) for thread in threads]
        while True:
            _, _, thread = heapq.heappop(self._ready)
            assert thread.body is not None
            state = next(thread.body, None)
            if state is None and thread is main:
                break
            if state is READY:
                self._wake(thread)
        self.host = [row for row in self.host if row.end >= 0]

    def _wake(self, thread):
        heapq.heappush(self._ready, (thread.now, thread.order, thread))

    def _main(self, thread, steps):
        for self.step in range(steps):
            self.step_starts.append(thread.now)
            thread.turn = self.step
            for instruction in self.machine.program.step(self.step):
                yield from instruction(thread)
            self.step_ends.append(thread.now)
            thread.spend(self.costs.step_gap)
            yield READY

    def put(self, thread, channel, item):
        """Put an item into a channel at the thread's time, and wake one thread that stands there."""
        yield READY
        self._channels[channel].append(item)
        if self._standing[channel]:
            sleeper = self._standing[channel].popleft()
            sleeper.now = thread.now
            sleeper.woken_by = thread.name
            self._wake(sleeper)

    def take(self, thread, channel):
        """Return the next item of a channel, at once or when there is one plus the wake latency."""
        yield READY
        since, stood = thread.now, False
        handed = self.machine.hand_off
        wake = thread.hand_off() if handed else scaled(thread.jittered(self.costs.wake), self.cpu)
        while not self._channels[channel]:
            self._standing[channel].append(thread)
            stood = True
            yield BLOCKED
        if stood:
            thread.block(thread.now + wake, "queue", thread.woken_by, since=since)
        return self._channels[channel].popleft()

    def execute(self, number, tasks, thread, call):
        """Give a launch to a stream at the thread's time, and return when its last task ends."""
        stream = self.streams[number]
        self.launch_starts[call.correlation] = thread.now
        start = thread.now + self.costs.launch_latency
        spacing = self.costs.spacing
        for task in tasks:
            after = start if stream.last_end is None else stream.last_end + spacing
            start = max(start, after, stream.waits_until)
            row = Row(task.category, task.name, number, start, call.step, args=task.args)
            row.correlation, row.external = call.correlation, call.external
            row.end = start + scaled(thread.jittered(thread.varied(task.ns)), self.gpu)
            if task.writes:
                self.words[task.writes].append(row.end)
            stream.last_end = row.end
            spacing = self.costs.graph_spacing
            self.device.append(row)
        stream.launch_ends.append(start if stream.last_end is None else stream.last_end)
        return stream.launch_ends[-1]

    def device_idle(self):
        return max((stream.complete for stream in self.streams.values()), default=0)

    @property
    def step_completions(self):
        """When the last CPU or device work launched in each step has ended."""
        ends = [0] * len(self.step_starts)
        for row in self.device:
            ends[row.step] = max(ends[row.step], row.end)
        for row in self.host:
            if row.lane in ("main", "autograd"):
                ends[row.step] = max(ends[row.step], row.end)
        return ends

    def step_times(self, skip=0):
        """Completion to completion; the first step has no predecessor and gives no number."""
        ends = self.step_completions[skip:]
        return [end - before for before, end in pairwise(ends)]

    def steady_step_ns(self, last=12):
        """The settled step time: the mean of the last steps."""
        ends = self.step_completions
        return (ends[-1] - ends[-1 - last]) / last

    def kineto(self, first_step, last_step, **options):
        """What a profiler window over these steps, both included, would give; see `kineto.py`."""
        from .kineto import kineto

        return kineto(self, first_step, last_step, **options)

    def write(self, path, first_step, last_step, **options):
        """Write that document as .json or .json.gz."""
        from .kineto import write

        return write(path, self.kineto(first_step, last_step, **options))
