"""Distinct values and percentiles are those of NumPy, to the last bit, and load no masked arrays."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daydream.arrays import percentile, unique

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
