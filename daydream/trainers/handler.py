"""`daydream.handler`: what torch's own profiler recorded becomes a trace, in one line of a script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from daydream.trainers.log import own_path, say_not_recorded, say_what_to_change


def handler(path: str | os.PathLike[str], *, suggestions: bool = True) -> TraceHandler:
    """Save each cycle of a `torch.profiler.profile` as a trace, and say what would shorten its steps.

    Make it before the profiler starts: from then on every layer's call is a range of the recording, and the
    optimizers that step are known. A name that is taken gets a number, and each of several ranks its own
    file. A trace that cannot be written is said in the log; training goes on.

    Example::

        profiler = torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=5, warmup=1, active=4),
            on_trace_ready=daydream.handler("t.parquet"), record_shapes=True,
        )

    Args:
        path: the trace to write, `.parquet`.
        suggestions: say the three largest in the log.

    Returns:
        What the profiler calls; `saved` are the paths written so far, and `close()` takes the hooks off.

    Raises:
        ImportError: there is no torch.

    """
    return TraceHandler(Path(path), suggestions=suggestions)


class TraceHandler:
    """Turns what a profiler recorded into a trace whenever it is called with it."""

    def __init__(self, path: Path, *, suggestions: bool) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        from daydream.collect.live.layer_hooks import LayerHooks

        self._path = path
        self._suggestions = suggestions
        self.saved: list[Path] = []
        self._optimizers: list[Any] = []
        self._hooks = LayerHooks()
        self._hooks.install()
        self._handle: Any = register_optimizer_step_post_hook(self._note_optimizer)

    def __call__(self, profiler: Any) -> None:
        """Save what the profiler recorded since it was last called."""
        try:
            from daydream.collect.live.capture import captured

            memory = bool(getattr(profiler, "profile_memory", False))
            trace = captured(profiler, self._hooks, self._optimizers, memory=memory).trace()
            path = own_path(self._path)
            trace.metadata["source"] = path.name
            trace.save(path)
        except Exception as error:  # noqa: BLE001 - whatever it is, training is worth more
            say_not_recorded(error)
            return
        self.saved.append(path)
        if self._suggestions:
            say_what_to_change(path)

    def close(self) -> None:
        """Take the hooks off; a trace that is recorded later has no layers."""
        self._hooks.remove()
        self._handle.remove()

    def _note_optimizer(self, optimizer: Any, *_: Any) -> None:
        if not any(optimizer is one for one in self._optimizers):
            self._optimizers.append(optimizer)
