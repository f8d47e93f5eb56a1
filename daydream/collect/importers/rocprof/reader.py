"""rocprofv3's JSON as recordings, one a process. This file is the only one that knows that format's names.

What is read: dispatches of kernels, copies, calls into HIP, HSA and RCCL, ROCTX ranges, the devices. The
environment, the command and the paths that such a file holds are never decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daydream.collect.derive.recording import Recording
from daydream.collect.importers.kineto.blocks import opened
from daydream.collect.importers.rocprof import rows as rocprof
from daydream.collect.importers.rocprof.rows import portions
from daydream.collect.importers.row_builder import RowBuilder, whole
from daydream.errors import TraceError
from daydream.trace.schema import Document
from daydream.trace.valid import is_amount

EMPTY = msgspec.Raw(b"[]")
GPU = 2  # ROCPROFILER_AGENT_TYPE_GPU
CALLS = ("hip_api", "hsa_api", "rccl_api", "marker_api")
DEVICE_FIELDS = {
    "cu_count": "multiprocessors",
    "wave_front_size": "warp_size",
    "workgroup_max_size": "threads_per_block",
}
ENDS = ("dst_agent_id", "src_agent_id")
SPEED = "max_engine_clk_fcompute"  # MHz


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int | None = None


class _Extent(msgspec.Struct, frozen=True, gc=False):
    x: int | None = None
    y: int | None = None
    z: int | None = None


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int | None = None


class _Dispatched(msgspec.Struct, frozen=True, gc=False):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int | None = None
    workgroup_size: _Extent = _Extent()
    grid_size: _Extent = _Extent()


class _Record(msgspec.Struct, gc=False):
    kind: int = -1
    operation: int = -1
    thread_id: int | None = None
    correlation_id: _Correlation = _Correlation()
    start_timestamp: int | None = None
    end_timestamp: int | None = None


class _Dispatch(_Record, gc=False):
    dispatch_info: _Dispatched = _Dispatched()
    stream_id: _Handle = _Handle()


class _Copy(_Record, gc=False):
    src_agent_id: _Handle = _Handle()
    dst_agent_id: _Handle = _Handle()
    stream_id: _Handle = _Handle()
    bytes: int | None = None


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, gc=False):
    key: int = -1
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _Metadata(msgspec.Struct):
    pid: int = 0


class _Counted(msgspec.Struct):
    counter_collection: msgspec.Raw = EMPTY


class _Records(msgspec.Struct):
    kernel_dispatch: msgspec.Raw = EMPTY
    memory_copy: msgspec.Raw = EMPTY
    hip_api: msgspec.Raw = EMPTY
    hsa_api: msgspec.Raw = EMPTY
    rccl_api: msgspec.Raw = EMPTY
    marker_api: msgspec.Raw = EMPTY


class _Process(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    agents: list[Document] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    callback_records: _Counted = msgspec.field(default_factory=_Counted)
    buffer_records: _Records = msgspec.field(default_factory=_Records)


class _Document(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


def read_rocprof_json(
    path: Path, *, progress: Callable[[float], None] | None, max_unpacked: int | None
) -> list[Recording]:
    """Return the recordings in a JSON or JSON.gz file of rocprofv3: one for each process that is in it.

    Raises `TraceError` if the file is damaged, holds counters or no row.
    """
    try:
        with opened(path, max_unpacked) as (file, _, _):
            text = file.read()
        document = msgspec.json.decode(text, type=_Document)
        recordings = []
        for number, process in enumerate(document.processes):
            recordings.append(_recording(path, process))
            if progress is not None:
                progress((number + 1) / len(document.processes))
    except (msgspec.ValidationError, UnicodeError, RecursionError) as error:
        raise TraceError(f"{path} is not as rocprofv3 writes it ({str(error)[:200]}).") from None
    except msgspec.DecodeError as error:
        raise TraceError(
            f"{path}: the JSON is cut off or damaged ({str(error)[:100]}). Copy it again, or record again."
        ) from None
    if not recordings:
        raise TraceError(f"{path} {rocprof.NOTHING}")
    return recordings


def _recording(path: Path, process: _Process) -> Recording:
    builder = RowBuilder()
    if bytes(process.callback_records.counter_collection).strip(b"[] \r\n\t"):
        raise TraceError(
            f"{path} was recorded while counters were read, which makes kernels longer: its times are not "
            "used. Record without --pmc, and give this file with --counters."
        )
    devices = {
        agent["id"]["handle"]: agent for agent in process.agents
        if agent.get("type") == GPU and isinstance(agent.get("id"), dict)
        and is_amount(agent["id"].get("handle"))
    }  # fmt: skip
    numbers = {handle: number for number, handle in enumerate(devices)}
    pid = int(whole([process.metadata.pid])[0])
    notes: list[str] = []
    records = process.buffer_records
    _add_kernels(builder, process, numbers)
    _add_copies(builder, process, numbers, notes)
    for name in CALLS:
        _add_calls(builder, process, getattr(records, name), pid)
    recording = rocprof.recording_of(builder, path)
    used = set(np.unique(np.asarray(recording["device"])).tolist())
    described = [
        _described(number, devices.get(handle, {}))
        for handle, number in numbers.items()
        if number in used
    ]
    recording.metadata["devices"] = described or [
        {"id": number} for number in sorted(used) if number >= 0
    ]
    return rocprof.finish(recording, notes)


def _described(number: int, agent: Document) -> Document:
    device: Document = {"id": number}
    name = agent.get("product_name") or agent.get("name")
    if isinstance(name, str):
        device["name"] = name.encode("utf-8", "replace").decode()[:200]
    device |= {
        ours: agent[theirs]
        for theirs, ours in DEVICE_FIELDS.items()
        if is_amount(agent.get(theirs))
    }
    if is_amount(agent.get(SPEED)) and agent[SPEED] < 10**6:
        device["clock_hz"] = agent[SPEED] * 10**6
    return device


def _times(rows: list[Any]) -> rocprof.Times:
    return whole([row.start_timestamp for row in rows]), whole([row.end_timestamp for row in rows])


def _correlation(rows: list[Any]) -> np.ndarray:
    return rocprof.correlations([row.correlation_id.internal for row in rows])


def _add_kernels(builder: RowBuilder, process: _Process, numbers: dict[int, int]) -> None:
    names = {
        symbol.kernel_id: symbol.formatted_kernel_name
        or symbol.demangled_kernel_name
        or symbol.kernel_name
        for symbol in process.kernel_symbols
    }
    for rows in portions(process.buffer_records.kernel_dispatch, _Dispatch):
        info = [row.dispatch_info for row in rows]
        grids = [[getattr(one.grid_size, axis) for one in info] for axis in "xyz"]
        threads = [[getattr(one.workgroup_size, axis) for one in info] for axis in "xyz"]
        rocprof.add_kernels(
            builder, _times(rows),
            [names.get(-1 if one.kernel_id is None else one.kernel_id, "") for one in info], grids, threads,
            _streams(rows, [one.queue_id.handle for one in info]), correlation=_correlation(rows),
            device=rocprof.numbers_of(numbers, [one.agent_id.handle for one in info]),
        )  # fmt: skip


def _streams(rows: list[Any], queues: Sequence[int | None]) -> np.ndarray:
    return rocprof.streams_or_queues([row.stream_id.handle for row in rows], queues)


def _add_copies(
    builder: RowBuilder, process: _Process, numbers: dict[int, int], notes: list[str]
) -> None:
    for rows in portions(process.buffer_records.memory_copy, _Copy):
        rocprof.add_copies(
            builder, _times(rows), [_operation(process, row) for row in rows],
            _streams(rows, [None] * len(rows)), notes, correlation=_correlation(rows),
            device=rocprof.ends_of(numbers, *([getattr(row, end).handle for row in rows] for end in ENDS)),
            bytes=whole([row.bytes for row in rows]),
        )  # fmt: skip


def _add_calls(builder: RowBuilder, process: _Process, array: msgspec.Raw, pid: int) -> None:
    kinds = process.strings.buffer_records
    texts = {text.key: text.value for text in process.strings.marker_api}
    for rows in portions(array, _Record):
        domains = [kinds[row.kind].kind if 0 <= row.kind < len(kinds) else "" for row in rows]
        said = [
            texts.get(-1 if row.correlation_id.internal is None else row.correlation_id.internal)
            for row in rows
        ]
        names = [
            text if text is not None and "MARKER" in domain else _operation(process, row)
            for row, domain, text in zip(rows, domains, said, strict=True)
        ]  # fmt: skip
        columns = {
            "pid": np.full(len(rows), pid, np.int64), "tid": whole([row.thread_id for row in rows]),
            "correlation": _correlation(rows),
        }  # fmt: skip
        rocprof.add_calls(builder, domains, names, *_times(rows), columns)


def _operation(process: _Process, row: _Record) -> str:
    kinds = process.strings.buffer_records
    names = kinds[row.kind].operations if 0 <= row.kind < len(kinds) else []
    return names[row.operation] if 0 <= row.operation < len(names) else ""
