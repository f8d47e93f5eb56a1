"""A machine whose kernels and transfers slow each other, run in slices of time; it writes the trace of it.

A step launches all of its work, then waits for the device. Kernels run one after the other on one
stream. A transfer runs on another, once the kernel that it belongs to has ended; the last kernel waits for
all transfers. In each slice whatever runs proceeds by the slice divided by its factor, if its
counterpart runs too. Nothing here knows the formulas that are tested with it.
"""

from dataclasses import dataclass, field

import numpy as np
from graph.small_traces import call, kernel, trace

SLICE = 0.1  # us
CALL, LATENCY, STARTUP = 3.0, 4.0, 1.0
UPDATE = "update"


@dataclass
class Work:
    """A kernel or transfer of so many us; it starts with the stream's previous one and `after` it."""

    name: str
    us: float
    after: list = field(default_factory=list)
    correlation: int = -1
    left: float = 0.0
    launched: float = 0.0
    start: float | None = None
    end: float | None = None


@dataclass(frozen=True)
class Machine:
    """How a step runs: `kinds` kernels of different length, forward and backward, and a few transfers.

    `every` so many kernels of the backward pass a transfer of `transfer_us` is begun; 0 for none.
    """

    kernel_factor: float = 1.0
    transfer_factor: float = 1.0
    transfer_us: float = 70.0
    kinds: int = 8
    layers: int = 48
    every: int = 7
    steps: int = 6
    network: float = 1.0  # times the bandwidth
    noise: float = 0.0  # of a kernel's time, as a standard deviation
    spread: float = 0.9  # by how much transfers are shorter and longer from step to step

    def record(self):
        """Return the trace of some steps."""
        rows = []
        at, borders = 0.0, [0.0]
        for number in range(self.steps):
            ran, done = self._step(at, number)
            rows += ran
            at = done
            borders.append(at)
        return trace(rows, steps=tuple(borders), world_size=2)

    def step_us(self):
        """Return how long a step takes, on average."""
        return float(np.mean([self._step(0.0, number)[1] for number in range(1, self.steps)]))

    def _step(self, at, number):
        kernels, transfers = self._program(number)
        rows = self._launches(at, kernels, transfers, 1000 * number)
        launched = at + sum(row["duration_ns"] for row in rows) / 1000
        end = _run(at, kernels, transfers, self.kernel_factor, self.transfer_factor)
        for stream, works, kind in ((7, kernels, "kernel"), (20, transfers, "collective")):
            known = {"collective": "all_reduce", "bytes": 1 << 20} if kind == "collective" else {}
            for work in works:
                assert work.start is not None
                assert work.end is not None
                rows.append(
                    kernel(
                        work.name, work.start, work.end, work.correlation, stream=stream, kind=kind, **known
                    )
                )
        rows.append(call("cudaDeviceSynchronize", launched, end + 2))
        return rows, end + 2

    def _program(self, number):
        lengths = np.random.default_rng(0).uniform(10, 30, self.kinds).round()
        noise = np.random.default_rng([1, number])
        longer = 1 + self.spread * (2 * np.random.default_rng([2, number]).random() - 1)

        def work(kind):
            return Work(f"kernel {kind}", float(lengths[kind] * (1 + self.noise * noise.standard_normal())))

        kernels = [work(n % self.kinds) for n in range(self.layers)]
        transfers = []
        for n in reversed(range(self.layers)):
            kernels.append(work(n % self.kinds))
            if self.every and n % self.every == 0:
                transfers.append(Work("reduce", longer * self.transfer_us / self.network, [kernels[-1]]))
        kernels.append(Work(UPDATE, 15.0, [*transfers]))
        return kernels, transfers

    def _launches(self, at, kernels, transfers, ids):
        rows = []

        def add(name, us):
            nonlocal at
            rows.append(call(name, at, at + us, ids + len(rows)))
            at += us

        def launch(work):
            work.correlation, work.launched = ids + len(rows), at
            add("cudaLaunchKernel", CALL)

        by_kernel = {id(transfer.after[0]): transfer for transfer in transfers}
        for work in kernels:
            if work.after:
                add("cudaEventRecord", 1.0)
                add("cudaStreamWaitEvent", 1.0)
            launch(work)
            if (transfer := by_kernel.get(id(work))) is not None:
                add("cudaEventRecord", 1.0)
                add("cudaStreamWaitEvent", 1.0)
                launch(transfer)
        return rows


def _run(at, kernels, transfers, slow_kernel, slow_transfer):
    """Run both streams in slices of time until all is done, and return when that is."""
    streams = [list(kernels), list(transfers)]
    for work in (*kernels, *transfers):
        work.left = work.us
    free, now = [at, at], at
    while any(streams):
        running = []
        for number, queue in enumerate(streams):
            if not queue:
                continue
            head = queue[0]
            ready = [free[number], head.launched + LATENCY, *(each.end for each in head.after if each.end)]
            held = any(each.end is None for each in head.after)
            if head.start is None and not held and now >= max(ready):
                head.start = now
            if head.start is not None:
                running.append((number, head))
        for number, head in running:
            factor = (slow_kernel, slow_transfer)[number] if len(running) > 1 else 1.0
            head.left -= SLICE / factor
        now = round(now + SLICE, 3)
        for number, head in running:
            if head.left <= 1e-9:
                head.end = now
                free[number] = round(now + STARTUP, 3)
                streams[number].pop(0)
    return now
