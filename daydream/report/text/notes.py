"""Notes about a recording: `info` and `memory` tell them in full, other answers how many there are."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from daydream.report.text.layout import printable
from daydream.report.text.numbers import count

if TYPE_CHECKING:
    from daydream.memory.prediction import MemoryPrediction


def recording_notes(notes: Sequence[str], trace: Sequence[str]) -> list[str]:
    """Return how many notes there are about a recording, and the command that tells them; or nothing.

    `trace` are the words that name it on a command line.
    """
    words = trace[1:] if trace and trace[0] == "--trace" else trace
    return _counted(notes, "the recording", f"info -v {printable(shlex.join(words)) or 'TRACE'}")


def memory_notes(notes: Sequence[str]) -> list[str]:
    """Return likewise how many notes there are about what is recorded of memory."""
    return _counted(notes, "recorded memory", "memory -v")


def about_memory(predictions: Iterable[MemoryPrediction | None]) -> list[str]:
    """Return the notes about recorded memory of several predictions, each once."""
    known = (prediction for prediction in predictions if prediction is not None)
    return list(dict.fromkeys(note for prediction in known for note in prediction.recording_notes))


def _counted(notes: Sequence[str], about: str, command: str) -> list[str]:
    different = len(dict.fromkeys(notes))
    return [f"{count(different, 'note')} about {about}: daydream {command}"] if different else []
