"""The error of instrumentation."""

from __future__ import annotations

from daydream.errors import DaydreamError


class InstrumentError(DaydreamError):
    """A tool, an action or a place of an operator makes no sense."""
