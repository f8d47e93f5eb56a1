"""How many workers the collectives of a trace have, where an optimization must know."""

from __future__ import annotations

from daydream.errors import GraphError, NotApplicableError
from daydream.graph.graph import Graph


def workers_of(graph: Graph, workers: int | None) -> int:
    """Return the number of workers that was given, else that of the recorded job.

    Raises:
        NotApplicableError: neither is known, or there is only one.
        GraphError: they contradict each other.
    """
    if workers is not None and workers < 1:
        raise GraphError(f"workers must be 1 or more, not {workers}")
    found = workers
    collectives = graph.select(kind="collective")
    if (collectives.row >= 0).any():
        size = graph.recorded.metadata.get("world_size")
        recorded = size if isinstance(size, int) and size > 1 else None
        if recorded is not None and workers not in {None, recorded}:
            raise GraphError(
                f"workers is {workers}, but the trace is of a job of {recorded}; leave it out"
            )
        found = recorded if found is None else found
    if found is None:
        raise NotApplicableError(
            "how many workers the collectives have is not known; give --workers"
        )
    if found == 1:
        raise NotApplicableError("one worker has nothing to exchange")
    return found
