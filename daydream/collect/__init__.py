"""Where traces come from: importers of profiler files, recording a script, and what is derived from rows.

with daydream.collect("trace.parquet"):
train()
trace = daydream.load("trace.parquet")
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from daydream.parallel import Engine
    from daydream.trace.trace import Trace


class collect:  # noqa: N801 - a verb: `with daydream.collect(path):`
    """Record the training steps that run inside the `with` block, and save them as a trace.

    After `warmup` steps, `steps` are recorded, and `unprofiled` more are timed without
    the profiler; the block may run on. `trace` is the trace once it is saved. `with_stack`
    records which function called what, which makes the captured steps slower; `memory` records
    allocations and frees.

    Raises:
        DaydreamError: at the end of the block, if it held too few steps.
        OutputError: `path` exists and `force` is not given.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        steps: int = 3,
        warmup: int = 5,
        unprofiled: int = 20,
        with_stack: bool = False,
        memory: bool = True,
        force: bool = False,
    ) -> None:
        from daydream.collect.live.recorder import Recorder

        self._session = Recorder(
            Path(path),
            steps=steps,
            warmup=warmup,
            unprofiled=unprofiled,
            with_stack=with_stack,
            memory=memory,
            force=force,
        )

    @property
    def trace(self) -> Trace | None:
        """The trace, None until it is saved."""
        return self._session.trace

    def __enter__(self) -> collect:  # noqa: PYI034 - `Self` is newer than Python 3.10
        self._session.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        from daydream.errors import DaydreamError

        try:
            self._session.finish(
                "the block ended" if kind is None else f"{kind.__name__} ended the block"
            )
        except DaydreamError:
            if kind is None:  # else the block's own error is what matters
                raise


def load(
    *sources: str | os.PathLike[str],
    step_marker: str | None = None,
    steps: str | None = None,
    ranks: Sequence[int] | None = None,
    progress: Callable[[str, float], None] | None = None,
    engine: str | Engine | Executor = "local",
    max_unpacked: int | None = None,
    etrecord: str | os.PathLike[str] | None = None,
) -> Trace:
    """Return a trace from a parquet file, or from anything `daydream import` accepts.

    `steps` are those to read, `"10:20"` for the steps 10 to 19 of each rank: of a parquet file little more is
    loaded. `"typical"` are those that stand for a long recording, as `whatif` and all other questions about a
    file take them; by default all are read. `"auto"` finds steps by the period of the launches, where a
    profiler's file is imported.
    `engine` reads the files of many ranks side by side: `local` (this process), `processes:4`, `dask:4`,
    or an executor of `concurrent.futures`.
    `max_unpacked` is to how many bytes a packed file may unpack; 64 GB and 200 times its size if not given.
    `etrecord` is the ETRecord of the program that an ExecuTorch ETDump is of.

    Returns:
        A `Trace`: a row per event, in the order of their starts, times in ns.

    Raises:
        TraceError: a file is not a usable trace, or has none of the steps.

    """
    from daydream.errors import TraceError
    from daydream.trace.recorded_steps import TYPICAL, is_range
    from daydream.trace.trace import Trace

    wanted = steps if steps == TYPICAL or is_range(steps) else None
    how = None if wanted is not None else steps
    chosen = any(choice is not None for choice in (step_marker, how, ranks, etrecord))
    if len(sources) == 1 and not chosen and _is_parquet(sources[0]):
        try:
            return Trace.load(sources[0], max_unpacked=max_unpacked, steps=wanted)
        except TraceError:
            from daydream.collect.importers.formats import format_of

            if format_of(Path(sources[0])) == "parquet":  # else it is a table that is imported
                raise
    from daydream.collect.importers import import_trace

    trace = import_trace(
        sources,
        step_marker=step_marker,
        steps=how,
        ranks=ranks,
        progress=progress,
        engine=engine,
        max_unpacked=max_unpacked,
        etrecord=etrecord,
    )
    return trace if wanted is None else trace.of_steps(wanted)


def _is_parquet(path: str | os.PathLike[str]) -> bool:
    if not Path(path).is_file():  # a pipe would be waited for
        return False
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False


class _CallablePackage(ModuleType):
    """Lets `daydream.collect(path)` be this package's verb: a package cannot share a function's name."""

    def __call__(self, *args: Any, **kwargs: Any) -> collect:
        return collect(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
