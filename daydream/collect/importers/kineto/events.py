"""What a trace keeps of a Kineto event: the fields, and how each is read when it is not as it should be.

Everything that is not a field here (environment dumps, paths, call stacks) is never
decoded, so it cannot reach a trace; what is kept of Python frames stands in `source_lines`.
Fields are declared as loosely as files have been seen to write them: an id may be text, a
time too.

The kinds of rows that are read, and Kineto's categories of each.

Rows of devices that Kineto has no common category for, told by what they carry: MTIA, Ascend and others.

A backend of PyTorch (`privateuse1` and those in Kineto's own tree) names its categories itself. What its
rows are is seen from their arguments: device work has a stream, a call of its runtime has a category
that ends in `_runtime` or `_driver`. torch_npu writes its file itself: device work has a task type and no
category, and a flow from the operator's call names the start of the work as its id.

Values become arrays: times to nanoseconds, ids to integers, texts of JSON.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np

from daydream.collect.derive.recording import narrow
from daydream.collect.importers.row_builder import NO_TIME, plain_text
from daydream.lazy import regex
from daydream.trace.schema import NO_ID, UNKNOWN

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
    kernel: Id = ""  # that a call of ROCm launches
    annotation: Id = msgspec.field(default=None, name="name")  # torch's, of nodes of CUDA graphs


class Event(msgspec.Struct, gc=False):
    """One event of `traceEvents`; times in microseconds as written, the start with all its digits."""

    ph: str = ""
    cat: str | None = None
    name: str | int | float | None = None
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = NOTHING
    dur: float | str | None = None
    id: Id = -1
    args: Args | None = None


class Header(msgspec.Struct, gc=False):
    """What a file says beside its events, which are not decoded, and daydream keeps or looks at."""

    traceEvents: msgspec.Raw = NOTHING  # noqa: N815 - Kineto's spelling
    deviceProperties: Any = None  # noqa: N815
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
RAW = {
    name
    for name, default in zip(ARGUMENTS, Args.__struct_defaults__, strict=True)
    if default is NOTHING
}


def patient_event(row: Any) -> Event | None:
    """Return an event from decoded JSON, leaving out what has no sense; None if it is no object."""
    if not isinstance(row, dict):
        return None
    given = row.get("args")
    args = None
    if isinstance(given, dict):
        args = Args(
            **{  # type: ignore[arg-type]
                name: _raw(given[key]) if name in RAW else _scalar(given[key])
                for name, key in ARGUMENTS.items()
                if key in given
            }
        )
    event = Event(args=args, ts=_start_of(row.get("ts")))
    for name in ("ph", "cat"):
        if isinstance(row.get(name), str):
            setattr(event, name, row[name])
    for name in ("name", "pid", "tid", "dur", "id"):
        if name in row:
            setattr(event, name, _scalar(row[name]))
    return event


def _start_of(value: Any) -> msgspec.Raw:
    return msgspec.Raw(str(value).encode()) if isinstance(value, Decimal) else _raw(_scalar(value))


def _scalar(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return value if isinstance(value, (str, int, float)) else None


def _raw(value: Any) -> msgspec.Raw:
    try:
        return msgspec.Raw(json.dumps(value).encode())
    except (ValueError, TypeError, RecursionError):
        return NOTHING


CATEGORIES = {
    "cpu_op": "operator",
    "Operator": "operator",
    "user_annotation": "annotation",
    "cuda_runtime": "runtime",
    "cuda_driver": "runtime",
    "Runtime": "runtime",
    "hip_runtime": "runtime",
    "hip_driver": "runtime",
    "xpu_runtime": "runtime",
    "xpu_driver": "runtime",
    "privateuse1_runtime": "runtime",
    "privateuse1_driver": "runtime",
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cuda_sync": "sync",
    "python_function": "module",
    "overhead": "blocked",
    "Overhead": "blocked",
}
# Without a note: spans of the profiler itself, and annotations of the CPU repeated on a stream.
SILENT = (None, "Trace", "gpu_user_annotation")
KINDS = tuple(dict.fromkeys(CATEGORIES.values()))
CALLED = ("operator", "annotation", "runtime")
NAMED = ("operator", "annotation")
DEVICE = ("kernel", "memcpy", "memset", "sync")


CALLS = regex(r"_(runtime|driver)$")
QUEUES = ("enqueue", "dequeue")  # torch_npu hands its launches to a thread of its own
LEGACY_CPU, LEGACY_DEVICE = (
    "CPU functions",
    "CUDA functions",
)  # processes of torch.autograd.profiler's list
NPU_FLOW = "async_npu"  # from the operator that asks for work to the work
NPU_PREFIX = regex(r"^\w+@(?=acl)")  # `AscendCL@aclrtMemcpy`: the layer, the call
NPU_COLLECTIVE = regex(r"^hcom_")
ENDS_OF_WAITS = {
    "event_wait": "Stream Wait Event",
    "synchronize": "Stream Sync",
}  # as CUPTI calls them
NO_WORK = regex(r"(?i)event.?(record|wait)|notify|wait_sqe|record_sqe")
COPY = regex(r"(?i)memcpy|memory.?copy|^dma|sdma")
SET = regex(r"(?i)^memset|^fill_?buffer")
DIRECTIONS = (
    (regex(r"(?i)host.?to.?dev|HtoD|H2D"), "Memcpy HtoD"),
    (regex(r"(?i)dev\w*.?to.?host|DtoH|D2H"), "Memcpy DtoH"),
    (regex(r"(?i)dev\w*.?to.?dev|DtoD|D2D"), "Memcpy DtoD"),
)
XPU_COPY = regex(r"^Memcpy ([MSHD])2([MSHD])\b")  # PTI calls the host's memory M, shared memory S
XPU_ENDS = {"M": "H", "S": "H"}  # shared memory is the host's until a device works on it


def other_row(event: Event) -> tuple[str, Event] | None:
    """Return the kind of a row of an unusual category and the row as Kineto would write it for a GPU.

    None if it is neither work of a device nor a call; an empty kind if it is known to be no work, such
    as the record of an event.
    """
    category = event.cat
    args = event.args
    if category is None and event.pid == LEGACY_CPU:
        return "operator", event
    if category in QUEUES:
        return "runtime", event
    if args is None or not isinstance(event.name, str):
        return None
    return (
        _of_npu(event, args, event.name)
        if category is None
        else _of_category(event, args, event.name)
    )


def _of_category(event: Event, args: Args, name: str) -> tuple[str, Event] | None:
    """Return a row of a backend's own category."""
    if CALLS.search(str(event.cat)):
        if args.stream_id != -1 and args.device == event.pid and args.device != -1:
            return _on_device(event, args, name, args.stream_id)  # the device's side of the call
        return "runtime", event
    if args.stream == -1:
        return None
    return _on_device(event, args, name, args.stream)


def vendor_of(category: str | None) -> str:
    """Return whose device a row of an unusual category is of: mtia, npu, hpu, ..."""
    return "npu" if category is None or category in QUEUES else category.split("_", 1)[0]


def name_xpu_copies(events: list[Event]) -> None:
    """Name copies of Intel's XPUs as those of other GPUs: `Memcpy M2D (...)` is a copy to the device."""
    for event in events:
        if isinstance(event.name, str) and (ends := XPU_COPY.match(event.name)):
            source, target = (XPU_ENDS.get(end, end) for end in ends.groups())
            event.name = f"Memcpy {source}to{target}{event.name[ends.end() :]}"


def call_of_flow(event: Event) -> Event:
    """Return the call that a flow begins in: an instant on the operator's thread."""
    event.dur, event.args = 0.0, Args(correlation=event.id)
    return event


def launch_with_neighbours(
    correlation: np.ndarray, call: np.ndarray, work: np.ndarray
) -> np.ndarray:
    """Return correlation ids in which work that no flow leads to has the id of the work before it.

    torch_npu draws no flow to the copies that an operator makes beside its kernels. A stream runs its work
    in the order of launches, so the launch lies between those of the neighbours. Rows are in order of start.
    """
    known = work & np.isin(correlation, correlation[call])
    last = np.maximum.accumulate(np.where(known, np.arange(len(work)), UNKNOWN))
    lent = np.where(last >= 0, correlation[last], UNKNOWN)
    return np.where(work & ~known, lent, correlation)


def _on_device(event: Event, args: Args, name: str, stream: Any) -> tuple[str, Event]:
    if name in ENDS_OF_WAITS:
        event.name = ENDS_OF_WAITS[name]
        event.args = msgspec.structs.replace(args, stream=stream)
        return "sync", event
    if NO_WORK.search(name):
        return "", event
    if COPY.search(name):
        said = f"{name} {args.direction}"
        told = next((text for pattern, text in DIRECTIONS if pattern.search(said)), "Memcpy")
        event.name = f"{told} ({name})"
        return "memcpy", event
    return ("memset" if SET.search(name) else "kernel"), event


def _of_npu(event: Event, args: Args, name: str) -> tuple[str, Event] | None:
    """Return a row of torch_npu's own file, which gives device work and the runtime's calls no category."""
    start = _start(event)
    if args.task_type != "":
        if NO_WORK.search(f"{name} {args.task_type}"):
            return "", event
        event.args = msgspec.structs.replace(
            args, stream=args.npu_stream, device=0, correlation=start
        )
        return _on_device(event, event.args, name, args.npu_stream)
    if NPU_COLLECTIVE.search(name):
        event.args = msgspec.structs.replace(args, stream=event.tid, device=0, correlation=start)
        return "kernel", event
    if args.level != "" and args.npu_thread != -1:
        event.tid = args.npu_thread
        event.name = NPU_PREFIX.sub("", name)
        return "runtime", event
    return None


def _start(event: Event) -> int:
    """Return the start in ns, which is the id of the flow that ends there; -1 where it is not exact."""
    return max(exact_ns(_digits(bytes(event.ts))), -1)


LARGEST_US = 9_200_000_000_000_000  # more does not fit 63 bits of nanoseconds
EXACT_FLOAT_US = 2.0**43  # above this, float microseconds no longer tell nanoseconds apart
LARGEST = 2**63 - 1
NEWLINE, POINT, NINE = b"\n.9"
Shapes = list[
    list[int | list[int]]
]  # nearly all are so, without a number that is written otherwise


def start_ns(values: list[msgspec.Raw]) -> np.ndarray:
    """Return start times in nanoseconds by all their digits, `NO_TIME` where one is unreadable."""
    text = b"\n".join([*values, b""])
    raw = np.frombuffer(text, np.uint8)
    end = np.flatnonzero(raw == NEWLINE)
    begin = np.append(0, end[:-1] + 1)
    others = text.translate(None, b"0123456789\n")
    if values and len(end) == len(values) and others in (b"", b"." * len(values)):
        # As older versions write times, whole, and as newer ones do, with three decimals.
        whole = end - begin - (4 if others else 0)
        short = (whole < 16) | ((whole == 16) & (raw[begin] < NINE))
        if (short & (whole > 0)).all() and (not others or (raw[end - 4] == POINT).all()):
            digits = text.replace(b".", b"")
            return np.fromstring(digits, np.int64, sep="\n") * (1 if others else 1000)
    try:
        us = np.array(text.split(b"\n")[:-1]).astype(np.float64)
    except ValueError:
        us = np.array([np.nan])
    if (np.abs(us) < EXACT_FLOAT_US).all():
        whole = np.floor(us)  # one float product with 1000 would round a second time
        return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)
    return np.array([exact_ns(_digits(bytes(value))) for value in values], np.int64)


def _digits(value: bytes) -> str:
    return json_text(value) if value[:1] == b'"' else value.decode("ascii", "replace")


def exact_ns(text: str) -> int:
    """Return a time in microseconds as ns by all its digits, `NO_TIME` where it is unreadable."""
    try:
        us = Decimal(text)
    except InvalidOperation:
        return NO_TIME
    if us.is_finite() and -LARGEST_US <= us <= LARGEST_US:
        return int((us * 1000).to_integral_value())
    return NO_TIME


class Numbers(dict[Any, int]):
    """Ids that are not plain integers to integers: `stream 7` to 7, `0x1f` to 31, nonsense to unknown."""

    def __init__(self, null: int) -> None:
        super().__init__()
        self.null = null

    def __missing__(self, value: Any) -> int:
        self[value] = number = _number(value, self.null)
        return number

    def of(self, values: list[Any]) -> np.ndarray:
        """Return integers, 32 bits wide if they fit."""
        if values.count(UNKNOWN) == len(values):
            return np.full(len(values), UNKNOWN, np.int32)
        try:
            column = np.array(values, np.int64)
        except (TypeError, ValueError, OverflowError):
            column = np.array([self[value] for value in values], np.int64)
        return narrow(column)


def _number(value: Any, null: int) -> int:
    if isinstance(value, str):
        words = value.split()
        try:
            value = int(words[-1], 16 if words[-1][:2].lower() == "0x" else 10)
        except (ValueError, IndexError):
            return null
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value == int(value) else None
    if value is None:
        return null
    if -LARGEST <= value <= LARGEST:
        return int(value)
    # A negative number printed as unsigned: a thread id keeps its sign, a counter is unknown.
    return int(value) - 2**64 if null == NO_ID and LARGEST < value < 2**64 else null


def parsed(text: bytes) -> Any:
    """Return decoded JSON, None if it is not JSON."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def json_text(text: bytes) -> str:
    """Return a JSON string's content, of anything else its JSON; empty where it says nothing."""
    value = parsed(text)
    return "" if value in (None, "", []) else plain_text(value)


def compact_json(text: bytes) -> str:
    """Return JSON without blanks; empty where it says nothing."""
    try:
        found = msgspec.json.encode(msgspec.json.decode(text, type=Shapes)).decode()
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = parsed(text)
        found = "" if value in (None, "") else json.dumps(value, separators=(",", ":"))
    return "" if found == "[]" else found


def triple(text: bytes) -> str:
    """Return a launch dimension `[x, y, z]` as `x,y,z`, empty if it is none."""
    value = parsed(text)
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(size, int) and size >= 0 for size in value)
    ):
        return ",".join(str(int(size)) for size in value)
    return ""
