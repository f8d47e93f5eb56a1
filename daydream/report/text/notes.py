"""Notes about a recording: `info` tells them in full, every other answer how many there are."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from daydream.report.text.layout import printable
from daydream.report.text.numbers import count


def recording_notes(notes: Sequence[str], trace: Sequence[str]) -> list[str]:
    """Return how many notes there are about a recording, and the command that tells them; or nothing.

    `trace` are the words that name it on a command line.
    """
    if not notes:
        return []
    words = trace[1:] if trace and trace[0] == "--trace" else trace
    said = f"{count(len(dict.fromkeys(notes)), 'note')} about the recording: daydream info -v "
    name = printable(shlex.join(words))
    return [said + (name or "TRACE")]
