"""The names a user imports."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType

import pytest

import daydream
from daydream import Graph, lazy

PACKAGES = ("daydream", "daydream.costs", "daydream.memory", "daydream.model", "daydream.transforms")
PUBLIC = [(package, name) for package in PACKAGES for name in importlib.import_module(package).__all__]


@pytest.mark.parametrize(("package", "name"), PUBLIC)
def test_every_public_name_is_there_and_has_words(package, name):
    module = importlib.import_module(package)
    value = getattr(module, name)

    assert value.__doc__
    assert name in dir(module)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_are_sorted_and_each_has_one_home(package):
    module = importlib.import_module(package)
    loaded = [name for names in module._HOMES.values() for name in names]

    assert len(set(module.__all__)) == len(module.__all__)
    assert sorted(loaded) == sorted(set(module.__all__) - {"stages"})  # a module that is there at once
    for home, names in module._HOMES.items():
        assert all(hasattr(importlib.import_module(home), name) for name in names)


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_no_public_name_is_also_that_of_a_file(package):
    module = importlib.import_module(package)
    files = {found.name for found in pkgutil.iter_modules(module.__path__)}

    assert files & set(module.__all__) == files & {"stages"}


def test_comparison_is_prediction_now_and_says_so():
    with pytest.warns(DeprecationWarning, match="daydream.Comparison is daydream.Prediction now"):
        assert daydream.Comparison is daydream.Prediction


def test_a_name_that_went_still_works_and_says_so(monkeypatch):
    package = ModuleType("package_of_old_names")
    monkeypatch.setitem(sys.modules, package.__name__, package)
    load, _ = lazy.names(package.__name__, {"daydream.errors": ("GraphError",)}, {"Old": "GraphError"})

    with pytest.warns(DeprecationWarning, match="package_of_old_names.Old is .*GraphError now"):
        assert load("Old") is daydream.GraphError


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
