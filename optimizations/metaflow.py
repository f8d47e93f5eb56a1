"""MetaFlow: layers are substituted by others, with times from the trace, a factor or a table."""

from __future__ import annotations

import numpy as np
from daydream.optimizations._metaflow_substitution import (
    by_place_in_step,
    places_of,
    set_times,
    substitute,
    usual_times,
)
from daydream.optimizations._metaflow_times import read_times

from daydream import Graph, GraphError
from daydream.transforms import stages

STAGE = stages.WORK
PHASES = ("forward", "loss", "backward")
NOTHING = (np.empty(0), np.empty(0))


def metaflow(
    graph: Graph,
    *,
    layers: str,
    like: str | None = None,
    factor: float | None = None,
    times: str | None = None,
) -> None:
    """Predict other layers in the place of some, `layers="blocks.*.conv?"` (Daydream, section 5.2).

    Layers that match `layers` and run one after the other are one place, and are substituted
    together, forward and backward. The time of what comes there is known from one of:

    - `like`: other layers of this trace, in one place of a step or in as many; their kernels'
      median times, with `factor` for other dimensions. Kernels that are too many go with their
      launches and the CPU time of their operators, missing ones bring launches.
    - `factor` alone: the layers' own kernels, each so many times as long.
    - `times`: a file of yours, CSV `name,us` or a JSON object; a name is a layer's path or
      pattern, an operator, or a kernel. A layer takes this long forward in each place, and its
      backward pass changes by the same ratio; an operator takes it a call, its kernels together; a
      time of 0 removes. What the file does not name stays.

    Without device work the layers' operators are substituted. Not modelled: whether the new
    graph computes the same, parameters that the optimizer no longer has, convergence.

    Args:
        layers (GLOB): Modules to change, by path: blocks.*.
        like (GLOB): Module whose time they take.
        factor: How many times as long they take.
        times (FILE): Measured times of the new operators.
    """
    if times is not None and (like is not None or factor is not None):
        raise GraphError("give times alone: they say all")
    if like is None and factor is None and times is None:
        raise GraphError(
            "say what the new layers take: --like other layers, a --factor, or a file of --times"
        )
    if factor is not None and factor < 0:
        raise GraphError(f"factor must be 0 or more, not {factor:g}")
    if factor == 1 and like is None:
        graph.does_not_apply("a factor of 1 leaves the layers as they are")
    sites = {phase: places_of(graph, layers, phase) for phase in PHASES}
    chosen = sites["forward"].tasks | sites["loss"].tasks | sites["backward"].tasks
    chosen.need(f"work of layers {layers!r}: `daydream collect` records layers, `*` is any text")

    if times is not None:
        set_times(graph, layers, chosen, read_times(times))
    elif like is None:
        chosen.scale(1.0 if factor is None else factor)
    else:
        if len(graph.select(layer=layers) & graph.select(layer=like)):
            raise GraphError(f"{layers!r} and {like!r} have layers in common; none can replace itself")
        places_of(graph, like, "forward").tasks.need(f"forward work of layers {like!r}")
        for phase in PHASES:
            old, new = sites[phase], by_place_in_step(places_of(graph, like, phase))
            each = [old] if len(new) < 2 else by_place_in_step(old)
            if len(new) not in (0, len(each)):
                raise GraphError(
                    f"{layers!r} occur in {len(each)} places of a {phase} pass, {like!r} in {len(new)}: "
                    "give patterns that occur in one place, or in as many"
                )
            for number, place in enumerate(each):
                durations, gaps = usual_times(new[number]) if new else NOTHING
                substitute(place, durations * (1.0 if factor is None else factor), gaps)
    graph.note(f"Layers {layers!r} occur in {len(sites['forward']):,} places of the forward pass.")
