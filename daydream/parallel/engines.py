"""Engines: who answers many questions that do not depend on each other.

    local                    this process, one after the other
    processes[:N]            N processes of this machine
    dask[:N]                 a Dask cluster of N processes that is started for it and ended after it
    dask:tcp://HOST:PORT     the workers of a Dask scheduler that runs already

In Python it may be any executor of `concurrent.futures`, too: `client.get_executor(pure=False)` of Dask.
Answers and their order are the same on all of them. A worker makes its state (a trace's graph)
once, from what it is sent; it reads no file of this machine unless it runs on it.

Freed memory: kept where many simulations follow each other, handed back where a part of the work is done.

Every scenario makes and drops arrays of some MB. glibc hands those back to the system at once, and each
page that is taken again is cleared and mapped again. It can keep them. A sweep of 30 scenarios over a
trace of 75,000 rows takes 1.9 s of CPU time so, 2.6 s without (0.03 and 0.36 million page faults); `rank`
on 111,000 tasks 3.3 and 3.6 s; their peaks of memory are the same (medians in turns, 2-core x86, glibc 2.36).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from daydream.errors import DaydreamError, MissingPackageError

if TYPE_CHECKING:
    from concurrent.futures import Executor

MOST_WORKERS = 4096


class Engine(Struct, frozen=True):
    """What runs the work; `workers` None is one a core, `address` that of a scheduler, or an `executor`."""

    kind: str = "local"
    workers: int | None = None
    address: str | None = None
    executor: Any = None

    @property
    def local(self) -> bool:
        """Whether this process does the work itself, so that nothing has to be sent."""
        return self.kind == "local"

    @property
    def elsewhere(self) -> bool:
        """Whether workers may run on other machines, which do not see the files of this one."""
        given = self.executor is not None
        here = given and type(self.executor).__module__.startswith("concurrent.futures.")
        return self.address is not None or (given and not here)


def engine_of(text: str | Engine | Executor) -> Engine:
    """Return the engine of a text such as `processes:4`, or of an executor.

    Raises `DaydreamError` if there is none such, or if what it needs is not installed.
    """
    if isinstance(text, Engine):
        return text
    if not isinstance(text, str):
        return Engine("executor", executor=text)
    kind, _, detail = text.partition(":")
    if kind not in {"local", "processes", "dask"} or (kind == "local" and text != kind):
        raise DaydreamError(
            f"unknown engine {text!r}; choose local, processes[:N] or dask[:N|:ADDRESS]"
        )
    if kind == "dask":
        distributed_package()
        if re.fullmatch(r"[a-z]+://\S+", detail):
            return Engine(kind, address=detail)
    if text == kind:
        return Engine(kind)
    if not (detail.isascii() and detail.isdigit() and 1 <= int(detail) <= MOST_WORKERS):
        needed = f"a number of workers from 1 to {MOST_WORKERS:,}"
        also = ", or a scheduler's address such as tcp://host:8786" if kind == "dask" else ""
        raise DaydreamError(f"engine {text!r}: after {kind}: comes {needed}{also}")
    return Engine(kind, int(detail))


def distributed_package() -> Any:
    """Return the package behind the engine dask. Raises `DaydreamError` if it is not installed."""
    try:
        import distributed
    except ImportError as error:
        raise MissingPackageError("distributed", "dask") from error
    return distributed


MMAP_THRESHOLD, TRIM_THRESHOLD, TOP_PAD = -3, -1, -2  # from glibc's malloc.h
LARGEST_MMAP_THRESHOLD = 32 << 20  # bytes: half a heap of a thread; glibc refuses more on 64 bits
KEPT = 1 << 30  # bytes at the top of the heap that are not handed back
STEP = 64 << 20  # bytes that the heap grows by


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed from now on; return whether it does. Elsewhere nothing happens.

    This is for processes of our own that simulate many scenarios: commands, and workers of engines.
    Nothing in the Python API calls it, since the allocator of a user's process is the user's.
    """
    set_option = _of_glibc("mallopt")
    if set_option is None:
        return False
    wanted = ((MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD), (TRIM_THRESHOLD, KEPT), (TOP_PAD, STEP))
    return 0 not in [set_option(option, value) for option, value in wanted]


def hand_back_freed_memory() -> None:
    """Give what is freed but still held by glibc to the system; elsewhere nothing happens.

    Between two parts of an import that each make and drop large arrays, of unlike sizes: what the one leaves
    is in pieces, and the other takes new memory beside them.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)


def _of_glibc(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # numpy has imported it already

    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
    return found
