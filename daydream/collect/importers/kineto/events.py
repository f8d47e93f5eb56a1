"""What a trace keeps of a Kineto event: the fields, and how each is read when it is not as it should be.

Everything that is not a field here (environment dumps, paths, call stacks) is never
decoded, so it cannot reach a trace; what is kept of Python frames stands in `source_lines`.
Fields are declared as loosely as files have been seen to write them: an id may be text, a
time too.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

Id = int | str | float | None
NOTHING = msgspec.Raw(b"")


class Args(msgspec.Struct, frozen=True, gc=False):
    """The arguments of an event that a trace has a column for; -1 or empty where the event has none.

    They stand in the order in which files have them: the decoder looks for the next one first.
    """

    external: Id = msgspec.field(default=-1, name="External id")
    sequence: Id = msgspec.field(default=-1, name="Sequence number")
    forward_thread: Id = msgspec.field(default=-1, name="Fwd thread id")
    external_2021: Id = msgspec.field(default=-1, name="external id")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    hierarchy: msgspec.Raw = msgspec.field(default=NOTHING, name="Module Hierarchy")
    device: Id = -1
    stream: Id = -1
    correlation: Id = -1
    bytes: Id = -1
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    stream_id: Id = -1
    direction: Id = ""
    size: Id = -1
    graph_id: Id = msgspec.field(default=-1, name="graph id")
    graph_node: Id = msgspec.field(default=-1, name="graph node id")
    collective: msgspec.Raw = msgspec.field(default=NOTHING, name="Collective name")
    elements_in: Id = msgspec.field(default=-1, name="In msg nelems")
    elements_out: Id = msgspec.field(default=-1, name="Out msg nelems")
    dtype: msgspec.Raw = NOTHING
    group: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Name")
    group_ranks: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Ranks")
    wait_stream: Id = msgspec.field(default=-1, name="wait_on_stream")
    task_type: Id = msgspec.field(default="", name="Task Type")
    level: Id = ""
    npu_stream: Id = msgspec.field(default=-1, name="Stream Id")
    npu_thread: Id = msgspec.field(default=-1, name="Thread Id")
    sycl_queue: Id = msgspec.field(default=-1, name="sycl queue")
    wait_correlation: Id = msgspec.field(default=-1, name="wait_on_cuda_event_record_corr_id")
    memory_bytes: Id = msgspec.field(default=None, name="Bytes")
    address: Id = msgspec.field(default=-1, name="Addr")
    allocated: Id = msgspec.field(default=-1, name="Total Allocated")
    reserved: Id = msgspec.field(default=-1, name="Total Reserved")
    device_type: Id = msgspec.field(default=-1, name="Device Type")
    device_id: Id = msgspec.field(default=-1, name="Device Id")


class Event(msgspec.Struct, gc=False):
    """One event of `traceEvents`; times in microseconds as written."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: Id = None
    tid: Id = None
    ts: int | float | str | None = None
    dur: float | str | None = None
    id: Id = -1
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """An event whose start keeps its digits, for files whose times are too large for a float."""

    ts: msgspec.Raw = NOTHING  # type: ignore[assignment]


class Header(msgspec.Struct, gc=False):
    """What a file says beside its events and daydream keeps or looks at."""

    deviceProperties: Any = None  # noqa: N815 - Kineto's spelling
    distributedInfo: Any = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815
    cuda_runtime_version: Any = None
    cuda_driver_version: Any = None
    cupti_version: Any = None
    hip_runtime_version: Any = None
    hip_driver_version: Any = None
    roctracer_version: Any = None
    otherData: Any = None  # noqa: N815 - of the Trace Event Format; daydream's own timelines have it


# By their names here, as they are written.
ARGUMENTS = dict(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
RAW = {name for name, default in zip(ARGUMENTS, Args.__struct_defaults__, strict=True) if default is NOTHING}


def patient_event(row: Any) -> Event | None:
    """Return an event from decoded JSON, leaving out what has no sense; None if it is no object."""
    if not isinstance(row, dict):
        return None
    given = row.get("args")
    args = None
    if isinstance(given, dict):
        kept: dict[str, Any] = {}
        for name, key in ARGUMENTS.items():
            if key in given:
                kept[name] = _raw(given[key]) if name in RAW else _scalar(given[key])
        args = Args(**kept)
    phase, category = row.get("ph"), row.get("cat")
    return Event(
        ph=phase if isinstance(phase, str) else "",
        cat=category if isinstance(category, str) else None,
        name=_scalar(row.get("name")),
        pid=_scalar(row.get("pid")),
        tid=_scalar(row.get("tid")),
        ts=_scalar(row.get("ts")),
        dur=_scalar(row.get("dur")),
        id=_scalar(row.get("id", -1)),
        args=args,
    )


def _scalar(value: Any) -> Any:
    return value if isinstance(value, (str, int, float)) else None


def _raw(value: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(json.dumps(value).encode())
    except (ValueError, TypeError, RecursionError):
        return NOTHING
