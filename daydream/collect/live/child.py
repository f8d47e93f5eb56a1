"""What runs inside the user's process around the recording: it begins with torch and ends with the process.

The recording itself is `daydream.collect.live.recorder`. Here is how a process ends, so that what was
captured is saved, and how it tells the command line what it does.

What reaches into a process is in its environment, which those that it starts inherit. From the import of torch
on, the environment says whose it is: its helpers (compilers, other Python programs) leave themselves
alone by that, while ranks and workers record. A launcher's processes are the training itself.

SIGTERM or SIGHUP while something is captured: save it, then die of the signal as without us. Only where the
script leaves the signals alone, and only while there is something to lose. Python runs
a handler between two instructions of its main thread: one that is stuck in a collective whose peer is gone
saves nothing, and dies of what its launcher sends next.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from daydream import lazy
from daydream.collect.launcher.runner import OWNER, SETTINGS, tell, trace_path
from daydream.collect.live.run_metadata import rank_and_world
from daydream.collect.live.step_hooks import INTERRUPTED
from daydream.collect.live.torch_compiler import watch_compiler
from daydream.errors import DaydreamError

LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "horovodrun", "composer", "colossalai"}
LAUNCHING_MODULES = (
    "torch.distributed.",
    "accelerate.",
    "deepspeed.",
    "horovod.",
    "composer.",
    "colossalai.",
)
WITH_VALUE = {"-W", "-X", "--check-hash-based-pycs"}  # options of Python that a word follows


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether this Python command line is that of a program that starts the training."""
    words = iter(command[1:])
    for word in words:
        if word in WITH_VALUE:
            next(words, None)
        elif word == "-m":
            return next(words, "").startswith(LAUNCHING_MODULES)
        elif not word.startswith("-"):
            return Path(word).stem in LAUNCHERS
    return False


class SaveOnTermination:
    """Calls `save(name of the signal, die)` on SIGTERM or SIGHUP while it is on; `save` calls `die` at its end.

    Does nothing where there are no such signals, and in other threads than the main one.
    """

    def __init__(self, save: Callable[[str, Callable[[], None]], None]) -> None:
        self._save = save
        self._pid = os.getpid()
        self._came = False

    def switch(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Put the handler on, or take it off."""
        if os.name != "posix" or threading.current_thread() is not threading.main_thread():
            return
        if on:
            self._pid, self._came = os.getpid(), False
        for each in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) == (signal.SIG_DFL if on else self._handle):
                signal.signal(each, self._handle if on else signal.SIG_DFL)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        def die() -> None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

        if os.getpid() != self._pid:  # a forked child: it is another's business
            die()
        elif not self._came:  # else sent to the group, and by its leader: it is being saved
            self._came = True
            self._save(signal.Signals(number).name, die)


def start(folder: str) -> None:
    """Collect in this process, which has just imported torch."""
    if is_launcher(sys.orig_argv):
        os.environ.pop(OWNER, None)
    settings = json.loads(Path(folder, SETTINGS).read_text())
    child = Child(Path(folder), settings)
    for hook in "fake_world", "emulated":
        if settings.get(hook):
            lazy.ask(hook, settings[hook])
    child.attach()


class Child:
    """A recording in this process, from the import of torch to the end of the process."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        from daydream.collect.live.recorder import UNPROFILED, Recorder

        self._folder = folder
        self._name = str(settings["name"])
        self._stop_after = bool(settings["stop_after"])
        self._pid = os.getpid()
        self._ended = False
        self._place = rank_and_world()
        self._termination = SaveOnTermination(self._terminated)
        self.session = Recorder(
            self._path(),
            steps=settings["steps"],
            warmup=settings["warmup"],
            on_progress=self._progress,
            on_fork=self._forked,
            on_holding=self._termination.switch,
            alternate=_alternate(settings.get("change")),
            with_stack=bool(settings.get("with_stack")),
            unprofiled=0 if settings.get("emulated") else UNPROFILED,
            memory=bool(settings.get("memory", True)),
        )

    def attach(self) -> None:
        """Begin, and arrange for the end."""
        self.session.install()
        tell(self._folder, what="began")
        watch_compiler(lambda on: tell(self._folder, what="compiling", on=on))
        self._arrange_the_end()
        if self._stop_after:
            self._stop_when_done()

    def end(self, reason: str) -> None:
        """Save what was captured, once, and tell how that went. Does nothing in a forked child."""
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        interrupted = (sys.exc_info()[0] or getattr(sys, "last_type", None)) is KeyboardInterrupt
        failed: str | None = None
        try:
            self.session.finish(INTERRUPTED if interrupted else reason)
        except DaydreamError as error:
            failed = str(error)
        except KeyboardInterrupt:  # held back until everything was done
            interrupted = True
        except Exception:  # noqa: BLE001 - a fault of ours must not change how the script ends
            failed = f"collecting failed in process {self._pid}:\n{traceback.format_exc()}"
        self._locate()
        rank, world = self._place
        if "daydream.world" in sys.modules:
            failed = lazy.ask("refusal") or failed
        if not tell(self._folder, what="ended", failed=failed, rank=rank, world=world) and failed:
            sys.stderr.write(f"daydream: {failed}\n")
        if interrupted:
            _still_interrupted()

    def _progress(self, what: str, *_: Any, **__: Any) -> None:
        if os.getpid() == self._pid:
            self._locate()
            tell(self._folder, what="progress", text=what, rank=self._place[0])

    def _locate(self) -> None:
        """Learn the rank while it is known: scripts take their process group down before they end."""
        now = zip(self._place, rank_and_world(), strict=True)
        rank, world = (before if found is None else found for before, found in now)
        self._place = rank, world

    def _path(self) -> Path:
        path = trace_path(self._folder, self._pid, self._name)
        path.parent.mkdir(exist_ok=True)
        return path

    def _forked(self) -> None:
        """Record this process too, which an earlier one forked and which trains: a rank, it seems."""
        try:
            self._pid = os.getpid()
            self._ended = False
            self._place = (None, None)
            self.session.begin_anew(self._path())
            tell(self._folder, what="began")
            self._arrange_the_end()
        except Exception as error:  # noqa: BLE001 - a fault of ours must not stop the script
            self._ended = True
            tell(
                self._folder, what="ended", failed=f"collecting failed in a forked process: {error}"
            )

    def _arrange_the_end(self) -> None:
        """Be called when the process ends.

        Children of `multiprocessing` leave with `os._exit`, past `atexit`; they run finalizers instead.
        A child that imported torch before its own start-up (spawn imports the main module)
        forgets the finalizers registered until then, hence the second way.
        """
        from multiprocessing import util

        pid = os.getpid()

        def register(child: Child) -> None:
            if os.getpid() == pid:
                util.Finalize(None, child.end, args=("the process ended",), exitpriority=-100)

        atexit.register(self.end, "the script ended")  # called before it
        register(self)
        util.register_after_fork(self, register)

    def _terminated(self, signal: str, die: Callable[[], None]) -> None:
        def save_and_die() -> None:
            self.end(signal)
            die()

        self.session.when_free(save_and_die)

    def _stop_when_done(self) -> None:
        """End the script behind the call that completes the recording."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def stop(*_: Any, **__: Any) -> None:
            if os.getpid() == self._pid and self.session.done and not self._ended:
                self.end("--stop-after")
                raise SystemExit(0)

        register_optimizer_step_post_hook(stop)
        # A script without torch.optim is recorded by its calls of backward.
        torch.autograd.backward = _then(torch.autograd.backward, stop)


def _alternate(change: dict[str, Any] | None) -> Callable[[list[Any]], Any] | None:
    """Return what makes the change of `daydream confirm` in turns, once the optimizers are known."""
    if change is None:
        return None

    def alternate(optimizers: list[Any]) -> Any:
        from daydream.collect.live.timed_steps import Alternating, settle_device

        return Alternating(
            lambda: lazy.ask("real_change", change["names"], change["options"], optimizers),
            rounds=change["rounds"],
            steps=change["steps"],
            clock=time.process_time_ns if change.get("cpu_time") else time.perf_counter_ns,
            settle=settle_device,
        )

    return alternate


def _still_interrupted() -> None:
    """Let Python die of SIGINT, as it does after an unhandled KeyboardInterrupt.

    It forgets that it was one when code is executed from text on the way out, as imports of
    dataclasses do; code from text that is interrupted makes it remember.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")  # noqa: S102 - see above


def _then(function: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        after()
        return result

    return both
