"""Everything of torch that is not public and that recording needs, each with what is done without it.

No other module of recording touches a private name of torch, but `torch_compiler.py` those of its compiler.

The profilers that a script runs itself: two at once would leave one with nothing, without an error.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

# Flags of the profiler, each switched on where this torch has it: the device's own synchronization rows, and
# threads that torch did not start.
PROFILER_FLAGS = ("enable_cuda_sync_events",)
ALL_THREADS = "profile_all_threads"  # with it, torch up to 2.13 records no memory (pytorch#166121)

KINETO_LOG = "KINETO_LOG_LEVEL"


def profiler_config(*, memory: bool) -> Any:
    """Return the profiler's experimental settings with the flags this torch knows; None if it has none.

    Where memory is recorded, threads that the script starts itself are not.
    """
    try:
        from torch._C._profiler import _ExperimentalConfig
    except ImportError:
        return None
    make: Any = _ExperimentalConfig
    signature = str(make.__init__.__doc__)
    flags = PROFILER_FLAGS if memory else (*PROFILER_FLAGS, ALL_THREADS)
    return make(**{flag: True for flag in flags if flag in signature})


@contextlib.contextmanager
def quiet_profiler() -> Iterator[None]:
    """Keep the profiler's own lines and warnings off stderr, and from the script, while it prepares itself.

    It asks this variable, at that time; the processes that the script starts do not see it. Torch 2.11 warns
    that events of earlier recordings are gone: there are none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if KINETO_LOG in os.environ:
            yield
            return
        os.environ[KINETO_LOG] = "99"
        try:
            yield
        finally:
            os.environ.pop(KINETO_LOG, None)


def range_type() -> Callable[[str], AbstractContextManager[Any]]:
    """Return what makes a named range in the recording: torch's cheapest, some 2 us while recording."""
    try:
        from torch._C._profiler import _RecordFunctionFast
    except ImportError:
        from torch.profiler import record_function

        return record_function
    return _RecordFunctionFast


def profiler_runs() -> bool:
    """Return whether any profiler records at present, ours or the script's."""
    import torch

    ask: Any = getattr(torch.autograd, "_profiler_enabled", None)
    return ask is not None and bool(ask())


def write_profile(profiler: Any, path: Path) -> bool:
    """Write what a stopped `torch.profiler.profile` recorded to a file, which only its owner may read.

    Returns False if that was taken away.
    """
    if getattr(getattr(profiler, "profiler", None), "kineto_results", None) is None:
        return False
    profiler.export_chrome_trace(str(path))
    with contextlib.suppress(OSError):  # on a full disk there is none
        path.chmod(0o600)  # torch makes it as the umask says
    return True


def autograd_threads(profiler: Any) -> dict[int, int]:
    """Return the system's number of each thread by autograd's, which the profiler's file does not tell."""
    return {
        int(event.start_thread_id()): int(event.device_resource_id())
        for event in profiler.profiler.kineto_results.events()
        if str(event.device_type()).endswith("CPU")
    }


def let_go(profiler: Any) -> None:
    """Free what a stopped profiler recorded, of which no event may be used any more: 1 to 2 kB an event."""
    profiler.profiler = None


def ddp_buckets(module: Any) -> dict[str, Any]:
    """Return what a DistributedDataParallel says of its buckets: sizes in bytes, parameters in ready order.

    Empty where this torch does not tell. Valid after the second backward pass.
    """
    read = getattr(module, "_get_ddp_logging_data", None)
    if read is None:
        return {}
    try:
        data = dict(read())
    except (RuntimeError, TypeError, ValueError):
        return {}
    return data


class OwnProfilers:
    """Knows which profilers of the script are running.

    `on_start` is called when one is about to start, so that a recording can give way.
    Those that start inside `not_theirs` are not the script's.
    """

    def __init__(self, on_start: Callable[[], None]) -> None:
        self._on_start = on_start
        self._replaced: list[tuple[str, Any, Any]] = []  # name, what was there, what is there
        self._not_theirs = False
        self.forget()

    def forget(self) -> None:
        """Begin anew, in this process."""
        self._pid = os.getpid()
        self._running: list[Any] = []
        self.seen = False

    def __len__(self) -> int:
        return len(self._running)

    @property
    def any_runs(self) -> bool:
        """Whether any profiler records at present, also one that did not begin as torch's own class."""
        return bool(self._running) or profiler_runs()

    def watch(self) -> None:
        """Begin to notice starts and stops, where this torch has the place to notice them at."""
        from torch.autograd.profiler import profile

        prepare: Any = getattr(profile, "_prepare_trace", None)
        leave: Any = profile.__exit__
        if prepare is None:
            return

        def watched_prepare(profiler: Any) -> Any:
            self._starts(profiler)
            return prepare(profiler)

        def watched_exit(profiler: Any, *error: Any) -> Any:
            try:
                return leave(profiler, *error)
            finally:
                self._running = [one for one in self._running if one is not profiler]

        self._replaced = [
            ("_prepare_trace", prepare, watched_prepare),
            ("__exit__", leave, watched_exit),
        ]
        for name, _, ours in self._replaced:
            setattr(profile, name, ours)

    def unwatch(self) -> None:
        """Notice nothing any more."""
        from torch.autograd.profiler import profile

        for name, was, ours in self._replaced:
            if getattr(profile, name) is ours:
                setattr(profile, name, was)
        self._running = []

    @contextmanager
    def not_theirs(self) -> Iterator[None]:
        """Take profilers that start meanwhile for ours."""
        self._not_theirs = True
        try:
            yield
        finally:
            self._not_theirs = False

    @property
    def ours_starts(self) -> bool:
        """Whether a profiler of ours is being started or stopped at present."""
        return self._not_theirs

    def _starts(self, profiler: Any) -> None:
        if self._not_theirs or os.getpid() != self._pid:
            return
        self._running.append(profiler)
        if not self.seen:
            self.seen = True
            warnings.warn(
                "the script runs torch.profiler itself; `daydream collect` records while it does not, "
                "so that neither recording is lost",
                stacklevel=2,
            )
        self._on_start()
