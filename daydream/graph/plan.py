"""Plan: a frozen graph as the engines run it.

    start[i] = max(release[i], progress of its lane, start or end of each cause + latency)
    end[i]   = start[i] + duration[i]
    progress of a lane after i = end[i] + gap[i], and 0 before its first task

A lane runs its tasks in id order, except the lanes named in `scheduled`, which pick
by priority (see `algorithm_1` in `daydream.simulate.engine`). A gap holds its own lane only. Ids are
in a topological order: every edge goes from a lower id to a higher one. All numbers are
integers and results are exact.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy import ndarray

from daydream.arrays import unique
from daydream.errors import GraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import ArrayLike, DTypeLike
    from typing_extensions import Self


@enum.unique
class Cause(enum.IntEnum):
    """Why a task could not start earlier: a number, as edges store it, and what people read."""

    label: str
    reason: str  # of a step of a cycle

    def __new__(cls, code: int, label: str = "", reason: str = "") -> Self:
        """Return a member: its number, its label and its reason."""
        member = int.__new__(cls, code)
        member._value_ = code
        member.label = label
        member.reason = reason
        return member

    #: The task before it, and that task's gap; never stored as an edge.
    LANE = 0, "order on its lane", "on {lane}, which runs in program order"
    #: The runtime call that launched it.
    LAUNCH = 1, "launch latency", "which it launched"
    #: A blocking call waits for device work.
    SYNC = 2, "synchronization", "a call that waits for it"
    #: A stream waits for an event recorded on another.
    EVENT = 3, "stream wait", "whose stream waits for it"
    #: The launch queue of the stream was full.
    QUEUE = 4, "launch queue", "a launch that needs its place in the queue"
    #: Another CPU thread woke it or finished for it.
    HANDOFF = 5, "thread hand-off", "on a thread that it wakes"
    #: A collective waits for data or members, or work for a collective.
    COMMUNICATION = 6, "communication", "which communicates with it"
    #: An edge that a what-if or the user put in.
    USER = 7, "inserted edge", "by an edge that was put in"
    #: Its earliest start; never stored as an edge.
    RELEASE = 8, "before the recording"
    #: A call of another thread held the driver's lock.
    LOCK = 9, "driver's lock", "which needs the driver's lock"
    #: Nothing in the trace ended the wait: a worker process, a disk, a timer.
    OUTSIDE = (
        10,
        "outside the trace",
        "on its own thread, after a wait that nothing in the trace ended",
    )


TYPES: dict[str, DTypeLike] = {  # of the columns that are not int64
    "lane": np.int32,
    "edge_src": np.int32,
    "edge_dst": np.int32,
    "edge_from_start": np.bool_,
    "edge_cause": np.int8,
}
OF_EDGES = ("edge_src", "edge_dst", "edge_latency_ns", "edge_from_start", "edge_cause")
OF_NO_EDGE = (
    "by_lane",
    "before",
    "completions",
)  # what `Plan.cache` holds of tasks alone
NOT_NEGATIVE = ("lane", "duration_ns", "gap_ns", "release_ns")


class Plan(Struct, frozen=True, eq=False):
    """What runs where, how long, and after what: one entry a task, edges grouped by destination.

    The edges into task `i` are `edge_ptr[i]:edge_ptr[i + 1]`. Lanes are numbered densely from 0.
    `priority` (least first) counts on scheduled lanes only.
    Arrays are read-only. `cache` holds what engines derive from everything but durations and gaps;
    use `with_costs` to change those, and `from_edges` for anything else.
    """

    lane: ndarray  #: int32
    duration_ns: ndarray  #: int64, never negative
    gap_ns: ndarray  #: int64, never negative
    release_ns: ndarray  #: int64, earliest start, 0 for none
    edge_ptr: ndarray  #: int64, one more than there are tasks
    edge_src: ndarray  #: int32
    edge_latency_ns: ndarray  #: int64, may be negative
    edge_from_start: ndarray  #: bool: counts from the start of the source, not its end
    edge_cause: ndarray  #: int8, a `Cause`
    priority: ndarray  #: int64
    scheduled: tuple[int, ...] = ()
    cache: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_edges(
        cls,
        lane: ArrayLike,
        duration_ns: ArrayLike,
        gap_ns: ArrayLike,
        release_ns: ArrayLike,
        *edges: ArrayLike,
        scheduled: Iterable[int] = (),
        priority: ArrayLike = 0,
    ) -> Plan:
        """Return the plan of these tasks and edges; edges may come in any order, each from a lower id.

        `edges` are their columns: source, destination, latency, whether it counts from the start, cause.

        Raises `GraphError` if a time or lane is negative.
        """
        tasks = _columns(
            lane=lane,
            duration_ns=duration_ns,
            gap_ns=gap_ns,
            release_ns=release_ns,
            priority=np.broadcast_to(priority, np.shape(lane)),
        )
        columns = _columns(**dict(zip(OF_EDGES, edges, strict=True)))
        targets = columns.pop("edge_dst")
        if (targets[1:] < targets[:-1]).any():
            order = np.argsort(targets, kind="stable")
            columns = _columns(**{name: each[order] for name, each in columns.items()})
        counts = np.bincount(targets + 1, minlength=len(tasks["lane"]) + 1)
        lanes = tuple(sorted(map(int, scheduled)))
        return cls(**tasks, **_columns(edge_ptr=np.cumsum(counts)), **columns, scheduled=lanes)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.lane)

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return int(self.lane.max(initial=-1)) + 1

    @property
    def edge_dst(self) -> ndarray:
        """The destination of each edge, int64."""
        return self.once(
            "edge_dst", lambda: np.repeat(np.arange(len(self)), np.diff(self.edge_ptr))
        )

    @property
    def edge_delay_ns(self) -> ndarray:
        """From the start of each edge's source to the earliest start of its destination, int64."""
        after = np.where(self.edge_from_start, 0, self.duration_ns[self.edge_src])
        return after + self.edge_latency_ns

    def by_lane(self) -> ndarray:
        """Return the tasks ordered by (lane, id)."""
        return self.once("by_lane", lambda: stable_order(self.lane, self.lanes))

    def before_on_lane(self, order: ndarray | None = None) -> ndarray:
        """Return the task before each one on its lane, -1 for the first: int64.

        In the order of ids, unless another one is given, of some tasks lane by lane.
        """

        def found() -> ndarray:
            tasks = self.by_lane() if order is None else order
            same = self.lane[tasks[1:]] == self.lane[tasks[:-1]]
            before = np.full(len(self), -1)
            before[tasks[1:]] = np.where(same, tasks[:-1], -1)
            return before

        return self.once("before", found) if order is None else found()

    def with_costs(self, duration_ns: ArrayLike, gap_ns: ArrayLike) -> Plan:
        """Return the same plan with other durations and gaps; everything else is shared, not copied."""
        return replace(self, **_columns(duration_ns=duration_ns, gap_ns=gap_ns))

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what is kept by this name, made when it is first asked for."""
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]


def stable_order(numbers: ndarray, below: int) -> ndarray:
    """Return the indices that sort numbers in 0..below-1, equal ones in their given order."""
    # NumPy sorts numbers of 8 and 16 bits by radix, in linear time.
    if below <= 1 << 16:
        numbers = numbers.astype(np.uint8 if below <= 1 << 8 else np.uint16)
    return np.argsort(numbers, kind="stable")


def around(
    tasks_of: Callable[[int], ndarray], order: ndarray, lanes: ndarray, points: ndarray
) -> tuple[ndarray, ndarray]:
    """Return the last task of a lane at or before each point of the program, and the first behind it.

    Args:
        tasks_of: gives the tasks of a lane, in program order.
        order: the key of each task in program order.
        lanes: the lane of each point.
        points: keys in program order, or rows of them.

    Returns:
        Two arrays of tasks, int64, -1 where there is none, of the shape of the points.

    """
    before = np.full(points.shape, -1)
    behind = before.copy()
    for lane in unique(lanes):
        here = lanes == lane
        tasks = tasks_of(lane)
        place = np.searchsorted(order[tasks], points[..., here], side="right")
        tasks = np.append(tasks, -1)  # what lies before the first, and behind the last
        before[..., here] = tasks[place - 1]
        behind[..., here] = tasks[place]
    return before, behind


def _columns(**columns: ArrayLike) -> dict[str, Any]:
    """Return columns as read-only views, so that the caller's own arrays stay writeable.

    Raises `GraphError` for what must not be negative and is.
    """
    arrays = {}
    for name, values in columns.items():
        array = np.require(values, TYPES.get(name, np.int64), ("C", "A")).view()
        array.flags.writeable = False
        if name in NOT_NEGATIVE and array.min(initial=0) < 0:
            first = int(np.argmax(array < 0))
            raise GraphError(f"{name} of task {first} is {array[first]}; it must not be negative")
        arrays[name] = array
    return arrays
