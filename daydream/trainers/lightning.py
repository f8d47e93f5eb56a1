"""A callback for Lightning's `Trainer` (extra: `lightning`)."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from daydream.trainers.handler import Recorder


class DaydreamCallback(Recorder, Callback):
    """Record a few steps of a `Trainer`'s training; `Recorder` has the arguments.

    Example::

        trainer = lightning.Trainer(callbacks=[DaydreamCallback("t.parquet")])

    """

    def on_train_start(self, *_: Any, **__: Any) -> None:
        """Begin to look for steps."""
        self.start()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Save the trace."""
        self.stop()

    def on_exception(self, *_: Any, **__: Any) -> None:
        """Save what there is."""
        self.stop()
