"""One recording inside a training process: it waits, captures steps, then times more without a profiler.

    Wait ──warm-up steps──▶ Capture ──steps + 1──▶ Time ──20 steps──▶ Alternate ─▶ CaptureChanged ─▶ done
      ▲                        │                                      only with a change to try
      └────────────────────────┘ a profiler of the script starts: give way

Everything happens in the hooks of `step_hooks`, on the thread that trains: a profiler must
be started and stopped on the same thread. One step more than asked for is captured, as the
first has no step before it and so no step time. The unprofiled steps come after the
capture, so that a script that ends early still leaves a trace.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from daydream.arrays import hand_back_freed_memory
from daydream.collect.derive.quality import TYPICAL
from daydream.collect.launcher.runner import changed_path
from daydream.collect.live.capture import Kept, ProfilerWindow
from daydream.collect.live.run_metadata import is_loader_worker
from daydream.collect.live.step_hooks import (
    BACKWARD,
    DIFFERENT,
    StepHooks,
    StepSequence,
    why_nothing,
)
from daydream.collect.live.timed_steps import Alternating, UnprofiledSteps, settle_device
from daydream.collect.live.torch_private import OwnProfilers
from daydream.errors import DaydreamError
from daydream.files.atomic import refuse_to_replace
from daydream.text import counted
from daydream.trace.trace import Trace

UNPROFILED = 20  # steps that are timed
AGAIN_S = 0.5  # a Ctrl-C that comes sooner is the same one: a group's, which its leader passes on
AHEAD = 2  # steps between a profiler's preparation and its start: a GPU's takes long to start up
MOST = 3  # times as many steps as asked for are captured at most, where updates are skipped
# A capture ends with the step in which it exceeds one of these: its file and its memory grow with its events.
MOST_SECONDS = 1_800
MOST_EVENTS = 4_000_000
BYTES_OF_EVENT = 1_500  # that the profiler holds until it writes them
SETTLING = (
    3  # steps with a change before they are captured: what it builds on first use is not recorded
)
SKIPPED = "its update was skipped: the gradient scaler found infinite gradients"


@contextmanager
def held_interruptions() -> Iterator[None]:
    """Hold Ctrl-C back inside, and raise it at the end; whoever presses it again later does not wait.

    In the midst of our work it would leave a profiler half started or a trace half written, or come while
    an exception is handled that nobody should see (`os.environ.get`, `Path.__str__`): the script's traceback
    would begin with that one. Only where a handler in Python would be called, and only on the main thread,
    where they are.
    """
    handler = signal.getsignal(signal.SIGINT)
    held = getattr(handler, "__module__", "") == __name__
    if held or not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[float] = []

    def hold(number: int, frame: Any) -> None:
        came.append(time.monotonic())
        if came[-1] - came[0] > AGAIN_S:
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    except KeyboardInterrupt:
        came.clear()
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is hold:
            signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


class Recorder:
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
        on_progress: Callable[[str], None] = lambda _: None,
        on_fork: Callable[[], None] = lambda: None,
        on_holding: Callable[[bool], None] = lambda _: None,
        unprofiled: int = UNPROFILED,
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
        self.output = Path(output)
        self._force = force
        refuse_to_replace(self.output, force=force)
        self.steps = steps
        self.warmup = warmup
        self.unprofiled = unprofiled
        self.tell = on_progress
        self._on_fork = on_fork
        self.on_holding = on_holding
        self.alternate = alternate
        self._with_stack = with_stack
        self._wants_memory = memory
        self._installed = False
        self.step_hooks = StepHooks(self._on_marker, self._begin_update)
        self.own_profilers = OwnProfilers(lambda: self._safely(self._give_way))
        self._phases: list[type[Phase]] = [Wait, Capture]
        if unprofiled:
            self._phases += [Time]
            self._phases += [] if alternate is None else [Alternate, CaptureChanged]
        self._reset()

    def _reset(self) -> None:
        self.trace: Trace | None = None
        self._pid = os.getpid()
        self._finished = False
        self._in_hook = False
        self._afterwards: Callable[[], None] | None = None
        self._failure: BaseException | None = None
        self.own_profilers.forget()
        self.sequence = StepSequence()
        self.memory = self._wants_memory  # whether allocations are recorded in the next window
        self.window: ProfilerWindow | None = None  # prepared or running
        self.kept: Kept | None = None  # the best steps captured so far
        self.metadata: dict[str, Any] = {}  # of what was measured besides them
        self.change: Callable[[], AbstractContextManager[Any]] | None = (
            None  # that blocks were timed with
        )
        self.phase: Phase | None = Wait(self)

    @property
    def done(self) -> bool:
        """Whether nothing is left to do: the trace is saved, or there is none to save."""
        return self.phase is None

    def install(self) -> None:
        """Begin to watch the script's steps. Does nothing the second time."""
        if self._installed:
            return
        self._installed = True
        self._pid = os.getpid()
        self.own_profilers.watch()
        self.step_hooks.install()
        self.tell("waiting for training steps")

    def begin_anew(self, output: Path) -> None:
        """Record this forked child, whose hooks are copies of its parent's, to another file."""
        if self.window is not None:
            self.window.abandon()
        self.output = Path(output)
        self.step_hooks.forget()
        self._reset()
        self.tell("waiting for training steps")

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
        with held_interruptions():
            if not self._in_hook:
                self.step_hooks.remove()
            if self._finished:
                failure = self._failure
                self._failure = None
                if failure is not None:
                    raise failure
                return
            self._finished = True
            try:
                if isinstance(self.phase, Capture):
                    self.phase.keep()
                if self.kept is None:
                    profiled = self.own_profilers.seen
                    raise DaydreamError(
                        why_nothing(self.sequence, self.warmup, reason, profiled=profiled)
                    )
                self._save(self.kept, reason)
            finally:
                self._take_down()

    # What phases use ------------------------------------------------------------------------------

    def prepared_window(self) -> ProfilerWindow:
        """Make a profiler ready that is not taken for one of the script's, and return it."""
        self.window = self.as_ours(
            lambda: ProfilerWindow(with_stack=self._with_stack, memory=self.memory)
        )
        return self.window

    def as_ours(self, function: Callable[[], Any]) -> Any:
        """Call a function whose profiler is not one of the script's, and which Ctrl-C does not break off."""
        with held_interruptions(), self.own_profilers.not_theirs():
            return function()

    # Steps ---------------------------------------------------------------------------------------

    def _begin_update(self, optimizer: Any) -> None:
        if self.window is not None:
            self.window.begin_update(optimizer)

    def _on_marker(self, which: int, skipped: bool) -> None:  # noqa: FBT001 - as StepHooks calls it
        """Go on after an optimizer step or a backward pass."""
        if self._finished or self.own_profilers.ours_starts or is_loader_worker():
            return
        with held_interruptions():
            self._on_own_marker(which, skipped=skipped)

    def _on_own_marker(self, which: int, *, skipped: bool) -> None:
        """Go on, unless this is a forked child that records nothing."""
        if os.getpid() != self._pid:
            self._on_fork()
            if os.getpid() != self._pid:
                return
        self._in_hook = True
        began = time.perf_counter_ns()
        phase = self.phase
        ends = phase.ends if phase is not None else 0
        try:
            self._safely(lambda: self._proceed(which, skipped=skipped))
            if phase is not None and phase is self.phase:
                phase.add_hook(time.perf_counter_ns() - began, ended=phase.ends > ends)
        finally:
            self._in_hook = False
            afterwards = self._afterwards
            self._afterwards = None
            if afterwards is not None:
                afterwards()

    def _safely(self, function: Callable[[], None]) -> None:
        """Call a function; a fault of ours must not stop the script: it is kept, and raised by `finish`."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - see above
            self._failure = error
            self._finished = True
            self._take_down()

    def _proceed(self, which: int, *, skipped: bool) -> None:
        if not self.sequence.wants(which):
            return
        if which != BACKWARD and self.sequence.by_backward:
            self._start_again()
        phase = self.phase
        if phase is None:
            return
        try:
            if phase.on_marker(which, skipped=skipped):
                self.go_on()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            failed = self.phase.failed(said) if self.phase is not None else {}
            if not failed:
                raise
            self.metadata.update(failed)
            self.finish("the end")

    def go_on(self) -> None:
        """Begin the phase behind the one that is over."""
        at = next(at for at, each in enumerate(self._phases) if each is type(self.phase)) + 1
        if at == len(self._phases) or (self.kept is None and at > 1):
            self.finish("the end")
            return
        self.phase = self._phases[at](self)
        self.phase.begin()

    def wait_again(self) -> None:
        """Begin anew with the next steps."""
        self.phase = Wait(self)

    def _start_again(self) -> None:
        """Forget the backward passes that were taken for steps: an optimizer steps after all."""
        if not isinstance(self.phase, Wait):
            self._end_phase()
        self.kept = None
        self.metadata = {}
        self.wait_again()
        self.on_holding(False)
        self.sequence = StepSequence()

    def _give_way(self) -> None:
        """End what a profiler of the script, about to start, would spoil."""
        if isinstance(self.phase, Wait):
            self._discard_window()  # only prepared: theirs replaces it
        if isinstance(self.phase, Capture):
            self.phase.keep()
            if self.kept is not None and self.kept.count >= self.steps:
                self.go_on()
                return
            self.wait_again()
            self.tell("the script's own profiler started; capturing again when it has stopped")

    # The end -------------------------------------------------------------------------------------

    def _save(self, kept: Kept, reason: str) -> None:
        self.tell("writing")
        self.kept = None
        metadata = kept.captured.recording.metadata
        found: dict[str, Any] = {}
        if self.phase is not None:
            self.phase.describe(found)
        cost = {**TYPICAL, "step_hooks_ns": kept.hooks_ns}
        asked = {"warmup": self.warmup, "steps": self.steps, "unprofiled": self.unprofiled}
        metadata |= {
            **found,
            **self.metadata,
            **({} if "emulated" in metadata else {"profiler_cost": cost}),
            "source": self.output.name,
            "collected": {**asked, "ran": self.sequence.steps},
        }
        if kept.count < self.steps:
            metadata["notes"].append(
                f"{counted(kept.count, 'step')} of {self.steps} could be measured before "
                f"{kept.ended or reason}."
            )
        hand_back_freed_memory()
        trace = kept.captured.trace(kept.ranges)
        for step in trace.metadata["steps"]:
            if step["name"] in kept.skipped and (step["covered"] or step["why_not"] == DIFFERENT):
                step.update(covered=False, why_not=SKIPPED)
        trace.save(self.output, force=self._force)
        self.trace = trace

    def _end_phase(self) -> None:
        """End the phase that runs, and let go of a window that it did not keep."""
        phase = self.phase
        self.phase = None
        if phase is not None:
            phase.close()
        self._discard_window()

    def _discard_window(self) -> None:
        window = self.window
        self.window = None
        if window is not None:
            self.as_ours(window.discard)

    def _take_down(self) -> None:
        """Leave the process as it was."""
        self._end_phase()
        self.step_hooks.disable()
        self.own_profilers.unwatch()
        self.step_hooks.forget()
        self.on_holding(False)


class Phase:
    """One part of a recording: it hears of every marker until it says that it is over."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.ends = 0  # of steps
        self._hooks_ns = [0]  # that our own hooks took of each step

    def begin(self) -> None:
        """Begin, behind the marker that ended the phase before."""

    def on_marker(self, which: int, *, skipped: bool) -> bool:
        """Take in that an optimizer stepped or a backward pass ended; return whether the phase is over."""
        raise NotImplementedError

    def add_hook(self, duration_ns: int, *, ended: bool) -> None:
        """Take in how long our hooks took at a marker, and whether the marker ended a step."""
        self._hooks_ns[-1] += duration_ns
        if ended:
            self._hooks_ns.append(0)

    def hooks_of_step_ns(self) -> int:
        """Return how long our own hooks took in a step."""
        return round(median(self._hooks_ns[:-1] or self._hooks_ns))

    def close(self) -> None:
        """Undo what must not outlive the phase."""

    def describe(self, metadata: dict[str, Any]) -> None:
        """Add what was found so far to the trace's metadata."""

    def failed(self, text: str) -> dict[str, Any]:
        """Return what the trace tells of a failure that is none of ours; nothing where it must be ours."""
        del text
        return {}


class Wait(Phase):
    """Waits for the steps to warm up, with the profiler made ready before the last of them."""

    def on_marker(self, which: int, *, skipped: bool) -> bool:
        """Return whether the capture may begin."""
        recorder = self.recorder
        sequence = recorder.sequence
        warmup = recorder.warmup
        if not sequence.add(which, skipped=skipped):
            return False
        sequence.forget_the_past()
        ready = sequence.may_capture(which, warmup) and sequence.steps >= warmup
        if recorder.own_profilers.any_runs:
            if ready:
                recorder.tell("waiting: the script's own profiler is running")
            return False
        startable = recorder.window is not None
        if not startable and sequence.steps >= warmup - AHEAD:
            startable = not recorder.prepared_window().slow_to_start
        if ready and startable:
            return True
        recorder.tell(f"warming up: step {min(sequence.steps, warmup)} of {warmup}")
        return False


class Capture(Phase):
    """Lets the profiler record, and keeps the steps if they are worth more than earlier ones."""

    def begin(self) -> None:
        """Start the profiler."""
        recorder = self.recorder
        sequence = recorder.sequence
        self._window = recorder.window or recorder.prepared_window()
        recorder.as_ours(self._window.start)
        self._began = len(sequence.markers) - 1  # position of the marker at which the capture began
        self._first_step = sequence.steps + 1
        self._since = time.monotonic()
        self._resident = _resident_bytes()
        self._ended = ""
        self._window.mark(self._began)
        recorder.on_holding(True)
        recorder.tell("capturing: the step before the first")

    def on_marker(self, which: int, *, skipped: bool) -> bool:
        """Mark it in the recording; return whether the steps are captured and need not be once more."""
        recorder = self.recorder
        sequence = recorder.sequence
        ends_step = sequence.add(which, skipped=skipped)
        self._window.mark(len(sequence.markers) - 1)
        if not ends_step:
            return False
        self.ends += 1
        taken, all_taken = sequence.taken_since(self._began)
        if taken <= recorder.steps and all_taken <= MOST * recorder.steps:
            self._ended = self._too_large() if all_taken > 1 else ""
            if not self._ended:
                step = (
                    f"step {taken} of {recorder.steps}"
                    if taken > 0
                    else "the step before the first"
                )
                recorder.tell(f"capturing: {step}")
                return False
        self.keep()
        kept = recorder.kept
        if kept is not None and recorder.memory and kept.captured.unseen:
            recorder.memory = False
            recorder.tell(
                "layers run on threads of the script; capturing once more, without memory"
            )
            recorder.wait_again()
            return False
        return True

    def _too_large(self) -> str:
        """Return which bound the recording has reached; nothing while it is within all of them."""
        if time.monotonic() - self._since > MOST_SECONDS:
            return f"{MOST_SECONDS} s were recorded, the most that one recording holds"
        if _resident_bytes() - self._resident > MOST_EVENTS * BYTES_OF_EVENT:
            return f"some {MOST_EVENTS:,} events were recorded, the most that one recording holds"
        return ""

    def keep(self) -> None:
        """Stop the profiler and keep the steps, once."""
        recorder = self.recorder
        if recorder.window is None:
            return
        recorder.window = None
        with held_interruptions():
            optimizers = recorder.step_hooks.optimizers
            captured = recorder.as_ours(lambda: self._window.stop(optimizers))
            ranges, skipped = recorder.sequence.ranges(
                captured.markers, self._first_step, optimizers
            )
            if not len(captured.recording) or not ranges[0]:
                return
            kept = Kept(captured, ranges, skipped, self.hooks_of_step_ns(), self._ended)
            if recorder.kept is None or kept.worth > recorder.kept.worth:
                recorder.kept = kept


def _resident_bytes() -> int:
    """Return the memory that this process holds, 0 where the system does not tell (it is no Linux)."""
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_bytes().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


class TimedPhase(Phase):
    """A phase without the profiler, in which steps end with the marker that ended the captured ones."""

    timed: UnprofiledSteps | Alternating | None = None

    def begin(self) -> None:
        """Begin with the step that runs now."""
        self._anchor = self.recorder.sequence.anchor
        self.timed = self.timer()

    def timer(self) -> UnprofiledSteps | Alternating:
        """Return what takes the times."""
        raise NotImplementedError

    def on_marker(self, which: int, *, skipped: bool) -> bool:
        """Take the time; return whether enough is known."""
        timed = self.timed
        assert timed is not None  # noqa: S101 - begun
        if skipped or len(self.recorder.own_profilers):  # the script's own would be timed too
            timed.leave_out()
        if which != self._anchor:
            return False
        self.ends += 1
        self.recorder.sequence.steps += 1
        timed.end_step()
        if timed.enough:
            self.describe(self.recorder.metadata)
        return timed.enough


class Time(TimedPhase):
    """Times steps as they are."""

    def timer(self) -> UnprofiledSteps:
        """Return what takes the times."""
        wanted = self.recorder.unprofiled
        self.recorder.tell(f"timing {counted(wanted, 'step')} without the profiler")
        return UnprofiledSteps(wanted, settle=settle_device)

    def describe(self, metadata: dict[str, Any]) -> None:
        """Add the durations, without those of our hooks."""
        if isinstance(self.timed, UnprofiledSteps) and (
            times := self.timed.durations_ns(self.hooks_of_step_ns())
        ):
            metadata["unprofiled_step_ns"] = times


class Alternate(TimedPhase):
    """Times blocks of steps with and without a change. One that cannot be made ends it."""

    def timer(self) -> Alternating:
        """Return what takes the times, and makes the change."""
        recorder = self.recorder
        assert recorder.alternate is not None  # noqa: S101 - a phase only then
        recorder.tell("timing blocks of steps with and without the change")
        blocks = recorder.alternate(recorder.step_hooks.optimizers)
        recorder.change = blocks.change
        return blocks

    def describe(self, metadata: dict[str, Any]) -> None:
        """Add the steps of the whole rounds."""
        if isinstance(self.timed, Alternating):
            metadata["confirmed"] = self.timed.result()

    def failed(self, text: str) -> dict[str, Any]:
        """Return why the user's change cannot be made: the recording is worth keeping."""
        return {"confirmed": {"failed": text}}

    def close(self) -> None:
        """Undo the change if it is made."""
        if isinstance(self.timed, Alternating):
            self.timed.close()


class CaptureChanged(Phase):
    """Makes the change, lets a few steps pass, and records steps in a trace of their own beside the other."""

    def begin(self) -> None:
        """Make the change."""
        recorder = self.recorder
        recorder.tell("recording steps with the change")
        assert recorder.change is not None  # noqa: S101 - blocks were timed with it
        self._anchor = recorder.sequence.anchor
        self._marks = 0
        self._made: AbstractContextManager[Any] | None = recorder.change()
        self._operators = self._made.__enter__()  # which a tool's change acts on; else None
        self._window = recorder.prepared_window()

    def on_marker(self, which: int, *, skipped: bool) -> bool:
        """Go on behind a step; return whether the steps are recorded."""
        del skipped
        if which != self._anchor:
            return False
        self.ends += 1
        self.recorder.sequence.steps += 1
        if self.ends == SETTLING:
            self.recorder.as_ours(self._window.start)
        if self.ends >= SETTLING:
            self._window.mark(self._marks)
            self._marks += 1
        if (
            self._marks <= self.recorder.steps + 1
        ):  # the first has no step before it, and no step time
            return False
        self._stop()
        return True

    def _stop(self) -> None:
        """End the recording, save it if it holds a whole step behind another, and undo the change."""
        made = self._made
        self._made = None
        if made is None:
            return
        try:
            if self._marks:
                self._save()
        finally:
            made.__exit__(None, None, None)

    def _save(self) -> None:
        recorder = self.recorder
        recorder.window = None
        captured = recorder.as_ours(lambda: self._window.stop(recorder.step_hooks.optimizers))
        ends = [at for _, at in captured.markers]
        if len(ends) < 3:  # a step, and one before it
            return
        ranges = [
            (f"step {number}", begin, end) for number, (begin, end) in enumerate(pairwise(ends), 1)
        ]
        path = changed_path(recorder.output)
        captured.recording.metadata["source"] = path.name
        if callable(self._operators):
            captured.recording.metadata["changed_operators"] = self._operators()
        captured.trace((ranges, "steps with the change")).save(path, force=True)

    def failed(self, text: str) -> dict[str, Any]:
        """Return why there is no recording with the user's change; the blocks stay."""
        return {"changed_not_recorded": text}

    def close(self) -> None:
        """Undo the change, and keep what was recorded with it where that can be had."""
        with suppress(Exception):
            self._stop()
