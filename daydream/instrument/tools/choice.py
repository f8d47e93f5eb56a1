"""Which operators a tool acts on, by name and layer, as the options of the what-ifs say it."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase

from daydream.instrument.context import OpContext

Where = Callable[[OpContext], bool]


def chosen(op: str = "", layer: str | None = None) -> Where:
    """Return what tells whether an operator of the forward pass is one of those that are meant.

    Args:
        op: regular expression on `namespace::operator`, such as `^aten::gelu$`.
        layer: shell pattern on the layer, such as `blocks.*.act`; None for all.
    """
    search = re.compile(op).search

    def where(context: OpContext) -> bool:
        if context["phase"] != "forward" or not search(
            f"{context['namespace']}::{context['type']}"
        ):
            return False
        return layer is None or fnmatchcase(context["layer"], layer)

    return where
