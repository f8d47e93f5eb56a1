"""Where traces come from: importers of profiler files, recording a script, and what is derived from rows.

with daydream.collect("trace.parquet"):
train()
"""

from __future__ import annotations

import os
import sys
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        from pathlib import Path

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


class _CallablePackage(ModuleType):
    """Lets `daydream.collect(path)` be this package's verb: a package cannot share a function's name."""

    def __call__(self, *args: Any, **kwargs: Any) -> collect:
        return collect(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
