"""Recorded events become allocations: hand-made traces, and a law over random ones."""

from __future__ import annotations

import json

import pytest
from memory_rows import memory_row, operator

import daydream
from daydream.memory.allocations import AFTER, BEFORE
from daydream.memory.pairing import paired


@pytest.fixture
def two_operators(tmp_path):
    """An operator that allocates 1,024 bytes, one that frees them and 512 of before."""
    path = tmp_path / "t.json"
    rows = [
        operator("aten::mm", 10, 10),
        memory_row(12, 1024, 4096, 5632),
        operator("aten::relu", 30, 10),
        memory_row(32, 2048, 8192, 7680),
        memory_row(33, -1024, 4096, 6656),
        memory_row(34, -512, 512, 6144),
    ]
    path.write_text(json.dumps({"traceEvents": rows}))
    return path


def test_what_is_held_is_what_was_recorded(two_operators):
    trace = daydream.load(two_operators)

    found = paired(trace, trace.memory)

    places, totals = found.held(0, 0)
    assert places.tolist() == [BEFORE, 0, 1, 2, 3]
    assert totals.tolist() == [4608, 5632, 7680, 6656, 6144]
    assert found.peak(0, 0) == (7680, 1.0)


def test_an_allocation_knows_its_operator_and_its_end(two_operators):
    trace = daydream.load(two_operators)

    found = paired(trace, trace.memory)

    columns = [found[name].tolist() for name in ("bytes", "begin", "end")]
    rows = {
        nbytes: (op, begin, end) for nbytes, begin, end, op in zip(*columns, found.texts("op"), strict=True)
    }
    assert rows == {
        1024: ("aten::mm", 0, 2),
        2048: ("aten::relu", 1, AFTER),
        512: (None, BEFORE, 3),  # freed, never seen allocated
        4096: (None, BEFORE, AFTER),  # what the totals hold beyond
    }


def test_a_saved_trace_keeps_its_memory(two_operators, tmp_path):
    trace = daydream.load(two_operators)
    trace.save(tmp_path / "t.parquet")

    again = daydream.load(tmp_path / "t.parquet")

    assert len(again.memory) == 4
    for name, column in trace.memory.columns.items():
        assert again.memory[name].tolist() == column.tolist(), name


def test_a_thread_without_rows_asks_in_none(tmp_path):
    """Its process and its number have rows each, and never together."""
    path = tmp_path / "t.json"
    rows = [
        {**operator("aten::mm", 1, 2), "pid": 1, "tid": 1},
        {**operator("aten::mm", 4, 2), "pid": 2, "tid": 2},
        {**memory_row(5, 512, 4096), "pid": 1, "tid": 2},
    ]
    path.write_text(json.dumps({"traceEvents": rows}))
    trace = daydream.load(path)

    assert paired(trace, trace.memory).texts("op") == [None]
