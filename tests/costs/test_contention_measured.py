"""What a trace shows of contention, from rows written down; times in microseconds.

Every step runs the same kernels, each in a slot of its own; beside some of them runs a transfer.
"""

from typing import Any

import pytest
from graph.small_traces import launched, trace

from daydream.costs.contention import LEAST_PLACES, measured_contention
from daydream.graph.build import build

PLACES = 2 * LEAST_PLACES
SLOT = 1000.0  # us, each kernel has this long for itself
TINY = 0.001  # us, so that times are not whole microseconds


def in_slot(slot, name, begin, end, number, **columns):
    """Device work in a slot, and its launch at the slot's begin."""
    at = slot * SLOT + 8 * number
    return launched(name, at, slot * SLOT + begin, slot * SLOT + end, 10 * slot + number, **columns)


def transfer(slot, begin, end, number=1, **columns):
    known = {"kind": "collective", "collective": "all_reduce", "bytes": 4096, "stream": 20, **columns}
    return in_slot(slot, "reduce", begin, end, number, **known)


def shown(
    us,
    *,
    beside=lambda place, step: (place + step) % 2 == 0,
    until=990.0,
    steps=4,
    places=PLACES,
    name=lambda place, _step: f"kernel {place}",
    **columns,
):
    """Return what a trace shows in which kernels run from 100 on, and transfers from there `until` then."""
    rows: list[Any] = []
    for step in range(steps):
        for place in range(places):
            slot = step * places + place
            known = {column: of(place, step) for column, of in columns.items()}
            if beside(place, step):
                rows.append(transfer(slot, 100, until))
            rows.append(in_slot(slot, name(place, step), 100, 100 + TINY + us(place, step), 2, **known))
    borders = tuple(step * places * SLOT for step in range(steps + 1))
    return measured_contention(build(trace(rows, steps=borders)))


def slowed(factor, alone=100.0):
    """Kernels beside a transfer in every other step."""
    return lambda place, step: alone * (factor if (place + step) % 2 == 0 else 1)


def test_the_excess_of_the_runs_beside_is_the_factor():
    found = shown(slowed(1.1))
    assert found.kernel.factor == pytest.approx(1.1, rel=1e-4)
    assert (found.kernel.places, found.kernel.beside, found.kernel.alone) == (PLACES, 2 * PLACES, 2 * PLACES)
    assert found.kernel.overlapped_ns == pytest.approx(2 * PLACES * 110_000, rel=1e-4)
    assert found.kernel.low == pytest.approx(found.kernel.high)
    assert found.met
    assert found.transfer is None


def test_of_a_run_that_was_half_overlapped_the_excess_stands_for_that_half():
    # 60 of 100 us of work alone; the other 40 took 80, until 180
    found = shown(slowed(1.4), until=180.0)
    assert found.kernel.factor == pytest.approx(2, rel=1e-3)


def test_matrix_products_and_other_kernels_are_told_apart():
    found = shown(
        lambda place, step: 100.0 * ((1.3 if place < PLACES else 1.05) if (place + step) % 2 == 0 else 1),
        places=2 * PLACES,
        name=lambda place, _step: f"volta_sgemm_{place}" if place < PLACES else f"relu_{place}",
    )
    assert found.matrix.factor == pytest.approx(1.3, rel=1e-3)
    assert found.other.factor == pytest.approx(1.05, rel=1e-3)
