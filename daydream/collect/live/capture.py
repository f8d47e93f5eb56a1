"""One window of the profiler with layer hooks, and the trace that its rows become."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from daydream.collect.derive.build import derive
from daydream.collect.derive.compiled_calls import attach_compiled
from daydream.collect.derive.layers import AUTOGRAD_THREADS
from daydream.collect.derive.recording import Recording
from daydream.collect.derive.steps import Ranges
from daydream.collect.live import provenance
from daydream.collect.live.events import MARKER_NAME, UPDATE_NAME, Marker, read_profile
from daydream.collect.live.layer_hooks import LayerHooks
from daydream.collect.live.loss import label_outside, set_loss_phase
from daydream.collect.live.memory import UnknownFree, held_before, until_the_last_row
from daydream.collect.live.periods_of_steps import set_apart_unlike_steps
from daydream.collect.live.run_metadata import describe_run
from daydream.collect.live.torch_private import (
    autograd_threads,
    let_go,
    names_activities,
    profiler_config,
    quiet_profiler,
    range_type,
    write_profile,
)
from daydream.collect.live.warm_memory import WarmMemory
from daydream.errors import DaydreamError, TraceError
from daydream.files.own_folders import own_folder
from daydream.text import counted
from daydream.trace.schema import UNKNOWN
from daydream.trace.trace import Trace

UNSEEN = (
    "{} ran on threads that the script started: their operators are missing, as this torch records memory "
    "or such threads, not both. Record again with --no-memory."
)
STACKS = "Python's frames were recorded too: the recorded steps are slower by that, and it is not taken out."

_running: list[Capture] = []  # the one that records, if any does


def prepared_profiler(*, with_stack: bool = False, memory: bool = False) -> Any:
    """Return a profiler with the settings of every capture, prepared; it may record frames and memory."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if _on_gpu():
        activities.append(ProfilerActivity.CUDA)  # also on ROCm builds
    make: Any = profile
    profiler = make(
        activities=activities, record_shapes=True, with_stack=with_stack, profile_memory=memory,
        experimental_config=profiler_config(memory=memory),
    )  # fmt: skip
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
        attach_compiled(trace, provenance.compiled_graphs(), self.modules)
        trace.metadata["notes"] += provenance.notes()
        if breaks := provenance.graph_breaks():
            trace.metadata["graph_breaks"] = breaks
        if uncompiled := provenance.uncompiled_frames():
            trace.metadata["uncompiled_frames"] = uncompiled
        return trace


class Capture:
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
        self._warm: WarmMemory | None = None
        self._held: dict[str, Any] = {}

    @staticmethod
    def begin_update(optimizer: Any) -> None:
        """Leave a mark in what is being recorded, if anything is: this optimizer's step begins."""
        for capture in _running:
            capture.leave(UPDATE_NAME.format(type(optimizer).__name__))

    def leave(self, name: str) -> None:
        """Leave a range without length in the recording, and look at the CPU times."""
        self._hooks.cpu_times.look()
        with self._range(name):
            pass

    def start(self) -> None:
        """Begin to record."""
        self._held = held_before() if self._with_memory else {}
        unknown = UnknownFree() if self._with_memory else None
        self._warm = WarmMemory()
        self._hooks.install()
        self._profiler.start_trace()
        _running.append(self)
        if unknown is not None:
            unknown.free()

    def mark(self, number: int) -> None:
        """Leave a step marker in the recording."""
        self.leave(MARKER_NAME.format(number))
        if self._warm is not None:
            self._warm.add_if_used_up()

    def discard(self) -> None:
        """Leave no profiler that is prepared and never started: torch 2.11 prepares no other one after it."""
        if names_activities() or self in _running:
            return
        with quiet_profiler(), contextlib.suppress(RuntimeError):
            self._profiler.start_trace()
            self._profiler.stop_trace()

    def abandon(self) -> None:
        """Take the layer hooks off; for a forked child, which has no profiler of its own to stop."""
        _running.clear()
        self._hooks.remove()

    def stop(self, optimizers: list[Any]) -> Captured:
        """End the recording, take the layer hooks off, and return what was recorded."""
        self._hooks.remove()
        _running.clear()
        self._profiler.stop_trace()
        self._warm = None
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
            nothing = {name: np.zeros(0, np.int64) for name in ("start_ns", "duration_ns", "kind", "name")}
            return Captured(Recording(nothing, {}, {"notes": []}), [])
        try:
            recording, markers, seen = read_profile(file, layers, hooks.cpu_times.looks)
        except TraceError as error:
            raise DaydreamError(
                f"cannot write what the profiler recorded to {folder.parent}; is the disk full? ({error})"
            ) from None
    recording.metadata.update(metadata)
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
