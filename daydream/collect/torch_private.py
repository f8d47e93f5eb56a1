"""Everything of torch that is not public and that recording needs, each with what is done without it.

No other module of daydream touches a private name of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

# Flags of the profiler, each switched on where this torch has it: arguments of device work,
# the device's own synchronization rows, threads that torch did not start.
PROFILER_FLAGS = ("expose_kineto_event_metadata", "enable_cuda_sync_events", "profile_all_threads")

Undo = Callable[[], None]


def profiler_config() -> Any:
    """Return the profiler's experimental settings with the flags this torch knows; None if it has none."""
    try:
        from torch._C._profiler import _ExperimentalConfig
    except ImportError:
        return None
    make: Any = _ExperimentalConfig
    signature = str(make.__init__.__doc__)
    return make(**{flag: True for flag in PROFILER_FLAGS if flag in signature})


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
