"""Scaling: the trace of one worker on many, by data-parallel training with as much work for each.

The trace of a job that was recorded with several workers already scales too: its own collectives are
resized. How is in `daydream.predict.scale_out_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.display import NotebookFigure, as_json
from daydream.errors import GraphError
from daydream.predict.contention_option import MEASURED, Choice, Option
from daydream.predict.replay import Replay, as_replay
from daydream.predict.scale_out_model import Model, Scaled

if TYPE_CHECKING:
    import os

    import pandas as pd

    from daydream.graph.graph import Graph
    from daydream.trace.trace import Trace

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(repr=False)
class Scaling(NotebookFigure):
    """Steps by number of workers, throughput and efficiency being relative to one.

    `recorded` is the number of workers when the trace was made, `alone_ns` the step of one.

    Example::

        scaling = daydream.scaling("examples/mlp_cpu.json.gz", [1, 8, 64], cluster="dgx-a100")
        for row in scaling.rows:
            print(row.workers, row.step_ns, row.throughput, row.efficiency)

    """

    replay: Replay
    recorded: int
    alone_ns: int
    network: str
    options: dict[str, Any]
    rows: list[Scaled]
    said: list[str]
    contention: Choice | None = None  # of kernels and transfers, in the last row

    def __repr__(self) -> str:
        last = self.rows[-1]
        return (
            f"<Scaling to {last.workers:,} workers: {last.throughput:,.1f} times the throughput, "
            f"efficiency {last.efficiency:.1%}>"
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each number of workers."""
        import pandas as pd

        return pd.DataFrame([row.to_json() for row in self.rows])

    @property
    def waits(self) -> bool:
        """Whether any of the workers waits for slower ones."""
        return bool(self.options["jitter"]) or self.options["straggler"] > 1

    def notes(self) -> list[str]:
        """Return what a reader should know before trusting the figures."""
        return [*self.replay.notes, *self.said]

    def to_json(self) -> dict[str, Any]:
        """Return the object `scaling --json` prints, without the trace's name."""
        return as_json(
            self,
            "measured_ns=replay.measured_ns replayed_ns=replay.replayed_ns replay_error=replay.error "
            "recorded_workers=recorded alone_ns network options contention workers=rows",
        ) | {"notes": self.notes()}


def scaling(
    source: Replay | Graph | Trace | str | os.PathLike[str],
    workers: Sequence[int] = WORKERS,
    *,
    jitter: float = 0.0,
    straggler: float = 1.0,
    seed: int = 0,
    contention: Option = MEASURED,
    capacity: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Scaling:
    """Return the step, throughput and efficiency of each number of workers, predicted from a trace of one.

    `options` are those of the optimization `ddp`: `cluster`, `bandwidth`, `bucket_mb`, ... `jitter` is
    the standard deviation of a worker's step from its mean, as a share of it, drawn from `seed`;
    `straggler` how many times as long one of the workers takes for everything. A trace that has
    collectives already takes `cluster` only. `contention` and `capacity` are as in `whatif`.

    Returns:
        A `Scaling`: a row for each number of workers, times in ns per step.

    Raises:
        GraphError: the trace covers no step, or a number makes no sense.
        NotApplicableError: the sizes of the gradients are unknown.

    """
    say = progress or (lambda _what, _share: None)
    chosen = _checked(workers, jitter, straggler)
    before = as_replay(source)
    model = Model(before, options, jitter, straggler, seed, contention, capacity)
    rows = []
    for number, count in enumerate(chosen):
        say(f"predicting {count:,} workers", number / len(chosen))
        rows.append(model.row(count))
    said = [*model.said, "Each worker has as much work as the one that was recorded, whatever their number."]
    used = {**model.way.options, "jitter": jitter, "straggler": straggler, "seed": seed}
    return Scaling(
        before, model.way.recorded, model.alone_ns, model.described, used, rows, said, model.chosen
    )


def _checked(workers: Sequence[int], jitter: float, straggler: float) -> list[int]:
    if not workers or any(
        isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1 for n in workers
    ):
        raise GraphError(f"workers are whole numbers of 1 or more, not {list(workers)}")
    if not 0 <= jitter < 1 or not 1 <= straggler < np.inf:
        raise GraphError(
            f"jitter is a share from 0 to 1 and a straggler takes 1 or more times as long, "
            f"not {jitter:g} and {straggler:g}"
        )
    return sorted({int(number) for number in workers})
