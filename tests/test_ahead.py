"""Items that a thread makes ahead: the same ones, in order, and what it raises is raised."""

from __future__ import annotations

import threading

import pytest

from daydream.parallel.engines import ahead


def test_the_items_come_in_order_from_another_thread():
    def items():
        for number in range(50):
            made_by.add(threading.current_thread())
            yield number

    made_by: set[threading.Thread] = set()
    assert list(ahead(items())) == list(range(50))
    assert len(made_by) == 1
    assert threading.current_thread() not in made_by
    assert list(ahead(iter([]))) == []


def test_few_items_are_made_ahead():
    made = []
    items = ahead((made.append(number) or number for number in range(50)), 3)
    for used, _ in enumerate(items, 1):
        assert len(made) <= used + 3


def test_an_error_comes_behind_the_items_before_it():
    def items():
        yield 1
        raise KeyError("b")

    found = ahead(items())
    assert next(found) == 1
    with pytest.raises(KeyError):
        next(found)


def test_the_thread_ends_with_who_uses_the_items():
    before = threading.active_count()
    items = ahead(iter(range(10**9)))
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert threading.active_count() == before
