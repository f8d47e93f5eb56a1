"""Programs whose threads wake each other: a loader of three threads, and one that meets the driver's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .engine import Instruction, Machine, Program
from .instructions import cpu, launch, memcpy, op, put, python, record, take, wait
from .programs import COMPUTE, COPY, GEMM, JITTER, RELU, US, item


def _train(kernels: int, us: int) -> list[Instruction]:
    return [op("aten::mm", 4_000, [launch(COMPUTE, GEMM, us * US)], 1_000) for _ in range(kernels)]


def _copy(us: int) -> Instruction:
    return op("aten::copy_", 3_000, [memcpy(COPY, "htod_pinned", us * US, 1 << 20)], 900)


def _step(kernels: int, us: int) -> Callable[[int], list[Instruction]]:
    def step(number: int) -> list[Instruction]:
        ahead = [put("free"), put("free")] if number == 0 else []
        return [
            *ahead, take("batch"), put("free"), python(15 * US), wait(COMPUTE, "loaded"),
            *_train(kernels, us), item(),
        ]  # fmt: skip

    return step


def _pipeline(read_us: int, kernels: int, us: int) -> Machine:
    """A queue of three batches: read, then copied, then normalized, by a thread each."""

    def loader() -> Iterator[Instruction]:
        while True:
            yield from (take("free"), cpu("read", read_us * US), put("read"))

    def mixer() -> Iterator[Instruction]:
        while True:
            yield from (take("read"), python(5 * US), _copy(40), put("copied"))

    def normalizer() -> Iterator[Instruction]:
        while True:
            normalize = op("normalize", 6_000, [launch(COPY, RELU, 30 * US)], 2_000)
            yield from (take("copied"), normalize, record("loaded", COPY), put("batch"))

    others = {"loader": loader, "mixer": mixer, "normalizer": normalizer}
    return Machine(Program(_step(kernels, us), others), jitter=JITTER)


def loader_of_three_threads() -> Machine:
    """Each thread of the loader stands until the one before it is done, the first until a batch is taken."""
    return _pipeline(read_us=70, kernels=30, us=90)


def loader_of_three_threads_is_late() -> Machine:
    """The first thread of the loader takes longer than the step: the training waits for the last one."""
    return _pipeline(read_us=5_000, kernels=30, us=90)


def two_threads_and_a_lock() -> Machine:
    """A loader's copy of pinned memory stands until the training's `.item()` lets go of the driver."""

    def loader() -> Iterator[Instruction]:
        while True:
            batch = (cpu("read", 400 * US), _copy(100), record("loaded", COPY), put("batch"))
            yield from (take("free"), python(30 * US), *batch)

    program = Program(_step(30, 90), {"loader": loader})
    return Machine(program, jitter=JITTER, driver_lock=True)


LOADERS: dict[str, Callable[[], Machine]] = {
    program.__name__: program
    for program in (loader_of_three_threads, loader_of_three_threads_is_late, two_threads_and_a_lock)
}
