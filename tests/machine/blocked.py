"""Programs whose threads are off the CPU: in queues, on conditions, at a lock, for the device, for a process.

No range names a hand-off. What a recording tells of it is when a thread was off the CPU, if it tells that.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from .engine import Instruction, Machine, Program
from .instructions import (
    cpu,
    device_sync,
    launch,
    memcpy,
    op,
    put,
    python,
    read_word,
    record,
    sleep,
    stream_sync,
    take,
    turn,
    wait,
)
from .programs import ADD, COMPUTE, COPY, GEMM, JITTER, RELU, US, item

SIDE = 9
Step = Callable[[int], Sequence[Instruction]]


def _train(kernels, us, stream=COMPUTE):
    return [op("aten::mm", 4_000, [launch(stream, GEMM, us * US)], 1_000) for _ in range(kernels)]


def _copy(us, stream=COPY):
    return op("aten::copy_", 3_000, [memcpy(stream, "htod_pinned", us * US, 1 << 20)], 900)


def _from(queue):
    return [take(queue), put(f"room in {queue}")]


def _into(queue):
    return [take(f"room in {queue}"), put(queue)]


def _forever(batch):
    def body():
        for number in count():
            yield from (turn(number), *batch(number))

    return body


def _training(step, queues=(), **others):
    """Run steps beside what other threads do for each batch; each queue holds two."""

    def steps(number):
        room = [put(f"room in {queue}") for queue in queues for _ in range(2)]
        return [*(room if number == 0 else []), *step(number)]

    bodies = {name: _forever(batch) for name, batch in others.items()}
    return Machine(Program(steps, bodies), jitter=JITTER)


def _executors(read_us, decode_us, kernels, us):
    normalize = op("normalize", 6_000, [launch(COPY, RELU, 150 * US)], 2_000)

    def step(number):
        loaded = wait(COMPUTE, f"loaded {number}")
        return [*_from("batch"), python(40 * US), loaded, *_train(kernels, us), item()]

    def to_device(number):
        loaded = [record(f"loaded {number}", COPY), stream_sync(COPY)]
        return [*_from("copied"), normalize, *loaded, *_into("batch")]

    return _training(
        step,
        ("read", "decoded", "copied", "batch"),
        reader=lambda _: [cpu("open", 5_000), python(read_us * US), *_into("read")],
        loader=lambda _: [*_from("read"), python(decode_us * US), cpu("crop", 20_000), *_into("decoded")],
        mixer=lambda _: [*_from("decoded"), python(20 * US), _copy(300), *_into("copied")],
        normalizer=to_device,
    )


def executors():
    """Four executors joined by queues of two batches, as in DALI; the training takes longer than each."""
    return _executors(read_us=300, decode_us=900, kernels=30, us=150)


def executors_are_late():
    """The same, but the executor that decodes takes longer than the training."""
    return _executors(read_us=300, decode_us=7_000, kernels=30, us=150)


def conditions():
    """Each step two threads are told to begin, and the main thread waits for both."""
    both = [
        put("begin loader"),
        put("begin worker"),
        python(50 * US),
        take("done"),
        python(3 * US),
        take("done"),
    ]

    def step(number):
        joined = wait(COMPUTE, f"worker {number}")
        return [python(200 * US), *_train(6, 100), *both, joined, *_train(10, 100), item()]

    def worker(number):
        work = [python(150 * US), *_train(8, 120, SIDE), record(f"worker {number}", SIDE), stream_sync(SIDE)]
        return [take("begin worker"), *work, put("done")]

    sort = [take("begin loader"), python(700 * US), cpu("sort", 100 * US), put("done")]
    return _training(step, loader=lambda _: sort, worker=worker)


def sleeping_synchronization():
    """The main thread sleeps in its synchronizing calls, a second thread until the first is through."""
    log = [take("logged"), python(300 * US), cpu("write", 50 * US)]
    step = [python(100 * US), *_train(20, 150), device_sync(), put("logged"), python(400 * US)]
    return replace(_training(lambda _: step, loader=lambda _: log), blocking_sync=True)


def contended_lock():
    """A thread's copies of pinned memory sleep until the training's `.item()` lets go of the driver."""

    def step(number):
        return [
            *_from("batch"), python(15 * US), wait(COMPUTE, f"loaded {number}"), *_train(30, 120), item()
        ]  # fmt: skip

    def load(number):
        return [cpu("read", 600 * US), _copy(150), record(f"loaded {number}", COPY), *_into("batch")]

    return replace(_training(step, ["batch"], loader=load), driver_lock=True)


def _word(every_us):
    count_rows = op("count", 3_000, [launch(COMPUTE, ADD, 200 * US, writes="rows")], 1_000)
    dispatch = op("dispatch", 2_000, [read_word("rows", every_us * US)], 3_000)
    step = [python(150 * US), *_train(12, 120), count_rows, dispatch, *_train(12, 120), item()]
    return _training(lambda _: step)


def spins_on_a_word():
    """The main thread spins until a kernel has written a word in device memory."""
    return _word(0)


def sleeps_on_a_word():
    """The same, but it sleeps 200 us between two looks at the word."""
    return _word(200)


def timer():
    """The main thread sleeps for 2 ms a step, whatever it does otherwise."""
    return _training(lambda _: [python(50 * US), sleep(2_000 * US), *_train(20, 120), item()])


def _process(load_us):
    step = [*_from("batch"), python(50 * US), _copy(200, COMPUTE), *_train(20, 150), item()]
    load = [sleep(load_us * US), *_into("batch")]
    return _training(lambda _: step, ["batch"], process=lambda _: load)


def process():
    """A process that no trace shows loads batches, two ahead, in time."""
    return _process(1_500)


def process_is_late():
    """The same, but it takes longer than the training."""
    return _process(5_000)


def _taking():
    return [*_from("batch"), python(15 * US), wait(COMPUTE, "loaded"), *_train(30, 90), item()]


def _pipeline(read_us):
    """A queue of two batches: read, then copied, then normalized, by a thread each."""
    normalize = op("normalize", 6_000, [launch(COPY, RELU, 30 * US)], 2_000)
    return _training(
        lambda _: _taking(),
        ["batch"],
        loader=lambda _: [take("room in batch"), cpu("read", read_us * US), put("read")],
        mixer=lambda _: [take("read"), python(5 * US), _copy(40), put("copied")],
        normalizer=lambda _: [take("copied"), normalize, record("loaded", COPY), put("batch")],
    )


def loader_of_three_threads():
    """Each thread of the loader waits until the one before it is done, the first until a batch is taken."""
    return _pipeline(read_us=70)


def loader_of_three_threads_is_late():
    """The first thread of the loader takes longer than the step: the training waits for the last one."""
    return _pipeline(read_us=5_000)


def two_threads_and_a_lock():
    """A loader's copy of pinned memory returns once the training's `.item()` lets go of the driver."""
    batch = [cpu("read", 400 * US), _copy(100), record("loaded", COPY), put("batch")]
    load = [take("room in batch"), python(30 * US), *batch]
    return replace(_training(lambda _: _taking(), ["batch"], loader=lambda _: load), driver_lock=True)


LOADERS = {
    program.__name__: program
    for program in (loader_of_three_threads, loader_of_three_threads_is_late, two_threads_and_a_lock)
}
BLOCKED = {
    program.__name__: program
    for program in (
        executors, executors_are_late, conditions, sleeping_synchronization, contended_lock, spins_on_a_word,
        sleeps_on_a_word, timer, process, process_is_late,
    )
}  # fmt: skip
