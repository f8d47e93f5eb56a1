"""Tools switched off and on again within a thread, while they are applied."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class Switch(threading.local):
    """Whether tools are switched off in this thread."""

    off = False


SWITCH = Switch()


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Run operators of this thread as if no tool were applied; they are not counted either."""
    before, SWITCH.off = SWITCH.off, True
    try:
        yield
    finally:
        SWITCH.off = before


@contextlib.contextmanager
def enabled() -> Iterator[None]:
    """Have tools see the operators of this thread again, within `disabled()`."""
    before, SWITCH.off = SWITCH.off, False
    try:
        yield
    finally:
        SWITCH.off = before
