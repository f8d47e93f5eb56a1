"""What a kernel is, by its name: the classes of `kernels.tsv`, of which the first that fits counts.

What instances of one kernel for other shapes and types have in common is its `family`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from daydream.graph.select import for_each, of_tasks
from daydream.graph.selection import Selection

if TYPE_CHECKING:
    import numpy as np

# Copies over the link between host and device, as PyTorch, Nsight Systems and ROCm name them.
TO_DEVICE = r"HtoD|HostToDevice"
TO_HOST = r"DtoH|DeviceToHost"
OVER_LINK = f"{TO_DEVICE}|{TO_HOST}"
PAGEABLE = r"(?i)pageable"
MATRIX_CLASSES = ("attention", "convolution", "product", "recurrent")
# Of these classes kernels read and write, and calculate next to nothing.
STREAMING_CLASSES = (
    "vectorized",
    "element-wise",
    "reduction",
    "partial sum",
    "layout",
    "batch norm",
    "norm",
    "softmax",
    "loss",
    "optimizer",
    "copy",
    "dropout",
)


@cache
def _classes() -> list[tuple[str, re.Pattern[str]]]:
    text = Path(__file__).with_name("kernels.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()[1:]]
    return [(name, re.compile(pattern, re.IGNORECASE)) for name, pattern in rows]


@lru_cache(maxsize=1 << 16)
def kernel_class(name: str | None) -> str:
    """Return the class of a kernel's name, "" where it fits none."""
    return next((each for each, pattern in _classes() if pattern.search(name or "")), "")


def kernels_are(kernels: np.ndarray | Selection, *classes: str) -> np.ndarray:
    """Return a mask of the kernels of some classes.

    Args:
        kernels: tasks, or their names, texts (object).
        classes: of `kernels.tsv`: `softmax`.

    Returns:
        shape (kernels,), bool.
    """
    return names_fit(kernels, lambda name: kernel_class(name) in classes)


def names_fit(names: np.ndarray | Selection, search: Callable[[str], object]) -> np.ndarray:
    """Return a mask of the names that fit.

    Args:
        names: texts (object), None for unknown, shape (tasks,); or tasks, whose names are meant.
        search: gives anything true for a name that fits: `re.compile(...).search`.

    Returns:
        shape (tasks,), bool.
    """

    def fits(name: str | None) -> bool:
        return bool(name and search(name))

    if isinstance(names, Selection):
        return of_tasks(names, "name", fits, bool)
    return for_each(names, fits, bool)


def family(name: str) -> str:
    """Return a kernel's name without its arguments, template parameters and tile sizes.

    What is left is what instances of one kernel for other shapes and types have in common.
    """
    name = re.sub(r"\((anonymous namespace|anonymous class)\)::|<unnamed>::", "", name)
    head = re.split(r"[<(]", name, maxsplit=1)[0]
    head = head.split("::")[-1].split()[-1:] or [name]
    short = re.sub(r"_?(MT)?\d+x\d+.*$", "", head[0])
    return re.sub(r"_\d+$", "", short) or head[0]
