"""The words for where a step's time goes: each cause once, its label, and what it makes the step wait for.

Text, JSON, HTML and figures take keys, labels and colours from here.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from daydream.graph.plan import Cause

if TYPE_CHECKING:
    from typing_extensions import Self


class Word(str, Enum):
    """A word of these: a member is its key in JSON, and people read its label."""

    label: str

    def __str__(self) -> str:
        """Return the key, in every version of Python."""
        return str(self.value)

    def __format__(self, spec: str) -> str:
        """Return the key."""
        return format(str(self.value), spec)


class Bound(Word):
    """What a step waits for. The value is its key in JSON.

    The first five are what causes make a step wait for (`PathCause.bound`): their shares of the critical
    path add up to the step. `explain` may find what no single share tells: that CPU and GPU take turns, that
    each alone takes as long, that most was not recorded. The last ones are what a step of several workers
    waits for beyond its own work.
    """

    light: str
    dark: str

    def __new__(cls, key: str, label: str = "", light: str = "#c2c8d0", dark: str = "#4b545f") -> Self:
        """Return a member: its key, its label if that is another, its colours on light and on dark."""
        member = str.__new__(cls, key)
        member._value_ = key
        member.label, member.light, member.dark = label or key, light, dark
        return member

    GPU = "GPU", "GPU-bound", "#7bc08f", "#2f7f4a"
    CPU = "CPU", "CPU-bound", "#8fb3dd", "#3f6ea5"
    COPIES = "copies", "copies", "#eab56b", "#a46c1c"
    COMMUNICATION = "communication", "communication", "#c79ad9", "#7f4f96"
    OTHER = "other", "other causes"

    LOADING = "data loading"
    TURNS = "turns", "bound by CPU and GPU in turns"
    BOTH = "CPU and GPU", "CPU- and GPU-bound"
    UNRECORDED = "unrecorded", "unknown: most was not recorded"
    NOTHING = "nothing"

    OVERHEAD = "copies and launches"
    SLOWER_WORKERS = "slower workers"
    NETWORK_LATENCY = "network latency"
    BANDWIDTH = "bandwidth"
    INTER_NODE = "inter-node bandwidth"
    INTRA_NODE = "intra-node bandwidth"

    @property
    def awaited(self) -> str:
        """What stands behind "it waits for": `the GPU`, `copies`."""
        return f"the {self.value}" if self in {Bound.GPU, Bound.CPU} else self.label


class PathCause(Word):
    """What time on the critical path is spent on. The value is its key in JSON; `code` numbers them."""

    bound: Bound
    code: int
    gloss: str

    def __new__(cls, key: str, bound: Bound = Bound.OTHER, gloss: str = "", label: str = "") -> Self:
        """Return a member: its key, what it makes the step wait for, a word on what it is, its label."""
        member = str.__new__(cls, key)
        member._value_ = key
        member.label, member.bound, member.code = label or key, bound, len(cls.__members__)
        member.gloss = gloss
        return member

    COMPUTE = "compute-bound kernels", Bound.GPU, "limited by arithmetic"
    MEMORY = "memory-bound kernels", Bound.GPU, "limited by bandwidth"
    SMALL = "small kernels", Bound.GPU, "too short to fill the device"
    KERNELS = "kernels of unknown bound", Bound.GPU, "no shapes or counters", "kernels (bound unknown)"
    BETWEEN = "between device tasks", Bound.GPU, "the pause before the next"
    COPIES = "copies", Bound.COPIES
    COMMUNICATION = "exposed communication", Bound.COMMUNICATION, "nothing hides it"
    CPU = "launch-bound CPU", Bound.CPU, "the device waits for launches"
    OPERATORS = "CPU operators", Bound.CPU  # where there is no device to launch to
    UNTRACED = "untraced CPU time", Bound.CPU, "Python between operators"
    LOADING = "data loading", Bound.CPU
    SYNC = "synchronization", Bound.CPU, "returning from a wait"
    QUEUE = "queue wait", Bound.CPU, "the launch queue is full"
    LATENCY = "latency between lanes", Bound.CPU, "one wakes another"
    INSERTED = "inserted edges", Bound.OTHER, "waits that the change adds"
    RECORDING = "before the recording", Bound.OTHER, "work launched earlier"
    UNTRACED_DEVICE = "untraced device work", Bound.OTHER, "it ran, unrecorded"
    PAUSES = "pauses of unknown cause", Bound.OTHER, "no CPU was recorded"

    @property
    def explained(self) -> str:
        """The label with a word on what it is, where it does not tell: `small kernels (too short ...)`."""
        if not self.gloss:
            return self.label
        return (
            f"{self.label[:-1]}: {self.gloss})"
            if self.label.endswith(")")
            else f"{self.label} ({self.gloss})"
        )


#: By kind, what a task's work is; what bounds a kernel takes its shapes, see `daydream.explanation.causes`.
OF_KIND = {
    "cpu": PathCause.CPU,
    "kernel": PathCause.KERNELS,
    "memcpy": PathCause.COPIES,
    "memset": PathCause.KERNELS,
    "collective": PathCause.COMMUNICATION,
}
#: What the delay is that comes before a task; the gap of the task before it on its lane is told by the lane.
OF_EDGE = {
    Cause.LAUNCH: PathCause.LATENCY,
    Cause.SYNC: PathCause.SYNC,
    Cause.EVENT: PathCause.LATENCY,
    Cause.QUEUE: PathCause.QUEUE,
    Cause.HANDOFF: PathCause.LATENCY,
    Cause.COMMUNICATION: PathCause.COMMUNICATION,
    Cause.GRAPH: PathCause.BETWEEN,
    Cause.USER: PathCause.INSERTED,
    Cause.RELEASE: PathCause.RECORDING,
    Cause.LOCK: PathCause.SYNC,
}
CAUSES = tuple(PathCause)  # by code


def by_bound(ns_by_cause: dict[PathCause, int]) -> dict[Bound, int]:
    """Return how long a step waits for what, in ns, from its causes."""
    found: dict[Bound, int] = {}
    for cause, ns in ns_by_cause.items():
        found[cause.bound] = found.get(cause.bound, 0) + ns
    return found
