"""A step that a change does not move says what it waits for instead."""

from __future__ import annotations

from graph.small_traces import call, launched, op, trace

import daydream
from daydream import Trace

#  thread 1  |sync ............................ 2|data 32 |     a step: 6 + 60 + 2 + 32 = 100
#  stream 7  +6 |k long 60                     |
#  stream 8       +6 |k short 40      |                          ends 15 before the other


def steps(number: int = 4) -> Trace:
    rows = []
    for n in range(number):
        at, one, two = 100 * n, 2 * n + 1, 2 * n + 2
        rows += launched("long_kernel", at, at + 6, at + 66, one)
        rows += launched("short_kernel", at + 5, at + 11, at + 51, two, stream=8)
        rows += [call("cudaDeviceSynchronize", at + 10, at + 68), op("data", at + 68, at + 100, op="data")]
    return trace(rows, steps=tuple(100.0 * n for n in range(number + 1)))


def said(change) -> list[str]:
    return [note for note in daydream.whatif(steps(), change).notes() if "does not move" in note]


def test_work_that_nothing_waits_for_leaves_the_step_to_what_it_waits_for():
    def halve_short(graph):
        graph.select(name="^short_kernel").scale(0.5)

    assert said(halve_short) == [
        "The step's time does not move with this change: it waits for the GPU (60%)."
    ]


def test_a_step_that_moves_needs_no_reason():
    def halve_long(graph):
        graph.select(name="^long_kernel").scale(0.5)

    assert said(halve_long) == []
