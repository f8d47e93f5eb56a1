"""Tools applied to all operators that run meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from daydream.instrument.errors import InstrumentError
from daydream.instrument.session import Session
from daydream.instrument.tool import Tool
from daydream.instrument.torch_private import check_version

_APPLYING = threading.Lock()


@contextlib.contextmanager
def apply(*tools: Tool, cache: bool = True) -> Iterator[Session]:
    """Apply tools to every operator that runs in this process, until the block is left.

    Args:
        *tools: and those that they depend on. What is depended on runs first.
        cache: analyse each operator once. Without it each is analysed in every iteration anew.

    Yields:
        The session; its `contexts` are those of all operators met, by id.

    Raises:
        InstrumentError: tools depend on each other in a circle, others are applied already, or this torch is
            too old. Nothing is installed then.
    """
    check_version()
    session = Session(tools, cache=cache)
    if not _APPLYING.acquire(blocking=False):
        raise InstrumentError("tools are applied already; give all of them to one apply(...)")
    try:
        session.install()
        try:
            yield session
        finally:
            session.remove()
    finally:
        _APPLYING.release()
