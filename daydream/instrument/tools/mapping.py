"""One name for one operation, whichever library its operator is of."""

from __future__ import annotations

from collections.abc import Mapping as Names
from typing import Any

from daydream.instrument.context import OpContext
from daydream.instrument.tool import Tool

# The places of the input and the weight in the schemas of torch's own libraries.
KNOWN: dict[str, tuple[str, int | None, int | None]] = {
    "aten::linear": ("linear", 0, 1),
    "aten::conv1d": ("convolution", 0, 1),
    "aten::conv2d": ("convolution", 0, 1),
    "aten::conv3d": ("convolution", 0, 1),
    "aten::gelu": ("activation", 0, None),
    "aten::relu": ("activation", 0, None),
    "aten::silu": ("activation", 0, None),
    "aten::layer_norm": ("normalization", 0, 2),
    "aten::rms_norm": ("normalization", 0, 2),
    "aten::batch_norm": ("normalization", 0, 1),
    "aten::embedding": ("embedding", 1, 0),
}


class Mapping(Tool):
    """Adds `operation`, `input_place` and `weight_place` to each context; tools that depend on it use those.

    Args:
        names: `namespace::operator` of your own libraries to the operation, or to (operation, place of the
            input, place of the weight). `conv2d` of `aten` is a `convolution` with its weight at place 1.
    """

    def __init__(
        self, names: Names[str, str | tuple[str, int | None, int | None]] | None = None
    ) -> None:
        self.names: dict[str, tuple[str, int | None, int | None]] = dict(KNOWN)
        for name, given in (names or {}).items():
            self.names[name] = (given, 0, None) if isinstance(given, str) else given
        for backward in (False, True):
            self.add_inst_for_op(self._map, backward=backward)

    def _map(self, op: OpContext) -> None:
        found: tuple[Any, ...] = self.names.get(
            f"{op['namespace']}::{op['type']}", (None, None, None)
        )
        op["operation"], op["input_place"], op["weight_place"] = found
