"""What is read off a graph is kept for copies that are as it was, and read anew after any edit."""

from __future__ import annotations

import pytest
from two_streams import steps as recorded

from daydream import build
from daydream.graph.query.readings import reading


def steps():
    return build(recorded())


@pytest.fixture
def read():
    """A reading, and how often it was worked out."""
    made = []

    @reading
    def longest(graph, at_least=0):
        made.append(graph)
        return max(int(graph.columns["duration_ns"].max()), at_least)

    return longest, made


def test_copies_that_were_not_edited_share_an_answer(read):
    longest, made = read
    graph = steps()
    answers = {longest(graph), longest(graph.copy()), longest(graph.copy())}

    assert (len(answers), len(made)) == (1, 1)
    assert (longest(graph, 10**9), longest(graph.copy(), 10**9), len(made)) == (10**9, 10**9, 2)


@pytest.mark.parametrize(
    "edit",
    [
        lambda graph: graph.select(kind="kernel").scale(3),
        lambda graph: graph.select(kind="kernel").set(phase="loss"),
        lambda graph: graph.select(kind="kernel").set(dtype="float16"),
        lambda graph: graph.select(kind="kernel").first().remove(),
        lambda graph: graph.columns["duration_ns"].__imul__(2),
    ],
)
def test_an_edit_of_any_kind_asks_anew(read, edit):
    longest, made = read
    graph = steps()
    longest(graph)
    copy = graph.copy()
    edit(copy)

    assert longest(copy) == copy.columns["duration_ns"].max()
    assert made == [graph, copy]
    assert longest(graph.copy()) == graph.columns["duration_ns"].max()


def test_names_that_one_copy_adds_are_not_those_that_another_adds():
    one = steps()
    other = one.copy()
    assert len(one.select(name="^k")) == 0
    added = [
        graph.insert(name, kind="cpu", lane="thread 1", duration_ns=1)
        for graph, name in ((one, "known"), (other, "other"))
    ]

    assert one.select(name="^k").ids.tolist() == added[0].ids.tolist()
    assert len(other.select(name="^k")) == 0
    assert other.select(name="^o").ids.tolist() == added[1].ids.tolist()
