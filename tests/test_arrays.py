"""Distinct values, numbers and percentiles are those of NumPy, to the last bit, and load no masked arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from daydream.arrays import distinct, distinct_rows, last_before, percentile

WHOLE = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=60)
REAL = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60)


@given(WHOLE | REAL, st.lists(st.floats(0, 100) | st.integers(0, 100), min_size=1, max_size=5))
def test_percentiles_are_those_of_numpy_to_the_last_bit(values, percents):
    assert percentile(values, percents).tolist() == np.percentile(values, percents).tolist()
    assert float(percentile(values, percents[0])) == float(np.percentile(values, percents[0]))


SMALL = st.lists(
    st.tuples(st.integers(-1, 6), st.integers(0, 3), st.sampled_from([-1, 10, 2**40])), max_size=40
)


@given(SMALL, st.sampled_from([np.int8, np.int16, np.int32, np.int64]))
def test_values_and_rows_are_numbered_as_numpy_numbers_them(rows, dtype):
    table = np.array(rows, np.int64).reshape(-1, 3)
    for column in (table[:, 0].astype(dtype), table[:, 2]):
        known, place = np.unique(column, return_inverse=True)
        found, number = distinct(column)
        assert (found.dtype, found.tolist(), number.tolist()) == (
            column.dtype,
            known.tolist(),
            place.tolist(),
        )
    _, first, place = np.unique(table, axis=0, return_index=True, return_inverse=True)
    found = [part.tolist() for part in distinct_rows(list(table.T))]
    assert found == [first.tolist(), place.reshape(-1).tolist()]


def test_the_last_row_before_a_time_is_of_its_own_group():
    #  group 0  |a at 10|      |b at 30|
    #  group 1         |c at 20|
    at = np.array([(0, 9), (0, 10), (0, 30), (1, 19), (2, 99)]).T

    assert last_before(np.array([0, 1, 0]), np.array([30, 20, 10]), *at).tolist() == [-1, 2, 0, -1, -1]
