"""Operator calls of a trace: the work of each, which tasks do it, and in what shares.

Device work belongs to the innermost operator around its launch that has a formula.
Where an operator only calls another of its kind (`linear` -> `addmm`), the inner one
does the work. A call's work goes to its main kernels in proportion to their time:
kernels with a matrix library's name where the operator is matrix work, else the
kernels of the name that takes longest. The others (layout changes, split-K sums) are
helpers of unknown work. Kernels without a launch in the trace get the work of kernels
of the same name and grid, where those agree.

The forward call behind backward work: autograd numbers the nodes it makes, and they run by that number.

Work of the rows of a trace in the user's cache: FLOP, bytes, family and call of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from daydream.arrays import distinct_rows, first_of, once, run_starts
from daydream.costs.operators import MATRIX_CLASSES, MATRIX_FAMILIES, kernel_class, operator
from daydream.costs.workload.formulas import Amount, Shape
from daydream.costs.workload.operator import hints_of, itemsize, operator_work
from daydream.graph.calls import enclosing
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# What else a call of a family may be made of: the slow path of `_foreach_add_` is `add_` for each tensor.
DONE_BY = {
    "attention": ("matmul",),
    "recurrent": ("matmul",),
    "convolution": ("matmul",),
    "optimizer": ("element-wise",),
    "normalization": ("element-wise", "reduction"),
    "pooling": ("reduction",),
}

_known: WeakKeyDictionary[Trace, Calls] = WeakKeyDictionary()


class RowWork(NamedTuple):
    """Work of every row of a trace: FLOP and bytes (-1 for unknown), family and owner, shape (rows,)."""

    flop: np.ndarray  #: int64
    nbytes: np.ndarray  #: int64
    family: np.ndarray  #: int8, a place in `families`, -1 for unknown
    owner: np.ndarray  #: int64, the row of the operator call, -1 for none
    families: list[str]


work_known: WeakKeyDictionary[Trace, RowWork] = WeakKeyDictionary()  # what was worked out, by trace


def work_by_row(trace: Trace) -> RowWork:
    """Return the work of every row of a trace, worked out once, as many ask about some rows."""
    if trace not in work_known:
        work_known[trace] = calls_of(trace).by_row()
    return work_known[trace]


def calls_of(trace: Trace) -> Calls:
    """Return the operator calls of a trace, worked out once."""
    if trace not in _known:
        _known[trace] = Calls(trace)
    return _known[trace]


@dataclass
class Calls:
    """Operator calls of a trace; `amounts` holds each distinct work once.

    Attributes:
        trace: what was recorded.
        amounts: FLOP and elements of each distinct work.
        keys: operator, shapes and hint of each.
        which: place among them, by row of the trace, int64; -1 for none.
    """

    trace: Trace

    def __post_init__(self) -> None:
        self.amounts: list[Amount] = []
        self.keys: list[
            tuple[str, str, Shape | None]
        ] = []  # operator, shapes and hint of each amount
        self.which = np.full(len(self.trace), UNKNOWN, np.int64)
        self.of_kernel = self.which.copy()  # of a kernel that tells its own work
        self.rows = np.flatnonzero(self.trace.is_kind("operator", "annotation"))
        self._work_out()

    def _work_out(self) -> None:
        """Set `which` for every operator row with a formula, each distinct call once."""
        trace = self.trace
        names = trace.text("name")
        self._take_what_is_told()
        told = of_rows(trace, "name", lambda name: bool(operator(name).formula))
        rows = self.rows[told[self.rows] & (trace["shapes"][self.rows] >= 0)]
        rows = rows[self.which[rows] < 0]
        if not len(rows):
            return
        hints, hint_of = hints_of(trace, self.rows, rows)
        keys = np.stack([trace["name"][rows], trace["shapes"][rows], hint_of]).astype(np.int64)
        first, inverse = distinct_rows(keys)
        places = []
        for name, shapes, hint in keys[:, first].T.tolist():
            key = (names[name], trace.text("shapes")[shapes], hints[hint] if hint >= 0 else None)
            amount = operator_work(*key)
            places.append(len(self.amounts) if amount is not None else UNKNOWN)
            if amount is not None:
                self.amounts.append(amount)
                self.keys.append(key)
        self.which[rows] = np.array(places, np.int64)[inverse]

    def _take_what_is_told(self) -> None:
        """Set `which` of operators, and of kernels, that the trace itself tells the work of (XLA's)."""
        entries = self.trace.metadata.get("operators") or []
        if not entries:
            return
        trace = self.trace
        place = {}
        names = set(trace.text("name"))
        shapes = set(trace.text("shapes"))
        for entry in entries:
            key = entry["name"], entry["shapes"]
            if key[0] not in names or key[1] not in shapes:
                continue
            place[key] = len(self.amounts)
            moved = entry.get("bytes")  # of several types: none of them is the call's own
            elements = None if moved is None else 0
            self.amounts.append(Amount(entry["family"], entry.get("flop"), elements, moved or 0))
            self.keys.append((*key, None))
        rows = np.flatnonzero((trace["shapes"] >= 0) & trace.is_kind("operator", "kernel"))
        first, number = distinct_rows([trace[column][rows] for column in ("name", "shapes")])
        texts = (trace.values(column, rows[first].tolist()) for column in ("name", "shapes"))
        found = np.array([place.get(key, UNKNOWN) for key in zip(*texts, strict=True)], np.int64)
        is_kernel = trace.is_kind("kernel")[rows]
        for chosen, column in ((~is_kernel, self.which), (is_kernel, self.of_kernel)):
            column[rows[chosen]] = found[number[chosen]]

    # by distinct work -------------------------------------------------------------------------

    @cached_property
    def numbers(self) -> np.ndarray:
        """FLOP, elements and extra bytes of each distinct work, -1 for unknown, as at the end: int64, 3 rows."""
        known = [(each.flop, each.elements, each.extra_bytes) for each in self.amounts]
        told = [[UNKNOWN if one is None else one for one in each] for each in [*known, (None,) * 3]]
        return np.array(told, np.int64).T

    @cached_property
    def families(self) -> np.ndarray:
        """Family of each distinct work, and None at the end for unknown."""
        return np.array([*(amount.family for amount in self.amounts), None], dtype=object)

    # by row -----------------------------------------------------------------------------------

    @cached_property
    def wraps(self) -> np.ndarray:
        """Mask of rows that only call others of their kind, which do the work.

        What only writes (a buffer filled with zeros) does not do the work of a call that calculates.
        """
        wraps = np.zeros(len(self.trace), bool)
        parent = self.trace["parent"]
        family = self.families[self.which]
        flop = self.numbers[0, self.which]
        for kind in {amount.family for amount in self.amounts}:
            doing = {kind, *DONE_BY.get(kind, ())}
            inner = np.isin(self.which, _places(self.families, doing))
            calculates = rows_above(parent, np.flatnonzero(inner & (flop != 0)))
            wraps |= (family == kind) & np.where(
                flop == 0, rows_above(parent, np.flatnonzero(inner)), calculates
            )
        return wraps

    @cached_property
    def owner(self) -> np.ndarray:
        """By row of device work: the operator row whose work it does, -1 for none."""
        parent = self.trace["parent"]
        owner = np.full(len(parent), UNKNOWN, np.int64)
        device = np.flatnonzero(self.trace.is_kind("kernel", "memcpy", "memset"))
        owner[device] = enclosing(parent, self.which >= 0, parent[device], inner=True)
        return owner

    @cached_property
    def share(self) -> np.ndarray:
        """By row of device work: the part of its call's work that it does; 0 for helpers."""
        trace = self.trace
        share = np.zeros(len(trace))
        rows = np.flatnonzero((self.owner >= 0) & trace.is_kind("kernel"))
        rows = rows[~self.wraps[self.owner[rows]]]
        if not len(rows):
            return share
        names = trace.text("name")
        matrix = of_rows(trace, "name", lambda name: kernel_class(name) in MATRIX_CLASSES)
        is_matrix_call = np.isin(self.which, _places(self.families, set(MATRIX_FAMILIES)))[
            self.owner[rows]
        ]
        by_library = is_matrix_call & matrix[rows]
        group = np.where(
            by_library, len(names), trace["name"][rows]
        )  # all matrix kernels of a call together
        duration = np.maximum(np.asarray(trace["duration_ns"], np.float64)[rows], 1.0)
        pairs = np.stack([self.owner[rows], group])
        found, which = distinct_rows(pairs)
        keys = pairs[:, found]
        total = np.bincount(which, duration)
        order = np.lexsort([-total, keys[1] != len(names), keys[0]])
        main = np.zeros(keys.shape[1], bool)
        main[order[run_starts(keys[0][order])]] = True
        share[rows] = np.where(main[which], duration / total[which], 0.0)
        return share

    @cached_property
    def on_device(self) -> np.ndarray:
        """Mask of rows of device work, collectives too."""
        return self.trace.is_kind("kernel", "memcpy", "memset", "collective")

    @cached_property
    def sizes(self) -> np.ndarray:
        """Bytes of an element of each row's type, -1 for unknown."""
        return of_rows(self.trace, "dtype", lambda name: itemsize(name) or UNKNOWN, none=UNKNOWN)

    @cached_property
    def launches_work(self) -> np.ndarray:
        """Mask of host rows under which device work was launched: their own work is done there."""
        trace = self.trace
        parent = trace["parent"]
        return rows_above(parent, np.flatnonzero(self.on_device))

    def by_row(self) -> RowWork:
        """Return the work of each row, device or operator."""
        rows = np.arange(len(self.trace))
        is_device = self.on_device
        cpu_call = ~is_device & ~self.wraps & ~self.launches_work & (self.which >= 0)
        owner = np.where(is_device, self.owner, np.where(cpu_call, rows, UNKNOWN))
        share = np.where(is_device, self.share, 1.0)
        which = np.where((owner >= 0) & (share > 0), self.which[owner], UNKNOWN)
        flop, nbytes = self._scaled(which, share, rows, owner)
        orphan = np.flatnonzero(self.trace.is_kind("kernel") & (owner < 0))
        if len(orphan):
            flop[orphan], nbytes[orphan], which[orphan] = self._like_twins(orphan)
            alone = orphan[(which[orphan] < 0) & (self.of_kernel[orphan] >= 0)]
            which[alone] = self.of_kernel[alone]
            whole = np.ones(len(alone))
            flop[alone], nbytes[alone] = self._scaled(which[alone], whole, alone, owner[alone])
        names = list(dict.fromkeys(amount.family for amount in self.amounts))
        code = np.array(
            [*(names.index(amount.family) for amount in self.amounts), UNKNOWN], np.int8
        )
        return RowWork(flop, nbytes, code[which], owner, names)

    def which_of_tasks(self, rows: np.ndarray) -> np.ndarray:
        """Return the distinct work that each row is part of, helpers included; -1 for none."""
        is_device = self.on_device[rows]
        owner = np.where(is_device, self.owner[rows], rows)
        own = np.where(owner >= 0, self.which[owner], UNKNOWN)
        own[~is_device & (self.launches_work[rows] | self.wraps[rows])] = UNKNOWN
        orphan = np.flatnonzero(self.trace.is_kind("kernel")[rows] & (owner < 0))
        if len(orphan):
            twin = self._like_twins(rows[orphan])[2]
            own[orphan] = np.where(twin >= 0, twin, self.of_kernel[rows[orphan]])
        return own

    def _scaled(
        self, which: np.ndarray, share: np.ndarray, rows: np.ndarray, owner: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        known, (flop, moved, extra) = which >= 0, self.numbers[:, which]
        size = self.sizes[owner]
        size = np.where((owner >= 0) & (size > 0), size, self.sizes[rows])
        flop = np.where(known & (flop >= 0), np.rint(flop * share), UNKNOWN)
        can = known & (moved >= 0) & ((size > 0) | (moved == 0))
        nbytes = np.rint((moved * np.maximum(size, 0) + extra) * share)
        return flop.astype(np.int64), np.where(can, nbytes, UNKNOWN).astype(np.int64)

    def _like_twins(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the work of kernels without a launch, from kernels of the same name and grid that agree.

        Where no grid was recorded, from all kernels of the name, if those agree.
        """
        trace = self.trace
        found = np.full((3, len(rows)), UNKNOWN, np.int64)
        known = np.flatnonzero(trace.is_kind("kernel") & (self.owner >= 0) & (self.share > 0))
        owner = self.owner[known]
        which = self.which[owner]
        work = np.stack([*self._scaled(which, self.share[known], known, owner), which])
        grid = trace["grid"][rows] >= 0
        for mine, columns in ((grid, ("name", "grid")), (~grid, ("name",))):
            all_rows = np.append(known, rows[mine])
            _, number = distinct_rows([trace[column][all_rows] for column in columns])
            first = first_of(number[: len(known)], int(number.max(initial=-1)) + 1)
            differs = (work[:2] != work[:2, first[number[: len(known)]]]).any(axis=0)
            first[number[: len(known)][differs]] = UNKNOWN
            twin = first[number[len(known) :]]
            found[:, np.flatnonzero(mine)[twin >= 0]] = work[:, twin[twin >= 0]]
        return found[0], found[1], found[2]


def of_rows(
    trace: Trace, column: str, tell: Callable[[str], object], *, none: object = False
) -> np.ndarray:
    """Return what `tell` gives for the text of each row of a trace, `none` where it has none: shape (rows,)."""
    return np.array([*map(tell, trace.text(column)), none])[trace[column]]


def rows_above(parent: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Mask of the rows around any of these."""
    above = np.zeros(len(parent), bool)
    up = parent[rows]
    while len(up := once(up[(up >= 0) & ~above[up]], len(parent))):
        above[up] = True
        up = parent[up]
    return above


def _places(families: np.ndarray, wanted: set[str]) -> np.ndarray:
    return np.flatnonzero([family in wanted for family in families[:-1].tolist()])


NODE = regex(r"Backward\d*$|AccumulateGrad$")  # autograd nodes; a Python function's has no number


_nodes: WeakKeyDictionary[Trace, np.ndarray] = WeakKeyDictionary()
_makers: WeakKeyDictionary[Trace, tuple[np.ndarray, np.ndarray]] = WeakKeyDictionary()


def nodes(trace: Trace) -> np.ndarray:
    """Return a mask of the rows that are autograd nodes, worked out once: bool, not to be written to."""
    if trace not in _nodes:
        fits = of_rows(trace, "name", lambda name: bool(NODE.search(name)))
        _nodes[trace] = fits & trace.is_kind("operator", "annotation")
        _nodes[trace].flags.writeable = False
    return _nodes[trace]


def innermost_makers(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the innermost row around each (itself included) that is a node or makes one, -1 for none.

    A node's own calls make no nodes, so have no sequence number; those of a forward
    pass that a checkpoint runs again inside a node have one.
    """
    decides = nodes(trace) | (trace["sequence"] >= 0)
    return enclosing(trace["parent"], decides, rows, inner=True)


def forward_rows(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the forward operator whose gradient each row computes, -1 where it is not known.

    Of several with the same number (`linear` calls `addmm`) the last to begin, which does the work.
    """
    if trace not in _makers:
        _makers[trace] = _last_makers(trace)
    key, last = _makers[trace]
    around = innermost_makers(trace, rows)
    there = (around >= 0) & nodes(trace)[around] & (trace["sequence"][around] >= 0)
    return np.where(there, last[key[around]], UNKNOWN)


def _last_makers(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return a number of each row's rank and sequence number, and for each the last row that made its node."""
    sequence = trace["sequence"]
    first, key = distinct_rows([trace["rank"], sequence])
    makers = np.flatnonzero(~nodes(trace) & trace.is_kind("operator") & (sequence >= 0))
    makers = makers[nodes_above(trace, makers) < 0]
    last = np.full(len(first), UNKNOWN)
    last[key[makers]] = makers  # of what is assigned to one place, the last stays
    return key, last


def nodes_above(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """Return the nearest node around each row, -1 for none."""
    parent = trace["parent"]
    return enclosing(parent, nodes(trace), parent[rows], inner=True)


WORK = "work."  # begins the names of its arrays
COLUMNS = ("flop", "nbytes", "family", "owner")


def work_contents(trace: Trace) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return the families and the arrays of the work of a trace."""
    found = work_by_row(trace)
    return found.families, {WORK + name: getattr(found, name) for name in COLUMNS}


def kept_work(families: list[str], arrays: Mapping[str, np.ndarray]) -> RowWork:
    """Return the work of a trace's rows from what is kept of it."""
    return RowWork(**{name: arrays[WORK + name] for name in COLUMNS}, families=families)
