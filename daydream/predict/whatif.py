"""`daydream.whatif`: what a change would give, from a trace, a graph or a replay of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from daydream.costs.device.table import KernelTable
from daydream.graph.graph import Graph
from daydream.predict.contention_option import MEASURED
from daydream.predict.contention_option import Option as ContentionOption
from daydream.predict.prediction import Prediction, predict
from daydream.predict.replay import Replay, Source, as_replay
from daydream.transforms.compose import edit_of, parse


def whatif(
    source: Source | Graph | Replay,
    optimization: str | Callable[..., None] | Sequence[Any],
    *,
    table: KernelTable | str | os.PathLike[str] | None = None,
    contention: ContentionOption = MEASURED,
    capacity: int | None = None,
    **options: Any,
) -> Prediction:
    """Return what a change would give: a name, `"a+b"`, the path of a file, or a function of a graph.

    A replay given as the source is used again, so that many questions cost one replay. `table` is as in
    `replay`; an optimization's own option of that name is given as `<optimization>.table`. `contention` says
    how kernels and transfers that overlap slow each other: `"measured"` (as far as the trace shows), `"off"`,
    a factor for kernels, or two, for kernels and for transfers. `capacity` is what each device has in bytes,
    by default what the trace says of it: whether the change fits.

    Returns:
        A `Prediction`: replayed and predicted step in ns, the speed-up and its 90 % interval.

    Raises:
        UnknownOptimizationError: there is no optimization of that name.
        NotApplicableError: the change does not apply to this trace.
        GraphError: an option's value makes no sense, or the trace covers no step.

    """
    if table is not None and not isinstance(table, KernelTable):
        table = KernelTable.load(table)
    edit = edit_of(parse(optimization), options, table)
    return predict(as_replay(source), edit, contention=contention, capacity_bytes=capacity)
