"""rocprofv3's JSON with counters: dispatches, each with its records, in the shape of AMD's schema.

`rocprofiler-sdk-tool[]`: `counters` give ids their names, `kernel_symbols` kernels theirs,
`callback_records.counter_collection` the dispatches. Nothing else is read: the file holds every environment
variable, too. Source: ROCm/rocprofiler-sdk, source/docs/rocprofv3-schema.json.
"""

from __future__ import annotations

from math import prod
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field

from daydream.costs.counters.amounts import CountedKernel
from daydream.costs.counters.tables import AMD_KIB, KB
from daydream.errors import FileError

TOOL = "rocprofiler-sdk-tool"
Id = Annotated[int, Meta(ge=0)]
Value = Annotated[float, Meta(ge=0, lt=2.0**63)]
Side = Annotated[int, Meta(ge=0, lt=2**32)]


class _Handle(Struct):
    handle: Id = 0


class _Size(Struct):
    x: Side = 1
    y: Side = 1
    z: Side = 1

    def volume(self) -> int:
        return prod((self.x, self.y, self.z))


class _Counter(Struct):
    id: _Handle
    name: str


class _Symbol(Struct):
    kernel_id: Id
    kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Dispatch(Struct):
    kernel_id: Id
    dispatch_id: Id = 0
    agent_id: _Handle = field(default_factory=lambda: _Handle(0))
    workgroup_size: _Size = field(default_factory=_Size)
    grid_size: _Size = field(default_factory=_Size)


class _DispatchData(Struct):
    dispatch_info: _Dispatch


class _Record(Struct):
    counter_id: _Handle
    value: Value


class _Collected(Struct):
    dispatch_data: _DispatchData
    records: list[_Record] = []


class _Callbacks(Struct):
    counter_collection: list[_Collected] = []


class _Tool(Struct):
    counters: list[_Counter] = []
    kernel_symbols: list[_Symbol] = []
    callback_records: _Callbacks = field(default_factory=_Callbacks)


class _Document(Struct, rename={"tools": TOOL}):
    tools: list[_Tool]


def kernels_of_json(raw: bytes, file: str) -> list[CountedKernel]:
    """Return the dispatches that were counted, in order. Raises `FileError` where the file is not so made."""
    try:
        document = msgspec.json.decode(raw, type=_Document)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FileError(f"{file} is no JSON of rocprofv3 with counters: {error}") from None
    found: list[CountedKernel] = []
    for tool in document.tools:
        names = {counter.id.handle: counter.name for counter in tool.counters}
        kernels = {
            one.kernel_id: one.formatted_kernel_name or one.kernel_name
            for one in tool.kernel_symbols
        }
        collected = tool.callback_records.counter_collection
        for one in sorted(collected, key=lambda each: each.dispatch_data.dispatch_info.dispatch_id):
            dispatch = one.dispatch_data.dispatch_info
            if dispatch.kernel_id not in kernels:
                raise FileError(
                    f"{file}: a dispatch is of kernel {dispatch.kernel_id}, which has no name there"
                )
            metrics: dict[str, float] = {}
            for record in one.records:  # one for each part of the device: they add up
                name = names.get(record.counter_id.handle)
                if name is None:
                    raise FileError(f"{file}: counter {record.counter_id.handle} has no name there")
                metrics[name] = metrics.get(name, 0.0) + record.value * (
                    KB if name in AMD_KIB else 1
                )
            group = dispatch.workgroup_size.volume()
            blocks = round(dispatch.grid_size.volume() / group) if group else None
            device = str(dispatch.agent_id.handle)
            found.append(
                CountedKernel(kernels[dispatch.kernel_id], blocks or None, metrics, device=device)
            )
    if not found:
        raise FileError(f"{file}: rocprofv3 counted nothing there; run it with --pmc")
    return found
