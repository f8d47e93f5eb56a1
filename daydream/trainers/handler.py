"""`daydream.handler`: what torch's own profiler recorded becomes a trace, in one line of a script.

What is said in the log of a training job, and where its trace goes.

A few steps of somebody else's training loop, recorded as `daydream collect` does.
"""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import Any

from daydream.cli.collect import suggestions

LOG = logging.getLogger("daydream")


def own_path(path: str | os.PathLike[str]) -> Path:
    """Return a path that no file has: with the rank, where there are several; with a number, where taken."""
    from daydream.collect.live.run_metadata import rank_and_world

    rank, world = rank_and_world()
    target = Path(path)
    stem = f"{target.stem}.rank{rank or 0}" if (world or 1) > 1 else target.stem
    suffix = target.suffix or ".parquet"
    more = (f"{stem}-{count}{suffix}" for count in itertools.count(2))
    names = itertools.chain([f"{stem}{suffix}"], more)
    return next(found for name in names if not (found := target.with_name(name)).exists())


def say_what_to_change(path: Path) -> None:
    """Say where the trace is, and the three largest suggestions for it."""
    LOG.warning("daydream: wrote %s", path)
    for line in suggestions(path).lines(path):
        LOG.warning("daydream: %s", line)


def say_not_recorded(error: Exception) -> None:
    """Say in one line that nothing was recorded, and why."""
    LOG.warning(
        "daydream: no trace was written: %s", " ".join(f"{error}".split()) or type(error).__name__
    )


class Recorder:
    """Records from `start` to `stop`, which a trainer's callback calls; nothing it does ends the training.

    Args:
        path: the trace to write, `.parquet`.
        suggestions: say the three largest in the log.
        settings: of `daydream.collect`: `steps`, `warmup`, `unprofiled`, `with_stack`, `memory`.

    """

    def __init__(
        self, path: str | os.PathLike[str], *, suggestions: bool = True, **settings: Any
    ) -> None:
        self._path = path
        self._suggestions = suggestions
        self._settings = settings
        self._recording: Any = None

    def start(self) -> None:
        """Begin to look for steps."""
        from daydream import collect

        try:
            self._target = own_path(self._path)
            self._recording = collect(self._target, **self._settings).__enter__()
        except Exception as error:  # noqa: BLE001 - whatever it is, training is worth more
            say_not_recorded(error)

    def stop(self) -> None:
        """Save the trace, if it is not saved yet."""
        recording = self._recording
        self._recording = None
        if recording is None:
            return
        try:
            recording.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001
            say_not_recorded(error)
            return
        if self._suggestions:
            say_what_to_change(self._target)


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
