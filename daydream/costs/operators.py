"""What operators and kernels are, by their names: the rows of `operators.tsv` and `kernels.tsv`.

| column | what it holds |
|---|---|
| `name` | without `aten::`, overload and the underscore of what works in place |
| `family` | matmul, convolution, attention, recurrent, normalization, softmax, loss, element-wise, ... |
| `formula` | the function in `workload/` of FLOP and elements; `flop`, `reads`, `writes` are its numbers |
| `roles` | of each argument: input, weight, bias, statistic, factor (of `mm`), left, right (batched), index |
| `traits` | no-work, allocates, loss, activation; mask and indices: a result of 1 or 8 bytes an element; |
| | indexed, by-strides, by-values: the work depends on what no trace records |
| `autocast_gpu`, `autocast_cpu` | 16, 32 (`32 result`: the type asked for), widest: bits under autocast |
| `nodes` | autograd's nodes, with the number of inputs and of results that each saves |
| `tags` | view, random, composite (calls others), fusible (element by element), data-dependent (CPU waits) |

PyTorch publishes the last four: `tests/costs/test_operator_table.py` compares and, if asked to, writes them.

Of the classes of kernels the first that fits counts. What instances of one kernel for other shapes and types
have in common is its `family`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from daydream.graph.select import for_each, of_tasks
from daydream.graph.selection import Selection

if TYPE_CHECKING:
    import numpy as np

MATRIX_FAMILIES = ("matmul", "convolution", "attention", "recurrent")
LIBRARIES = (  # family and formula of operators that are not torch's, by their names; the first that fits
    ("element-wise", "compiled", r"^triton_(poi|red|per)_"),  # Inductor's kernels
    ("matmul", "experts", r"(?i:fused_(experts|moe)|moe_forward)"),
    ("matmul", "library_product", r"^(?!aten::)\w+::.*(?i:gemm|scaled_mm|matmul_ogs)"),
    ("attention", "", r"^(?!aten::)\w+::.*(?i:flash|attention|fmha)"),
)


class Operator(NamedTuple):
    """A row of the operator table.

    Texts are empty and numbers 0 where it holds nothing.
    """

    name: str
    family: str = ""
    formula: str = ""
    flop: int = 0
    reads: int = 0
    writes: int = 0
    roles: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()  # and tags
    autocast_gpu: str = ""
    autocast_cpu: str = ""
    nodes: str = ""

    @property
    def is_matrix(self) -> bool:
        """Whether it multiplies matrices: products, convolutions, attention, recurrent layers."""
        return self.family in MATRIX_FAMILIES

    @property
    def is_linear(self) -> bool:
        """Whether it multiplies rows by one matrix: `mm`, `addmm`, `linear`."""
        return self.family == "matmul" and "input" in self.roles

    @property
    def is_batched(self) -> bool:
        """Whether it multiplies the matrices of two batches: `bmm`, `baddbmm`."""
        return self.formula in ("bmm", "baddbmm")

    @property
    def is_softmax(self) -> bool:
        """Whether it is a softmax, forward or backward, and not its logarithm."""
        return self.family == "softmax" and "log" not in self.name

    @property
    def keeps_result(self) -> bool:
        """Whether its node saves a result and no input, as those of softmax and exp do."""
        saved = [each.split()[1:] for each in self.nodes.split("; ") if each]
        return any(inputs == "0" != results for inputs, results in saved)

    @property
    def first(self) -> int:
        """Place of the argument that it works on, or of the left factor."""
        return next(iter(self.places("input", "left")), 0)

    @property
    def parameters(self) -> tuple[int, ...]:
        """Places of the arguments that are parameters of a layer."""
        return self.places("weight", "bias", "statistic")

    def places(self, *roles: str) -> tuple[int, ...]:
        """Return the places of the arguments that have one of these roles."""
        return tuple(place for place, role in enumerate(self.roles) if role in roles)


Test: TypeAlias = Callable[["Operator"], object]


@cache
def rows() -> dict[str, list[str]]:
    """Return the lines of the table by name, in columns of text."""
    text = Path(__file__).with_name("operators.tsv").read_text(encoding="utf-8")
    return {row[0]: row for row in (line.split("\t") for line in text.splitlines()[1:])}


def bare_name(op: str) -> str:
    """Return an operator's name without its namespace `aten`, overload and in-place underscore."""
    name = op.removeprefix("aten::")
    if "::" not in name:
        name = name.split(".")[0]
    return name.removesuffix("_")


@lru_cache(maxsize=1 << 14)
def operator(op: str | None) -> Operator:
    """Return what an operator is.

    By its name as profilers write it; without family where it is unknown.
    """
    name = bare_name(op or "")
    row = rows().get(name)
    if row is None:
        found = next((each for each in LIBRARIES if re.search(each[2], op or "")), ("", "", ""))
        return Operator(name, *found[:2])
    _, family, formula, flop, reads, writes, roles, traits, on_gpu, on_cpu, nodes, tags = row
    words = frozenset((*traits.split(), *tags.split("; ")))
    places = tuple(roles.split(",")) if roles else ()
    return Operator(
        name,
        family,
        formula,
        int(flop or 0),
        int(reads or 0),
        int(writes or 0),
        places,
        words,
        on_gpu,
        on_cpu,
        nodes,
    )


@cache
def saved_by(node: str) -> tuple[int, int] | None:
    """Return how many inputs and results an autograd node saves (`MulBackward0`), None for one unknown."""
    return _nodes().get(node) or _nodes().get(
        f"{node.rstrip('0123456789')}0"
    )  # old torch numbers otherwise


@cache
def _nodes() -> dict[str, tuple[int, int]]:
    listed = [each.split() for row in rows().values() for each in row[10].split("; ") if each]
    return {title: (int(inputs), int(results)) for title, inputs, results in listed}


def _once(make: Callable[[Test], str]) -> Callable[[Test], str]:
    """Keep the pattern of a test that looks at nothing but the operator: a thousand are asked for each."""
    kept: dict[tuple[Any, int], str] = {}

    @wraps(make)
    def found(fits: Test) -> str:
        code = getattr(fits, "__code__", None)
        if code is None or code.co_freevars:
            return make(fits)
        key = code, id(fits.__globals__)
        if key not in kept:
            kept[key] = make(fits)
        return kept[key]

    return found


@_once
def operators_that(fits: Callable[[Operator], object]) -> str:
    """Return a pattern of the names of operators that fit, for `op=`.

    Example:
        graph.select(op=operators_that(lambda op: op.family == "convolution"))
    """
    names = [name if "::" in name else f"aten::{name}" for name in rows() if fits(operator(name))]
    libraries = [
        pattern for family, formula, pattern in LIBRARIES if fits(Operator("", family, formula))
    ]
    return "|".join([rf"^({'|'.join(map(re.escape, names))})_?$", *libraries])


@_once
def nodes_that(fits: Callable[[Operator], object]) -> str:
    """Return a pattern of the names of autograd's nodes whose operator fits."""
    names = [name.replace("_", "") for name in rows() if fits(operator(name))]
    return rf"(?i)(^|[ :])({'|'.join(map(re.escape, names))})Backward\d*$" if names else "(?!)"


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
