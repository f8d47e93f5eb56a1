"""Shapes as text: `64x32 32 -` is a matrix, a vector and a number."""


def dims(shapes):
    """Return shapes as lists of sizes; what is a list already stays one."""
    if not isinstance(shapes, str):
        return shapes
    return [[] if one == "-" else [int(size) for size in one.split("x")] for one in shapes.split()]
