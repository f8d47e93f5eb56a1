"""What tests ask of a trace: rows by name, and values of them."""

import numpy as np


def rows_named(trace, name):
    return np.flatnonzero(trace["name"] == trace.code("name", name)).tolist()


def one(trace, column, name):
    """Return the value that the only row of a name has in a column."""
    (row,) = rows_named(trace, name)
    return trace.values(column, [row])[0]


def parent_of(trace, name):
    """Return the name of the row that encloses the only row of a name, or that launched it."""
    (row,) = rows_named(trace, name)
    parent = int(trace["parent"][row])
    return None if parent < 0 else trace.values("name", [parent])[0]


def of_kinds(trace, column, *kinds):
    """Return the values of a column that rows of each name have, for some kinds of rows."""
    found = {}
    lines = np.flatnonzero(trace.is_kind(*kinds))
    for name, value in zip(trace.values("name", lines), trace.values(column, lines), strict=True):
        found.setdefault(name, set()).add(value)
    return found
