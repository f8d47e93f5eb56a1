"""A case: files with names, and a command line to run beside them. All of it follows from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

STRANGE: tuple[Any, ...] = (
    None, True, False, "", "a", "\x1b[31mred\x1b[0m", "half \ud83d", "-1", "1e3", "0x1f", "a\nb", -1, 0, 1, 2, 7, 1.5,
    5e-324, -7.25, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 10**30, 1e300, -1e300,
    float("nan"), float("inf"), [], [1, 2], [[1, 2], [3]], [2**40, 2**40, 2**40], [None], {}, {"a": [None]},
    [[[[[[1]]]]]], "record_param_comms", "ProfilerStep#1", "nn.Module: Linear_0", "Optimizer.step#Adam.step",
    "aten::mm", "kernel", "cpu_op",
)  # fmt: skip
INTEGERS = (
    -(2**63),
    -(2**31),
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    100,
    2**16,
    2**31 - 2,
    2**31 - 1,
    2**40,
    2**53,
    2**62,
    2**63 - 1,
)


@dataclass(frozen=True)
class Case:
    """Files by name, and the words after `daydream`."""

    kind: str
    files: dict[str, bytes]
    args: list[str]

    def without(self, **changes: Any) -> Case:
        """Return the case with some fields replaced."""
        return replace(self, **changes)


Maker = Callable[[random.Random], Case]
