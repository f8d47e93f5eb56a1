"""Distinct values and percentiles are those of NumPy, to the last bit, and load no masked arrays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daydream.arrays import last_before, lookup, percentile, unique

WHOLE = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=60)
REAL = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60)


@given(WHOLE | st.lists(st.booleans()) | st.lists(st.text(max_size=3)) | REAL)
def test_distinct_values_are_those_of_numpy(values):
    found, known = unique(values), np.unique(np.asarray(values))

    assert found.tolist() == known.tolist()
    assert found.dtype == known.dtype


@given(WHOLE | REAL, st.floats(0, 100) | st.integers(0, 100))
def test_a_percentile_is_that_of_numpy_to_the_last_bit(values, percent):
    assert float(percentile(values, percent)) == float(np.percentile(values, percent))


@given(REAL, st.lists(st.integers(0, 100), min_size=1, max_size=5))
def test_several_percentiles_are_those_of_numpy(values, percents):
    assert percentile(values, percents).tolist() == np.percentile(values, percents).tolist()


def test_no_values_have_no_distinct_ones_and_no_percentile():
    assert unique(np.empty(0, np.int64)).tolist() == []
    with pytest.raises(IndexError):
        percentile([], 50)


def test_masked_arrays_are_not_loaded():
    program = (
        "import sys; from daydream.arrays import percentile, unique; "
        "unique([3, 1, 3]); percentile([1, 2], 30); sys.exit('numpy.ma' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_number_is_looked_up_where_it_stands_first():
    assert lookup(np.array([7, 3, 7]), np.array([7, 3, 5])).tolist() == [0, 1, -1]


def test_the_last_row_before_a_time_is_of_its_own_group():
    #  group 0  |a at 10|      |b at 30|
    #  group 1         |c at 20|
    at = np.array([(0, 9), (0, 10), (0, 30), (1, 19), (2, 99)]).T

    assert last_before(np.array([0, 1, 0]), np.array([30, 20, 10]), *at).tolist() == [-1, 2, 0, -1, -1]
