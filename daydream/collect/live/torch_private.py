"""Everything of torch that is not public and that recording needs, each with what is done without it.

No other module of recording touches a private name of torch, but `torch_compiler.py` those of its compiler.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

# Flags of the profiler, each switched on where this torch has it: arguments of device work,
# the device's own synchronization rows, threads that torch did not start.
PROFILER_FLAGS = ("expose_kineto_event_metadata", "enable_cuda_sync_events")
ALL_THREADS = "profile_all_threads"  # with it, torch up to 2.13 records no memory (pytorch#166121)

ERRORS = 2  # of the levels of torch's messages: 0 all, 1 warnings and errors
KINETO_LOG = "KINETO_LOG_LEVEL"

Undo = Callable[[], None]


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


def names_activities() -> bool:
    """Return whether raw events say what they are, as those of torch 2.13 do and those of 2.11 do not."""
    from torch._C._autograd import _KinetoEvent

    return hasattr(_KinetoEvent, "activity_type")


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


def events_of(profiler: Any) -> list[Any]:
    """Return the raw events of a stopped `torch.profiler.profile`; none if its recording was taken away."""
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    return [] if results is None else list(results.events())


def let_go(profiler: Any) -> None:
    """Free what a stopped profiler recorded, of which no event may be used any more: 1 to 2 kB an event."""
    profiler.profiler = None


def allocations_of(profiler: Any) -> list[tuple[int, int, Any]]:
    """Return (time in ns, torch's number of the thread, fields) of each allocation and free of a recording.

    The fields are `alloc_size`, `ptr`, `total_allocated`, `total_reserved`, `device`. Unlike the raw events,
    torch's tree of events has addresses. Empty where this torch has no such tree.
    """
    results = getattr(getattr(profiler, "profiler", None), "kineto_results", None)
    tree: Any = getattr(results, "experimental_event_tree", None)
    if tree is None:
        return []
    from torch._C._profiler import _EventType

    found = []
    left = list(tree())
    while left:
        event = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.start_tid, event.extra_fields))
    return found


@contextlib.contextmanager
def only_errors_said() -> Iterator[None]:
    """Keep the warnings of torch's own library off stderr while this is open, where that can be set."""
    import ctypes

    import torch

    library = Path(str(torch.__file__)).with_name("lib") / "libc10.so"
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        yield
        return
    before = level.value
    level.value = max(level.value, ERRORS)
    try:
        yield
    finally:
        level.value = before


def watch_profilers(on_start: Callable[[Any], None], on_stop: Callable[[Any], None]) -> Undo:
    """Call `on_start` before any profiler prepares itself, and `on_stop` after it has stopped.

    A second profiler takes the recording from the first without an error, so they must not
    run together. Returns what takes the watch off again.
    """
    from torch.autograd.profiler import profile

    prepare = getattr(profile, "_prepare_trace", None)
    leave: Callable[..., Any] = profile.__exit__
    if prepare is None:
        return lambda: None

    def watched_prepare(self: Any) -> Any:
        on_start(self)
        return prepare(self)

    def watched_exit(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            on_stop(self)

    names = {"_prepare_trace": watched_prepare, "__exit__": watched_exit}
    for name, function in names.items():
        setattr(profile, name, function)

    def undo() -> None:
        for name, function in (("_prepare_trace", prepare), ("__exit__", leave)):
            if getattr(profile, name) is names[name]:
                setattr(profile, name, function)

    return undo


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
