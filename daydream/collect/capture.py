"""One window of the profiler with layer hooks, and the trace that its rows become."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from daydream.collect.derive import derive
from daydream.collect.events import MARKER_NAME, Marker, read_events
from daydream.collect.layer_hooks import LayerHooks
from daydream.collect.loss import label_outside, set_loss_phase
from daydream.collect.periods_of_steps import set_apart_unlike_steps
from daydream.collect.recording import Recording
from daydream.collect.run_metadata import describe_run
from daydream.collect.steps import Ranges
from daydream.collect.torch_private import events_of, profiler_config, range_type
from daydream.trace import Trace


@dataclass
class Captured:
    """What a window holds: the recording with the run's metadata, and its step markers."""

    recording: Recording
    markers: list[Marker]

    def trace(self, ranges: tuple[Ranges, str]) -> Trace:
        """Return the trace, with layers, phases and these steps; the recording is used up."""
        label_outside(self.recording)
        trace = derive(self.recording, ranges=ranges)
        set_loss_phase(trace)
        set_apart_unlike_steps(trace)
        return trace


class Capture:
    """A running profiler. It must be stopped on the thread that started it."""

    def __init__(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        cuda: Any = torch.cuda
        activities = [ProfilerActivity.CPU]
        if cuda.is_available() and cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)  # also on ROCm builds
        self._hooks = LayerHooks()
        self._range = range_type()
        self._profiler: Any = profile(
            activities=activities, record_shapes=True, experimental_config=profiler_config()
        )

    def start(self) -> None:
        """Begin to record."""
        self._profiler.prepare_trace()
        self._hooks.install()
        self._profiler.start_trace()

    def mark(self, number: int) -> None:
        """Leave a step marker in the recording."""
        with self._range(MARKER_NAME.format(number)):
            pass

    def stop(self, optimizers: list[Any]) -> Captured:
        """End the recording, take the layer hooks off, and return what was recorded."""
        self._hooks.remove()
        self._profiler.stop_trace()
        metadata, paths = describe_run(self._hooks.roots, optimizers)
        layers = {
            number: path
            for number, module in enumerate(self._hooks.modules)
            if (path := paths.of_module.get(id(module))) is not None
        }
        recording, markers = read_events(events_of(self._profiler), layers)
        recording.metadata.update(metadata)
        return Captured(recording, markers)
