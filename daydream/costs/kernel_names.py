"""Names of kernels: what instances of one kernel for other shapes and types have in common."""

from __future__ import annotations

import re


def family(name: str) -> str:
    """Return a kernel's name without its arguments, template parameters and tile sizes.

    What is left is what instances of one kernel for other shapes and types have in common.
    """
    name = re.sub(r"\((anonymous namespace|anonymous class)\)::|<unnamed>::", "", name)
    head = re.split(r"[<(]", name, maxsplit=1)[0]
    head = head.split("::")[-1].split()[-1:] or [name]
    short = re.sub(r"_?(MT)?\d+x\d+.*$", "", head[0])
    return re.sub(r"_\d+$", "", short) or head[0]
