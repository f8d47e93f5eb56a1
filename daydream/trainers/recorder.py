"""A few steps of somebody else's training loop, recorded as `daydream collect` does."""

from __future__ import annotations

import os
from typing import Any

from daydream.trainers.log import own_path, say_not_recorded, say_what_to_change


class Recorder:
    """Records from `start` to `stop`, which a trainer's callback calls; nothing it does ends the training.

    Args:
        path: the trace to write, `.parquet`.
        suggestions: say the three largest in the log.
        settings: of `daydream.collect`: `steps`, `warmup`, `unprofiled`, `with_stack`, `memory`.

    """

    def __init__(self, path: str | os.PathLike[str], *, suggestions: bool = True, **settings: Any) -> None:
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
