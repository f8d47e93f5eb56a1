"""Programs whose threads are off the CPU: in queues, on conditions, at a lock, for the device, for a process.

No range names a hand-off. What a recording tells of it is when a thread was off the CPU, if it tells that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
Body = Callable[[], Iterator[Instruction]]


def _train(kernels: int, us: int, stream: int = COMPUTE) -> list[Instruction]:
    return [op("aten::mm", 4_000, [launch(stream, GEMM, us * US)], 1_000) for _ in range(kernels)]


def _copy(us: int, stream: int = COPY) -> Instruction:
    return op("aten::copy_", 3_000, [memcpy(stream, "htod_pinned", us * US, 1 << 20)], 900)


def _from(queue: str) -> list[Instruction]:
    return [take(queue), put(f"room in {queue}")]


def _into(queue: str) -> list[Instruction]:
    return [take(f"room in {queue}"), put(queue)]


def _forever(*batch: Instruction) -> Body:
    def body() -> Iterator[Instruction]:
        for number in count():
            yield from (turn(number), *batch)

    return body


def _training(step: Sequence[Instruction], queues: Sequence[str] = (), **others: Body) -> Machine:
    """Run a step over and over, beside other threads; each queue holds two."""

    def steps(number: int) -> list[Instruction]:
        room = [put(f"room in {queue}") for queue in queues for _ in range(2)]
        return [*(room if number == 0 else []), *step]

    return Machine(Program(steps, others), jitter=JITTER)


def _executors(read_us: int, decode_us: int, kernels: int, us: int) -> Machine:
    queues = ("read", "decoded", "copied", "batch")
    normalize = op("normalize", 6_000, [launch(COPY, RELU, 150 * US)], 2_000)
    step = [*_from("batch"), python(40 * US), wait(COMPUTE, "loaded"), *_train(kernels, us), item()]
    return _training(
        step,
        queues,
        reader=_forever(cpu("open", 5_000), python(read_us * US), *_into("read")),
        loader=_forever(*_from("read"), python(decode_us * US), cpu("crop", 20_000), *_into("decoded")),
        mixer=_forever(*_from("decoded"), python(20 * US), _copy(300), *_into("copied")),
        normalizer=_forever(
            *_from("copied"), normalize, record("loaded", COPY), stream_sync(COPY), *_into("batch")
        ),
    )


def executors() -> Machine:
    """Four executors joined by queues of two batches, as in DALI; the training takes longer than each."""
    return _executors(read_us=300, decode_us=900, kernels=30, us=150)


def executors_are_late() -> Machine:
    """The same, but the executor that decodes takes longer than the training."""
    return _executors(read_us=300, decode_us=7_000, kernels=30, us=150)


def conditions() -> Machine:
    """Each step two threads are told to begin, and the main thread waits for both."""
    step = [
        python(200 * US), *_train(6, 100), put("begin loader"), put("begin worker"), python(50 * US),
        take("done"), take("done"), wait(COMPUTE, "worker's"), *_train(10, 100), item(),
    ]  # fmt: skip
    both = {
        "loader": [python(700 * US), cpu("sort", 100 * US)],
        "worker": [python(150 * US), *_train(8, 120, SIDE), record("worker's", SIDE), stream_sync(SIDE)],
    }
    bodies = {name: _forever(take(f"begin {name}"), *work, put("done")) for name, work in both.items()}
    return _training(step, **bodies)


def sleeping_synchronization() -> Machine:
    """The main thread sleeps in its synchronizing calls, a second thread until the first is through."""
    log = _forever(take("logged"), python(300 * US), cpu("write", 50 * US))
    step = [python(100 * US), *_train(20, 150), device_sync(), put("logged"), python(400 * US)]
    return replace(_training(step, loader=log), blocking_sync=True)


def contended_lock() -> Machine:
    """A thread's copies of pinned memory sleep until the training's `.item()` lets go of the driver."""
    step = [*_from("batch"), python(15 * US), wait(COMPUTE, "loaded"), *_train(30, 120), item()]
    load = [cpu("read", 600 * US), _copy(150), record("loaded", COPY), *_into("batch")]
    return replace(_training(step, ["batch"], loader=_forever(*load)), driver_lock=True)


def _word(every_us: int) -> Machine:
    count_rows = op("count", 3_000, [launch(COMPUTE, ADD, 200 * US, writes="rows")], 1_000)
    dispatch = op("dispatch", 2_000, [read_word("rows", every_us * US)], 3_000)
    return _training([python(150 * US), *_train(12, 120), count_rows, dispatch, *_train(12, 120), item()])


def spins_on_a_word() -> Machine:
    """The main thread spins until a kernel has written a word in device memory."""
    return _word(0)


def sleeps_on_a_word() -> Machine:
    """The same, but it sleeps 200 us between two looks at the word."""
    return _word(200)


def timer() -> Machine:
    """The main thread sleeps for 2 ms a step, whatever it does otherwise."""
    return _training([python(50 * US), sleep(2_000 * US), *_train(20, 120), item()])


def _process(load_us: int) -> Machine:
    load = _forever(sleep(load_us * US), *_into("batch"))
    step = [*_from("batch"), python(50 * US), _copy(200, COMPUTE), *_train(20, 150), item()]
    return _training(step, ["batch"], process=load)


def process() -> Machine:
    """A process that no trace shows loads batches, two ahead, in time."""
    return _process(1_500)


def process_is_late() -> Machine:
    """The same, but it takes longer than the training."""
    return _process(5_000)


BLOCKED: dict[str, Callable[[], Machine]] = {
    program.__name__: program
    for program in (
        executors, executors_are_late, conditions, sleeping_synchronization, contended_lock, spins_on_a_word,
        sleeps_on_a_word, timer, process, process_is_late,
    )
}  # fmt: skip
