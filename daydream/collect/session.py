"""One recording inside a training process: waits, warms up, captures steps, times more without a profiler.

    waiting ──warm-up steps──▶ capturing ──steps + 1──▶ timing ──20 steps──▶ done
                                   │ a profiler of the script starts: give way, then warm up again

Everything happens in the hooks of `step_hooks`, on the thread that trains: a profiler must
be started and stopped on the same thread. One step more than asked for is captured, as the
first has no step before it and so no step time. The unprofiled steps come after the
capture, so that a script that ends early still leaves a trace.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daydream.collect.capture import Capture, Captured
from daydream.collect.events import Marker
from daydream.collect.periods_of_steps import anchor_of, periods
from daydream.collect.step_hooks import BACKWARD, StepHooks, any_optimizer_exists
from daydream.collect.steps import Ranges
from daydream.collect.torch_private import profiler_runs, watch_profilers
from daydream.errors import DaydreamError, OutputError
from daydream.trace import Trace
from daydream.wording import counted

WAITING, CAPTURING, TIMING, DONE = range(4)
MEMORY = 256  # markers that are looked back on while waiting
PATIENCE = 32  # backward passes without an optimizer's step before they count as steps, where one exists


class Session:
    """Records `steps` training steps of this process after `warmup`, and saves a trace at `output`.

    Call `install()` once torch is imported and `finish()` when the process ends. `on_progress`
    gets a sentence now and then. Raises `OutputError` if `output` exists and `force` is not given.
    """

    def __init__(
        self,
        output: Path,
        *,
        steps: int = 3,
        warmup: int = 5,
        force: bool = False,
        on_progress: Callable[[str], None] | None = None,
        unprofiled: int = 20,
    ) -> None:
        for name, value, least in (("steps", steps, 1), ("warmup", warmup, 0), ("unprofiled", unprofiled, 0)):
            if value < least:
                raise DaydreamError(f"{name} is {value}; it must be at least {least}")
        self._output, self._force = Path(output), force
        if self._output.exists() and not force:
            raise OutputError(f"{self._output} exists already; choose another name or give --force")
        self._steps, self._warmup, self._unprofiled = steps, warmup, unprofiled
        self._tell = on_progress or (lambda _: None)
        self.trace: Trace | None = None
        self._pid = os.getpid()
        self._state = WAITING
        self._finished = False
        self._installed = False
        self._markers: list[int] = []  # optimizers as they step; backward passes while there is none
        self._began = 0  # position of the marker at which the capture began
        self._optimizer_exists: bool | None = None
        self._step_hooks = StepHooks(self._on_marker)
        self._capture: Capture | None = None
        self._ours = False
        self._in_hook = False
        self._others: list[Any] = []  # profilers of the script that run now
        self._interrupted = False
        self._unwatch: Callable[[], None] = lambda: None
        self._captured: Captured | None = None
        self._times: list[int] = []  # perf counter at the ends of unprofiled steps
        self._seen_steps = 0
        self._first_step = 1  # number of the first captured step
        self._failure: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: the trace is saved, or there is none to save."""
        return self._state == DONE

    def install(self) -> None:
        """Begin to watch the script's steps. Does nothing the second time."""
        if self._installed:
            return
        self._installed = True
        self._pid = os.getpid()
        self._unwatch = watch_profilers(self._profiler_starts, self._profiler_stopped)
        self._step_hooks.install()
        self._tell("waiting for training steps")

    def finish(self, reason: str) -> None:
        """Save what was captured. Does nothing the second time, and in a forked child.

        Raises `DaydreamError` if no step was captured, `OutputError` if the trace cannot be written,
        also where that happened earlier, between two steps of the script.
        """
        if os.getpid() != self._pid:
            return
        if not self._in_hook:
            self._step_hooks.remove()
        if self._finished:
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            return
        self._finished = True
        try:
            if self._state == CAPTURING:
                self._stop_capture()
            if self._captured is None:
                raise DaydreamError(self._why_nothing(reason))
            self._save(self._captured, reason)
        finally:
            self._take_down()

    # Steps ---------------------------------------------------------------------------------------

    def _on_marker(self, which: int) -> None:
        """Go on after an optimizer step or a backward pass; a fault of ours must not stop the script."""
        if os.getpid() != self._pid or self._finished:
            return
        self._in_hook = True
        try:
            self._proceed(which)
        except Exception as error:  # noqa: BLE001 - kept, and raised by `finish`
            self._failure = error
            self._finished = True
            self._take_down()
        finally:
            self._in_hook = False

    def _proceed(self, which: int) -> None:
        by_backward = anchor_of(self._markers) == BACKWARD
        if which == BACKWARD and self._markers and not by_backward:
            return  # optimizers tell the steps
        if which != BACKWARD and by_backward:
            self._start_again()
        self._markers.append(which)
        if self._state == CAPTURING:
            self._mark()
        if which != anchor_of(self._markers):
            return
        self._seen_steps += 1
        if self._state == WAITING:
            self._wait(which)
        elif self._state == CAPTURING:
            taken = len(self._ends_since(self._began)) - 1
            if taken > self._steps:
                self._stop_capture()
                self._begin_timing()
            else:
                self._tell_capturing(taken)
        elif self._state == TIMING:
            self._times.append(time.perf_counter_ns())
            if len(self._times) > self._unprofiled + 1:
                self.finish("the end")

    def _ends_since(self, position: int) -> list[int]:
        """Return the positions of the markers that end steps, from one on."""
        return [end for end in periods(self._markers) if end >= position]

    def _may_be_steps(self) -> bool:
        """Return whether to take backward passes for steps: where no optimizer's step will be seen."""
        if self._optimizer_exists is None and self._seen_steps >= max(self._warmup, 1):
            self._optimizer_exists = any_optimizer_exists()
        return self._optimizer_exists is False or self._seen_steps >= PATIENCE

    def _wait(self, which: int) -> None:
        del self._markers[:-MEMORY]
        if self._seen_steps < self._warmup or (which == BACKWARD and not self._may_be_steps()):
            self._tell(f"warming up: step {self._seen_steps} of {self._warmup}")
            return
        if self._others or profiler_runs():
            self._tell("waiting: the script's own profiler is running")
            return
        self._start_capture()

    def _tell_capturing(self, taken: int) -> None:
        self._tell(f"capturing: step {min(taken + 1, self._steps + 1)} of {self._steps + 1}")

    # Capture -------------------------------------------------------------------------------------

    def _start_capture(self) -> None:
        self._capture = Capture()
        self._ours = True
        try:
            self._capture.start()
        finally:
            self._ours = False
        self._state = CAPTURING
        self._began = len(self._markers) - 1
        self._first_step = self._seen_steps + 1
        self._mark()
        self._tell_capturing(0)

    def _mark(self) -> None:
        if self._capture is not None:
            self._capture.mark(len(self._markers) - 1)

    def _stop_capture(self) -> None:
        """End the capture, and keep it if it holds a whole step."""
        capture, self._capture = self._capture, None
        self._state = TIMING
        if capture is None:
            return
        self._ours = True
        try:
            captured = capture.stop(self._step_hooks.optimizers)
        finally:
            self._ours = False
        if len(captured.recording) and self._step_ranges(captured.markers)[0]:
            self._captured = captured

    def _begin_timing(self) -> None:
        self._times = [time.perf_counter_ns()]
        if self._captured is None or not self._unprofiled:
            self.finish("the end")
        else:
            self._tell(f"timing {counted(self._unprofiled, 'step')} without the profiler")

    def _start_again(self) -> None:
        """Forget the backward passes that were taken for steps: an optimizer steps after all."""
        if self._state == CAPTURING:
            self._stop_capture()
        self._captured = None
        self._times = []
        self._state = WAITING
        self._markers = []
        self._seen_steps = 0

    # The script's own profiler -------------------------------------------------------------------

    def _profiler_starts(self, profiler: Any) -> None:
        """Give way: two profilers at once would leave one of them with nothing, and without an error."""
        if self._ours or self._finished or os.getpid() != self._pid:
            return
        self._others.append(profiler)
        if not self._interrupted:
            self._interrupted = True
            warnings.warn(
                "the script runs torch.profiler itself; `daydream collect` records while it does not, "
                "so that neither recording is lost", stacklevel=2,
            )  # fmt: skip
        if self._state == CAPTURING:
            self._stop_capture()
            taken = 0
            if self._captured is not None:
                taken = len(self._step_ranges(self._captured.markers)[0])
            if taken > self._steps:
                self._begin_timing()
                return
            self._state = WAITING
            self._tell("the script's own profiler started; capturing again when it has stopped")

    def _profiler_stopped(self, profiler: Any) -> None:
        self._others = [one for one in self._others if one is not profiler]

    # The end -------------------------------------------------------------------------------------

    def _step_ranges(self, markers: list[Marker]) -> tuple[Ranges, str]:
        """Return the steps between the markers of the recording, and where they come from."""
        ends = set(periods(self._markers))
        times = [at for number, at in markers if number in ends]
        if len(times) < 2:
            return [], ""
        anchor = self._markers[max(ends)]
        source = (
            "ends of backward passes, as no torch.optim optimizer stepped" if anchor == BACKWARD
            else f"steps of the optimizer {type(self._step_hooks.optimizers[anchor]).__name__}"
        )  # fmt: skip
        begins = [times[0], *(at + 1 for at in times[1:-1])]
        names = [f"step {self._first_step + index}" for index in range(len(begins))]
        return list(zip(names, begins, times[1:], strict=True)), source

    def _save(self, captured: Captured, reason: str) -> None:
        self._tell("writing")
        self._captured = None
        metadata = captured.recording.metadata
        ranges = self._step_ranges(captured.markers)
        taken = len(ranges[0]) - 1
        if taken < self._steps:
            metadata["notes"].append(
                f"{counted(taken, 'step')} of {self._steps} could be measured before {reason}."
            )
        # The first one after the profiler runs on cold caches.
        times = [end - begin for begin, end in zip(self._times[1:-1], self._times[2:], strict=True)]
        if times:
            metadata["unprofiled_step_ns"] = times
        asked = {"warmup": self._warmup, "steps": self._steps, "unprofiled": self._unprofiled}
        metadata.update(source=self._output.name, collected=asked)
        self.trace = captured.trace(ranges)
        self.trace.save(self._output, force=self._force)

    def _take_down(self) -> None:
        """Leave the process as it was."""
        self._state = DONE
        self._step_hooks.disable()
        self._unwatch()
        self._step_hooks.forget()
        self._others = []

    def _why_nothing(self, reason: str) -> str:
        seen = counted(self._seen_steps, "training step")
        if self._interrupted and self._seen_steps > self._warmup:
            return (
                f"no step was captured before {reason}: the script's own torch.profiler ran all the while. "
                "Run the script without it, or profile fewer of its steps."
            )
        if not self._markers:
            return (
                f"no training step was seen before {reason}: no torch.optim optimizer stepped and "
                "torch.autograd.backward was not called. daydream records training steps."
            )
        return (
            f"only {seen} ran before {reason}; {self._warmup} to warm up and at least 1 more to record are "
            "needed. Run more steps, or lower --warmup."
        )
