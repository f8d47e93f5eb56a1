"""What the metadata of a trace file may hold: the one place that says so.

A field that is absent is unknown. Fields that are not named here are kept and never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from daydream.trace.schema import LARGEST_AMOUNT, LONGEST_NS

LARGEST_RANK = 2**31 - 1

Rank = Annotated[int, Meta(ge=0, le=LARGEST_RANK)]
Time = Annotated[int, Meta(ge=-LONGEST_NS, le=LONGEST_NS)]
Span = Annotated[int, Meta(ge=0, le=LONGEST_NS)]
Amount = Annotated[int, Meta(ge=0, le=LARGEST_AMOUNT)]
Cost = Annotated[float, Meta(ge=0, le=float(LONGEST_NS))]
Address = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=0, le=2**53)]
Measure = Annotated[float, Meta(ge=0, le=2.0**63)]


class Step(Struct):
    """One step; times in ns from the trace's own origin."""

    name: str
    start_ns: Time
    end_ns: Time
    rank: Rank = 0
    completion_ns: Time = 0  # may be absent, not null
    measured_ns: Span | None = None
    covered: bool = False
    why_not: str | None = None


class Device(Struct):
    """One device, as its driver tells."""

    id: int | None = None
    name: str | None = None
    architecture: str | None = None
    memory_bytes: Amount | None = None
    compute_major: Number | None = None
    compute_minor: Number | None = None
    multiprocessors: Number | None = None
    warp_size: Number | None = None
    threads_per_block: Number | None = None
    threads_per_multiprocessor: Number | None = None
    registers_per_block: Number | None = None
    registers_per_multiprocessor: Number | None = None
    shared_bytes_per_block: Number | None = None
    shared_bytes_per_block_optin: Number | None = None
    shared_bytes_per_multiprocessor: Number | None = None
    memory_bytes_per_second: Number | None = None
    memory_bus_bits: Number | None = None
    memory_clock_khz: Number | None = None
    clock_khz: Number | None = None
    clock_hz: Number | None = None
    l2_bytes: Number | None = None


class Parameter(Struct):
    """One parameter of the model."""

    shape: list[Amount]
    name: str = ""
    layer: str | None = None
    dtype: str = ""
    device: str = ""
    requires_grad: bool = True
    gradient_bytes: Amount = 0
    local_bytes: Amount | msgspec.UnsetType | None = (
        msgspec.UNSET
    )  # of this rank's part, where it is sharded


class Buffer(Struct):
    """A tensor that a module keeps besides its parameters: running means of batch norms, masks."""

    bytes: Amount
    name: str = ""
    layer: str | None = None
    device: str = ""


class ParameterGroup(Struct):
    """One group of an optimizer's parameters."""

    settings: dict[str, Any]
    tensors: Amount
    elements: Amount
    parameters: list[str | None] = []


class Optimizer(Struct):
    """One optimizer."""

    name: str
    state_bytes: Amount
    groups: list[ParameterGroup]
    local_state_bytes: Amount | msgspec.UnsetType | None = (
        msgspec.UNSET
    )  # of this rank's part, where it is sharded


class Bucket(Struct):
    """Gradients that are reduced at once."""

    bytes: Amount
    parameters: list[str | None] = []


class Ddp(Struct):
    """One DistributedDataParallel."""

    cap_bytes: Amount | None = None
    buckets: list[Bucket] = []


class Segment(Struct):
    """Memory that PyTorch's allocator has from the driver in one piece, and its blocks in order."""

    address: Address
    total_size: Amount
    blocks: list[tuple[Amount, Amount | None]]  # bytes, and bytes asked for or None if free
    stream: Number = 0
    pool: str = "large"
    is_expandable: bool = False
    private: bool = False


class Held(Struct):
    """What a device held when the recording began."""

    allocated_bytes: Amount
    reserved_bytes: Amount
    segments: list[Segment] = []


class ProcessGroup(Struct):
    """Ranks that communicate."""

    name: str
    ranks: list[Rank] = []
    description: str = ""


class FakeWorld(Struct):
    """The job of which one rank ran, in a world of ranks that do not exist, and the cluster it is meant for."""

    world_size: Annotated[int, Meta(ge=1, le=LARGEST_RANK)]
    rank: Rank
    cluster: str | None = None
    imbalance: Annotated[float, Meta(ge=1)] = 1.0


class Emulated(Struct):
    """The emulated GPU and CPU, how often a value that nobody knew was read, whether the script compiles.

    `other_cpus` are how many times as long as this CPU others take that it may be.
    """

    device: str
    cpu: str
    other_cpus: list[float] = []
    read: Number = 0
    compiled: bool = False


class Alignment(Struct):
    """How the ranks' clocks were brought together."""

    collectives: Number
    residual_ns: float
    moved_ns: dict[str, int]
    alone: dict[str, int]


class Collected(Struct):
    """What `daydream collect` was asked for, and the steps that ran."""

    warmup: Number = 5
    steps: Number = 3
    unprofiled: Number = 20
    captures: Number = 1  # 2 where steps were captured once more
    ran: Number | None = None


class Confirmed(Struct):
    """Blocks of steps with and without a change, or why it could not be made."""

    failed: str | None = None
    base: list[Cost] = []
    again: list[Cost] = []
    changed: list[Cost] = []


class ProfilerCost(Struct):
    """What recording costs an event, in ns."""

    event_ns: dict[str, Cost]
    input_ns: Cost
    annotation_ns: Cost
    module_ns: Cost
    inside_ns: Cost
    before_share: Annotated[float, Meta(ge=0, le=1)]
    heads: list[tuple[str, str, str, Number, Cost]]
    step_hooks_ns: Span = 0
    memory_ns: Cost = 0  # an allocation or a free


class Counter(Struct):
    """Work of a kernel that a GPU counted."""

    name: str
    flop: Number | None = None
    bytes: Number | None = None
    amounts: dict[str, Measure] = {}
    rank: int | None = None
    correlation: int | None = None


class GraphBreak(Struct):
    """Where a compiler gave up a graph, and why."""

    region: str
    reason: str = ""
    source: str | None = None  # file, line and function


class UncompiledFrame(Struct):
    """A function that a compiler left as it is, and why."""

    source: str  # file, first line and name
    reason: str = ""
    at: str | None = None  # what made it, file, line and function


class OperatorWork(Struct):
    """What a call of an operator with these shapes does, where its compiler tells and its name does not."""

    name: str
    shapes: str
    family: Annotated[str, Meta(pattern=r"^[a-z-]{1,20}\Z")]
    flop: Amount | None = None
    bytes: Amount | None = None


class CountedWindow(Struct):
    """Sums that were counted over kernels, from `first` to `last` in the order of their launches."""

    file: str
    source: str
    first: Number
    last: Number
    amounts: dict[str, Measure] = {}


class OfRank(Struct):
    """What a rank has of its own, where that is not what the whole document says."""

    rank: Rank
    unprofiled_step_ns: list[Span] = []
    confirmed: Confirmed | None = None
    profiler_cost: ProfilerCost | None = None
    parameters: list[Parameter] = []
    buffers: list[Buffer] = []
    optimizers: list[Optimizer] = []
    ddp: list[Ddp] = []
    devices: list[Device] = []
    held_before: dict[str, Held] = {}


OF_EACH_RANK = OfRank.__struct_fields__[1:]


class Metadata(Struct):
    """The whole document."""

    steps: list[Step] = []
    step_source: str = ""
    steps_read: str | None = None  # "10:20" where these were taken out of a longer recording
    typical_run: str | None = None  # what is said of them where they stand for a long recording
    source: str = ""
    notes: list[str] = []
    vendor: Annotated[str, Meta(pattern=r"^[\w -]{0,40}\Z")] | None = None
    profiler: str | None = None  # what recorded it, where that was not torch
    world_size: Annotated[int, Meta(ge=1, le=LARGEST_RANK)] | None = None
    rank: Rank | None = None
    ranks: list[OfRank] = []
    backend: str | None = None
    origin_ns: int = 0
    versions: dict[str, str] = {}
    devices: list[Device] = []
    groups: list[ProcessGroup] = []
    fake_world: FakeWorld | None = None
    emulated: Emulated | None = None
    alignment: Alignment | None = None
    threads: Number | None = None
    phases_assumed: Annotated[float, Meta(ge=0, le=1)] = 0.0
    parameters: list[Parameter] = []
    buffers: list[Buffer] = []
    optimizers: list[Optimizer] = []
    ddp: list[Ddp] = []
    held_before: dict[str, Held] = {}
    memory_from: str | None = (
        None  # "driver" where events are what the driver gave, not an allocator
    )
    collected: Collected | None = None
    unprofiled_step_ns: list[Span] = []
    confirmed: Confirmed | None = None
    changed_not_recorded: str | None = None
    changed_operators: list[str] = []  # that tools of a change act on: `aten::gelu`
    profiler_cost: ProfilerCost | None = None
    graph_breaks: list[GraphBreak] = []
    uncompiled_frames: list[UncompiledFrame] = []
    counters: list[Counter] = []
    counted_windows: list[CountedWindow] = []
    operators: list[OperatorWork] = []


def mistake_in(document: Mapping[str, Any]) -> str | None:
    """Return what in a trace's metadata is not as it has to be, and where; None if all is well."""
    try:
        found = _read(document)
    except UnicodeError:
        return "its metadata holds text that is none"
    except (msgspec.ValidationError, RecursionError) as error:
        return f"its metadata has an unusable value: {error}"
    return _of_steps(found.get("steps", [])) or _of_sizes(found)


def _read(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a document has, as `Metadata` would hold them."""
    names = tuple(name for name in Metadata.__struct_fields__ if name in document)
    found = msgspec.convert(document, _with_fields(names))
    return {name: getattr(found, name) for name in names}


@lru_cache(64)
def _with_fields(names: tuple[str, ...]) -> type[Struct]:
    """Return `Metadata` with these fields alone: to work out the types of all takes 10 ms."""
    return msgspec.defstruct(
        "Metadata", [(name, Metadata.__annotations__[name]) for name in names], module=__name__
    )


MODEL = (
    "parameters",
    "optimizers",
    "ddp",
    "groups",
)  # what is read without asking whether it is there


def fill_in(document: dict[str, Any]) -> None:
    """Give parameters, optimizers, buckets and groups without a mistake the fields that they lack."""
    for part in (document, *document.get("ranks", [])):
        for name in MODEL:
            if part.get(name):
                found = _read({name: part[name]})[name]
                part[name] = _filled(msgspec.to_builtins(found), part[name])


def _filled(whole: Any, given: Any) -> Any:
    """Return what was given, with what only the whole has."""
    if isinstance(given, dict):
        return {**whole, **{name: _filled(whole.get(name), value) for name, value in given.items()}}
    if isinstance(given, list) and isinstance(whole, list):
        return [_filled(*pair) for pair in zip(whole, given, strict=True)]
    return given


def _of_steps(steps: list[Step]) -> str | None:
    last: dict[int, Step] = {}
    for number, step in enumerate(steps):
        before = last.get(step.rank)
        if step.end_ns < step.start_ns:
            return f"step {number} ends before it begins"
        if step.covered and step.measured_ns is None:
            return f"step {number} is covered, but has no measured time"
        if before is not None and step.start_ns < before.start_ns:
            return f"step {number} begins before the step before it"
        last[step.rank] = step
    return None


def _of_sizes(found: dict[str, Any]) -> str | None:
    ranks = found.get("ranks", [])
    every = [found.get("parameters", []), *(rank.parameters for rank in ranks)]
    for number, parameter in enumerate(one for some in every for one in some):
        if math.prod(parameter.shape) > LARGEST_AMOUNT:
            return f"parameter {number} has more elements than any machine holds"
    for blocks in (found.get("confirmed"), *(rank.confirmed for rank in ranks)):
        if blocks is not None and not len(blocks.base) == len(blocks.again) == len(blocks.changed):
            return "the blocks of steps with and without the change are not equally many"
    return None
