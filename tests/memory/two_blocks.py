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

from __future__ import annotations

import json

import numpy as np

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
ROW, FORWARD, BACK = [BATCH, WIDTH], "forward", "backward"


class Program:
    """Rows of a trace, one after the other on a thread, and what each allocates and frees."""

    def __init__(self):
        self.rows, self.events, self.now = [], [], 0
        self.address = {}

    def call(self, name, *changes, **columns):
        """A call that allocates (name, bytes) and frees names, inside another of the same time if `under`."""
        start, under = self.now, columns.pop("under", None)
        around = len(self.rows)
        if under is not None:
            self.rows.append(
                {"name": under, "start": start, "duration": 20, "parent": -1, **columns, "shapes": None}
            )
        parent = around if under is not None else -1
        self.rows.append({"name": name, "start": start + 1, "duration": 18, "parent": parent, **columns})
        for place, change in enumerate(changes):
            self.change(change, start + 2 + place)
        self.now += 20

    def around(self, name, kind, at, **columns):
        """A range from a time until now."""
        row = {"name": name, "kind": kind, "start": at, "duration": self.now - at, "parent": -1}
        self.rows.append({**row, **columns})

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

    def step(self, number):
        begin = self.now
        how = {"step": number}
        for gradient in ("g1", "g0"):
            if gradient in self.address:
                self.change(gradient)
        old = ["x"] if "x" in self.address else []
        for name in old:
            self.change(name)
        self.call("aten::randn", ("x", LAYER), phase="data", **how)
        for block in (0, 1):
            layer = {"phase": FORWARD, **how}
            shapes = [[WIDTH], ROW, [WIDTH, WIDTH], [], []]
            sequence, at = 10 * number + 2 * block + 1, self.now
            self.call("aten::addmm", (f"y{block}", LAYER), layer=f"blocks.{block}.fc", shapes=shapes,
                      sequence=sequence, **layer)  # fmt: skip
            self.call("aten::relu", (f"a{block}", LAYER), layer=f"blocks.{block}.act", shapes=[ROW],
                      sequence=sequence + 1, **layer)  # fmt: skip
            self.change(f"y{block}")
            self.around("Block", "module", at, layer=f"blocks.{block}", **layer)
        old = ["loss"] if "loss" in self.address else []
        self.call("aten::mse_loss", *old, ("loss", 4), phase="loss", shapes=[ROW, ROW, []],
                  sequence=10 * number + 5, **how)  # fmt: skip
        self.backward(
            "MseLossBackward0", ("aten::mse_loss_backward", [[], ROW, ROW, []]), 5, None, ("ga", LAYER), **how
        )
        for block, given in ((1, "ga"), (0, "gx")):
            layer = f"blocks.{block}"
            relu, linear = (("aten::threshold_backward", [ROW, ROW, []]), ("aten::mm", [[WIDTH, BATCH], ROW]))
            self.backward("ReluBackward0", relu, 2 * block + 2, f"{layer}.act", (f"gy{block}", LAYER), given,
                          f"a{block}", **how)  # fmt: skip
            made = [(f"g{block}", WEIGHT)]
            if block:
                self.backward(
                    "AddmmBackward0",
                    ("aten::mm", [ROW, [WIDTH, WIDTH]]),
                    3,
                    f"{layer}.fc",
                    ("gx", LAYER),
                    **how,
                )
            self.backward("AddmmBackward0", linear, 2 * block + 1, f"{layer}.fc", *made, f"gy{block}", **how)
        at = self.now
        for block in (0, 1):
            tensor = [[WIDTH, WIDTH]]
            layer = {"layer": f"blocks.{block}.fc", "phase": "optimizer", "shapes": tensor, **how}
            self.call("aten::sqrt", ("s1", WEIGHT), **layer)
            self.call("aten::div", ("s2", WEIGHT), **layer)
            self.change("s1")
            self.call("aten::addcdiv_", **layer)
            self.change("s2")
        self.around("Optimizer.step#Adam.step", "annotation", at, phase="optimizer", **how)
        return begin, self.now

    def backward(self, node, call, sequence, layer, *changes, **how):
        number = 10 * how["step"] + sequence
        self.call(call[0], *changes, layer=layer, phase=BACK, shapes=call[1],
                  under=f"autograd::engine::evaluate_function: {node}", sequence=number, **how)  # fmt: skip

    def trace(self, steps, **metadata):
        order = sorted(
            range(len(self.rows)), key=lambda row: (self.rows[row]["start"], -self.rows[row]["duration"])
        )
        place = {row: number for number, row in enumerate(order)}
        rows = [self.rows[row] for row in order]
        columns, texts = {}, {}
        for name in ("name", "kind", "layer", "phase", "shapes", "op", "dtype"):
            values = [self._text(row, name) for row in rows]
            texts[name] = sorted({value for value in values if value is not None})
            columns[name] = np.array([-1 if value is None else texts[name].index(value) for value in values])
        columns["start_ns"] = np.array([row["start"] for row in rows])
        columns["duration_ns"] = np.array([row["duration"] for row in rows])
        columns["parent"] = np.array([place.get(row["parent"], -1) for row in rows])
        columns["step"] = np.array([row.get("step", -1) for row in rows])
        columns["sequence"] = np.array([self._sequence(row) for row in rows])
        columns["tid"] = columns["pid"] = np.ones(len(rows), np.int64)
        events = np.array(self.events, np.int64)
        one = np.ones(len(events), np.int64)
        memory = MemoryEvents(
            {"time_ns": events[:, 0], "address": events[:, 1], "bytes": events[:, 2], "pid": one, "tid": one}
        )
        return Trace(columns, texts, {"steps": steps, **metadata}, memory)

    def _sequence(self, row):
        is_inner = row["parent"] >= 0  # of a node's own calls
        return -1 if is_inner else row.get("sequence", -1)

    def _text(self, row, name):
        if name == "kind":
            return row.get("kind", "operator")
        if name == "op":
            return row["name"]
        if name == "dtype":
            return "float32" if row.get("shapes") else None
        if name == "shapes":
            return json.dumps(row["shapes"]) if row.get("shapes") is not None else None
        return row.get(name)


PARAMETERS = [
    {"name": f"blocks.{block}.fc.weight", "layer": f"blocks.{block}.fc", "shape": [WIDTH, WIDTH],
     "dtype": "float32", "device": "cpu", "requires_grad": True, "gradient_bytes": WEIGHT}
    for block in (0, 1)
]  # fmt: skip
ADAM = {
    "name": "Adam", "state_bytes": 4 * WEIGHT,
    "groups": [{"settings": {}, "tensors": 2, "elements": 2 * WIDTH * WIDTH,
                "parameters": [each["name"] for each in PARAMETERS]}],
}  # fmt: skip


def two_blocks(steps=3):
    """The trace of some steps."""
    program = Program()
    named = []
    for number in range(steps):
        begin, end = program.step(number)
        named.append({
            "name": f"step {number + 5}", "rank": 0, "start_ns": begin, "end_ns": end, "completion_ns": end,
            "measured_ns": end - begin if number else None, "covered": number > 0, "why_not": None,
        })  # fmt: skip
    return program.trace(named, parameters=PARAMETERS, optimizers=[ADAM])


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
