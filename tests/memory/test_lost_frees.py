"""Frees that a recording lost: told from totals, addresses and what was held; none where nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from daydream.trace.memory_events import COLUMNS, MemoryEvents, with_lost_frees


def events(*rows: tuple[int, int, int]) -> MemoryEvents:
    """Return events of (address, bytes, total after it) on a GPU, a microsecond apart."""
    address, nbytes, total = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    time = np.arange(len(rows)) * 1000
    return MemoryEvents({
        "time_ns": time, "device": np.zeros(len(rows), np.int64), "address": address, "bytes": nbytes,
        "allocated_bytes": total,
    })  # fmt: skip


def told(found: MemoryEvents) -> list[tuple[int, int, int]]:
    return list(zip(*(found[name].tolist() for name in ("address", "bytes", "allocated_bytes")), strict=True))


LOST = {  # events, what was held before, and the events with those that were lost
    "an address that is given out again was freed where the total fell": (
        [(1, 100, 100), (2, 40, 140), (3, 8, 48), (1, 100, 148)], None,
        [(1, 100, 100), (2, 40, 140), (1, -100, 40), (3, 8, 48), (1, 100, 148)],
    ),
    "several that went at once leave a total each": (
        [(1, 100, 100), (2, 40, 140), (3, 8, 8), (2, 40, 48), (1, 100, 148), (3, -8, 140)], None,
        [(1, 100, 100), (2, 40, 140), (1, -100, 40), (2, -40, 0), (3, 8, 8), (2, 40, 48), (1, 100, 148),
         (3, -8, 140)],
    ),
    # 100 bytes went before the third event, 40 before the fourth; both addresses come again at the end
    "of two gaps each block goes in the one that it fits": (
        [(1, 100, 100), (2, 40, 140), (3, 8, 48), (4, 8, 16), (2, 40, 56), (1, 100, 156)], None,
        [(1, 100, 100), (2, 40, 140), (1, -100, 40), (3, 8, 48), (2, -40, 8), (4, 8, 16), (2, 40, 56),
         (1, 100, 156)],
    ),
    # 500 bytes were held before, 64 of them at address 9
    "what was held before goes when its address comes again": (
        [(1, 100, 600), (2, 8, 544), (9, 64, 608)], {0: {9: 64, 10: 436}},
        [(1, 100, 600), (9, -64, 536), (2, 8, 544), (9, 64, 608)],
    ),
    "what is never allocated again goes the oldest first": (
        [(1, 100, 100), (2, 50, 150), (3, 50, 200), (4, 8, 58)], None,
        [(1, 100, 100), (2, 50, 150), (3, 50, 200), (1, -100, 100), (2, -50, 50), (4, 8, 58)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_frees_come_back_where_the_totals_fell(name):
    rows, before, whole = LOST[name]
    assert told(with_lost_frees(events(*rows), before)) == whole


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([(1, 100, 100), (1, -100, 0), (1, 100, 100)], id="nothing lost"),
        pytest.param([(1, 100, 100), (2, 40, 240), (3, 8, 148)], id="an allocation is missing as well"),
        pytest.param([(-1, 100, 100), (-1, 8, 8)], id="no addresses"),
        pytest.param([(1, 100, -1), (2, 8, -1)], id="no totals"),
        pytest.param([(1, 100, 100), (2, 8, 28)], id="less went than any block holds"),
    ],
)
def test_nothing_is_made_up(rows):
    given = events(*rows)

    assert told(with_lost_frees(given)) == told(given)


def test_a_random_program_that_loses_frees_is_put_right():
    """One free in ten is lost: each comes back, and every total is what the events add up to."""
    for seed in range(200):
        generator = np.random.default_rng(seed)
        held: dict[int, int] = {}
        rows, total, free = [], 0, list(range(1, 9))
        for _ in range(80):
            if held and (not free or generator.random() < 0.45):
                address = int(generator.choice(list(held)))
                size = -held.pop(address)
                free.append(address)
            else:
                address = free.pop(int(generator.integers(len(free))))
                held[address] = size = int(generator.integers(1, 1 << 40))
            total += size
            rows.append((address, size, total))
        lost = [generator.random() < 0.1 and size < 0 for _, size, _ in rows[:-1]] + [False]
        found = with_lost_frees(events(*(row for row, gone in zip(rows, lost, strict=True) if not gone)))

        what = [(address, size) for address, size, _ in told(found)]  # in a gap any order is as good
        assert sorted(what) == sorted((address, size) for address, size, _ in rows), seed
        assert (np.diff(found["allocated_bytes"]) == found["bytes"][1:]).all(), seed


def test_a_recording_that_lacks_most_frees_is_left_alone_at_once():
    rows = [(address, 8, 8) for address in range(1, 4000)]  # each total says that what was before has gone

    given = events(*rows, *rows)
    assert with_lost_frees(given) is given


def test_every_column_stays_as_it_is_for_the_other_events():
    given = events((1, 100, 100), (2, 8, 8), (1, 100, 108)).changed(
        tid=np.array([7, 8, 9]), reserved_bytes=np.array([500, 501, 502]), rank=np.array([0, 0, 0])
    )
    found = with_lost_frees(given)

    for name in COLUMNS:
        assert found[name][[0, 2, 3]].tolist() == given[name].tolist()
    assert (found["tid"][1], found["reserved_bytes"][1], found["time_ns"][1]) == (8, 501, 1000)
