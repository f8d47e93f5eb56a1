"""A callback for the `Trainer` of Hugging Face's transformers (extra: `transformers`)."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from daydream.trainers.handler import Recorder


class DaydreamCallback(Recorder, TrainerCallback):
    """Record a few steps of a `Trainer`'s training; `Recorder` has the arguments.

    Example::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DaydreamCallback("t.parquet")])

    """

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to look for steps."""
        self.start()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Save the trace."""
        self.stop()
