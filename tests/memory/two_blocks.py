"""A training step of two blocks, Linear and ReLU each, written by hand with its memory.

what        bytes  from                to
x              64  data                the next step's data
w0, w1        256  always
m0 .. v1      256  always (Adam's)
y0, y1         64  blocks' linear      their ReLU's end
a0, a1         64  blocks' ReLU        their ReLU's backward pass
loss            4  loss                the next step's loss
ga             64  loss' backward      ReLU's backward of blocks.1
gy1, gy0       64  ReLU's backward     the linear's backward
gx             64  linear of blocks.1  ReLU's backward of blocks.0
g1, g0        256  linear's backward   the next step's zero_grad
s1, s2        256  optimizer, each parameter in turn: two at once
"""

import json
from functools import partial

import numpy as np
from graph.small_traces import PID, note, op, row, trace

from daydream.memory.allocations import BEFORE
from daydream.memory.lifetimes import allocations
from daydream.memory.prediction import memory_after
from daydream.predict.memory import held_now
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.trace import Trace
from daydream.transforms.compose import memory_changes, parse

BATCH, WIDTH = 2, 8
LAYER = 4 * BATCH * WIDTH  # bytes of an activation: 64
WEIGHT = 4 * WIDTH * WIDTH  # 256
ALWAYS = 2 * WEIGHT + 4 * WEIGHT  # parameters, and Adam's two moments
MODULE = partial(row, "module", pid=PID, tid=1)
ROW, FORWARD, BACK = [BATCH, WIDTH], "forward", "backward"


class Program:
    """Calls on a thread, one after the other, 20 ns each, and what each allocates and frees."""

    def __init__(self):
        self.rows, self.events, self.now = [], [], 0
        self.address = {}

    def row(self, make, name, start, end, shapes=None, **columns):
        """Add a row of these times in ns."""
        told = {"shapes": shapes and json.dumps(shapes), "dtype": "float32" if shapes else None}
        self.rows.append(make(name, start / 1000, end / 1000, op=name, **columns, **told))

    def call(self, name, *changes, under=None, **columns):
        """A call that allocates (name, bytes) and frees names, inside another of the same time if `under`."""
        start = self.now
        if under is not None:
            self.row(op, under, start, start + 20, **columns | {"shapes": None})
            del columns["sequence"]
        self.row(op, name, start + 1, start + 19, **columns)
        for place, change in enumerate(changes):
            self.change(change, start + 2 + place)
        self.now += 20

    def change(self, change, at=None):
        if at is None:
            self.now += 2
            at = self.now - 1
        if isinstance(change, str):
            address, nbytes = self.address.pop(change)
            self.events.append((at, address, -nbytes))
        else:
            name, nbytes = change
            self.address[name] = (4096 + 4096 * len(self.events), nbytes)
            self.events.append((at, *self.address[name]))

    def left(self, *names):
        """Return which of these were allocated in the step before."""
        return [name for name in names if name in self.address]

    def step(self, number):
        for name in self.left("g1", "g0", "x"):
            self.change(name)
        self.call("aten::randn", ("x", LAYER), phase="data")
        first = 10 * number
        for block in (0, 1):
            layer, at = f"blocks.{block}", self.now
            for place, (name, part, what, shapes) in enumerate(
                (
                    ("aten::addmm", "fc", "y", [[WIDTH], ROW, [WIDTH, WIDTH], [], []]),
                    ("aten::relu", "act", "a", [ROW]),
                )
            ):
                where = {"layer": f"{layer}.{part}", "phase": FORWARD, "shapes": shapes}
                self.call(name, (f"{what}{block}", LAYER), sequence=first + 2 * block + 1 + place, **where)
            self.change(f"y{block}")
            self.row(MODULE, "Block", at, self.now, layer=layer, phase=FORWARD)
        loss = {"phase": "loss", "shapes": [ROW, ROW, []], "sequence": first + 5}
        self.call("aten::mse_loss", *self.left("loss"), ("loss", 4), **loss)
        loss = "aten::mse_loss_backward", [[], ROW, ROW, []]
        self.backward("Mse", loss, first + 5, None, ("ga", LAYER))
        for block, given in ((1, "ga"), (0, "gx")):
            layer, numbers = f"blocks.{block}", (first + 2 * block + 1, first + 2 * block + 2)
            relu = "aten::threshold_backward", [ROW, ROW, []]
            freed = (f"gy{block}", LAYER), given, f"a{block}"
            self.backward("Relu", relu, numbers[1], f"{layer}.act", *freed)
            if block:
                of_input = "aten::mm", [ROW, [WIDTH, WIDTH]]
                self.backward("Addmm", of_input, numbers[0], f"{layer}.fc", ("gx", LAYER))
            of_weight = "aten::mm", [[WIDTH, BATCH], ROW]
            made = (f"g{block}", WEIGHT), f"gy{block}"
            self.backward("Addmm", of_weight, numbers[0], f"{layer}.fc", *made)
        at = self.now
        for block in (0, 1):
            where = {"layer": f"blocks.{block}.fc", "phase": "optimizer", "shapes": [[WIDTH, WIDTH]]}
            self.call("aten::sqrt", ("s1", WEIGHT), **where)
            self.call("aten::div", ("s2", WEIGHT), **where)
            self.change("s1")
            self.call("aten::addcdiv_", **where)
            self.change("s2")
        self.row(note, "Optimizer.step#Adam.step", at, self.now, phase="optimizer")

    def backward(self, node, call, sequence, layer, *changes):
        name, shapes = call
        under = f"autograd::engine::evaluate_function: {node}{'' if node != 'Mse' else 'Loss'}Backward0"
        self.call(name, *changes, under=under, sequence=sequence, layer=layer, phase=BACK, shapes=shapes)


PARAMETERS = [
    {
        "name": f"blocks.{block}.fc.weight",
        "layer": f"blocks.{block}.fc",
        "shape": [WIDTH, WIDTH],
        "dtype": "float32",
        "device": "cpu",
        "requires_grad": True,
        "gradient_bytes": WEIGHT,
    }
    for block in (0, 1)
]
ADAM = {
    "name": "Adam",
    "state_bytes": 4 * WEIGHT,
    "groups": [
        {
            "settings": {},
            "tensors": 2,
            "elements": 2 * WIDTH * WIDTH,
            "parameters": [each["name"] for each in PARAMETERS],
        }
    ],
}


def two_blocks(steps=3):
    """The trace of some steps."""
    program, borders = Program(), [0]
    for number in range(steps):
        program.step(number)
        borders.append(program.now / 1000)
    about = {"parameters": PARAMETERS, "optimizers": [ADAM], "vendor": "cpu"}
    found = trace(program.rows, steps=borders, **about)
    time, address, nbytes = np.array(program.events, np.int64).T
    thread = {"pid": np.full(len(time), PID), "tid": np.ones(len(time), np.int64)}
    found.memory = MemoryEvents({"time_ns": time, "address": address, "bytes": nbytes, **thread})
    return found


def held_when(held, op, step=1):
    """What is held when an operator first asks for memory in a step, the most first."""
    asks = held.where(op=f"^{op}$") & (held["step"] == step)
    place = held["begin"][asks].min()
    there = held.held_at(place) & (held["begin"] > BEFORE)
    return sorted(held["bytes"][there].tolist(), reverse=True)


def edited(source, name, **options):
    """The table after a change of a trace, or of its allocations, which it changes."""
    held = allocations(source) if isinstance(source, Trace) else source
    for change in memory_changes(parse(name), options):
        change.edit(held, **change.options)
    return held


def predict_memory(source, name, options=None):
    """The peak before and after a change, of a trace or of its allocations."""
    held = held_now(source) if isinstance(source, Trace) else source
    return memory_after(held, memory_changes(parse(name), options or {}))
