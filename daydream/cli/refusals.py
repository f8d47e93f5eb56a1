"""What to do where an optimization does not apply to a trace: below the reason, what would help."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from daydream.errors import DaydreamError, NotApplicableError

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.transforms.registry import Optimization

ON_A_GPU = "The trace is of CPU work only: record a step on a GPU to predict this."


@contextlib.contextmanager
def with_advice(graph: Graph, optimizations: Sequence[Optimization], trace: Sequence[str]) -> Iterator[None]:
    """Say below a refusal what to do; `trace` are the words that name the trace on a command line."""
    try:
        yield
    except NotApplicableError as error:
        error.args = ("\n".join([str(error), *_advice(error.lacks, graph, optimizations, trace)]),)
        raise


def _advice(
    lacks: str | None, graph: Graph, optimizations: Sequence[Optimization], trace: Sequence[str]
) -> list[str]:
    lines = []
    if lacks == "device" and not len(graph.select(on="gpu")):
        lines.append(ON_A_GPU)
    elif lacks == "ranks" and not len(graph.select(kind="collective")):
        together = _with_ddp(optimizations)
        first = f"Predict several GPUs with it ({together}), or record" if together else "Record"
        lines.append(f"{first} a job of several ranks: daydream collect --nproc-per-node 2 SCRIPT")
    return [*lines, f"daydream rank {shlex.join(trace)} lists the changes that do apply."]


def _with_ddp(optimizations: Sequence[Optimization]) -> str | None:
    """Return what to ask for so that gradients are exchanged; None where that excludes what was asked for."""
    from daydream.transforms.compose import check, spelled
    from daydream.transforms.registry import find

    together = [find("ddp"), *optimizations]
    try:
        check(together)
    except DaydreamError:
        return None
    return spelled(together)
