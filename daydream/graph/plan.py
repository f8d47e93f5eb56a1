"""Plan: a frozen graph as the engines run it.

    start[i] = max(release[i], progress of its lane, start or end of each cause + latency)
    end[i]   = start[i] + duration[i]
    progress of a lane after i = end[i] + gap[i], and 0 before its first task

A lane runs its tasks in id order, except the lanes named in `scheduled`, which pick
by priority (see `daydream.simulate.reference`). A gap holds its own lane only. Ids are
in a topological order: every edge goes from a lower id to a higher one. All numbers are
integers and results are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.arrays import unique
from daydream.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    from typing_extensions import Self


class Cause(IntEnum):
    """Why a task could not start earlier: a number, as edges store it, and what people read."""

    label: str

    def __new__(cls, code: int, label: str = "") -> Self:
        """Return a member: its number and its label."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.label = label
        return member

    LANE = 0, "order on its lane"  #: the task before it, and that task's gap; never stored as an edge
    LAUNCH = 1, "launch latency"  #: the runtime call that launched it
    SYNC = 2, "synchronization"  #: a blocking call waits for device work
    EVENT = 3, "stream wait"  #: a stream waits for an event recorded on another
    QUEUE = 4, "launch queue"  #: the launch queue of the stream was full
    HANDOFF = 5, "thread hand-off"  #: another CPU thread woke it or finished for it
    COMMUNICATION = 6, "communication"  #: a collective waits for data or members, or work for a collective
    GRAPH = 7, "graph"  #: a node of a CUDA or HIP graph waits for another
    USER = 8, "inserted edge"  #: an edge that a what-if or the user put in
    RELEASE = 9, "before the recording"  #: its earliest start; never stored as an edge
    LOCK = 10, "driver's lock"  #: a call of another thread held the driver's lock


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What runs where, how long, and after what: one entry a task, edges grouped by destination.

    The edges into task `i` are `edge_ptr[i]:edge_ptr[i + 1]`. Lanes are numbered densely from 0.
    `priority` (least first) counts on scheduled lanes only; `None` means all equal.
    Arrays are read-only. `cache` holds what engines derive from everything but durations and gaps;
    use `with_costs` to change those, and `from_edges` for anything else.
    """

    lane: np.ndarray  #: int32
    duration_ns: np.ndarray  #: int64, never negative
    gap_ns: np.ndarray  #: int64, never negative
    release_ns: np.ndarray  #: int64, earliest start, 0 for none
    edge_ptr: np.ndarray  #: int64, one more than there are tasks
    edge_src: np.ndarray  #: int32
    edge_latency_ns: np.ndarray  #: int64, may be negative
    edge_from_start: np.ndarray  #: bool: counts from the start of the source, not its end
    edge_cause: np.ndarray  #: int8, a `Cause`
    scheduled: tuple[int, ...] = ()
    priority: np.ndarray | None = None  #: int64
    cache: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_edges(
        cls,
        lane: npt.ArrayLike,
        duration_ns: npt.ArrayLike,
        gap_ns: npt.ArrayLike,
        release_ns: npt.ArrayLike,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        latency_ns: npt.ArrayLike,
        from_start: npt.ArrayLike,
        cause: npt.ArrayLike,
        scheduled: Iterable[int] = (),
        priority: npt.ArrayLike | None = None,
    ) -> Plan:
        """Return the plan of these tasks and edges; edges may come in any order.

        Raises `GraphError` if lengths differ, a time or lane is negative, or an edge does
        not go from a lower id to a higher one.
        """
        tasks: dict[str, np.ndarray] = {
            "lane": _frozen(lane, np.int32),
            "duration_ns": _frozen(duration_ns, np.int64),
            "gap_ns": _frozen(gap_ns, np.int64),
            "release_ns": _frozen(release_ns, np.int64),
        }
        if priority is not None:
            tasks["priority"] = _frozen(priority, np.int64)
        n = _common_length(tasks, "task")
        for name in ("lane", "duration_ns", "gap_ns", "release_ns"):
            _refuse_negative(name, tasks[name])
        edges: dict[str, np.ndarray] = {
            "src": _frozen(src, np.int32),
            "dst": _frozen(dst, np.int32),
            "latency_ns": _frozen(latency_ns, np.int64),
            "from_start": _frozen(from_start, np.bool_),
            "cause": _frozen(cause, np.int8),
        }
        _common_length(edges, "edge")
        sources, targets = edges["src"], edges["dst"]
        wrong = (sources < 0) | (sources >= targets) | (targets >= n)
        if wrong.any():
            first = int(np.argmax(wrong))
            raise GraphError(
                f"edge {sources[first]} -> {targets[first]} among {n} tasks; "
                "edges go from lower to higher task ids: number the tasks in a topological order"
            )
        if (targets[1:] < targets[:-1]).any():
            order = np.argsort(targets, kind="stable")
            edges = {name: values[order] for name, values in edges.items()}
        edge_ptr = np.bincount(targets + 1, minlength=n + 1)
        np.cumsum(edge_ptr, out=edge_ptr)
        return cls(
            lane=tasks["lane"],
            duration_ns=tasks["duration_ns"],
            gap_ns=tasks["gap_ns"],
            release_ns=tasks["release_ns"],
            edge_ptr=_frozen(edge_ptr, np.int64),
            edge_src=_frozen(edges["src"], np.int32),
            edge_latency_ns=_frozen(edges["latency_ns"], np.int64),
            edge_from_start=_frozen(edges["from_start"], np.bool_),
            edge_cause=_frozen(edges["cause"], np.int8),
            scheduled=tuple(sorted({int(number) for number in scheduled})),
            priority=tasks.get("priority"),
        )

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.lane)

    def __repr__(self) -> str:
        policy = f", scheduled lanes {list(self.scheduled)}" if self.scheduled else ""
        return f"<Plan {len(self):,} tasks, {len(self.edge_src):,} edges, {self.lanes} lanes{policy}>"

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        if "lanes" not in self.cache:
            self.cache["lanes"] = int(self.lane.max()) + 1 if len(self) else 0
        count: int = self.cache["lanes"]
        return count

    @property
    def edge_dst(self) -> np.ndarray:
        """The destination of each edge, int64."""
        if "edge_dst" not in self.cache:
            self.cache["edge_dst"] = np.repeat(np.arange(len(self)), np.diff(self.edge_ptr))
        targets: np.ndarray = self.cache["edge_dst"]
        return targets

    @property
    def edge_delay_ns(self) -> np.ndarray:
        """From the start of each edge's source to the earliest start of its destination, int64."""
        after = np.where(self.edge_from_start, 0, self.duration_ns[self.edge_src])
        delay: np.ndarray = after + self.edge_latency_ns
        return delay

    def by_lane(self) -> np.ndarray:
        """Return the tasks ordered by (lane, id)."""
        if "by_lane" not in self.cache:
            self.cache["by_lane"] = stable_order(self.lane, self.lanes)
        order: np.ndarray = self.cache["by_lane"]
        return order

    def place(self) -> np.ndarray:
        """Return the place of each task in the order (lane, id), int32 where that suffices."""
        if "place" not in self.cache:
            self.cache["place"] = place = np.empty(len(self), np.int32 if len(self) < 1 << 31 else np.int64)
            place[self.by_lane()] = np.arange(len(self), dtype=place.dtype)
        found: np.ndarray = self.cache["place"]
        return found

    def next_on_lane(self) -> np.ndarray:
        """Return the task after each one on its lane in id order, -1 for the last, int64."""
        order = self.by_lane()
        following = np.empty(len(self), np.int64)
        following[order[:-1]] = order[1:]
        following[order[self.lane_bounds()[1:] - 1]] = -1
        return following

    def before_on_lane(self, tasks: np.ndarray) -> np.ndarray:
        """Return the task before each of some on its lane in id order, -1 for the first, int64."""
        order, lanes = self.by_lane(), self.lane[tasks]
        bounds = np.append(0, np.cumsum(np.bincount(self.lane, minlength=self.lanes)))
        found = np.full(len(tasks), -1)
        for lane in unique(lanes).tolist():
            mine = np.flatnonzero(lanes == lane)
            mates = order[bounds[lane] : bounds[lane + 1]]
            place = np.searchsorted(mates, tasks[mine])
            found[mine] = np.where(place > 0, mates[place - 1], -1)
        return found

    def lane_bounds(self) -> np.ndarray:
        """Return where each lane that has tasks begins in `by_lane`, and where the last one ends, int64."""
        ends = np.cumsum(np.bincount(self.lane))
        return unique(np.append(0, ends))

    def same(self, other: Plan) -> bool:
        """Tell whether another plan is this one, or this one with durations and gaps that are equal."""
        if self.edge_src is not other.edge_src or self.release_ns is not other.release_ns:
            return False
        pairs = (self.duration_ns, other.duration_ns), (self.gap_ns, other.gap_ns)
        return all(mine is theirs or np.array_equal(mine, theirs) for mine, theirs in pairs)

    def with_costs(self, duration_ns: npt.ArrayLike, gap_ns: npt.ArrayLike | None = None) -> Plan:
        """Return the same plan with other durations (and gaps); everything else is shared, not copied."""
        costs: dict[str, np.ndarray] = {
            "lane": self.lane,
            "duration_ns": _frozen(duration_ns, np.int64),
            "gap_ns": self.gap_ns if gap_ns is None else _frozen(gap_ns, np.int64),
        }
        _common_length(costs, "task")
        _refuse_negative("duration_ns", costs["duration_ns"])
        if gap_ns is not None:
            _refuse_negative("gap_ns", costs["gap_ns"])
        return replace(self, duration_ns=costs["duration_ns"], gap_ns=costs["gap_ns"])


def stable_order(numbers: np.ndarray, below: int) -> np.ndarray:
    """Return the indices that sort numbers in 0..below-1, equal ones in their given order."""
    # NumPy sorts numbers of 8 and 16 bits by radix, in linear time.
    if below <= 1 << 16:
        numbers = numbers.astype(np.uint8 if below <= 1 << 8 else np.uint16)
    return np.argsort(numbers, kind="stable")


def _frozen(values: npt.ArrayLike, dtype: npt.DTypeLike) -> np.ndarray:
    """Return a read-only view, so that the caller's own array stays writeable."""
    given = np.asarray(values)
    if given.dtype.kind == "f" and given.size:
        raise GraphError(f"a plan is made of whole numbers, not {given.dtype}; round first")
    array: np.ndarray = np.require(given, dtype, ("C", "A")).view()
    array.flags.writeable = False
    return array


def _common_length(arrays: dict[str, np.ndarray], what: str) -> int:
    lengths = {name: array.shape for name, array in arrays.items()}
    if len(set(lengths.values())) > 1 or any(len(shape) != 1 for shape in lengths.values()):
        found = ", ".join(f"{name} {shape}" for name, shape in lengths.items())
        raise GraphError(f"arrays of a plan differ in shape: {found}; give one number per {what} in each")
    return int(next(iter(lengths.values()))[0])


def _refuse_negative(name: str, values: np.ndarray) -> None:
    if len(values) and values.min() < 0:
        first = int(np.argmax(values < 0))
        raise GraphError(f"{name} of task {first} is {values[first]}; it must not be negative")
