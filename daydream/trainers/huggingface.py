"""A callback for the `Trainer` of Hugging Face's transformers (extra: `transformers`)."""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

from daydream.trainers.recorder import Recorder


class DaydreamCallback(TrainerCallback):
    """Record a few steps of a `Trainer`'s training; `Recorder` has the arguments.

    Example::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[DaydreamCallback("t.parquet")])

    """

    def __init__(self, path: str | os.PathLike[str], **settings: Any) -> None:
        self._recorder = Recorder(path, **settings)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Begin to look for steps."""
        self._recorder.start()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Save the trace."""
        self._recorder.stop()
