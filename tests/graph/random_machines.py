"""Random training programs for the machine model."""

from dataclasses import dataclass

from hypothesis import strategies as st
from machine import Machine, Program
from machine.instructions import (
    backward,
    device_sync,
    event_sync,
    free,
    launch,
    memcpy,
    op,
    python,
    record,
    stream_sync,
    wait,
)
from machine.programs import ADD, COLLECTIVE, COMPUTE, COPY, LOSS, US, Network, item

SIDE = 30  # a stream for work beside the main one
SPOTS = ("begin", "middle", "after forward", "after backward", "end")


@dataclass(frozen=True)
class Recipe:
    """What a program is made of; hypothesis shrinks it towards its first values."""

    layers: int = 1
    kernel_us: int = 1
    python_us: int = 1  # untraced CPU time at the begin of a step
    depth: int = 1022
    syncs: tuple[tuple[str, str], ...] = ()  # (spot, what)
    copies: bool = False  # batches are prefetched on a stream of their own
    side_us: int = 0  # a branch of the forward pass on another stream, 0 for none
    collective_us: int = 0  # of each layer's all-reduce, 0 for none
    jitter: float = 0.0

    def machine(self):
        return Machine(Program(self.step), queue_depth=self.depth, jitter=self.jitter, steps=24)

    def step(self, number):
        net = Network(self.layers, self.kernel_us * US)
        forward = net.forward(number)
        half = len(forward) // 2
        reduce = self._reduce if self.collective_us else (lambda _layer: ())
        gradients = [*net.gradients(number, reduce), *self._reduced()]
        return [
            python(self.python_us * US),
            *(self._prefetch(number) if self.copies else []),
            *self._sync("begin"),
            net.zero_grad(),
            *forward[:half],
            *self._sync("middle"),
            *(self._branch() if self.side_us else []),
            *forward[half:],
            *net.loss(),
            *self._sync("after forward"),
            backward(gradients),
            *self._sync("after backward"),
            net.optimizer(),
            *self._sync("end"),
        ]

    def _sync(self, spot):
        return [instruction for at, what in self.syncs if at == spot for instruction in SYNCS[what]]

    def _prefetch(self, number):
        copy = op("aten::to", 3_000, [memcpy(COPY, "htod_pinned", 200 * US, 1_048_576)], 1_500)
        return [
            *([copy] if number == 0 else []),
            record("batch copied", COPY),
            wait(COMPUTE, "batch copied"),
            op("aten::clone", 2_000, [memcpy(COMPUTE, "dtod", 9 * US, 1_048_576)], 700),
            record("batch used", COMPUTE),
            wait(COPY, "batch used"),
            copy,
        ]

    def _branch(self):
        return [
            record("fork", COMPUTE),
            wait(SIDE, "fork"),
            op("aten::linalg_vector_norm", 3_000, [launch(SIDE, LOSS, self.side_us * US)], 900),
            record("join", SIDE),
            op("aten::mul", 3_000, [launch(COMPUTE, ADD, 5 * US)], 900),
            wait(COMPUTE, "join"),
            op("aten::add", 3_000, [launch(COMPUTE, ADD, 5 * US)], 900),
        ]

    def _reduce(self, layer):
        kernel = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        return [op("c10d::allreduce_", 9_000, [op("record_param_comms", 6_000, [
            record(f"gradient {layer}", COMPUTE),
            wait(COLLECTIVE, f"gradient {layer}"),
            launch(COLLECTIVE, kernel, self.collective_us * US),
            record(f"reduced {layer}", COLLECTIVE),
        ], 2_500)], 3_000)]  # fmt: skip

    def _reduced(self):
        if not self.collective_us:
            return []
        layers = reversed(range(self.layers))
        copy = op("aten::copy_", 2_000, [memcpy(COMPUTE, "dtod", 9 * US, 16_777_216)], 700)
        return [each for layer in layers for each in (wait(COMPUTE, f"reduced {layer}"), copy)]


SYNCS = {
    "item": [item()],
    "stream": [stream_sync(COMPUTE)],
    "device": [device_sync()],
    "event": [record("here", COMPUTE), python(12 * US), event_sync("here")],
    "free": [op("aten::empty", 2_400, [free()], 800)],
    "upload": [op("aten::copy_", 3_000, [memcpy(COMPUTE, "htod_pageable", 14 * US, 262_144)], 900)],
}


def recipes():
    """Return recipes of steps that take 0.2 to 10 ms."""
    return st.builds(
        Recipe,
        layers=st.integers(1, 8),
        kernel_us=st.sampled_from([1, 4, 15, 40, 90, 200]),
        python_us=st.sampled_from([1, 50, 400, 2_000]),
        depth=st.sampled_from([1022, 1022, 64, 16, 5]),
        syncs=st.lists(
            st.tuples(st.sampled_from(SPOTS), st.sampled_from(sorted(SYNCS))),
            max_size=3,
            unique_by=lambda s: s[0],
        ).map(tuple),
        copies=st.booleans(),
        side_us=st.sampled_from([0, 0, 30, 400]),
        collective_us=st.sampled_from([0, 0, 20, 150]),
        jitter=st.sampled_from([0.0, 0.003]),
    )
