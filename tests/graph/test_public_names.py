"""The names a user imports."""

from __future__ import annotations

import importlib

import pytest

import daydream
from daydream import Graph


@pytest.mark.parametrize("name", daydream.__all__)
def test_every_public_name_is_there_and_has_words(name):
    value = getattr(daydream, name)

    assert value.__doc__
    assert name in dir(daydream)


def test_the_public_names_are_sorted_and_each_has_one_home():
    assert daydream.__all__ == sorted(daydream.__all__)
    assert set(daydream._HOMES) == set(daydream.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'daydream' has no attribute 'foretell'"):
        _ = daydream.foretell


def test_simulate_is_a_function_though_it_is_a_package_too():
    graph = Graph()
    graph.insert("a", kind="cpu", lane="thread 1", duration_ns=5)
    package = importlib.import_module("daydream.simulate")

    assert (
        daydream.simulate(graph).makespan_ns
        == package(graph).makespan_ns
        == package.simulate(graph).makespan_ns
        == 5
    )
    assert importlib.import_module("daydream.simulate.steady").settle
    assert daydream.simulate(graph).makespan_ns == 5


def test_modules_that_share_a_name_with_a_library_do_not_hide_it():
    import networkx as nx

    assert nx.DiGraph
    assert importlib.import_module("daydream.graph.interop").to_networkx(Graph()).number_of_nodes() == 0
