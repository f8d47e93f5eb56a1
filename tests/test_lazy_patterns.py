"""Regular expressions of modules are compiled when they are used, and are those that `re` would make."""

import pickle
import re

import pytest

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
