"""Engines: who answers many questions that do not depend on each other.

    local                    this process, one after the other
    processes[:N]            N processes of this machine
    dask[:N]                 a Dask cluster of N processes that is started for it and ended after it
    dask:tcp://HOST:PORT     the workers of a Dask scheduler that runs already

Answers and their order are the same on all of them. A worker makes its state (a trace's graph)
once, from what it is sent; it reads no file of this machine unless it runs on it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from daydream.errors import DaydreamError
from daydream.freed_memory import keep_freed_memory

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[float], None]
Answers = Generator[list[Any], None, None]

BATCHES = 4  # for each worker, so that one that is slower gets fewer of them
LARGEST_BATCH = 16  # items: enough to outweigh the millisecond that sending a batch takes
MOST_WORKERS = 4096
UNKNOWN = 64  # as how many workers a cluster counts when work is cut into batches
DIED = (
    "a worker process ended before it had answered: killed, out of memory perhaps, or never started.\n"
    'Use fewer workers. A script of one\'s own needs its calls under `if __name__ == "__main__":`.'
)


@dataclass(frozen=True)
class Engine:
    """What runs the work; `workers` None is one a core, `address` that of a scheduler."""

    kind: str = "local"
    workers: int | None = None
    address: str | None = None

    @property
    def local(self) -> bool:
        """Whether this process does the work itself, so that nothing has to be sent."""
        return self.kind == "local"

    @property
    def elsewhere(self) -> bool:
        """Whether workers may run on other machines, which do not see the files of this one."""
        return self.address is not None


def engine_of(text: str | Engine) -> Engine:
    """Return the engine of a text such as `processes:4`.

    Raises `DaydreamError` if there is none such, or if what it needs is not installed.
    """
    if isinstance(text, Engine):
        return text
    kind, _, detail = text.partition(":")
    if kind not in {"local", "processes", "dask"} or (kind == "local" and text != kind):
        raise DaydreamError(f"there is no engine {text!r}; there are local, processes[:N], dask[:N|:ADDRESS]")
    if kind == "dask":
        distributed_package()
        if re.fullmatch(r"[a-z]+://\S+", detail):
            return Engine(kind, address=detail)
    if text == kind:
        return Engine(kind)
    if not (detail.isascii() and detail.isdigit() and 1 <= int(detail) <= MOST_WORKERS):
        needed = f"a number of workers from 1 to {MOST_WORKERS:,}"
        also = ", or a scheduler's address such as tcp://host:8786" if kind == "dask" else ""
        raise DaydreamError(f"engine {text!r}: behind {kind}: stands {needed}{also}")
    return Engine(kind, int(detail))


def map_on(
    engine: str | Engine,
    function: Callable[[S], Callable[[T], R]],
    shared: S,
    items: Sequence[T],
    *,
    batch: int | None = None,
    progress: Progress | None = None,
) -> list[R]:
    """Return `function(shared)(item)` of every item, in the order of the items.

    Each worker calls `function` once, and what it returns for its items. `function`, `shared`, items
    and results are pickled, but for the engine `local`. `batch` items are sent at a time; `progress` is
    called with the share that is done. An error of a worker is raised here, and ends the others, as
    Ctrl-C does. Raises `DaydreamError` if workers cannot be reached, or end before they have answered.
    """
    engine = engine_of(engine)
    say = progress or (lambda _share: None)
    if engine.local or not items:
        return list(_here(function, shared, items, say))
    packed = _packed(function, shared, None if engine.elsewhere else os.getcwd())  # noqa: PTH109 - sent as text
    count = engine.workers or (UNKNOWN if engine.elsewhere else _cores())
    size = batch or min(max(len(items) // (BATCHES * count), 1), LARGEST_BATCH)
    batches = [items[first : first + size] for first in range(0, len(items), size)]
    run: Callable[[Engine, int, bytes, Sequence[Any]], Answers] = _on_processes
    if engine.kind == "dask":
        from daydream.dask_workers import on_dask as run
    found: list[R] = []
    with contextlib.closing(run(engine, min(count, len(batches)), packed, batches)) as answers:
        for answer in answers:
            found += answer
            say(len(found) / len(items))
    return found


def _here(
    function: Callable[[S], Callable[[T], R]], shared: S, items: Sequence[T], say: Progress
) -> Iterator[R]:
    work: Callable[[T], R] | None = None
    for number, item in enumerate(items):
        say(number / len(items))
        work = work or function(shared)
        yield work(item)


def _packed(function: object, shared: object, folder: str | None) -> bytes:
    try:
        return pickle.dumps((function, shared, folder), protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DaydreamError(
            f"this cannot be sent to a worker process ({error}).\n"
            "Put an optimization of your own into a file and give its path, or take the engine local."
        ) from error


def _cores() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def distributed_package() -> Any:
    """Return the package behind the engine dask. Raises `DaydreamError` if it is not installed."""
    try:
        import distributed
    except ImportError as error:
        raise DaydreamError(
            "the engine dask needs the package `distributed`: pip install 'daydream[dask]'"
        ) from error
    return distributed


# What workers run ----------------------------------------------------------------------------------

_LOCK = threading.Lock()  # a Dask worker may have several threads; a graph is no thing to share
_MADE: dict[str, Callable[[Any], Any]] = {}
_FILES: list[str] = []


def work(key: str, packed: bytes, items: Sequence[Any]) -> list[Any]:
    """Return the answers to some items; the state is made for the first of them and kept."""
    # stdout is this process's parent's, and carries its result.
    with _LOCK, contextlib.redirect_stdout(sys.stderr):
        if key not in _MADE:
            _MADE.clear()
            try:
                function, shared, folder = pickle.loads(packed)  # noqa: S301 - made by `map_on`
            except (ImportError, AttributeError, pickle.UnpicklingError) as error:
                raise DaydreamError(
                    f"a worker cannot load what it is sent ({error}).\n"
                    "It needs the packages that are installed here; an optimization of your own goes into a "
                    "file."
                ) from error
            if folder is not None:
                os.chdir(folder)
            _MADE[key] = function(shared)
        answer = _MADE[key]
        return [answer(item) for item in items]


def forget(key: str) -> None:
    """Let go of a state, in a worker that lives on."""
    _MADE.pop(key, None)


def _begin(path: str) -> None:
    """Begin a worker process: note where its state lies, and end with the parent however that ends."""
    import multiprocessing

    keep_freed_memory()
    _FILES[:] = [path]
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _work_begun(items: Sequence[Any]) -> list[Any]:
    [path] = _FILES
    return work(path, b"" if path in _MADE else Path(path).read_bytes(), items)


# Processes -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def without_interrupts() -> Iterator[None]:
    """Processes that are started meanwhile never see Ctrl-C: this one does, afterwards, and ends them."""
    came: list[int] = []
    masks = hasattr(signal, "pthread_sigmask")
    main = threading.current_thread() is threading.main_thread()
    if masks:  # what is started inherits it
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # of itself it would begin below, and lift the mask
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    if main:  # another thread of this process (of numpy's library, say) may still take the signal
        handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if came:
            raise KeyboardInterrupt


def _on_processes(_engine: Engine, count: int, packed: bytes, batches: Sequence[Sequence[Any]]) -> Answers:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    from daydream.own_folders import own_folder

    # Not by fork: it copies locks that other threads (of Arrow, of a progress line) hold.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with own_folder("daydream") as folder:
        path = folder / "shared"
        path.write_bytes(packed)
        pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(str(path),))
        done = False
        try:
            with without_interrupts():
                futures = [pool.submit(_work_begun, items) for items in batches]
            for future in futures:
                yield future.result()
            done = True
        except BrokenProcessPool:
            raise DaydreamError(DIED) from None
        finally:
            pool.shutdown(wait=done, cancel_futures=True)
            started = set(multiprocessing.active_children()) - before
            for process in started:
                process.terminate()
            for process in started:
                process.join()
