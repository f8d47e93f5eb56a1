"""What `daydream info --json` prints: the record that its schema and its page are made from."""

from __future__ import annotations

from typing import Any

from daydream.results import Record
from daydream.trace.recorded_time import RecordedTime


class Verdict(Record):
    """Whether a trace is good enough for something, `yes`, `partly` or `no`, and why."""

    answer: str
    why: str


class Stream(Record):
    """A stream of a device; of gloo's lanes `on_host` is true."""

    name: str
    rank: int
    device: int
    on_host: bool
    tasks: int
    busy_ns: int


class RecordedStep(Record):
    """A step as the trace names it; one that is not covered says why not."""

    name: str
    rank: int | None
    measured_ns: int | None
    covered: bool | None
    why_not: str | None


class ReplayError(Record):
    """How the recorded steps replay; errors are simulated / measured - 1."""

    measured_ns: int
    replayed_ns: int
    error: float
    max_error: float


class Info(Record):
    """What a trace holds, and what it is good enough for.

    Attributes:
        devices: of the machine, as the profiler names them.
        device_busy: the share of the covered steps in which the device worked.
        known: the share of the work's time with a known phase, layer, op and type.
        phases: the share of each phase in the work's time.
        orphans: device tasks without the call that launched them.
        memory: what was recorded of each device's memory.
        replay: None where no step is covered.
        verdicts: by what is asked: replay, what-if, selections by phase, layer and type.
    """

    source: str | None
    vendor: str | None
    devices: list[Any]
    versions: dict[str, Any]
    ranks: list[int]
    world_size: int | None
    rows: int
    rows_by_kind: dict[str, int]
    span_ns: int
    threads: int
    streams: list[Stream]
    device_busy: float | None
    step_source: str | None
    steps: list[RecordedStep]
    covered: int
    recorded_time: RecordedTime | None
    phases_assumed: float
    known: dict[str, float]
    phases: dict[str, float]
    device_rows: int
    orphans: int
    memory: list[dict[str, Any]] | None
    counters: Any
    event_waits: dict[str, int]
    unresolved_syncs: int
    sync_rows: int
    queue_depth: int | None
    replay: ReplayError | None
    verdicts: dict[str, Verdict]
    notes: list[str]
