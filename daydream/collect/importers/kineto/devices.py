"""Rows of devices that Kineto has no common category for, told by what they carry: MTIA, Ascend and others.

A backend of PyTorch (`privateuse1` and those in Kineto's own tree) names its categories itself. What its
rows are is seen from their arguments: device work has a stream, a call of its runtime has a category
that ends in `_runtime` or `_driver`. torch_npu writes its file itself: device work has a task type and no
category, and a flow from the operator's call names the start of the work as its id.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from daydream.collect.importers.kineto.events import Args, Event
from daydream.lazy import regex
from daydream.trace.schema import UNKNOWN

CALLS = regex(r"_(runtime|driver)$")
QUEUES = ("enqueue", "dequeue")  # torch_npu hands its launches to a thread of its own
NPU_FLOW = "async_npu"  # from the operator that asks for work to the work
NPU_PREFIX = regex(r"^\w+@(?=acl)")  # `AscendCL@aclrtMemcpy`: the layer, the call
NPU_COLLECTIVE = regex(r"^hcom_")
ENDS_OF_WAITS = {"event_wait": "Stream Wait Event", "synchronize": "Stream Sync"}  # as CUPTI calls them
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
LARGEST_ID = 2**40  # flow ids may be times in ns


def other_row(event: Event) -> tuple[str, Event] | None:
    """Return the kind of a row of an unusual category and the row as Kineto would write it for a GPU.

    None if it is neither work of a device nor a call; an empty kind if it is known to be no work, such
    as the record of an event.
    """
    category, args = event.cat, event.args
    if category in QUEUES:
        return "runtime", event
    if args is None or not isinstance(event.name, str):
        return None
    return _of_npu(event, args, event.name) if category is None else _of_category(event, args, event.name)


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


def is_flow_of_npu(event: Event) -> bool:
    """Tell whether an event is the beginning of a flow from an operator to work of an Ascend device."""
    return event.ph == "s" and event.cat == NPU_FLOW


def call_of_flow(event: Event) -> Event:
    """Return the call that a flow begins in: an instant on the operator's thread."""
    event.dur, event.args = 0.0, Args(correlation=event.id)
    return event


def small_ids(correlation: np.ndarray) -> np.ndarray:
    """Return correlation ids numbered anew where some are too large to be told apart between ranks."""
    if not len(correlation) or int(correlation.max()) < LARGEST_ID:
        return correlation
    values, number = np.unique(correlation, return_inverse=True)
    return np.asarray(number.reshape(-1) - int((values < 0).sum()), np.int64)


def launch_with_neighbours(correlation: np.ndarray, call: np.ndarray, work: np.ndarray) -> np.ndarray:
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
        event.name, event.args = ENDS_OF_WAITS[name], msgspec.structs.replace(args, stream=stream)
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
        event.args = msgspec.structs.replace(args, stream=args.npu_stream, device=0, correlation=start)
        return _on_device(event, event.args, name, args.npu_stream)
    if NPU_COLLECTIVE.search(name):
        event.args = msgspec.structs.replace(args, stream=event.tid, device=0, correlation=start)
        return "kernel", event
    if args.level != "" and args.npu_thread != -1:
        event.tid, event.name = args.npu_thread, NPU_PREFIX.sub("", name)
        return "runtime", event
    return None


def _start(event: Event) -> Any:
    """Return the start in ns, which is the id of the flow that ends there; -1 where it is not exact."""
    text = bytes(event.ts).decode() if isinstance(event.ts, msgspec.Raw) else event.ts
    if not isinstance(text, str):
        return -1
    whole, _, part = text.strip('"').partition(".")
    digits = whole + part.ljust(3, "0")[:3]
    return int(digits) if digits.isdigit() else -1
