"""What a thread of the machine can do: operators, launches, synchronizations, hand-offs.

Each function here returns an instruction, a function of the thread that runs it. It yields
before it touches what other threads can see, so that all of them act in the order of time.
"""

from .engine import READY, Task

COPIES = {
    "dtoh_pageable": "Memcpy DtoH (Device -> Pageable)",
    "htod_pageable": "Memcpy HtoD (Pageable -> Device)",
    "htod_pinned": "Memcpy HtoD (Pinned -> Device)",
    "dtod": "Memcpy DtoD (Device -> Device)",
}


def python(ns):
    """Untraced CPU time."""

    def instruction(thread):
        thread.spend(thread.varied(ns))
        return
        yield

    return instruction


def turn(number):
    """Go on to a batch: what the thread does from now on is for it."""

    def instruction(thread):
        thread.turn = number
        return
        yield

    return instruction


def op(
    name, pre, children = (), post = 0,
    *, args = None, category = "cpu_op",
):  # fmt: skip
    """An operator: own time before its first child and after each (`post` is shared out among them)."""

    def instruction(thread):
        row = thread.begin(category, name, args)
        thread.spend(pre)
        for child in children:
            yield from child(thread)
            thread.spend(post // len(children))
        thread.spend(0 if children else post)
        thread.finish(row)

    return instruction


def cpu(name, ns):
    """An operator that launches nothing."""
    return op(name, ns)


def annotation(name, children, own=0):
    """A range that a person or a library named."""
    return op(name, own, children, category="user_annotation")


def _enqueue(call, cost, stream, tasks, blocking=False):
    def instruction(thread):
        run = thread.run
        yield READY
        row = thread.begin("cuda_runtime", call)
        while (free := run.streams[stream].free_slot(run.queue_depth)) > thread.now:
            thread.now = free
            yield READY
        handed = thread.hand_off()
        while run.lock_free > thread.now:
            thread.block(run.lock_free + handed, "lock", run.lock_holder)
            yield READY
        row.wait = thread.now - row.start
        end = run.execute(stream, tasks, thread, row)
        thread.spend(getattr(run.costs, cost))
        if blocking:
            row.wait += max(end - thread.now, 0)
            thread.now = max(end, thread.now)
            thread.spend(run.costs.copy_return)
            run.lock_free, run.lock_holder = thread.now if run.machine.driver_lock else 0, thread.name
        thread.finish(row)

    return instruction


def launch(stream, name, ns, *, writes="", **args):
    """One kernel, which at its end `writes` a word in device memory."""
    return _enqueue("cudaLaunchKernel", "launch", stream, [Task("kernel", name, ns, args, writes)])


def read_word(word, every=0):
    """Read a word that a kernel launched before is to write: spin, or sleep `every` so many ns."""

    def instruction(thread):
        yield READY
        written = thread.run.words[word].popleft()
        while thread.now < written:
            if every:
                thread.block(thread.now + every, "device memory")
            else:
                thread.now = written
            yield READY

    return instruction


def graph_launch(stream, kernels):
    """One call, many kernels (name, ns) that share its correlation."""
    tasks = [Task("kernel", name, ns, {}) for name, ns in kernels]
    return _enqueue("cudaGraphLaunch", "graph_launch", stream, tasks)


def memset(stream, ns, nbytes):
    task = Task("gpu_memset", "Memset (Device)", ns, {"bytes": nbytes})
    return _enqueue("cudaMemsetAsync", "memset", stream, [task])


def memcpy(stream, direction, ns, nbytes):
    """A copy; a `direction` with pageable memory blocks the caller until it has ended."""
    task = Task("gpu_memcpy", COPIES[direction], ns, {"bytes": nbytes})
    return _enqueue("cudaMemcpyAsync", "memcpy", stream, [task], blocking="pageable" in direction)


def record(event, stream):
    """Make `event` stand for all work given to the stream so far."""

    def instruction(thread):
        run = thread.run
        yield READY
        row = thread.begin("cuda_runtime", "cudaEventRecord")
        run.events[event] = (run.streams[stream].complete, stream, row.correlation)
        thread.spend(run.costs.record)
        thread.finish(row)

    return instruction


def wait(stream, event):
    """Later work on the stream waits for the event as last recorded; none if it never was."""

    def instruction(thread):
        run = thread.run
        yield READY
        row = thread.begin("cuda_runtime", "cudaStreamWaitEvent")
        if event in run.events:
            complete, source, correlation = run.events[event]
            target = run.streams[stream]
            target.waits_until = max(target.waits_until, complete + run.costs.event_latency)
            row.sync = {"kind": "Stream Wait Event", "stream": stream, "event": event,
                        "source": source, "record": correlation}  # fmt: skip
        thread.spend(run.costs.wait_event)
        thread.finish(row)

    return instruction


def query():
    """Ask for an event without waiting."""

    def instruction(thread):
        row = thread.begin("cuda_runtime", "cudaEventQuery")
        thread.spend(thread.run.costs.query)
        thread.finish(row)
        return
        yield

    return instruction


def _synchronize(call, covers, costs="sync"):
    def instruction(thread):
        run = thread.run
        yield READY
        row = thread.begin("cuda_runtime", call)
        done = covers(run, row)
        thread.spend(getattr(run.costs, f"{costs}_entry"))
        handed = thread.hand_off() if run.machine.blocking_sync else 0
        row.wait = max(done - thread.now, 0) and done + handed - thread.now
        if row.wait and run.machine.blocking_sync:
            thread.block(done + handed, "synchronize")
        thread.now = max(done, thread.now)
        thread.spend(getattr(run.costs, f"{costs}_return"))
        thread.finish(row)

    return instruction


def device_sync():
    def covers(run, row):
        row.sync = {"kind": "Context Sync", "stream": None}
        return run.device_idle()

    return _synchronize("cudaDeviceSynchronize", covers)


def stream_sync(stream):
    def covers(run, row):
        row.sync = {"kind": "Stream Sync", "stream": stream}
        return run.streams[stream].complete

    return _synchronize("cudaStreamSynchronize", covers)


def event_sync(event):
    def covers(run, row):
        complete, source, correlation = run.events.get(event, (0, -1, -1))
        row.sync = {"kind": "Event Sync", "stream": None, "event": event,
                    "source": source, "record": correlation}  # fmt: skip
        return complete

    return _synchronize("cudaEventSynchronize", covers)


def free():
    """`cudaFree`: the device must be idle first."""
    return _synchronize("cudaFree", lambda run, _row: run.device_idle(), "free")


def put(channel, item=None):
    """Hand something to whoever takes from the channel; never blocks."""
    return lambda thread: thread.run.put(thread, channel, item)


def take(channel):
    """Take what another thread has put, off the CPU until there is something."""
    return lambda thread: thread.run.take(thread, channel)


def backward(program):
    """Hand a program to the autograd thread and stand until it is done."""

    def instruction(thread):
        yield from thread.run.put(thread, "backward", program)
        yield from thread.run.take(thread, "backward done")

    return instruction


def sleep(ns):
    """Time off the CPU that passes whatever the CPU costs: a timer, a disk, a worker process."""

    def instruction(thread):
        thread.block(thread.now + thread.varied(ns), "outside")
        yield READY

    return instruction
