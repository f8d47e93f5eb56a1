"""Operators that really run on a CPU, recorded with their shapes, and what daydream says of their work."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import daydream
from daydream.costs.kernels import work_of_rows
from daydream.costs.operators import MATRIX_FAMILIES

torch = pytest.importorskip("torch")
flop_counter = pytest.importorskip("torch.utils.flop_counter")


def values(*shape):
    return torch.randn(*shape, requires_grad=True)


def below(limit, *shape):
    return torch.randint(limit, shape)


def forward_and_backward(function, *inputs):
    out = function(*inputs)
    if isinstance(out, torch.Tensor) and out.requires_grad:
        out.backward(torch.ones_like(out))


def trace_of(run):
    """Return the trace of a run, as torch's profiler writes it."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, acc_events=True
    ) as profiler:
        run()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return daydream.load(path)


def recorded(run):
    """Return FLOP, bytes and family of each recorded call of known work, by operator."""
    trace = trace_of(run)
    rows = np.flatnonzero(trace.is_kind("operator"))
    work = work_of_rows(trace, rows)
    flop, nbytes, family = work.flop, work.nbytes, work.family
    found: dict[str, list[tuple[int, int, str]]] = {}
    for row, *amounts in zip(rows, flop.tolist(), nbytes.tolist(), family.tolist(), strict=True):
        if amounts[2] is not None:
            found.setdefault(trace.text("name")[trace["name"][row]].removeprefix("aten::"), []).append(
                tuple(amounts)
            )
    return found


def matrix_flop(found):
    return sum(flop for calls in found.values() for flop, _, family in calls if family in MATRIX_FAMILIES)


def counted(run):
    """Return torch's count by operator, without overloads."""
    with flop_counter.FlopCounterMode(display=False) as counter:
        run()
    found: dict[str, int] = {}
    for op, flop in counter.get_flop_counts().get("Global", {}).items():
        name = str(op).split(".")[1]
        found[name] = found.get(name, 0) + int(flop)
    return found


def both(function, *inputs):
    """Return our FLOP of all matrix work of a forward and backward pass, and torch's by operator."""
    forward_and_backward(function, *inputs)  # gradients are there: the next pass adds to them
    found = recorded(lambda: forward_and_backward(function, *inputs))
    return matrix_flop(found), counted(lambda: forward_and_backward(function, *inputs))
