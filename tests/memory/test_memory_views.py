"""What operators touch, what layers need, what waits: worked out by hand."""

from __future__ import annotations

import pytest
from recordings import Recording

from daydream.memory.before import workspaces
from daydream.memory.lifetimes import allocations
from daydream.memory.report import idle

FLOAT = ["float", "float"]


@pytest.fixture
def layers(tmp_path):
    """A linear layer whose output waits while another operator works, and is then used."""
    recording = Recording()
    start = recording.now
    recording.inside("aten::randn", ("in", 400))
    recording.layer("a", ("out", 800), op="aten::linear",
                    **{"Input Dims": [[10, 10], [20, 10]], "Input type": FLOAT})  # fmt: skip
    recording.inside("aten::relu", ("peak", 8000), "peak", **{"Input Dims": [[1000]], "Input type": FLOAT})
    recording.now += 30
    recording.inside("aten::sum", **{"Input Dims": [[10, 20]], "Input type": FLOAT})
    recording.between("out", "in")
    recording.range("ProfilerStep#1", start)
    return recording.trace(tmp_path)


def test_a_tensor_waits_from_its_last_to_its_next_possible_use(layers):
    held = allocations(layers)

    found = {each.name: each for each in idle(held, layers.memory, 0, -1)}

    # 800 bytes: linear is given as many (its weight) until 20 us, the sum from 60 us on.
    assert found["aten::linear a"].idle_ns == 40_000
    assert found["aten::linear a"].never_again == 0
    assert found["aten::linear a"].gigabytes_per_second == 2 * 800 / 40_000
    # 400 bytes: linear reads them until 20 us; Python frees them at 73 us.
    assert found["aten::randn"].never_again == 1
    assert found["aten::randn"].idle_ns == 73_000 - 20_000


@pytest.mark.parametrize(
    ("vendor", "capability", "nbytes"),
    [
        ("cuda", (8, 0), 8_519_680),
        ("cuda", (9, 0), 32 * 2**20),
        ("rocm", (9, 0), 32 * 2**20),
        ("rocm", (9, 4), 128 * 2**20),
        ("npu", (9, 0), None),
    ],
)
def test_a_thread_that_multiplies_matrices_has_a_workspace(tmp_path, vendor, capability, nbytes):
    recording = Recording(device=0)
    recording.inside("aten::mm", ("a", 512), "a")
    trace = recording.trace(tmp_path)
    major, minor = capability
    trace.metadata |= {
        "vendor": vendor, "devices": [{"id": 0, "compute_major": major, "compute_minor": minor}]
    }  # fmt: skip

    assert workspaces(trace, 0, 0) == ([nbytes] if nbytes else [])
    assert workspaces(trace, 0, 1) == []
