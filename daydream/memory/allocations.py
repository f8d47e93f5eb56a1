"""Allocations: one row an allocation, from when until when it is held, in program order.

PyTorch's allocators work in the order in which a program's threads ask, not in time: how much is held
follows from the order alone. So a change of the program is a change of this table: rows grow, go, come, or
are held longer or shorter. *Places* are that order, in steps of `STEP`, which leaves room to insert what a change
brings between two events. Two steps are from one recorded event to the next, for what must have happened between
them. What was held before the recording begins at `BEFORE`, what is held after it ends at `AFTER`.

Parts of a program, in its order: where they begin and end, and to run one of them once more.

A part is some allocations with one key: the forward pass of a block in a step, say. It lasts from its first
allocation to the first of anything else behind its last one: what the program frees between the two
belongs to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from daydream.arrays import distinct, distinct_rows, take, unique
from daydream.errors import GraphError
from daydream.memory.enclosing import rows_that
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import PHASES, UNKNOWN
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

Amount = TypeVar("Amount", int, float, np.ndarray)
KINDS = (
    "parameter", "gradient", "optimizer_state", "activation", "temporary", "input", "bucket", "shard",
    "workspace", "buffer", "unknown",
)  # fmt: skip
BEFORE = -(1 << 62)
AFTER = 1 << 62
STEP = 1 << 30  # from one place to the next before a change
EVENT = 2 * STEP  # from one recorded event to the next
OWN_ERROR = 0.02  # of any change; see `Allocations.own_error`
GRANULE = 512  # bytes: PyTorch's allocator for GPUs rounds each request up to this

COLUMNS = (
    "rank", "device", "bytes", "begin", "end", "begin_row", "end_row", "kind", "step", "end_step", "phase",
    "end_phase", "parameter", "recorded_bytes", "repeat",
)  # fmt: skip


Row = tuple[str, int, int]
"""What is held all the time: kind, bytes, and whose it is, a place among the parameters or -1."""


@dataclass
class Allocations:
    """What a step holds in memory, as columns of one length; edited in place.

    | column | what it holds |
    |---|---|
    | `rank`, `device` | whose memory; device -1 is the CPU's |
    | `bytes` | as the allocator gave them: on a GPU in multiples of 512 |
    | `begin`, `end` | places in program order; `BEFORE` and `AFTER` the recording |
    | `begin_row`, `end_row` | row of the trace that asked for it, and that freed it; -1 if none |
    | `kind` | code into `KINDS` |
    | `step`, `end_step` | index into the trace's steps, -1 outside of them |
    | `phase`, `end_phase` | code into `PHASES` of `daydream.trace.schema`, -1 if unknown |
    | `parameter` | index of the parameter that it holds, or the gradient or state of, -1 if not known |
    | `recorded_bytes` | `bytes` before any change, by which an operator's shapes tell what it is |
    | `repeat` | 0 as recorded; else which copy of a part of the program it is of |

    Attributes:
        trace: what was recorded.
        columns: the table above; each of shape (rows,), int64 where not said otherwise.
        notes: sentences that a reader should know before trusting the result.
        parameters: those of each rank, as the metadata lists them or operators' shapes show them.
        case: which end of what is not known counts, see `among`.
        recorded_graph: the graph of the trace before any change, if there is one already.
        worked_out: figures of this table as it is, which `copy` leaves out.
        doubted_cases: those of "least" and "most" that differ from what is expected.
        own_error: what a change may be off besides, of the peak: causes that are not known yet. When changes
            were first predicted, before any miss was mended, nine of ten were within 1.3 % (two models)
            and 2.1 % (three): docs/accuracy.md.
    """

    trace: Trace
    columns: dict[str, np.ndarray]
    notes: list[str] = field(default_factory=list)
    parameters: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    case: Literal["least", "expected", "most"] = "expected"
    recorded_graph: Graph | None = None
    worked_out: dict[Any, Any] = field(default_factory=dict)
    doubted_cases: set[str] = field(default_factory=set)
    own_error: float = OWN_ERROR

    def __post_init__(self) -> None:
        self.columns.setdefault("recorded_bytes", self.columns["bytes"].copy())
        self.columns.setdefault("repeat", np.zeros(len(self), np.int64))

    def __len__(self) -> int:
        return len(self.columns["bytes"])

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def copy(self) -> Allocations:
        """Return an independent copy; the trace behind it is shared."""
        columns = {name: column.copy() for name, column in self.columns.items()}
        doubted = set(self.doubted_cases)
        return replace(
            self, columns=columns, notes=list(self.notes), worked_out={}, doubted_cases=doubted
        )

    def note(self, sentence: str) -> None:
        """Add a sentence that a reader should know before trusting the result; once each."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def among(self, least: Amount, expected: Amount, most: Amount) -> Amount:
        """Return what counts of something that is not known exactly: sizes, factors or places.

        Memory is predicted for all three, and the answer's range reaches from the first to the last.
        """
        for case, end in (("least", least), ("most", most)):
            if not np.array_equal(end, expected):
                self.doubted_cases.add(case)
        return {"least": least, "expected": expected, "most": most}[self.case]

    def of_graph(self, graph: Graph) -> Allocations:
        """Return the same table, with the graph of its trace; the columns are shared."""
        return replace(self, recorded_graph=graph)

    @property
    def graph(self) -> Graph:
        """The graph of the trace before any change, to read from: blocks, work, gradients."""
        if self.recorded_graph is None:
            from daydream.graph.build import build

            self.recorded_graph = build(self.trace)
        return self.recorded_graph

    # What is asked of it

    def texts(self, column: str, *, at: str = "begin") -> list[str | None]:
        """Return a text of the row that began (or, `at="end"`, ended) each: `op`, `layer`, `stack`, ...

        A phase is known without a row, too, and so is the layer of what belongs to a parameter.
        """
        if column == "phase":
            codes = self.columns["phase" if at == "begin" else "end_phase"]
            return [(*PHASES, None)[code] for code in codes.tolist()]
        rows = self.columns[f"{at}_row"]
        codes = np.append(self.trace[column], UNKNOWN)
        names = [*self.trace.text(column), None]
        found = [names[code] for code in codes[rows].tolist()]  # the last of each: no row, no text
        if column == "layer":
            owned = np.flatnonzero(self.columns["parameter"] >= 0).tolist()
            for number in owned:
                found[number] = self.parameter(number).get("layer")
        return found

    def parameter(self, number: int) -> dict[str, Any]:
        """Return what is known of the parameter that an allocation belongs to; it must have one."""
        rank = int(self.columns["rank"][number])
        index = int(self.columns["parameter"][number])
        return self.parameters[rank][index]

    def where(
        self,
        *,
        kind: str | Sequence[str] | None = None,
        phase: str | Sequence[str] | None = None,
        end_phase: str | Sequence[str] | None = None,
        layer: str | None = None,
        op: str | None = None,
        end_op: str | None = None,
        on: str | None = None,
    ) -> np.ndarray:
        """Return which allocations match all that is given: bool, shape (rows,).

        `layer` is a glob over the layer that asked, `op` a regular expression over the operator that
        asked, `end_op` over the one that freed it, `phase` and `end_phase` the phase of the beginning and of
        the end, `on` is `cpu` or `gpu`.
        """
        found = np.ones(len(self), bool)
        if kind is not None:
            wanted = [kind] if isinstance(kind, str) else list(kind)
            if unknown := [name for name in wanted if name not in KINDS]:
                raise GraphError(
                    f"no memory is of the kind {unknown[0]!r}; kinds are {', '.join(KINDS)}"
                )
            found &= np.isin(self["kind"], [KINDS.index(name) for name in wanted])
        for at, phases in (("begin", phase), ("end", end_phase)):
            if phases is not None:
                names = (phases,) if isinstance(phases, str) else tuple(phases)
                codes = [code for code, name in enumerate(PHASES) if name in names]
                found &= np.isin(self["phase" if at == "begin" else "end_phase"], codes)
        if layer is not None:
            paths = self.texts("layer")
            fits = {path: path is not None and fnmatchcase(path, layer) for path in set(paths)}
            found &= np.fromiter((fits[path] for path in paths), bool, len(self))
        for at, pattern in (("begin_row", op), ("end_row", end_op)):
            if pattern is not None:
                hits = rows_that(self.trace, re.compile(pattern).search, "op")
                found &= take(hits, self[at], False)
        if on is not None:
            found &= (self["device"] < 0) == (on == "cpu")
        return found

    # How it is changed

    def resize(self, which: np.ndarray, nbytes: npt.ArrayLike) -> None:
        """Give some allocations (bool, shape (rows,)) other sizes, in bytes before rounding."""
        self["bytes"][which] = rounded(
            np.broadcast_to(nbytes, int(which.sum())), self["device"][which]
        )

    def scale(self, which: np.ndarray, factor: float | np.ndarray) -> None:
        """Multiply the sizes of some allocations (bool, shape (rows,))."""
        self.resize(which, np.rint(self["bytes"][which] * factor).astype(np.int64))

    def hold_until(self, rows: npt.ArrayLike, places: npt.ArrayLike) -> None:
        """Let some allocations (int, shape (n,)) end at these places at the earliest; one may come twice."""
        np.maximum.at(self["end"], np.asarray(rows, np.int64), places)

    def become(self, which: np.ndarray, kind: str) -> None:
        """Let some allocations (bool, shape (rows,), or int) be of another kind."""
        self["kind"][which] = KINDS.index(kind)

    def remove(self, which: np.ndarray) -> None:
        """Take some allocations (bool, shape (rows,)) out of the program."""
        self.columns = {name: column[~which] for name, column in self.columns.items()}

    def add(self, like: npt.ArrayLike, **columns: Any) -> None:
        """Add allocations: copies of these rows (bool, or int, shape (n,)) with some columns changed.

        `bytes` are rounded as the device's allocator rounds them. `kind` and `phase` may be names.
        """
        chosen = np.asarray(like)
        rows = np.flatnonzero(chosen) if chosen.dtype == bool else chosen.astype(np.int64)
        added = {name: self[name][rows] for name in COLUMNS}
        for name, given in columns.items():
            names = KINDS if name == "kind" else PHASES
            values = names.index(given) if isinstance(given, str) else given
            added[name] = np.broadcast_to(np.asarray(values, np.int64), len(rows))
        added["bytes"] = rounded(added["bytes"], added["device"])
        self.append(added)

    def add_before(self, rank: int, device: int, rows: Sequence[Row]) -> None:
        """Add what a device held before the recording began and still holds at its end."""
        columns: dict[str, Any] = dict.fromkeys(COLUMNS, UNKNOWN)
        columns |= {"rank": rank, "device": device, "begin": BEFORE, "end": AFTER, "repeat": 0}
        columns["kind"] = [KINDS.index(kind) for kind, _, _ in rows]
        columns["bytes"] = columns["recorded_bytes"] = [nbytes for _, nbytes, _ in rows]
        columns["parameter"] = [parameter for _, _, parameter in rows]
        self.append({name: np.full(len(rows), value, np.int64) for name, value in columns.items()})

    def append(self, rows: Mapping[str, np.ndarray]) -> None:
        """Add rows as they are: every column, of one length."""
        self.columns = {name: np.concatenate([self[name], rows[name]]) for name in COLUMNS}

    # What it holds

    @property
    def lasting(self) -> np.ndarray:
        """Which allocations are held from before the recording to behind it: bool, shape (rows,)."""
        return (self["begin"] == BEFORE) & (self["end"] == AFTER)

    def devices(self) -> list[tuple[int, int]]:
        """Return the (rank, device) pairs there are, in order."""
        keys = (self["rank"], self["device"])
        first, _ = distinct_rows(keys)
        return sorted(zip(*(key[first].tolist() for key in keys), strict=True))

    def held(self, rank: int, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Return at which places the bytes held change, and what is held from there on, both int64.

        The first is `BEFORE`. At one place what begins is held before what ends is let go.
        """
        own = on_device(self, rank, device)
        nbytes = self["bytes"][own]
        begin = self["begin"][own]
        end = self["end"][own]
        freed = end < AFTER
        places = np.concatenate([begin, end[freed]])
        amounts = np.concatenate([nbytes, -nbytes[freed]])
        order = np.lexsort((amounts < 0, places))
        places = places[order]
        totals = np.cumsum(amounts[order])
        initial = int(nbytes[begin == BEFORE].sum())
        inside = places > BEFORE
        return np.append(BEFORE, places[inside]), np.append(initial, totals[inside])

    def peak(self, rank: int, device: int) -> tuple[int, int]:
        """Return the most bytes that are held at once, and the first place where they are."""
        places, totals = self.held(rank, device)
        at = int(np.argmax(totals))
        return int(totals[at]), int(places[at])

    def held_at(self, place: int) -> np.ndarray:
        """Return which allocations are held at a place: bool, shape (rows,)."""
        return (self["begin"] <= place) & (self["end"] >= place) & (self["end"] > self["begin"])


def rounded(nbytes: npt.ArrayLike, device: npt.ArrayLike) -> np.ndarray:
    """Return what the allocators of these devices give for these bytes: int64, shape (n,)."""
    nbytes = np.maximum(np.asarray(nbytes, np.int64), 0)
    return np.where(np.asarray(device) < 0, nbytes, -(-nbytes // GRANULE) * GRANULE)


def of_rank(trace: Trace, name: str, rank: int) -> list[dict[str, Any]]:
    """Return a list of the metadata that ranks may have each their own of: `parameters`, `ddp`, ..."""
    return trace.of_rank(name, rank) or []


def device_name(device: int) -> str:
    """Return what a device is called: `cpu`, `cuda:0`."""
    return "cpu" if device < 0 else f"cuda:{device}"


def on_device(held: Allocations | MemoryEvents, rank: int, device: int) -> np.ndarray:
    """Return which rows, or events, are of a device of a rank: bool, shape (rows,)."""
    return (held["rank"] == rank) & (held["device"] == device)


def is_kind(held: Allocations, kind: str) -> np.ndarray:
    """Return which rows are of a kind: bool, shape (rows,)."""
    return held["kind"] == KINDS.index(kind)


def freed(held: Allocations) -> np.ndarray:
    """Return which rows the recording saw freed: bool, shape (rows,)."""
    return held["end"] < AFTER


def recorded_reserved(held: Allocations, rank: int, device: int) -> int | None:
    """Return the most that a GPU's allocator had when it was recorded, None where that was not."""
    events = held.trace.memory
    if events is None or device < 0:
        return None
    mine = on_device(events, rank, device)
    most = int(events["reserved_bytes"][mine].max(initial=UNKNOWN))
    return None if most < 0 else most


@dataclass(frozen=True)
class Parts:
    """Parts of the program that some allocations make up.

    Attributes:
        keys: what tells the parts apart, int64, shape (parts, columns).
        of: the part that each allocation is made in, -1 for none; int64, shape (rows,).
        first: place of a part's first allocation, int64, shape (parts,).
        until: place behind its last, where something else begins; int64, shape (parts,).
    """

    keys: np.ndarray
    of: np.ndarray
    first: np.ndarray
    until: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def begins(self, keys: np.ndarray, otherwise: int) -> np.ndarray:
        """Return where the parts with these keys begin, shape (n,), or what stands for none."""
        at = self.find(keys)
        return np.where(at >= 0, np.append(self.first, otherwise)[at], otherwise)

    def next(self, which: np.ndarray) -> np.ndarray:
        """Return the part that begins where each ends, -1 if none of `which` (bool) does: int64."""
        begins = {first: place for place, first in enumerate(self.first.tolist()) if which[place]}
        return np.array([begins.get(until, UNKNOWN) for until in self.until.tolist()], np.int64)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Return which part has each of these keys, shape (n, columns): int64, -1 for none."""
        number = {tuple(key): place for place, key in enumerate(self.keys.tolist())}
        return np.array([number.get(tuple(key), UNKNOWN) for key in keys.tolist()], np.int64)


def parts_of(held: Allocations, which: np.ndarray, *columns: np.ndarray) -> Parts:
    """Return the parts that some allocations (bool, shape (rows,)) make up.

    Args:
        held: all allocations.
        which: those that count; none that was there before the recording does.
        columns: what tells parts of a rank apart, each int64, of shape (rows,): the step, the block.

    Returns:
        `Parts`; their keys are the rank, the repetition and these columns.
    """
    mine = np.flatnonzero(which & (held["begin"] > BEFORE))
    rows = np.stack([each[mine] for each in (held["rank"], held["repeat"], *columns)])
    found, part = distinct_rows(rows)
    keys = rows.T[found]
    of = np.full(len(held), UNKNOWN, np.int64)
    of[mine] = part
    begin = held["begin"][mine]
    first = np.full(len(keys), AFTER)
    last = np.full(len(keys), BEFORE)
    np.minimum.at(first, of[mine], begin)
    np.maximum.at(last, of[mine], begin)
    until = np.full(len(keys), AFTER)
    for rank in unique(keys[:, 0]).tolist() if len(keys) else []:
        theirs = np.flatnonzero(keys[:, 0] == rank)
        begins = np.sort(held["begin"][held["rank"] == rank])
        at = np.searchsorted(begins, last[theirs], side="right")
        until[theirs] = np.append(begins, begins[-1:] + STEP)[at]
    return Parts(keys, of, first, until)


def between(place: Any, slot: Any, slots: Any) -> Any:
    """Return one of so many places between the last event and this one; 0 is where that event is.

    Args:
        place: of an event, int or int64, shape (n,).
        slot: which one, below `slots`; of that shape.
        slots: how many there are.
    """
    return place - STEP + slot * (STEP // slots)


def place_before(place: Any) -> Any:
    """Return the place of the last event before this one: int or int64, of its shape."""
    return between(place, 0, 1)


class Moved:
    """Where parts are when they run once more, right before some places (int64, shape (parts,)), in turns.

    Call it with places and parts, each of shape (n,), and the turn, from 0.
    """

    def __init__(self, parts: Parts, before: np.ndarray, turns: int = 1) -> None:
        self.parts = parts
        self.before = before
        self.turns = turns

    def __call__(self, place: Any, part: Any, turn: int = 0) -> np.ndarray:
        """Return where places of parts are in a turn: int64, shape (n,)."""
        first = self.parts.first[part]
        until = self.parts.until[part]
        events = (until - first) // STEP + 1
        slot = turn * events + (place - first) // STEP + 1
        return between(self.before[part], slot, self.turns * events + 1)


def repeat(
    held: Allocations, rows: np.ndarray, moved: Moved, *, turn: int = 0, **columns: Any
) -> np.ndarray:
    """Let the program make some allocations once more, in their order.

    What ends in its part does so in the copy, too; what ends behind it ends there, or where the column `end`
    says.

    Args:
        held: the allocations.
        rows: which of them, all of some part; int64, shape (n,).
        moved: where the parts run once more; of several repetitions before one place the same for all.
        turn: which of these this is, from 0.
        **columns: what else the copies have of their own, of shape (n,) or for all.

    Returns:
        the new rows, int64, shape (n,).
    """
    parts = moved.parts
    part = parts.of[rows]
    end = held["end"][rows]
    inside = end < parts.until[part]
    ends = moved(np.where(inside, end, 0), part, turn)
    count = len(held)
    columns = {
        **columns,
        "begin": moved(held["begin"][rows], part, turn),
        "end": np.where(inside, ends, columns.get("end", end)),
    }
    held.add(rows, **columns)
    return np.arange(count, count + len(rows))


def put_away(
    held: Allocations,
    rows: npt.ArrayLike,
    gone: npt.ArrayLike,
    back: npt.ArrayLike,
    left: float = 0.0,
) -> None:
    """Let allocations (int64, shape (n,)) be gone from one place to another, but for a part that stays there.

    Args:
        held: the allocations.
        rows: which of them.
        gone: places where they go, int64, shape (n,).
        back: places where they come again, int64, shape (n,); where that is not behind, nothing changes.
        left: the part of the bytes that is held between.

    Returns:
        None; `held` is changed.
    """
    held_rows = np.asarray(rows, np.int64)
    begins = np.asarray(gone)
    ends = np.asarray(back)
    away = (begins < ends) & (begins > held["begin"][held_rows]) & (ends < held["end"][held_rows])
    held_rows = held_rows[away]
    begins = begins[away]
    ends = ends[away]
    if left:
        nbytes = np.rint(held["bytes"][held_rows] * left)
        held.add(held_rows, bytes=nbytes, begin=begins, end=ends)
    held.add(held_rows, begin=ends, phase="backward")
    held["end"][held_rows] = begins


def renumber(held: Allocations) -> None:
    """Put all events one step apart, in the same order, if anything lies between steps."""
    places = np.concatenate([held["begin"], held["end"]])
    inside = (places > BEFORE) & (places < AFTER)
    if not (places[inside] % STEP).any():
        return
    _, order = distinct(places[inside])
    places[inside] = order * STEP
    held.columns["begin"], held.columns["end"] = np.split(places, 2)
