"""What runs inside the user's process around the recording: it begins with torch and ends with the process.

The recording itself is `daydream.collect.session`. Here is how a process ends, so that what was
captured is saved, and how it tells the command line what it does.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from daydream.collect.messages import SETTINGS, tell, trace_path
from daydream.errors import DaydreamError


def start(folder: str) -> None:
    """Collect in this process, which has just imported torch."""
    settings = json.loads(Path(folder, SETTINGS).read_text())
    Child(Path(folder), settings).attach()


class Child:
    """A recording in this process, from the import of torch to the end of the process."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        from daydream.collect.session import Session

        self._folder = folder
        self._stop_after = bool(settings["stop_after"])
        self._pid = os.getpid()
        self._ended = False
        self._place = rank_and_world()
        path = trace_path(folder, self._pid, settings["name"])
        path.parent.mkdir(exist_ok=True)
        self.session = Session(
            path,
            steps=settings["steps"], warmup=settings["warmup"], on_progress=self._progress,
        )  # fmt: skip

    def attach(self) -> None:
        """Begin, and arrange for the end."""
        self.session.install()
        tell(self._folder, what="began")
        atexit.register(self.end, "the script ended")
        self._end_with_multiprocessing()
        self._end_with_sigterm()
        if self._stop_after:
            self._stop_when_done()

    def end(self, reason: str) -> None:
        """Save what was captured, once, and tell how that went. Does nothing in a forked child."""
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        interrupted = sys.exc_info()[0] or getattr(sys, "last_type", None)
        failed: str | None = None
        try:
            self.session.finish(reason)
        except DaydreamError as error:
            failed = str(error)
        except Exception:  # noqa: BLE001 - a fault of ours must not change how the script ends
            failed = f"collecting failed in process {self._pid}:\n{traceback.format_exc()}"
        self._locate()
        rank, world = self._place
        if not tell(self._folder, what="ended", failed=failed, rank=rank, world=world) and failed:
            sys.stderr.write(f"daydream: {failed}\n")
        if interrupted is KeyboardInterrupt:
            _still_interrupted()

    def _progress(self, what: str, *_: Any, **__: Any) -> None:
        if os.getpid() == self._pid:
            self._locate()
            tell(self._folder, what="progress", text=what, rank=self._place[0])

    def _locate(self) -> None:
        """Learn the rank while it is known: scripts take their process group down before they end."""
        rank, world = rank_and_world()
        self._place = (self._place[0] if rank is None else rank, self._place[1] if world is None else world)

    def _end_with_multiprocessing(self) -> None:
        """Children of `multiprocessing` leave with `os._exit`, past `atexit`; they run finalizers instead.

        A child that imported torch before its own start-up (spawn imports the main module)
        forgets the finalizers registered until then, hence the second way.
        """
        from multiprocessing import util

        def register(child: Child) -> None:
            if os.getpid() == child._pid:
                util.Finalize(None, child.end, args=("the process ended",), exitpriority=-100)

        register(self)
        util.register_after_fork(self, register)

    def _end_with_sigterm(self) -> None:
        """Save on SIGTERM, where nobody handles it, and die of it as before.

        Not in ranks and other workers: Python handles a signal only between two instructions,
        and one that is blocked in a collective would no longer die when its launcher says so.
        """
        import threading
        from multiprocessing import parent_process

        worker = parent_process() is not None or (self._place[1] or 1) > 1
        if worker or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - signal's signature
        signal.signal(number, signal.SIG_DFL)
        self.end("SIGTERM")
        os.kill(os.getpid(), number)

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


def _still_interrupted() -> None:
    """Let Python die of SIGINT, as it does after an unhandled KeyboardInterrupt.

    It forgets that it was one when code is executed from text on the way out, as imports of
    dataclasses do; code from text that is interrupted makes it remember.
    """
    with contextlib.suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")  # noqa: S102 - see above


def _then(function: Callable[..., Any], after: Callable[[], None]) -> Callable[..., Any]:
    import functools

    @functools.wraps(function)
    def both(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        after()
        return result

    return both


def rank_and_world() -> tuple[int | None, int | None]:
    """Return this process's rank and the number of ranks: torch's, else the launcher's, else unknown."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return _number("RANK"), _number("WORLD_SIZE")


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    return int(text) if text.isdigit() else None
