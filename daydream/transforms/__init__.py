"""What an optimization is: its options, the registry of names, composition and order.

    stages                         when an optimization is applied among others: `STAGE = stages.PRECISION`
    counted, listed                how numbers and lists are said in notes and errors
    need_room, read_text           refuse values that are too large, files that cannot be read
    optimizer_settings             for `apply`: other settings of the optimizer of a running script

These names are promised to optimizations (docs/extending.md) and are loaded when they are first used.
Files below are the package's own, and may change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from daydream import lazy
from daydream.transforms import stages

if TYPE_CHECKING:
    from daydream.files.input_files import read_text
    from daydream.model.optimizers import optimizer_settings
    from daydream.text import counted, listed
    from daydream.transforms.compose import need_room

_HOMES = lazy.imports_of(__file__)

__all__ = [
    "counted",
    "listed",
    "need_room",
    "optimizer_settings",
    "read_text",
    "stages",
]

__getattr__, __dir__ = lazy.names(__name__, _HOMES)
