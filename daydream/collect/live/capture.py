"""One window of the profiler with layer hooks, and the trace that its rows become.

The profiler writes its file, which is read as any other one. The rows in it that are ours are turned into
what they stand for: layer ranges become rows of kind `module`; step markers are returned apart and leave no row.
The loss, and other work outside all modules, gets a layer, too.

On the CPU torch knows of memory only what was allocated while a profiler recorded memory: a free of what
was there before leaves no event, and its totals count from the process's first recording on.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daydream.collect.derive.build import derive
from daydream.collect.derive.compiled_calls import attach_compiled
from daydream.collect.derive.device_work import collective_of_name, elements_of_dims
from daydream.collect.derive.layers import AUTOGRAD_THREADS, link_forward
from daydream.collect.derive.nesting import nearest, nest
from daydream.collect.derive.phases import NODE_RANGE, OLD_NODE, REDUCER_RANGE, ZERO_GRAD_RANGE
from daydream.collect.derive.recording import Recording, narrow
from daydream.collect.derive.steps import Ranges
from daydream.collect.importers.kineto.reader import read_kineto
from daydream.collect.importers.row_builder import outer_first
from daydream.collect.live.layer_hooks import LAYER_RANGE, LOSS, LayerHooks, Look, add_cpu_times
from daydream.collect.live.run_metadata import describe_run
from daydream.collect.live.step_hooks import Marker, set_apart_unlike_steps
from daydream.collect.live.torch_compiler import (
    compiled_graphs,
    graph_breaks,
    notes,
    uncompiled_frames,
)
from daydream.collect.live.torch_private import (
    autograd_threads,
    let_go,
    profiler_config,
    quiet_profiler,
    range_type,
    write_profile,
)
from daydream.errors import DaydreamError, TraceError
from daydream.files.atomic import own_folder
from daydream.text import counted
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import ITEM_BYTES, PHASES, UNKNOWN
from daydream.trace.trace import Trace

# Worlds and GPUs that do not exist add here what completes a recording: from it and its markers, the markers.
COMPLETIONS: list[Callable[[Recording, list[Any]], list[Any]]] = []


def held_before() -> dict[str, dict[str, Any]]:
    """Return what each GPU that this process uses holds now, by its number, for a trace's metadata.

    Sizes only, no frames and no names. What cannot be had is left out: nothing may be lost for it.
    """
    import torch

    cuda: Any = torch.cuda
    held: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(LookupError, RuntimeError, TypeError, ValueError, AttributeError):
        if not cuda.is_available() or not cuda.is_initialized():
            return {}
        for device in range(cuda.device_count()):
            if reserved := int(cuda.memory_reserved(device)):
                allocated = int(cuda.memory_allocated(device))
                held[str(device)] = {"allocated_bytes": allocated, "reserved_bytes": reserved}
        segments = cuda.memory_snapshot() if held else []
        for number, told in held.items():
            told["segments"] = _segments([one for one in segments if str(one["device"]) == number])
    return held


def _segments(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the allocator has from the driver, with its blocks as [bytes, bytes asked for or None]."""
    streams = {0: 0}  # the numbers of the others are addresses
    return [
        {
            "address": one["address"],
            "total_size": one["total_size"],
            "stream": streams.setdefault(int(one["stream"]), len(streams)),
            "pool": str(one["segment_type"]),
            "is_expandable": bool(one.get("is_expandable", False)),
            "private": tuple(one.get("segment_pool_id", (0, 0))) != (0, 0),
            "blocks": [
                [int(block["size"]), None if block["state"] == "inactive" else _asked(block)]
                for block in one["blocks"]
            ],
        }
        for one in sorted(found, key=lambda one: one["address"])
    ]


def _asked(block: dict[str, Any]) -> int:
    return int(block.get("requested_size", block["size"]))


def until_the_last_row(memory: MemoryEvents, recording: Recording) -> MemoryEvents:
    """Return the events up to the end of what was recorded.

    Where a signal ends a recording, calls that run have no row, but what they asked for already is there.
    """
    end_ns = np.asarray(recording["start_ns"], np.int64) + recording["duration_ns"]
    return memory.take(memory["time_ns"] <= end_ns.max(initial=0))


WARM_BYTES = 64 << 20
CHUNK = 64 << 10  # below the size for which the C library asks the system for memory of its own
SMALL = (24, 40)  # bytes of what the profiler takes most
BYTES_OF_SMALL = 1 << 10  # of each size there is one block for so many bytes


def warm_memory(nbytes: int = WARM_BYTES) -> list[Any]:
    """Touch the memory that the profiler will take, and return what keeps it from going back to the system.

    It files one to two kilobytes an event away. Fresh memory costs a page fault every second event, as much
    as the event; and where no free block is as small as it asks for, one is cut off the place that a tensor
    had a step ago. On a perceptron of 4 x 256 x 256 that is half of what recording adds.
    """
    small = [
        np.empty(size, np.uint8) for size in SMALL for _ in range(2 * nbytes // BYTES_OF_SMALL)
    ]
    chunks = [bytearray(CHUNK) for _ in range(nbytes // CHUNK)]
    last = bytearray(CHUNK)  # behind the others
    del chunks
    return [small[::2], last]  # free blocks between any two cannot become part of a larger one


OURS = "daydream::"
MARKER = re.compile(r"^daydream::marker (\d+)$")
MARKER_NAME = "daydream::marker {}"
UPDATE = re.compile(r"^daydream::update (\w+)$")
UPDATE_NAME = "daydream::update {}"  # where the step of an optimizer of this type begins
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
HOST_COLLECTIVE = re.compile(
    r"^(gloo:|c10d::)\w*(reduce|gather|scatter|broadcast|all_?to_?all|send|recv|barrier)"
)


def read_profile(
    path: Path, layers: dict[int, str], looks: Sequence[Look] = ()
) -> tuple[Recording, list[Marker], int]:
    """Return a profiler's file as a recording, step markers as (number, time in ns), and how many layers ran.

    `layers` are the paths of the layer ranges by number; a range without one is left out. `looks` at the
    threads' CPU times become rows. Marker times count from the recording's origin.
    """
    recording = read_kineto(path)
    names = recording.text("name")
    start = recording["start_ns"]
    marks = {code: int(mark[1]) for code, name in enumerate(names) if (mark := MARKER.match(name))}
    rows = np.flatnonzero(np.isin(recording["name"], list(marks)))
    told = zip(recording["name"][rows].tolist(), start[rows].tolist(), strict=True)
    markers = [(marks[code], at) for code, at in told]
    _close_update(recording, markers)
    _cut_open_ranges(recording)
    paths = {
        code: layers.get(int(layer[1]))
        for code, name in enumerate(names)
        if (layer := LAYER_RANGE.match(name))
    }
    modules = [code for code, path in paths.items() if path is not None]
    known = np.isin(recording["name"], modules)
    # Torch's own rows of modules, which come with Python's frames, have no paths.
    keep = known | ~(
        recording.whose_name(lambda name: name.startswith(OURS)) | recording.is_kind("module")
    )
    recording.keep(keep)
    rows = np.flatnonzero(known[keep])
    found = [paths[code] for code in recording["name"][rows].tolist()]
    for column, texts in (("name", found), ("layer", found), ("kind", ["module"] * len(rows))):
        recording.set_texts(column, rows, texts)
    kept, codes = np.unique(recording["name"], return_inverse=True)
    recording.columns["name"] = narrow(codes)
    recording.texts["name"] = [recording.text("name")[code] for code in kept.tolist()]

    origin = int(recording.metadata["origin_ns"])
    add_cpu_times(recording.columns, recording.texts, [(at - origin, used) for at, used in looks])
    order = outer_first(recording["start_ns"], recording["duration_ns"])
    recording.columns = {
        name: narrow(column[order], np.int8) for name, column in recording.columns.items()
    }
    first = min([at for _, at in markers[:1]] + recording["start_ns"][:1].tolist(), default=0)
    # Times of rows stay wide, as importers have them: ends are sums of two columns.
    recording.columns["start_ns"] = np.subtract(recording["start_ns"], first, dtype=np.int64)
    if recording.memory is not None:
        recording.memory = recording.memory.changed(time_ns=recording.memory["time_ns"] - first)
    recording.metadata = {"origin_ns": origin + first, "notes": recording.metadata["notes"]}
    _tell_collectives(recording)
    return recording, sorted((number, at - first) for number, at in markers), len(paths)


def _close_update(recording: Recording, markers: list[Marker]) -> None:
    """Give the optimizer's step in which the recording ended its range.

    torch writes a range when it ends (2.11; 2.13 writes an open one too), and recording ends with the marker
    behind the optimizer's work, inside its range.
    """
    begun = np.flatnonzero(recording.named(UPDATE))
    if not len(begun) or not markers:
        return
    start = recording["start_ns"]
    row = begun[start[begun].argmax()]
    steps = np.flatnonzero(recording.named(OPTIMIZER_STEP))
    inside = start[row] - start[steps]
    left = max(at for _, at in markers) - int(start[row])
    if ((inside >= 0) & (inside <= recording["duration_ns"][steps])).any() or left <= 0:
        return
    [name] = recording.texts_of("name", [row])
    recording.set_texts(
        "name", np.array([row]), [UPDATE.sub(r"Optimizer.step#\1.step", name or "")]
    )
    recording.set_texts("kind", np.array([row]), ["annotation"])
    recording.set_numbers("duration_ns", np.array([row]), np.array([left]))


def _cut_open_ranges(recording: Recording) -> None:
    """End ranges that were open at the end with the last row: torch has them last until it wrote them."""
    ranges = np.flatnonzero(recording.is_kind("annotation"))
    others = recording.is_kind("operator", "runtime")
    end = recording["start_ns"] + recording["duration_ns"]
    most = end[others].max(initial=0) - recording["start_ns"][ranges]
    recording.set_numbers(
        "duration_ns", ranges, np.minimum(recording["duration_ns"][ranges], np.maximum(most, 0))
    )


def _tell_collectives(recording: Recording) -> None:
    """Give collectives that run on the host (gloo) their operation, elements and bytes, from their inputs."""
    rows = np.flatnonzero(
        recording.is_kind("operator", "annotation") & recording.named(HOST_COLLECTIVE)
    )
    if not len(rows):
        return
    names = recording.texts_of("name", rows)
    shapes = recording.texts_of("shapes", rows)
    counts = [elements_of_dims(json.loads(shape)) if shape else None for shape in shapes]
    operations = [collective_of_name(name or "") for name in names]
    dtypes = recording.texts_of("dtype", rows)
    # The operator is given a list of tensors, and the profiler names no type for one; gloo's own row does.
    told: dict[tuple[str | None, int | None], set[str]] = {}
    for operation, number, dtype in zip(operations, counts, dtypes, strict=True):
        if dtype is not None:
            told.setdefault((operation, number), set()).add(dtype)
    for at, work in enumerate(zip(operations, counts, strict=True)):
        if dtypes[at] is None and len(found := told.get(work, set())) == 1:
            dtypes[at] = next(iter(found))
    recording.set_texts("dtype", rows, dtypes)
    sizes = [ITEM_BYTES.get(dtype or "") for dtype in dtypes]
    moved = [
        UNKNOWN if count is None or size is None else count * size
        for count, size in zip(counts, sizes, strict=True)
    ]
    recording.set_texts("collective", rows, operations)
    elements = [UNKNOWN if count is None else count for count in counts]
    recording.set_numbers("elements", rows, np.array(elements, np.int64))
    recording.set_numbers("bytes", rows, np.array(moved, np.int64))


TOP = "<top>"
SHARDING_RANGE = re.compile(r"^FSDP::")
SHARDED_PART = re.compile(r"\(([\w.]+)\)")


def label_outside(recording: Recording) -> None:
    """Give operators outside all modules a layer, where backward work comes of them.

    After the last module's call and before the backward pass it is `loss`, and so is what is
    made of a gradient for another backward pass; elsewhere (a parameter that the script itself
    multiplies with) `<top>`. Without module rows nothing is said.
    """
    module = recording.is_kind("module")
    if not module.any():
        return
    nesting = nest(recording)
    host = recording.is_kind("operator", "annotation")
    operator = recording.is_kind("operator")
    node = operator & (recording.named(NODE_RANGE) | recording.named(OLD_NODE))
    closed = node | (host & (recording.named(REDUCER_RANGE) | recording.named(ZERO_GRAD_RANGE)))
    outside = np.flatnonzero(
        operator & (nesting.module < 0) & (nearest(closed, nesting.parent) < 0)
    )

    start = recording["start_ns"]
    is_loss = recording["layer"] == _code(recording, LOSS)
    turning = np.flatnonzero((module & ~is_loss) | node)
    turning = turning[np.argsort(start[turning], kind="stable")]
    slot = np.searchsorted(start[turning], start[outside])
    after_module = (slot > 0) & module[turning[np.maximum(slot - 1, 0)]]
    before_backward = (slot < len(turning)) & node[turning[np.minimum(slot, len(turning) - 1)]]
    forward_of = link_forward(recording)
    has_backward = np.zeros(len(recording), bool)
    has_backward[forward_of[forward_of >= 0]] = True
    in_loss = after_module & before_backward
    again = np.flatnonzero(before_backward & (slot > 0) & node[turning[np.maximum(slot - 1, 0)]])
    begins = again[has_backward[outside[again]]]
    first, place = np.unique(slot[begins], return_index=True)
    if len(first):  # from the first operator on that has a backward, up to the next node
        found = np.minimum(np.searchsorted(first, slot[again]), len(first) - 1)
        begun = (first[found] == slot[again]) & (
            start[outside[again]] >= start[outside[begins[place[found]]]]
        )
        in_loss[again[begun]] = True
    for rows, layer in ((outside[in_loss], LOSS), (outside[~in_loss & has_backward[outside]], TOP)):
        if len(rows):
            recording.set_texts("layer", rows, [layer] * len(rows))
    _label_sharding(recording, np.flatnonzero(host & (nesting.module < 0) & (nesting.parent < 0)))


def _label_sharding(recording: Recording, outside: np.ndarray) -> None:
    """Give what `fully_shard` does outside all modules the layer that its range names, else the model's."""
    rows = outside[recording.named(SHARDING_RANGE)[outside]]
    modules = np.flatnonzero(recording.is_kind("module"))
    known = set(recording.text("layer"))
    for row, name in zip(rows.tolist(), recording.texts_of("name", rows), strict=True):
        said = SHARDED_PART.search(name or "")
        if said and said.group(1) in known:
            recording.set_texts("layer", np.array([row]), [said.group(1)])
            continue
        before = modules[recording["start_ns"][modules] <= recording["start_ns"][row]]
        if len(before):
            # The model itself reaches furthest: no module before this range ended later.
            end = recording["start_ns"][before] + recording["duration_ns"][before]
            model = before[np.flatnonzero(end == end.max())[:1]]
            recording.set_texts("layer", np.array([row]), recording.texts_of("layer", model))


def set_loss_phase(trace: Trace) -> None:
    """Make the forward work of the layer `loss` the phase loss, on the device too."""
    if "layer" not in trace.columns or "phase" not in trace.columns:
        return
    rows = (trace["layer"] == trace.code("layer", LOSS)) & (
        trace["phase"] == PHASES.index("forward")
    )
    trace.columns["phase"][rows] = PHASES.index("loss")


def _code(recording: Recording, layer: str) -> int:
    texts = recording.text("layer")
    return texts.index(layer) if layer in texts else -2


UNSEEN = (
    "{} ran on threads that the script started: their operators are missing, as this torch records memory "
    "or such threads, not both. Record again with --no-memory."
)
STACKS = "Python's frames were recorded too: the recorded steps are slower by that, and it is not taken out."


def prepared_profiler(*, with_stack: bool = False, memory: bool = False) -> Any:
    """Return a profiler with the settings of every capture, prepared; it may record frames and memory."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if _on_gpu():
        activities.append(ProfilerActivity.CUDA)  # also on ROCm builds
    make: Any = profile
    profiler = make(
        activities=activities,
        record_shapes=True,
        with_stack=with_stack,
        profile_memory=memory,
        experimental_config=profiler_config(memory=memory),
    )
    with quiet_profiler():
        profiler.prepare_trace()
    return profiler


@dataclass
class Captured:
    """What a window holds: the recording with the run's metadata, and its step markers.

    `unseen` layers ran on threads that the profiler does not record while it records memory. `modules` are
    the paths of all modules, also of those that no recorded range is of.
    """

    recording: Recording
    markers: list[Marker]
    unseen: int = 0
    modules: frozenset[str] = frozenset()

    def trace(self, ranges: tuple[Ranges, str] | None = None) -> Trace:
        """Return the trace, with layers, phases and these steps; the recording is used up.

        Without `ranges` the steps are those of the profiler's own marks, as in an imported file.
        """
        label_outside(self.recording)
        trace = derive(self.recording, ranges=ranges)
        set_loss_phase(trace)
        set_apart_unlike_steps(trace)
        attach_compiled(trace, compiled_graphs(), self.modules)
        trace.metadata["notes"] += notes()
        if breaks := graph_breaks():
            trace.metadata["graph_breaks"] = breaks
        if uncompiled := uncompiled_frames():
            trace.metadata["uncompiled_frames"] = uncompiled
        return trace


@dataclass
class Kept:
    """What the profiler recorded, the ranges of the steps in it, and the names of those without an update."""

    captured: Captured
    ranges: tuple[Ranges, str]
    skipped: set[str]
    hooks_ns: int  # that our own hooks took of a step
    ended: str  # what ended the capture early

    @property
    def count(self) -> int:
        """How many steps have a step time: the first has none before it."""
        return len(self.ranges[0]) - 1

    @property
    def worth(self) -> tuple[int, int]:
        """How many steps, and how many of their layers; the larger the better."""
        return self.count, -self.captured.unseen


class ProfilerWindow:
    """A profiler, prepared when it is made. It must be stopped on the thread that started it.

    `with_stack` records Python's frames too, which makes the recorded steps slower; `memory` records
    allocations and frees. `slow_to_start` tells that a device is recorded too: its side is best prepared
    some steps ahead.
    """

    def __init__(self, *, with_stack: bool = False, memory: bool = False) -> None:
        self.slow_to_start = _on_gpu()
        self._with_stack = with_stack
        self._with_memory = memory
        self._hooks = LayerHooks()
        self._range = range_type()
        self._profiler = prepared_profiler(with_stack=with_stack, memory=memory)
        self._records = False
        self._warm: list[Any] = []
        self._held: dict[str, Any] = {}

    def start(self) -> None:
        """Begin to record."""
        self._held = held_before() if self._with_memory else {}
        self._warm = warm_memory()
        self._hooks.install()
        self._profiler.start_trace()
        self._records = True

    def mark(self, number: int) -> None:
        """Leave a step marker in the recording."""
        self._leave(MARKER_NAME.format(number))

    def begin_update(self, optimizer: Any) -> None:
        """Leave a mark where this optimizer's step begins, if it records."""
        if self._records:
            self._leave(UPDATE_NAME.format(type(optimizer).__name__))

    def _leave(self, name: str) -> None:
        """Leave a range without length in the recording, and look at the CPU times."""
        self._hooks.cpu_times.look()
        with self._range(name):
            pass

    def discard(self) -> None:
        """Record nothing. One that did not start does so first: torch 2.11 prepares no other one after it."""
        self._hooks.remove()
        with quiet_profiler(), contextlib.suppress(RuntimeError):
            if not self._records:
                self._profiler.start_trace()
            self._profiler.stop_trace()

    def abandon(self) -> None:
        """Take the layer hooks off; for a forked child, which has no profiler of its own to stop."""
        self._hooks.remove()

    def stop(self, optimizers: list[Any]) -> Captured:
        """End the recording, take the layer hooks off, and return what was recorded."""
        self._hooks.remove()
        self._profiler.stop_trace()
        self._warm = []
        found = captured(self._profiler, self._hooks, optimizers, memory=self._with_memory)
        let_go(self._profiler)
        if self._with_stack:
            found.recording.metadata["notes"].append(STACKS)
        if self._held:
            found.recording.metadata["held_before"] = self._held
        return found


def captured(profiler: Any, hooks: LayerHooks, optimizers: list[Any], *, memory: bool) -> Captured:
    """Return what a stopped `torch.profiler.profile` recorded while the layer hooks were on."""
    metadata, paths = describe_run(hooks.roots, optimizers)
    layers = {
        number: path
        for number, module in enumerate(hooks.modules)
        if (path := paths.of_module.get(id(module))) is not None
    }
    with own_folder("daydream-profile") as folder:
        file = folder / "profile.json"
        if not write_profile(profiler, file):
            columns = "start_ns", "duration_ns", "kind", "name"
            nothing = dict.fromkeys(columns, np.zeros(0, np.int64))
            return Captured(Recording(nothing, {}, {"notes": []}), [])
        try:
            recording, markers, seen = read_profile(file, layers, hooks.cpu_times.looks)
        except TraceError as error:
            raise DaydreamError(
                f"cannot write what the profiler recorded to {folder.parent}; is the disk full? ({error})"
            ) from None
    recording.metadata.update(metadata)
    for complete in COMPLETIONS:
        markers = complete(recording, markers)
    if len(set(recording["forward_thread"].tolist()) - {UNKNOWN, 0}) > 1:
        recording.metadata[AUTOGRAD_THREADS] = autograd_threads(profiler)
    modules = frozenset(paths.of_module.values())
    if not memory:
        recording.memory = None
        return Captured(recording, markers, modules=modules)
    if recording.memory is not None:
        recording.memory = until_the_last_row(recording.memory, recording)
    unseen = max(len(hooks.modules) - seen, 0)
    if unseen:
        recording.metadata["notes"].append(UNSEEN.format(counted(unseen, "layer", "layers")))
    return Captured(recording, markers, unseen, modules)


def _on_gpu() -> bool:
    import torch

    cuda: Any = torch.cuda
    return bool(cuda.is_available() and cuda.is_initialized())
