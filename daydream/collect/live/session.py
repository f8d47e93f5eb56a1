"""One recording inside a training process: waits, warms up, captures steps, times more without a profiler.

    waiting ──warm-up steps──▶ capturing ──steps + 1──▶ timing ──20 steps──▶ done
       ▲                           │                      └─ blocks with a change and without ─▶ done
       └───────────────────────────┘ a profiler of the script starts: give way

Everything happens in the hooks of `step_hooks`, on the thread that trains: a profiler must
be started and stopped on the same thread. One step more than asked for is captured, as the
first has no step before it and so no step time. The unprofiled steps come after the
capture, so that a script that ends early still leaves a trace.

Ctrl-C while we are at work in the script's process: it comes when nothing of ours is half done.

In the midst it would leave a profiler half started or a trace half written, and a thread of ours at work,
with which torch aborts the process at its end. Who presses Ctrl-C again does not have to wait.

How long our own hooks take in a step, by what the recording was doing.

The captured steps of a recording, from the profiler's stop to the saved trace.

The captures of a session: one at a time, made once more where its steps disagree; the best one is kept.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import FrameType, TracebackType
from typing import Any

from daydream.collect.derive.steps import Ranges
from daydream.collect.live.capture import Capture, Captured
from daydream.collect.live.messages import changed_path
from daydream.collect.live.recording_cost import TYPICAL
from daydream.collect.live.run_metadata import is_loader_worker
from daydream.collect.live.step_hooks import (
    BACKWARD,
    DIFFERENT,
    StepHooks,
    StepSequence,
    why_nothing,
)
from daydream.collect.live.torch_private import OwnProfilers
from daydream.collect.live.unprofiled import Alternating, ChangedWindow, FreeSteps
from daydream.errors import DaydreamError
from daydream.files.atomic import refuse_to_replace
from daydream.parallel import hand_back_freed_memory
from daydream.text import counted
from daydream.trace.trace import Trace

AGAIN_S = 0.5  # one that comes sooner is the same one: a group's, which its leader passes on


class HeldInterruptions:
    """Holds SIGINT back inside a `with` statement, and raises it at its end; `came` tells that there is one.

    Only where a handler in Python would be called, and only on the main thread, where they are.
    """

    def __init__(self) -> None:
        self.came = False
        self._depth = 0
        self._first = 0.0  # when it came
        self._handler: Callable[[int, FrameType | None], Any] | None = None

    def __enter__(self) -> HeldInterruptions:  # noqa: PYI034 - `Self` is newer than Python 3.10
        if threading.current_thread() is threading.main_thread():
            self._depth += 1
            handler = signal.getsignal(signal.SIGINT)
            if self._depth == 1 and callable(handler):
                self.came = False
                self._handler = handler
                signal.signal(signal.SIGINT, self._hold)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        stack: TracebackType | None,
    ) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._depth -= 1
        if self._depth or self._handler is None:
            return
        handler = self._handler
        self._handler = None
        if signal.getsignal(signal.SIGINT) == self._hold:
            signal.signal(signal.SIGINT, handler)
        came = self.came
        self.came = False
        if came and not isinstance(error, KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.came:
            self.came = True
            self._first = now
        elif now - self._first > AGAIN_S and self._handler is not None:
            self._handler(number, frame)


class HookTimes:
    """Durations of hooks in ns, by a state of the recording and the marker they were called at."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, int], list[int]] = {}

    def add(self, state: int, marker: int, duration_ns: int) -> None:
        """Keep the duration of one call."""
        self._times.setdefault((state, marker), []).append(duration_ns)

    def in_step(self, state: int, *, once_a_step: int) -> int:
        """Return how long the hooks of a step took in a state, in ns; 0 where none was called.

        The marker `once_a_step` tells how many steps there were.
        """
        mine = {marker: times for (when, marker), times in self._times.items() if when == state}
        steps = len(mine.get(once_a_step, ()))
        return round(
            sum(len(times) / (steps or len(times)) * median(times) for times in mine.values())
        )


SKIPPED = "its update was skipped: the gradient scaler found infinite gradients"


@dataclass(frozen=True)
class CapturedSteps:
    """What the profiler recorded, the ranges of the steps in it, and the names of those without an update."""

    captured: Captured
    ranges: tuple[Ranges, str]
    skipped: set[str]

    @property
    def count(self) -> int:
        """How many steps have a step time: the first has none before it."""
        return len(self.ranges[0]) - 1

    @property
    def metadata(self) -> dict[str, Any]:
        """What goes with the trace."""
        return self.captured.recording.metadata

    def or_rather(self, earlier: CapturedSteps | None) -> CapturedSteps:
        """Return these steps or those captured earlier: all that were wanted, on all threads."""
        if earlier is None or self.worth > earlier.worth:
            return self
        return earlier

    @property
    def worth(self) -> tuple[int, ...]:
        """How many steps, and how many of their layers; the larger the better."""
        return self.count, -self.captured.unseen

    def save(self, output: Path, *, force: bool, wanted: int, reason: str) -> Trace:
        """Write the trace and return it; fewer steps than `wanted` are noted with the reason."""
        if self.count < wanted:
            self.metadata["notes"].append(
                f"{counted(self.count, 'step')} of {wanted} could be measured before {reason}."
            )
        hand_back_freed_memory()
        trace = self.captured.trace(self.ranges)
        for step in trace.metadata["steps"]:
            if step["name"] in self.skipped and (step["covered"] or step["why_not"] == DIFFERENT):
                step.update(covered=False, why_not=SKIPPED)
        trace.save(output, force=force)
        return trace


AsOurs = Callable[[Callable[[], Any]], Any]


class Captures:
    """Prepares, starts and stops the profiler, and keeps the steps worth most in `kept`.

    `as_ours` calls a function whose profiler is not one of the script's. `memory` says whether allocations
    are recorded: no longer once layers ran on threads that are not recorded with them.
    """

    def __init__(
        self,
        as_ours: AsOurs,
        tell: Callable[[str], None],
        *,
        with_stack: bool,
        memory: bool,
    ) -> None:
        self._as_ours = as_ours
        self._tell = tell
        self._with_stack = with_stack
        self.memory = memory
        self.kept: CapturedSteps | None = None
        self.anchor: int | None = None  # what ended the captured steps
        self._capture: Capture | None = None
        self._began = 0  # position of the marker at which the capture began
        self._first_step = 1  # number of the first captured step

    @property
    def prepared(self) -> bool:
        """Whether there is a capture, to be started or running."""
        return self._capture is not None

    def prepare(self) -> bool:
        """Make a capture ready; return whether it may start at once, which one with a device should not."""
        capture = self._capture = self._as_ours(
            lambda: Capture(with_stack=self._with_stack, memory=self.memory)
        )
        return not capture.slow_to_start

    def forget(self) -> None:
        """Let go of a capture that did not start."""
        capture = self._capture
        self._capture = None
        if capture is not None:
            self._as_ours(capture.discard)

    def abandon(self) -> None:
        """Leave a running capture to the parent of this forked process."""
        if self._capture is not None:
            self._capture.abandon()

    def start(self, sequence: StepSequence) -> None:
        """Begin to record, behind the last marker of the sequence."""
        assert self._capture is not None  # noqa: S101 - prepared before
        self._as_ours(self._capture.start)
        self._began = len(sequence.markers) - 1
        self._first_step = sequence.steps + 1
        self.mark(sequence)

    def mark(self, sequence: StepSequence) -> None:
        """Leave the last marker of the sequence in the recording."""
        if self._capture is not None:
            self._capture.mark(len(sequence.markers) - 1)

    def taken(self, sequence: StepSequence) -> tuple[int, int]:
        """Return how many steps with an update, and how many at all, the running capture holds."""
        return sequence.taken_since(self._began)

    def stop(self, sequence: StepSequence, optimizers: list[Any]) -> None:
        """End the capture, and keep it if it holds a whole step and is worth more than an earlier one."""
        capture = self._capture
        self._capture = None
        if capture is None:
            return
        captured = self._as_ours(lambda: capture.stop(optimizers))
        self.anchor = sequence.anchor
        ranges, skipped = sequence.ranges(captured.markers, self._first_step, optimizers)
        if len(captured.recording) and ranges[0]:
            self.kept = CapturedSteps(captured, ranges, skipped).or_rather(self.kept)

    def again(self) -> bool:
        """Return whether to capture once more, without memory."""
        if self.kept is not None and self.memory and self.kept.captured.unseen:
            self.memory = False
            self._tell("layers run on threads of the script; capturing once more, without memory")
            return True
        return False


WAITING, CAPTURING, TIMING, DONE = range(4)
AHEAD = 2  # steps between a profiler's preparation and its start: a GPU's takes long to start up
MOST = 3  # times as many steps as asked for are captured at most, where updates are skipped


class Session:
    """Records `steps` training steps of this process after `warmup`, and saves a trace at `output`.

    Call `install()` once torch is imported and `finish()` when the process ends. `on_progress`
    gets a sentence now and then. `on_fork` is called at the steps of a forked child, which records
    nothing until `begin_anew`; `on_holding` when there begins to be something to lose, and when there
    no longer is. With `alternate`, called with the optimizers, blocks of steps with a real change
    follow. `with_stack` records Python frames too, `memory` allocations and frees. Where layers ran on
    threads that are not recorded with memory, steps are captured once more.
    Raises `OutputError` if `output` exists and `force` is not given.
    """

    def __init__(
        self,
        output: Path,
        *,
        steps: int = 3,
        warmup: int = 5,
        force: bool = False,
        on_progress: Callable[[str], None] | None = None,
        on_fork: Callable[[], None] | None = None,
        on_holding: Callable[[bool], None] | None = None,
        unprofiled: int = 20,
        alternate: Callable[[list[Any]], Alternating] | None = None,
        with_stack: bool = False,
        memory: bool = True,
    ) -> None:
        for name, value, least in (
            ("steps", steps, 1),
            ("warmup", warmup, 0),
            ("unprofiled", unprofiled, 0),
        ):
            if value < least:
                raise DaydreamError(f"{name} is {value}; it must be at least {least}")
        self._output = Path(output)
        self._force = force
        refuse_to_replace(self._output, force=force)
        self._steps = steps
        self._warmup = warmup
        self._unprofiled = unprofiled
        self._tell = on_progress or (lambda _: None)
        self._on_fork = on_fork or (lambda: None)
        self._on_holding = on_holding or (lambda _: None)
        self._alternate = alternate
        self._with_stack = with_stack
        self._wants_memory = memory
        self._installed = False
        self._interruptions = HeldInterruptions()
        self._step_hooks = StepHooks(self._on_marker, Capture.begin_update)
        self._own_profilers = OwnProfilers(self._give_way)
        self._reset()

    def _reset(self) -> None:
        self.trace: Trace | None = None
        self._pid = os.getpid()
        self._state = WAITING
        self._finished = False
        self._sequence = StepSequence()
        self._captures = Captures(
            self._as_ours, self._tell, with_stack=self._with_stack, memory=self._wants_memory
        )
        self._in_hook = False
        self._afterwards: Callable[[], None] | None = None
        self._own_profilers.forget()
        self._free: FreeSteps | None = None
        self._failure: BaseException | None = None
        self._hook_times = HookTimes()

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
        self._own_profilers.watch()
        self._step_hooks.install()
        self._tell("waiting for training steps")

    def begin_anew(self, output: Path) -> None:
        """Record this forked child, whose hooks are copies of its parent's, to another file."""
        self._captures.abandon()
        self._output = Path(output)
        self._step_hooks.forget()
        self._reset()
        self._tell("waiting for training steps")

    def when_free(self, function: Callable[[], None]) -> None:
        """Call a function now, or behind the hook that is running: a signal comes at any moment."""
        if self._in_hook:
            self._afterwards = function
        else:
            function()

    def finish(self, reason: str) -> None:
        """Save what was captured. Does nothing the second time, and in a forked child.

        Raises `DaydreamError` if no step was captured, `OutputError` if the trace cannot be written,
        also where that happened earlier, between two steps of the script.
        """
        if os.getpid() != self._pid:
            return
        with self._interruptions:
            if not self._in_hook:
                self._step_hooks.remove()
            if self._finished:
                failure = self._failure
                self._failure = None
                if failure is not None:
                    raise failure
                return
            self._finished = True
            try:
                if self._state == CAPTURING:
                    self._stop_capture()
                if self._captures.kept is None:
                    sequence = self._sequence
                    profiled = self._own_profilers.seen
                    raise DaydreamError(
                        why_nothing(sequence, self._warmup, reason, profiled=profiled)
                    )
                self._save(self._captures.kept, reason)
            finally:
                self._take_down()

    # Steps ---------------------------------------------------------------------------------------

    def _on_marker(self, which: int, skipped: bool) -> None:  # noqa: FBT001 - as StepHooks calls it
        """Go on after an optimizer step or a backward pass; a fault of ours must not stop the script."""
        if self._finished or self._own_profilers.ours_starts or is_loader_worker():
            return
        if os.getpid() != self._pid:
            self._on_fork()
            if os.getpid() != self._pid:
                return
        self._in_hook = True
        began = time.perf_counter_ns()
        state = self._state
        try:
            self._proceed(which, skipped=skipped)
            if state == self._state:
                self._hook_times.add(state, which, time.perf_counter_ns() - began)
        except Exception as error:  # noqa: BLE001 - kept, and raised by `finish`
            self._failure = error
            self._finished = True
            self._take_down()
        finally:
            self._in_hook = False
            afterwards = self._afterwards
            self._afterwards = None
            if afterwards is not None:
                afterwards()

    def _proceed(self, which: int, *, skipped: bool) -> None:
        sequence = self._sequence
        if not sequence.wants(which):
            return
        if which != BACKWARD and sequence.by_backward:
            self._start_again()
            sequence = self._sequence
        if self._state == TIMING:
            self._time(which, skipped=skipped)
            return
        ends_step = sequence.add(which, skipped=skipped)
        if self._state == CAPTURING:
            self._captures.mark(sequence)
        if not ends_step:
            return
        if self._state == WAITING:
            self._wait(which)
        elif self._state == CAPTURING:
            taken, all_taken = self._captures.taken(sequence)
            if taken > self._steps or all_taken > MOST * self._steps:
                self._stop_capture()
                if self._captures.again():
                    self._state = WAITING
                else:
                    self._begin_timing()
            else:
                self._tell_capturing(taken)

    def _wait(self, which: int) -> None:
        sequence = self._sequence
        sequence.forget_the_past()
        ready = sequence.may_capture(which, self._warmup) and sequence.steps >= self._warmup
        if self._own_profilers.any_runs:
            if ready:
                self._tell("waiting: the script's own profiler is running")
            return
        startable = self._captures.prepared
        if not startable and sequence.steps >= self._warmup - AHEAD:
            startable = self._captures.prepare()
        if ready and startable:
            self._start_capture()
        else:
            self._tell(f"warming up: step {min(sequence.steps, self._warmup)} of {self._warmup}")

    def _tell_capturing(self, taken: int) -> None:
        if taken < 1:
            self._tell("capturing: the step before the first")
        else:
            self._tell(f"capturing: step {taken} of {self._steps}")

    # Capture -------------------------------------------------------------------------------------

    def _as_ours(self, function: Callable[[], Any]) -> Any:
        """Call a function whose profiler is not one of the script's, and which Ctrl-C does not break off."""
        with self._interruptions, self._own_profilers.not_theirs():
            return function()

    def _start_capture(self) -> None:
        self._captures.start(self._sequence)
        self._state = CAPTURING
        self._on_holding(True)
        self._tell_capturing(0)

    def _stop_capture(self) -> None:
        self._state = TIMING
        with self._interruptions:
            self._captures.stop(self._sequence, self._step_hooks.optimizers)

    def _begin_timing(self) -> None:
        if self._captures.kept is None or not self._unprofiled:
            self.finish("the end")
            return
        self._free = FreeSteps(
            self._unprofiled,
            None if self._alternate is None else self._begin_alternating,
            self._record_changed,
        )
        self._tell(f"timing {counted(self._unprofiled, 'step')} without the profiler")

    def _begin_alternating(self) -> Alternating:
        assert self._alternate is not None  # noqa: S101 - asked for only then
        self._tell("timing blocks of steps with and without the change")
        return self._alternate(self._step_hooks.optimizers)

    def _record_changed(self, blocks: Alternating) -> ChangedWindow:
        self._tell("recording steps with the change")
        return ChangedWindow(
            blocks.change,
            changed_path(self._output),
            steps=self._steps,
            optimizers=self._step_hooks.optimizers,
            as_ours=self._as_ours,
            memory=self._captures.memory,
        )

    def _time(self, which: int, *, skipped: bool) -> None:
        if self._free is None:
            return
        if skipped or len(self._own_profilers):  # the script's own profiler would be timed too
            self._free.leave_out()
        if which == self._captures.anchor:
            self._sequence.steps += 1
            if self._free.end_step():
                self.finish("the end")

    def _start_again(self) -> None:
        """Forget the backward passes that were taken for steps: an optimizer steps after all."""
        if self._state == CAPTURING:
            self._stop_capture()
        self._captures.kept = None
        self._free = None
        self._state = WAITING
        self._on_holding(False)
        self._sequence = StepSequence()

    def _give_way(self) -> None:
        """End what a profiler of the script, about to start, would spoil."""
        if self._state == WAITING:
            self._captures.forget()  # only prepared: theirs replaces it
        if self._state == CAPTURING:
            self._stop_capture()
            if self._captures.kept is not None and self._captures.kept.count >= self._steps:
                self._begin_timing()
                return
            self._state = WAITING
            self._tell("the script's own profiler started; capturing again when it has stopped")

    # The end -------------------------------------------------------------------------------------

    def _save(self, captured: CapturedSteps, reason: str) -> None:
        self._tell("writing")
        self._captures.kept = None
        if self._free is not None:
            captured.metadata.update(self._free.document(self._hooks_ns(TIMING)))
        asked = {"warmup": self._warmup, "steps": self._steps, "unprofiled": self._unprofiled}
        captured.metadata["profiler_cost"] = {**TYPICAL, "step_hooks_ns": self._hooks_ns(CAPTURING)}
        captured.metadata.update(
            source=self._output.name, collected={**asked, "ran": self._sequence.steps}
        )
        self.trace = captured.save(
            self._output, force=self._force, wanted=self._steps, reason=reason
        )

    def _hooks_ns(self, state: int) -> int:
        return self._hook_times.in_step(state, once_a_step=self._captures.anchor or 0)

    def _take_down(self) -> None:
        """Leave the process as it was."""
        self._state = DONE
        if self._free is not None:
            self._free.close()
        self._step_hooks.disable()
        self._captures.forget()
        self._own_profilers.unwatch()
        self._step_hooks.forget()
        self._on_holding(False)
