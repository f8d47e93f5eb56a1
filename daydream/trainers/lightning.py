"""A callback for Lightning's `Trainer` (extra: `lightning`)."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch.callbacks import Callback

from daydream.trainers.recorder import Recorder


class DaydreamCallback(Callback):
    """Record a few steps of a `Trainer`'s training; `Recorder` has the arguments.

    Example::

        trainer = lightning.Trainer(callbacks=[DaydreamCallback("t.parquet")])

    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        self._recorder = Recorder(path, **settings)

    def on_train_start(self, *_: Any, **__: Any) -> None:
        """Begin to look for steps."""
        self._recorder.start()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Save the trace."""
        self._recorder.stop()

    def on_exception(self, *_: Any, **__: Any) -> None:
        """Save what there is."""
        self._recorder.stop()
