"""Tools that look at the operators of a running model and change them: `Tool`, `apply`, actions.

What a tool is, and what it is shown, lies in `tool.py`, how operators get their ids in `places.py`, how
actions run in `actions.py`, how all of it is put on and off in `session.py`, how compiled functions get
them in `compiled.py`. Private names of torch are
touched in `torch_private.py` only.
"""

from __future__ import annotations

from daydream.instrument.places import disabled, enabled
from daydream.instrument.session import apply
from daydream.instrument.tool import InstrumentError, OpContext, Tool

__all__ = ["InstrumentError", "OpContext", "Tool", "apply", "disabled", "enabled"]
