"""Programs that are hard to read from a trace: forks and joins, odd synchronizations, threads taking turns.

No device rows of synchronization are written for them, so what waits for what has to be inferred.
"""

from collections.abc import Callable

from .engine import Instruction, Machine, Program
from .instructions import (
    device_sync,
    event_sync,
    free,
    graph_launch,
    launch,
    memcpy,
    op,
    put,
    python,
    record,
    stream_sync,
    take,
    wait,
)
from .programs import ADD, COLLECTIVE, COMPUTE, COPY, GEMM, JITTER, RELU, US, Network, item

SIDE = 9
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
Step = Callable[[int], list[Instruction]]


def _matmul(us, stream=COMPUTE):
    return op("aten::mm", 4_000, [launch(stream, GEMM, round(us * US))], 1_000)


def _elementwise(us, stream=COMPUTE):
    return op("aten::mul", 4_000, [launch(stream, RELU, round(us * US))], 1_000)


def _add(us):
    return op("aten::add", 4_000, [launch(COMPUTE, ADD, round(us * US))], 1_000)


def _machine(step, depth=1022):
    return Machine(Program(step), queue_depth=depth, jitter=JITTER)


def forks_and_joins():
    """Ten times a step a side stream forks off the compute stream and joins it again."""

    def step(_number):
        program = [python(10 * US)]
        for turn in range(10):
            program += [
                _matmul(50), record(f"fork{turn}", COMPUTE), wait(SIDE, f"fork{turn}"),
                _elementwise(30 + 7 * turn, SIDE), _matmul(20 + 4 * turn),
                record(f"join{turn}", SIDE), wait(COMPUTE, f"join{turn}"), _add(10),
            ]  # fmt: skip
        return [*program, item()]

    return _machine(step)


def _beside(pairs, compute, side):
    program = [python(10 * US), record("fork", COMPUTE), wait(SIDE, "fork")]
    for turn in range(pairs):
        program += [_matmul(compute), _elementwise(side(turn), SIDE)]
    return [*program, record("join", SIDE), wait(COMPUTE, "join"), _add(10)]


def joined_once():
    """A side stream runs beside the compute stream and joins it at the end of the step."""
    return _machine(lambda _: [*_beside(12, 40, lambda turn: 30 + 3 * turn), item()])


def joined_with_full_queues():
    """The same without a synchronize: both streams' launch queues, 16 deep, are full."""
    return _machine(lambda _: _beside(40, 40, lambda turn: 10 + 2 * (turn % 7)), depth=16)


def odd_syncs():
    """Synchronizes before the first launch, twice in a row, of an idle stream, and on an old event."""

    def step(_number):
        program = [stream_sync(COMPUTE), python(10 * US), device_sync(), device_sync()]
        after = {3: record("old", COMPUTE), 5: event_sync("old"), 6: stream_sync(11)}
        for turn in range(10):
            program += [_matmul(40), *([after[turn]] if turn in after else [])]
        return [*program, python(20 * US)]

    return _machine(step)


def throttled():
    """Each step waits for the event at the end of the step before."""

    def step(number):
        throttle = [event_sync(f"done{number - 1}")] if number else []
        return [python(10 * US), *throttle, *[_matmul(60)] * 20, record(f"done{number}", COMPUTE)]

    return _machine(step)


def threads_take_turns():
    """A second thread launches on the same stream while the main thread stands, and hands back."""

    def step(_number):
        return [
            python(20 * US),
            *[_matmul(30)] * 8,
            put("job"),
            python(30 * US),
            _elementwise(20),
            take("done"),
            item(),
        ]

    def worker():
        while True:
            yield take("job")
            for _ in range(8):
                yield _add(25)
            yield put("done")

    return Machine(Program(step, {"loader": worker}), jitter=JITTER)


def data_parallel_threads():
    """A worker thread runs on a stream of its own, beside the main thread's."""

    def step(_number):
        copy = op("aten::copy_", 3_000, [memcpy(COMPUTE, "htod_pinned", 20 * US, 1_000)], 900)
        return [
            python(20 * US), copy, record("in", COMPUTE), put("job"), *[_matmul(30)] * 12, take("done"),
            record("out", SIDE), wait(COMPUTE, "out"), _add(20), item(),
        ]  # fmt: skip

    def worker():
        while True:
            yield take("job")
            yield wait(SIDE, "in")
            for _ in range(12):
                yield _matmul(45, SIDE)
            yield put("done")

    return Machine(Program(step, {"loader": worker}), jitter=JITTER)


def _prefetching(layers, matrix_us, copy_us, ahead):
    net = Network(layers, matrix_us * US)

    def fetch(number):
        copy = op("aten::to", 3_000, [memcpy(COPY, "htod_pinned", copy_us * US, 1 << 20)], 1_500)
        return [copy, record(f"copied{number % 3}", COPY)]

    def step(number):
        first = [part for batch in range(ahead) for part in fetch(batch)] if number == 0 else []
        return [
            *first,
            *fetch(number + ahead),
            wait(COMPUTE, f"copied{number % 3}"),
            *net.step(number),
            item(),
        ]

    return _machine(step)


def prefetch_ahead():
    """Batches are copied on a stream of their own, two steps ahead."""
    return _prefetching(10, 60, 900, ahead=2)


def prefetch_bound():
    """The copies take longer than the steps."""
    return _prefetching(6, 20, 2_500, ahead=1)


def gathered_layers():
    """As in FSDP: each layer's parameters are gathered one layer ahead, beside the layer before."""

    def gather(layer):
        args = {
            "Collective name": "_allgather_base",
            "In msg nelems": 1 << 20,
            "dtype": "Float",
        }
        return op("c10d::_allgather_base_", 7_000, [
            record(f"used{layer}", COMPUTE), launch(COLLECTIVE, GATHER, 150 * US, **args),
            record(f"gathered{layer}", COLLECTIVE)], 2_000)  # fmt: skip

    def step(_number):
        program = [python(10 * US), record("start", COMPUTE), wait(COLLECTIVE, "start"), gather(0)]
        for layer in range(8):
            following = [gather(layer + 1)] if layer < 7 else []
            program += [
                *following,
                wait(COMPUTE, f"gathered{layer}"),
                _matmul(100 + 20 * (layer % 4)),
                _elementwise(10),
            ]
        return [*program, item()]

    return _machine(step)


def freeing():
    """A `cudaFree` at the end of each step finds the device busy; the queue is 16 deep."""

    def step(_number):
        work = [_matmul(30 + 10 * (turn % 5)) for turn in range(40)]
        return [python(10 * US), *work, op("aten::empty", 2_000, [free()], 800)]

    return _machine(step, depth=16)


def blocking_copies():
    """Copies from and to pageable memory, on two streams."""

    def step(_number):
        there = op("aten::copy_", 3_000, [memcpy(COMPUTE, "htod_pageable", 120 * US, 1 << 20)], 900)
        back = op("aten::copy_", 3_000, [memcpy(SIDE, "dtoh_pageable", 50 * US, 1 << 20)], 900)
        return [there, *[_matmul(50)] * 10, back, *[_matmul(20)] * 10]

    return _machine(step)


def side_stream_synced():
    """A stream synchronize of the stream that is done first."""

    def step(_number):
        program = [python(10 * US), record("fork", COMPUTE), wait(SIDE, "fork")]
        for _ in range(10):
            program += [_elementwise(30, SIDE), _matmul(60)]
        return [*program, stream_sync(SIDE), python(50 * US), *[_matmul(20)] * 10, item()]

    return _machine(step)


def two_graphs():
    """Two graph launches and a plain kernel in every step."""
    nodes = [(GEMM, 15 * US)] * 40

    def step(_number):
        return [
            python(60 * US), graph_launch(COMPUTE, nodes), python(25 * US), graph_launch(COMPUTE, nodes[:20]),
            _matmul(50), item(),
        ]  # fmt: skip

    return _machine(step)


def items_in_a_loop():
    """`.item()` after every layer, as in a loop over gradient norms."""

    def step(_number):
        return [
            part for turn in range(12) for part in (_matmul(10 + 9 * (turn % 5)), item(), python(15 * US))
        ]

    return _machine(step)


def one_long_kernel():
    """A kernel of 3 ms and forty short ones behind it, in a queue 24 deep."""

    def step(_number):
        short = op("aten::mul", 2_000, [launch(COMPUTE, RELU, 4 * US)], 500)
        return [op("aten::conv2d", 4_000, [launch(COMPUTE, GEMM, 3_000 * US)], 1_000), *[short] * 40]

    return _machine(step, depth=24)


HARDER = {
    program.__name__: program
    for program in (
        forks_and_joins, joined_once, joined_with_full_queues, odd_syncs, throttled, threads_take_turns,
        data_parallel_threads, prefetch_ahead, prefetch_bound, gathered_layers, freeing, blocking_copies,
        side_stream_synced, two_graphs, items_in_a_loop, one_long_kernel,
    )
}  # fmt: skip
