"""Regular expressions of modules are compiled when they are used, and are those that `re` would make."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re
from collections.abc import Iterator
from typing import Any

import pytest

import daydream
from daydream.lazy import regex


def test_a_regular_expression_does_what_a_compiled_one_does():
    found = regex(r"a(b)?", re.IGNORECASE)

    assert found.search("xAB").span() == re.compile(r"a(b)?", re.IGNORECASE).search("xAB").span()
    assert found.sub("-", "ab a") == "- -"
    assert found.pattern == r"a(b)?"
    assert found.search is found.search  # compiled once


def test_a_mistake_in_one_is_told_at_its_first_use():
    wrong = regex("(")

    with pytest.raises(re.error):
        wrong.match("x")


def test_it_goes_to_a_worker_uncompiled():
    sent = regex(r"a+")
    sent.search("a")

    assert pickle.loads(pickle.dumps(sent)).findall("aab a") == ["aa", "a"]


def test_all_that_the_package_holds_can_be_compiled():
    found = 0
    for module in pkgutil.walk_packages(daydream.__path__, "daydream."):
        if module.name.startswith(("daydream.optimizations", "daydream.collect.launcher.inject")):
            continue
        if module.name == "daydream.__main__":
            continue
        try:
            loaded = importlib.import_module(module.name)
        except ImportError:  # of an extra that is not installed
            continue
        for expression in _expressions(list(vars(loaded).values())):
            assert re.compile(expression.pattern).pattern == expression.pattern
            found += 1
    assert found > 100


def _expressions(value: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(value, regex):
        yield value
    elif isinstance(value, (tuple, list, set, frozenset)) and depth < 4:
        for each in value:
            yield from _expressions(each, depth + 1)
    elif isinstance(value, dict) and depth < 4:
        yield from _expressions([*value, *value.values()], depth + 1)
