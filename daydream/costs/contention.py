"""How much slower kernels run beside a transfer, and transfers beside kernels, as a trace shows it.

Steps repeat themselves, but transfers do not come at quite the same time in each: they wait for other
ranks. So the *same* kernel (name, grid, block, element type and shapes, and the same place among its like in
the step) runs beside a transfer in some steps and alone in others. *Alone* means that no transfer ran at
any time of it, *beside* that one did for at least half of it; a run that shared its device with another
kernel is neither. Kernels of one name at different places of a step are not compared: their data,
and what the caches hold, differ by more than what is looked for.

A run of duration d that was overlapped for o took the work of d - o (1 - 1/f). With the median of the runs
alone as the work of each place, and the median over its runs beside, the factor f is that by which all
places together add up: the sum of all excess over the sum of all overlap. Single kernels are further
apart. One that fills the device exactly may take twice as long, as its last blocks find no room beside
those of the transfer; others hardly notice it.

A collective's kernel that waits for its peers occupies the device too, but moves nothing. Where the
members are in the trace only the transfer counts; of a rank recorded alone waiting cannot be told from
transferring, and the factor is that of both. For the same reason transfers are compared only in
traces that hold all ranks.

`Choice` is which contention a prediction is made with: measured, given or off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct, convert, field, to_builtins

from daydream.arrays import distinct, percentile, turns, unique
from daydream.costs.kernels import is_matrix
from daydream.errors import GraphError
from daydream.graph.calls import Coverage, sharing
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.select import coded, is_text
from daydream.graph.tables import COLLECTIVE, KERNEL
from daydream.results import Record
from daydream.text import counted
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    from daydream.simulate.contention import Contention

BESIDE = 0.5  # of a run: a touch by a transfer says little, and a long run is touched more easily
SHARED = 0.1  # of a run beside other kernels
RESOLVED = 20  # times what the clock resolves: then a run is 5% off at most
STEADY = 0.1  # of a work's time alone: what varies more by itself cannot tell
LEAST_PLACES = 10
CLOCK_NS = 32  # the step of the timer of NVIDIA GPUs, where times are not whole microseconds
# Of the interval
DRAWS = 400
SEED = 0

SAME_KERNEL = ("name", "grid", "block", "dtype", "shapes")
SAME_TRANSFER = ("name", "collective", "bytes", "group")


class Evidence(Struct, frozen=True):
    """A factor, with what it rests on: places in the step, their runs beside and alone, the overlap.

    Nine of ten factors of places drawn from these at random lie between `low` and `high`.
    """

    factor: float
    low: float
    high: float
    places: int
    beside: int
    alone: int
    overlapped_ns: int


class Compared(Struct, frozen=True, eq=False):
    """Places of the step whose work ran both beside and alone, an entry each.

    `excess_ns` is what the runs beside took longer than `alone_ns`, the same number of usual runs alone.
    """

    excess_ns: np.ndarray
    overlap_ns: np.ndarray
    alone_ns: np.ndarray
    beside: np.ndarray
    alone: np.ndarray

    def __len__(self) -> int:
        return len(self.excess_ns)

    def factor(self, places: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the factor by which these places together add up, or each row of them."""
        excess, overlap = (each[places].sum(axis=-1) for each in (self.excess_ns, self.overlap_ns))
        # What exceeds the overlap has other reasons: the factor stays finite.
        return 1 / np.maximum(1 - excess / overlap, 0.01)

    def evidence(self) -> Evidence | None:
        """Return what these places show together, None if they are too few."""
        if len(self) < LEAST_PLACES:
            return None
        drawn = np.random.default_rng(SEED).integers(0, len(self), (DRAWS, len(self)))
        low, high = percentile(self.factor(drawn), [5, 95])
        return Evidence(
            factor=float(self.factor()),
            low=float(low),
            high=float(high),
            places=len(self),
            beside=int(self.beside.sum()),
            alone=int(self.alone.sum()),
            overlapped_ns=int(self.overlap_ns.sum()),
        )


class Measured(Struct, frozen=True):
    """What a trace shows of contention; None where runs of the same work to compare are too few.

    `matrix` and `other` are the parts of `kernel` that a matrix library's kernels and all others are.
    """

    kernel: Evidence | None
    matrix: Evidence | None
    other: Evidence | None
    transfer: Evidence | None
    met: bool  #: whether any kernel ran beside a transfer at all
    kernels: Compared | None = None  #: the places that `kernel` rests on


def evidence_json(measured: Measured) -> dict[str, Any]:
    """Return what was measured as JSON can say it, to be kept beside the trace."""
    return to_builtins(measured, enc_hook=np.ndarray.tolist)


def evidence_of(given: Any) -> Measured:
    """Return what was measured from its JSON. Raises `ValueError` if it is none."""
    return convert(given, Measured, dec_hook=lambda _, values: np.array(values))


NOTHING = Measured(None, None, None, None, met=False)
known: WeakKeyDictionary[Trace, Measured] = WeakKeyDictionary()  # what was worked out, by trace


def measured_contention(graph: Graph) -> Measured:
    """Return what the trace of a graph shows of contention, worked out once."""
    if not len(graph.recorded):
        return NOTHING
    if graph.recorded not in known:
        known[graph.recorded] = _measure(graph, graph.recorded)
    return known[graph.recorded]


def _measure(graph: Graph, trace: Trace) -> Measured:
    recorded = graph.alive & (graph.row >= 0) & (graph.measured_start_ns >= 0)
    recorded &= graph.step >= 0
    kernels = np.flatnonzero(recorded & (graph.kind == KERNEL))
    transfers = np.flatnonzero(recorded & (graph.kind == COLLECTIVE))
    if not len(kernels) or not len(transfers):
        return NOTHING
    both = _Both(graph, kernels, transfers)
    on_gpu = trace.is_kind("kernel")
    times = np.append(trace["start_ns"][on_gpu], trace["duration_ns"][on_gpu])
    clock = 1000 if len(times) and not (times % 1000).any() else CLOCK_NS
    by_itself = both.shared_ns <= SHARED * both.kernel_ns
    runs = _Runs(
        _places(graph, kernels, SAME_KERNEL),
        both.kernel_ns,
        both.kernel_overlap_ns,
        by_itself,
        clock,
    )
    moved = _Runs(
        _places(graph, transfers, SAME_TRANSFER),
        both.transfer_ns,
        both.transfer_overlap_ns,
        both.known_from_the_last_arrival(graph, trace),
        clock,
    )
    matrix = is_matrix(graph, graph.tasks(kernels))
    compared = runs.compared()
    return Measured(
        kernels=compared,
        kernel=compared.evidence(),
        matrix=runs.compared(matrix).evidence(),
        other=runs.compared(~matrix).evidence(),
        transfer=moved.compared().evidence(),
        met=bool(both.kernel_overlap_ns.any()),
    )


class _Both:
    """How long kernels and transfers took, and how long each overlapped the other, as recorded."""

    def __init__(self, graph: Graph, kernels: np.ndarray, transfers: np.ndarray) -> None:
        lane = graph.lane
        start = graph.measured_start_ns
        self.transfers = transfers
        self.kernel_ns = graph.column("measured_duration_ns", kernels).astype(np.int64)
        ends = graph.column("start_ns", transfers) + graph.column("measured_duration_ns", transfers)
        self.transfer_ns = ends - start[transfers]  # from the last arrival, where it is known
        self.kernel_overlap_ns, self.shared_ns = np.zeros((2, len(kernels)), np.int64)
        self.transfer_overlap_ns = np.zeros(len(transfers), np.int64)
        for computing, transferring in sharing(graph.lanes):
            k = np.flatnonzero(computing[lane[kernels]])
            t = np.flatnonzero(transferring[lane[transfers]])
            begin = start[kernels[k]]
            end = start[kernels[k]] + self.kernel_ns[k]
            moving = Coverage(start[transfers[t]], ends[t])
            self.kernel_overlap_ns[k] = moving.within(begin, end)
            self.transfer_overlap_ns[t] = Coverage(begin, end).within(start[transfers[t]], ends[t])
            self.shared_ns[k] = _running(begin, end) - self.kernel_ns[k]

    def known_from_the_last_arrival(self, graph: Graph, trace: Trace) -> np.ndarray:
        """Return a mask of the transfers whose waiting is known: all members are in the trace."""
        ranks = {graph.lanes[lane].rank for lane in unique(graph.lane[self.transfers])}
        if trace.metadata.get("world_size") != len(ranks):
            return np.zeros(len(self.transfers), bool)
        links = graph.links
        return np.isin(self.transfers, links["dst"][links["cause"] == int(Cause.COMMUNICATION)])


def _running(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Return for each span how long the spans run within it, itself included, each counted."""
    if not len(start_ns):
        return np.zeros(0, np.int64)
    begin = start_ns - start_ns.min()
    end = end_ns - start_ns.min()

    def since(marks: np.ndarray, times: np.ndarray) -> np.ndarray:
        marks = np.sort(marks)
        passed = np.searchsorted(marks, times, side="right")
        return passed * times - np.append(0, np.cumsum(marks))[passed]

    return since(begin, end) - since(end, end) - since(begin, begin) + since(end, begin)


class _Runs(NamedTuple):
    """Runs of work: at which place of the step, how long each took and was overlapped, and which count."""

    place: np.ndarray
    duration_ns: np.ndarray
    overlap_ns: np.ndarray
    comparable: np.ndarray
    clock_ns: int

    def compared(self, chosen: np.ndarray | None = None) -> Compared:
        """Return what each place of the step shows that was run both ways often enough."""
        use = self.comparable & (self.duration_ns > 0)
        if chosen is not None:
            use &= chosen
        alone = use & (self.overlap_ns == 0)
        beside = use & (self.overlap_ns >= BESIDE * self.duration_ns)
        places = unique(self.place[alone]), unique(self.place[beside])
        both = np.intersect1d(*places, assume_unique=True)
        without = _by_place(self.place, alone, both)
        slowed = _by_place(self.place, beside, both)
        found = [self._at_one(*runs) for runs in zip(without, slowed, strict=True)]
        shown = np.array([one for one in found if one is not None]).reshape(-1, 5)
        return Compared(*shown.T)

    def _at_one(
        self, alone: np.ndarray, beside: np.ndarray
    ) -> tuple[float, float, float, int, int] | None:
        """Return the entry of one place in `Compared`; None if it cannot tell."""
        without = self.duration_ns[alone]
        usual = float(np.median(without))
        if usual < RESOLVED * self.clock_ns or np.ptp(without) > STEADY * usual:
            return None
        overlap = self.overlap_ns[beside]
        lost = float(np.median((self.duration_ns[beside] - usual) / overlap))
        together = float(overlap.sum())
        return lost * together, together, usual * len(beside), len(beside), len(alone)


def _by_place(place: np.ndarray, mask: np.ndarray, wanted: np.ndarray) -> list[np.ndarray]:
    """Return the runs of a mask at each of the wanted places."""
    runs = np.flatnonzero(mask)
    runs = runs[np.argsort(place[runs], kind="stable")]
    first, last = (np.searchsorted(place[runs], wanted, side=side) for side in ("left", "right"))
    return [runs[begin:end] for begin, end in zip(first.tolist(), last.tolist(), strict=True)]


def _places(graph: Graph, tasks: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Return a number for each task that it shares with the same work of other steps.

    The same are tasks of one rank that agree in these columns, and in their place among those of their step,
    if the steps have equally many.
    """
    columns = graph.columns
    rank = np.array([lane.rank for lane in graph.lanes], np.int64)[columns["lane"][tasks]]
    kind = rank
    for name in names:
        values = coded(graph, name, tasks)[0] if is_text(name) else graph.column(name, tasks)
        kind = _numbered(kind, values)
    in_step = _numbered(kind, columns["step"][tasks])
    order = np.lexsort((columns["order"][tasks], in_step))
    count = np.bincount(in_step)
    number = np.empty(len(tasks), np.int64)
    number[order] = turns(in_step[order])
    return _numbered(_numbered(kind, count[in_step]), number)


def _numbered(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return a number from 0 on for each distinct pair."""
    values, codes = distinct(second)
    return distinct(first.astype(np.int64) * len(values) + codes)[1]


MEASURED = "measured"
OFF = "off"
GIVEN = "given"
UNMEASURED = "unmeasured"
PARTS = ("kernel", "matrix", "other", "transfer")
ContentionOption = str | float | Sequence[float]


class Choice(Record):
    """How many times as long kernels and transfers take beside each other, and where that comes from.

    Attributes:
        mode: `measured`, `given`, `off`, or `unmeasured`: the trace does not tell, and no factor was given.
        matrix_factor: of a matrix library's kernels.
        other_factor: of other kernels.
        transfer_factor: of transfers.
        evidence: what measured factors rest on, by what they are of.
        kernels: whether there are any.
        reason: why the trace does not tell.
    """

    mode: str
    matrix_factor: float = 1.0
    other_factor: float = 1.0
    transfer_factor: float = 1.0
    evidence: Mapping[str, Evidence | None] = field(default_factory=lambda: dict.fromkeys(PARTS))
    kernels: bool = True
    reason: str | None = None

    @property
    def slows(self) -> bool:
        """Whether anything is slowed."""
        return (
            self.kernels and max(self.matrix_factor, self.other_factor, self.transfer_factor) != 1
        )

    def note(self) -> str:
        """Return a sentence on what was done."""
        if self.mode == OFF:
            return "Kernels and transfers do not slow each other here: contention is off."
        if not self.kernels:
            return "Contention of transfers and compute is not modelled: there are no GPU kernels."
        if self.mode == GIVEN:
            said = f"Kernels take x{self.matrix_factor:g} while a transfer runs"
            if self.transfer_factor > 1:
                said += f", transfers x{self.transfer_factor:g} during kernels"
            return f"{said}, as given."
        if self.mode == UNMEASURED:
            return f"Contention is not modelled: {self.reason}; --contention F sets a factor."
        parts = []
        ran = self.evidence["kernel"]
        transfer = self.evidence["transfer"]
        if ran is not None:
            runs = f"{counted(ran.beside, 'run')} at {counted(ran.places, 'place')} of the step"
            if max(self.matrix_factor, self.other_factor) == 1:
                parts.append(
                    f"Kernels took x{ran.factor:.2f} during a transfer, measured on {runs}: none are slowed."
                )
            else:
                factor = f"x{self.matrix_factor:.2f}"
                if self.matrix_factor != self.other_factor:
                    factor += f" (matrix products) or x{self.other_factor:.2f} (others)"
                parts.append(
                    f"Kernels take {factor} while a transfer runs, measured on {runs} "
                    f"(x{ran.low:.2f} to x{ran.high:.2f} within noise)."
                )
        if transfer is not None:
            runs = counted(transfer.beside, "run")
            parts.append(
                f"Transfers take x{self.transfer_factor:.2f} during kernels, measured on {runs}."
            )
        return " ".join(parts)


def between(choice: Choice | None, untouched: Graph, graph: Graph) -> Contention | None:
    """Return how a changed copy of an untouched graph is slowed; None if nothing is."""
    if choice is None or not choice.slows:
        return None
    factor: np.ndarray | float = choice.matrix_factor
    if choice.matrix_factor != choice.other_factor:
        kernels = graph.select(kind="kernel")
        factor = np.full(len(graph.name), choice.other_factor)
        factor[kernels.ids[is_matrix(graph, kernels)]] = choice.matrix_factor
    from daydream.simulate.contention import Contention

    return Contention(untouched, factor, choice.transfer_factor)


def choose(option: ContentionOption, untouched: Graph, graph: Graph) -> Choice | None:
    """Return the contention of a prediction; None if neither side of it has a transfer.

    `option` is `"measured"`, `"off"`, a factor for kernels, or two: for kernels and for transfers.

    Raises `GraphError` for another, or a factor below 1.
    """
    chosen = parsed(option)
    recorded = untouched.kind[untouched.alive]
    kinds = np.append(recorded, graph.kind[graph.alive])
    if not (kinds == COLLECTIVE).any():
        return None
    kernels = bool((kinds == KERNEL).any())
    if chosen == OFF:
        return Choice(OFF, kernels=kernels)
    if isinstance(chosen, tuple):
        kernel, transfer = chosen
        return Choice(GIVEN, kernel, kernel, transfer, kernels=kernels)
    if not (recorded == COLLECTIVE).any():
        return Choice(
            UNMEASURED, kernels=kernels, reason="the trace has no transfers to measure it on"
        )
    found = measured_contention(untouched)
    if found.kernel is None and found.transfer is None:
        reason = "too few kernels ran during a transfer in one step and alone in another"
        if not found.met:
            reason = "no kernel ran during a transfer"
        return Choice(UNMEASURED, kernels=kernels, reason=reason)
    matrix = found.matrix
    other = found.other
    if matrix is None or other is None or (matrix.low <= other.high and other.low <= matrix.high):
        matrix = other = found.kernel  # the two are not apart
    evidence = {part: getattr(found, part) for part in PARTS}
    return Choice(
        MEASURED, _factor(matrix), _factor(other), _factor(found.transfer), evidence, kernels
    )


def _factor(evidence: Evidence | None) -> float:
    """Return a measured factor; one below 1 is no contention."""
    return 1.0 if evidence is None else max(evidence.factor, 1.0)


def parsed(option: ContentionOption) -> Any:
    """Return `"measured"`, `"off"` or the factors of kernels and transfers. Raises `GraphError`."""
    if isinstance(option, str) and option in (MEASURED, OFF):
        return option
    values: Sequence[Any] = (
        option.split(",") if isinstance(option, str) else np.ravel(option).tolist()
    )
    try:
        factors = [float(value) for value in values]
    except (TypeError, ValueError):
        factors = []
    if len(factors) not in (1, 2) or not all(math.isfinite(each) and each >= 1 for each in factors):
        raise GraphError(
            f"contention is 'measured', 'off', a factor of 1 or more for kernels, or two, for kernels and "
            f"transfers; not {option!r}"
        )
    return tuple([*factors, 1.0][:2])  # of transfers 1 by default
