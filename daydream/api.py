"""The line from a trace to an answer, for notebooks and the command line alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daydream.comparison import Comparison, compare
from daydream.contention import MEASURED
from daydream.contention import Option as ContentionOption
from daydream.costs.measured import give_table
from daydream.costs.table import KernelTable
from daydream.graph.build import build
from daydream.graph.graph import Graph
from daydream.simulate.replay import Replay
from daydream.simulate.replay import replay as replay_graph
from daydream.trace import Trace
from daydream.trace_file import read_trace
from daydream.transforms.compose import apply, parse

if TYPE_CHECKING:
    from daydream.engines import Engine

Source = Trace | str | os.PathLike[str]


def load(
    *sources: str | os.PathLike[str],
    step_marker: str | None = None,
    steps: str | None = None,
    ranks: Sequence[int] | None = None,
    progress: Callable[[str, float], None] | None = None,
    engine: str | Engine = "local",
    max_unpacked: int | None = None,
) -> Trace:
    """Return a trace from a parquet file, or from anything `daydream import` accepts.

    `engine` reads the files of many ranks side by side: `local` (this process), `processes:4`, `dask:4`, ...
    `max_unpacked` is to how many bytes a packed file may unpack; 64 GB and 200 times its size if not given.

    Raises `TraceError` if a file is not a usable trace.
    """
    chosen = any(choice is not None for choice in (step_marker, steps, ranks))
    if len(sources) == 1 and not chosen and _is_parquet(sources[0]):
        return read_trace(sources[0], max_unpacked=max_unpacked)
    from daydream.collect.importers import import_trace

    return import_trace(
        sources, step_marker=step_marker, steps=steps, ranks=ranks, progress=progress, engine=engine,
        max_unpacked=max_unpacked,
    )  # fmt: skip


def replay(source: Source | Graph, *, table: KernelTable | str | os.PathLike[str] | None = None) -> Replay:
    """Return the untouched simulation of a trace, held against what was measured.

    `table` holds measured times of kernels or operators, or is the file of them (`daydream calibrate`
    writes one): predictions from this replay use them where they can.
    """
    if not isinstance(source, Graph):
        source = build(source if isinstance(source, Trace) else load(source))
    elif table is not None:
        source = source.copy()
    give_table(source, table)
    return replay_graph(source)


def whatif(
    source: Source | Graph | Replay,
    optimization: str | Callable[..., None] | Sequence[Any],
    *,
    table: KernelTable | str | os.PathLike[str] | None = None,
    contention: ContentionOption = MEASURED,
    **options: Any,
) -> Comparison:
    """Return what a change would give: a name, `"a+b"`, the path of a file, or a function of a graph.

    A replay given as the source is used again, so that many questions cost one replay. `table` is as in
    `replay`; an optimization's own option of that name is given as `<optimization>.table`. `contention` says
    how kernels and transfers that overlap slow each other: `"measured"` (as far as the trace tells), `"off"`,
    a factor for kernels, or two, for kernels and for transfers.
    """
    before = source if isinstance(source, Replay) else replay(source)
    optimizations = parse(optimization)
    if table is not None and not isinstance(table, KernelTable):
        table = KernelTable.load(table)

    def edit(graph: Graph) -> dict[str, Any]:
        give_table(graph, table)
        return apply(optimizations, graph, options)

    changed = before.graph.copy()
    used = edit(changed)
    name = "+".join(each.name for each in optimizations)
    return compare(before, changed, optimization=name, options=used, edit=edit, contention=contention)


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    if not Path(path).is_file():  # a pipe would be waited for
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False
