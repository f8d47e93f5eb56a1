"""Numbering without sorting gives what `numpy.unique` gives."""

import numpy as np
import pytest

from daydream.arrays import distinct, distinct_rows, first_of


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("low", [-1, -100, 0, 7])
def test_distinct_values_are_those_of_unique(dtype, low):
    values = np.random.default_rng(0).integers(low, 127, 300).astype(dtype)
    expected, place = np.unique(values, return_inverse=True)
    found, number = distinct(values)

    assert found.dtype == dtype
    assert np.array_equal(found, expected)
    assert np.array_equal(number, place)


def test_values_far_apart_and_none_at_all():
    far = np.array([5, -(2**60), 2**60, 5])
    assert [part.tolist() for part in distinct(far)] == [[-(2**60), 5, 2**60], [1, 0, 2, 1]]
    assert [part.tolist() for part in distinct(far[:0])] == [[], []]
    assert [part.tolist() for part in distinct_rows([far[:0], far[:0]])] == [[], []]


def test_rows_are_numbered_in_the_order_of_their_columns():
    rng = np.random.default_rng(1)
    columns = [rng.integers(-1, 6, 400), rng.integers(0, 3, 400), rng.integers(10, 10**9, 400) // 10**8]
    _, first, place = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    found, number = distinct_rows(columns)

    assert np.array_equal(found, first)
    assert np.array_equal(number, place.reshape(-1))


def test_the_first_of_each_number():
    assert first_of(np.array([2, 0, 2, 0, 4]), 6).tolist() == [1, -1, 0, -1, 4, -1]
