"""What checkpointing costs in Python grows with the data that a block moves through a CPU's caches."""

from __future__ import annotations

import pytest
from daydream.optimizations.checkpointing import checkpointing
from recorded import Program

from daydream import Graph, simulate

HOT = 50_000 + 82_000 + 6_900 + 12_300  # of a block that saves one tensor
KIB = 1024


def block_of(rows: int, kernel: int | None = None) -> Graph:
    #  |gelu forward 4|GeluBackward0 4|   on `rows` KiB, which it reads and writes
    p = Program()
    launch = () if kernel is None else (("gelu", kernel),)
    for name, phase in (("aten::gelu", "forward"), ("GeluBackward0", "backward")):
        row = len(p.rows)
        p.op(name, phase, *launch, layer="a")
        p.rows[row].update(shapes=f"[[{rows},256]]", dtype="float32")
    return p.graph()


def python_ns(graph: Graph) -> list[int]:
    checkpointing(graph, layers="a")
    found: list[int] = graph.select(name="checkpoint in Python").duration_ns.tolist()
    return found


def test_a_small_block_leaves_the_caches_as_they_are():
    assert sum(python_ns(block_of(rows=100))) == HOT


def test_python_takes_longer_behind_more_data_up_to_caches_that_hold_nothing_of_it():
    moved = 2 * 2_000 * KIB
    forward, backward = python_ns(block_of(rows=2_000))
    cold = round((moved - 250_000) * 0.009)
    assert (forward, backward) == (50_000 + 6_900 + cold, 82_000 + 12_300 + cold)
    assert python_ns(block_of(rows=100_000)) == [50_000 + 6_900 + 170_000, 82_000 + 12_300 + 110_000]


def test_data_on_a_gpu_leaves_the_cpus_caches_as_they_are():
    assert sum(python_ns(block_of(rows=2_000, kernel=500))) == HOT


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_step_has_it_in_both_passes(reentrant):
    graph = block_of(rows=2_000)
    before = simulate(graph).makespan_ns
    checkpointing(graph, layers="a", reentrant=reentrant)
    tensors = 0 if reentrant else 6_900 + 12_300
    cold = round((2 * 2_000 * KIB - 250_000) * 0.009)
    assert simulate(graph).makespan_ns == before + 4 + 50_000 + 82_000 + 2 * cold + tensors
