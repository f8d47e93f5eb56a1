"""Memory under autocast on a GPU: what is kept in 32 bits for itself, and what a factor of 32 bits widens."""

from __future__ import annotations

import numpy as np
import pytest
from two_blocks import FORWARD, Program, edited

from daydream.memory.allocations import Allocations
from daydream.trace.trace import Trace

WIDTH = 64
ROW, SQUARE = [32, WIDTH], [WIDTH, WIDTH]
LAYER, WEIGHT = 4 * 32 * WIDTH, 4 * WIDTH * WIDTH  # bytes, in 32 bits
SCALE = {"name": "scale", "layer": "net", "shape": [WIDTH], "dtype": "float32", "device": "cuda:0",
         "requires_grad": True, "gradient_bytes": 4 * WIDTH}  # fmt: skip
# name, whether its result is kept for the backward pass, whose node frees it, shapes
Call = tuple[str, str, list[object]]
FIRST: Call = ("aten::addmm", "y", [[WIDTH], ROW, SQUARE, [], []])
SOFTMAX: Call = ("aten::softmax", "p", [ROW, []])
DROPOUT: Call = ("aten::dropout", "d", [ROW, [], []])
SECOND: Call = ("aten::bmm", "z", [ROW, SQUARE])


def held_under_autocast(*calls: Call, freed_by: dict[str, str], **metadata: object) -> Allocations:
    """Return what a step of these calls holds under autocast; results go with the node of an operator."""
    program, steps = Program(), []
    for number in range(3):
        begin, how = program.now, {"step": number, "layer": "net"}
        for name in [name for name in program.address if name in {"g", "loss"}]:
            program.change(name)
        for place, (call, made, shapes) in enumerate(calls):
            program.call(call, (made, LAYER), phase=FORWARD, shapes=shapes,
                         sequence=10 * number + place + 1, **how)  # fmt: skip
            for name in [name for name in program.address if freed_by.get(name) == "at once"]:
                if name != made:
                    program.change(name)
        program.call("aten::mse_loss", ("loss", 4), phase="loss", shapes=[ROW, ROW, []],
                     sequence=10 * number + 9, **how)  # fmt: skip
        program.backward("MseLossBackward0", ("aten::mse_loss_backward", [[], ROW, ROW, []]), 9, "net",
                         ("ga", LAYER), step=number)  # fmt: skip
        for place, (call, _, _) in reversed(list(enumerate(calls))):
            gone = [name for name in program.address if freed_by.get(name) == call]
            program.backward(f"{call[6:].title()}Backward0", ("aten::mm", [ROW, SQUARE]), place + 1, "net",
                             *gone, step=number)  # fmt: skip
        program.change("ga")
        at = program.now
        program.call("aten::addcdiv_", ("g", WEIGHT), phase="optimizer", shapes=[SQUARE], **how)
        program.around("Optimizer.step#SGD.step", "annotation", at, phase="optimizer", **how)
        steps.append({
            "name": f"step {number}", "rank": 0, "start_ns": begin, "end_ns": program.now,
            "completion_ns": program.now, "measured_ns": program.now - begin if number else None,
            "covered": number > 0, "why_not": None,
        })  # fmt: skip
    trace: Trace = program.trace(steps, **metadata)
    assert trace.memory is not None
    trace.memory = trace.memory.changed(device=np.zeros(len(trace.memory), np.int64))
    return edited(trace, "autocast")


def sizes(held: Allocations, name: str) -> list[int]:
    """Return the bytes of activations that calls of an operator begin to hold in a step, the most first."""
    some = held.where(op=f"^{name}$", kind="activation", phase="forward") & (held["step"] == 1)
    return sorted(held["bytes"][some].tolist(), reverse=True)


def test_probabilities_are_kept_in_32_bits_and_for_the_product_in_16():
    held = held_under_autocast(
        FIRST, SOFTMAX, SECOND, freed_by={"y": "at once", "p": "aten::softmax", "z": "aten::bmm"}
    )

    assert sizes(held, "aten::softmax") == [LAYER]  # its own backward pass reads them
    assert sizes(held, "aten::bmm") == [LAYER // 2] * 2  # the copy that its own reads, and its result


def test_what_lies_between_is_what_the_product_reads():
    freed = {"y": "at once", "p": "aten::softmax", "d": "aten::bmm", "z": "aten::bmm"}
    held = held_under_autocast(FIRST, SOFTMAX, DROPOUT, SECOND, freed_by=freed)

    assert sizes(held, "aten::softmax") == [LAYER]
    assert sizes(held, "aten::dropout") == [LAYER // 2]  # in 16 bits, once
    assert sizes(held, "aten::bmm") == [LAYER // 2]  # its result


@pytest.mark.parametrize(("other", "wide"), [([WIDTH], True), ([], False), (ROW, False)])
def test_a_factor_that_is_a_parameter_widens(other, *, wide):
    held = held_under_autocast(
        FIRST, ("aten::mul", "m", [other, ROW]), ("aten::relu", "r", [ROW]),
        freed_by={"y": "aten::mul", "m": "aten::relu", "r": "aten::relu"}, parameters=[SCALE],
    )  # fmt: skip

    assert sizes(held, "aten::mul") == sizes(held, "aten::relu") == [LAYER if wide else LAYER // 2]
