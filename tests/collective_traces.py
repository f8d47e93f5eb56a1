"""Traces of collectives and nothing else, small enough to write down; times in microseconds."""

from graph.small_traces import kernel, trace


def collective(start, end, nbytes=4096, *, operation="all_reduce", **more):
    """Return the row of one rank's kernel."""
    of = {"kind": "collective", "collective": operation, "bytes": nbytes, **more}
    return kernel(f"nccl_{operation}", start, end, **of)


def trace_of(*rows, steps=(), **metadata):
    """Return a trace of these rows, of each rank in order of start."""
    found = trace(*rows, step_source="none", **metadata)
    found.metadata["steps"] = list(steps)
    return found
