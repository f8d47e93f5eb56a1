"""Input sizes: with which batch and sequence length a trace was recorded, and times at another size.

Sizes are read from the shapes of calls whose layout is known: convolutions, attention,
embeddings, linear layers, norms. The size that most calls have counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from daydream.costs.calls import Calls, calls_of
from daydream.costs.kernels import work
from daydream.costs.resize import parameter_shapes, resized_shapes, resized_work
from daydream.costs.retime import Retimed, measured_first, retime
from daydream.costs.scaling import scaled_time
from daydream.costs.shapes import Argument, Shape, parse_shapes
from daydream.costs.work import bare_name
from daydream.errors import NotApplicableError
from daydream.graph.graph import Graph
from daydream.graph.selection import Selection

SCALAR_BYTES = 8  # a copied number grows with nothing
BATCH_FIRST = {
    "conv1d", "conv2d", "conv3d", "convolution", "cudnn_convolution", "miopen_convolution", "batch_norm",
    "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "group_norm",
}  # fmt: skip
BY_TOKEN = {
    "linear": 0,
    "addmm": 1,
    "layer_norm": 0,
    "native_layer_norm": 0,
}  # and which argument is no parameter


def recorded_batch(graph: Graph) -> int | None:
    """Return the batch size of the trace, as most calls show it; None where no shape tells it."""
    sure, likely, perhaps = Counter[int](), Counter[int](), Counter[int]()
    for name, arguments, times in _calls(graph):
        first = _tensor(arguments, 0)
        if name in BATCH_FIRST or "attention" in name:
            sure.update({size: times for size in first[:1] if len(first) > 2})
        elif name == "embedding" and len(_tensor(arguments, 1)) == 2:
            sure[_tensor(arguments, 1)[0]] += times
        elif name in BY_TOKEN and len(given := _tensor(arguments, BY_TOKEN[name])) > 1:
            # A third dimension may stand first, where sequences do; a second one may be batch and sequence.
            (likely if len(given) > 2 else perhaps)[given[0]] += times
    return _most(sure or likely or perhaps)


def recorded_length(graph: Graph) -> int | None:
    """Return the sequence length of the trace, as most calls show it; None where no shape tells it."""
    sure, perhaps = Counter[int](), Counter[int]()
    for name, arguments, times in _calls(graph):
        first = _tensor(arguments, 0)
        if "attention" in name and len(first) == 4:
            sure[first[2]] += times
        elif name in ("softmax", "_softmax") and len(first) > 2 and first[-1] == first[-2]:
            sure[first[-1]] += times
        elif name == "embedding" and len(_tensor(arguments, 1)) == 2:
            sure[_tensor(arguments, 1)[1]] += times
        elif name == "linear" and len(first) == 3:
            perhaps[first[1]] += times
    return _most(sure or perhaps)


def is_feature_size(graph: Graph, size: int) -> bool:
    """Tell whether a size is also that of features or of a head, so that shapes do not tell which is meant.

    Features: a bias or a norm's weight has it. Heads: both sides of a batched product are squares of it.
    """
    if graph.trace is None:
        return False
    square = (size, size)
    heads = any(
        name in ("bmm", "baddbmm") and all(len(part) == 3 and part[-2:] == square for part in arguments[:2])
        for name, arguments, _ in _calls(graph)
    )
    heads |= any(
        "attention" in name and _tensor(arguments, 0)[-2:] == square for name, arguments, _ in _calls(graph)
    )
    return heads or (size,) in parameter_shapes(calls_of(graph.trace))


def resized_time(graph: Graph, tasks: Selection, old: int, new: int, *, every: bool = False) -> Retimed:
    """Return the durations of kernels or CPU tasks when a size of the input goes from `old` to `new`.

    Work goes with the recorded shapes (see `resized_work`); that of calls without a
    formula in proportion to the size. Copies go with their bytes, single numbers stay. Times
    that the graph's table holds at the new shapes come first.
    """
    flop, nbytes = resized_work(graph, tasks, old, new, every=every)
    known = (work(graph, tasks).call >= 0) | (flop != 1) | (nbytes != 1)
    shapes = {} if graph.times is None else resized_shapes(graph, tasks, flop, old, new, every=every)
    flop, nbytes = (np.where(known, factor, new / old) for factor in (flop, nbytes))
    if (tasks.kind == "cpu").all():
        scaled = scaled_time(graph, tasks, np.where(flop != 1, flop, nbytes))
        return measured_first(graph, tasks, scaled, shapes=shapes)
    number = (tasks.bytes >= 0) & (tasks.bytes <= SCALAR_BYTES) & (tasks.kind != "kernel")
    return retime(
        graph,
        tasks,
        flop_factor=np.where(number, 1, flop),
        bytes_factor=np.where(number, 1, nbytes),
        shapes=shapes,
    )


def need_size(size: int | None, what: str) -> int:
    """Return a size that was found, or raise `NotApplicableError` saying how to give it."""
    if size is None:
        raise NotApplicableError(
            f"the trace's shapes do not tell its {what}.\n"
            "       Give it by --recorded; shapes must have been recorded."
        )
    return size


def _calls(graph: Graph) -> Iterable[tuple[str, list[Argument], int]]:
    if graph.trace is None:
        return
    calls: Calls = calls_of(graph.trace)
    times = np.bincount(calls.which[calls.which >= 0], minlength=len(calls.keys))
    for (name, shapes, _), count in zip(calls.keys, times.tolist(), strict=True):
        yield bare_name(name), parse_shapes(shapes) or [], count


def _tensor(arguments: list[Argument], place: int) -> Shape:
    part = arguments[place] if place < len(arguments) else ()
    return part if isinstance(part, tuple) else ()


def _most(votes: Counter[int]) -> int | None:
    """Return the size with most votes, of several the smallest."""
    return min(votes, key=lambda size: (-votes[size], size)) if votes else None
