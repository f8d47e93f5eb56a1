"""Many independent questions side by side: in this process, in several, or on a Dask cluster.

    local                    this process, one after the other
    processes[:N]            N processes of this machine
    dask[:N]                 a Dask cluster of N processes that is started for it and ended after it
    dask:tcp://HOST:PORT     the workers of a Dask scheduler that runs already

In Python it may be any executor of `concurrent.futures`, too: `client.get_executor(pure=False)` of Dask.
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
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from daydream.arrays import keep_freed_memory
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


S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[float], None]

BATCHES = 4  # for each worker, so that one that is slower gets fewer of them
LARGEST_BATCH = 16  # items: enough to outweigh the millisecond that sending a batch takes
UNKNOWN = 64  # as how many workers others' count when work is cut into batches
ANSWER_S = 10  # how long a scheduler has to answer
MANAGER_S = 10  # how long the thread behind a pool may take to end, once its processes have
DIED = (
    "a worker process ended before it had answered: killed, out of memory perhaps, or never started.\n"
    'Use fewer workers. A script of your own needs its calls under `if __name__ == "__main__":`.'
)


def map_on(
    engine: str | Engine | Executor,
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
    folder = None if engine.elsewhere else os.getcwd()  # noqa: PTH109 - sent as text
    from concurrent.futures import BrokenExecutor, CancelledError

    packed = _packed((function, shared, folder))
    count = engine.workers or (UNKNOWN if engine.elsewhere else cores())
    size = batch or min(max(len(items) // (BATCHES * count), 1), LARGEST_BATCH)
    batches = [items[first : first + size] for first in range(0, len(items), size)]
    key = uuid.uuid4().hex
    found: list[R] = []
    with _executor(engine, min(count, len(batches))) as executor, contextlib.ExitStack() as stack:
        with without_interrupts(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of Dask, that what is sent is large
            futures = [executor.submit(work, key, packed, _packed(batch)) for batch in batches]
        for future in futures:
            stack.callback(future.cancel)
        try:
            for future in futures:
                found += pickle.loads(future.result())  # noqa: S301 - made by `work`
                say(len(found) / len(items))
        except (BrokenExecutor, CancelledError):
            raise DaydreamError(DIED) from None
    return found


def _here(
    function: Callable[[S], Callable[[T], R]], shared: S, items: Sequence[T], say: Progress
) -> Iterator[R]:
    work: Callable[[T], R] | None = None
    for number, item in enumerate(items):
        say(number / len(items))
        work = work or function(shared)
        yield work(item)


def _packed(what: object) -> bytes:
    try:
        return pickle.dumps(what, protocol=5)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DaydreamError(
            f"this cannot be sent to a worker process ({error}).\n"
            "Put an optimization of your own into a file and give its path, or take the engine local."
        ) from error


def cores() -> int:
    """Return on how many cores this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _executor(engine: Engine, count: int) -> contextlib.AbstractContextManager[Executor]:
    if engine.executor is not None:
        return contextlib.nullcontext(engine.executor)
    return _on_dask(engine, count) if engine.kind == "dask" else _processes(count)


@contextlib.contextmanager
def _processes(count: int) -> Iterator[Executor]:
    """Give workers of this machine, which end with this process and never see Ctrl-C."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # Not by fork: it copies locks that other threads (of Arrow, of a progress line) hold.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin)
    done = False
    try:
        yield pool
        done = True
    finally:
        manager = getattr(pool, "_executor_manager_thread", None)
        pool.shutdown(wait=done, cancel_futures=True)
        started = set(multiprocessing.active_children()) - before
        for process in started:
            process.terminate()
        for process in started:
            process.join()
        if (
            manager is not None
        ):  # it lets go of the pool's semaphores, which are told as leaked else
            manager.join(MANAGER_S)


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


@contextlib.contextmanager
def _on_dask(engine: Engine, count: int) -> Iterator[Executor]:
    """Give the workers of the scheduler at the engine's address, or of a cluster that lives as long."""
    import logging

    distributed = distributed_package()
    log = logging.getLogger("distributed")
    before = log.level
    log.setLevel(logging.CRITICAL)  # what matters is raised
    try:
        with contextlib.ExitStack() as stack:
            if engine.address is not None:
                client = _connected(distributed, engine.address, stack)
                stack.callback(client.run, _MADE.clear)
            else:
                with without_interrupts():  # until there is something that ends what was started
                    cluster = distributed.LocalCluster(
                        n_workers=count,
                        threads_per_worker=1,
                        processes=True,
                        memory_limit=0,
                        dashboard_address="127.0.0.1:0",
                        silence_logs=logging.CRITICAL,
                    )
                    stack.enter_context(cluster)
                    client = stack.enter_context(distributed.Client(cluster))
                    client.run(keep_freed_memory)
            yield client.get_executor(pure=False)
    except (
        distributed.KilledWorker,
        RuntimeError,
    ):  # the latter if a worker ends before it has begun
        raise DaydreamError(DIED) from None
    finally:
        log.setLevel(before)


def _connected(distributed: Any, address: str, stack: contextlib.ExitStack) -> Any:
    """Return a client of the scheduler at an address; the stack ends it."""
    try:
        client = distributed.Client(address, timeout=ANSWER_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise DaydreamError(f"no Dask scheduler answers at {address} ({error})") from None
    stack.enter_context(client)
    if not client.nthreads():
        raise DaydreamError(
            f"the Dask scheduler at {address} has no workers.\n"
            f"Start some, where daydream is installed: dask worker {address}"
        )
    try:
        there = set(client.run(version).values())
    except ImportError as error:
        raise DaydreamError(
            f"daydream is not installed where the workers of {address} run ({error})"
        ) from None
    if there != {version()}:
        raise DaydreamError(
            f"the workers of {address} have daydream {', '.join(sorted(there))}, "
            f"this machine has {version()}; install the same"
        )
    return client


_LOCK = threading.Lock()  # a worker may have several threads; a graph is no thing to share
_MADE: dict[str, Callable[[Any], Any]] = {}


def _begin() -> None:
    """Begin a worker process, which ends with the parent however that ends."""
    import multiprocessing

    keep_freed_memory()
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def work(key: str, packed: bytes, items: bytes) -> bytes:
    """Return the answers to some items; the state is made for the first of a `key` and kept.

    Both are in one piece: arrays that Dask sends by itself arrive read-only.
    """
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
        return pickle.dumps([answer(item) for item in pickle.loads(items)], protocol=5)  # noqa: S301


def version() -> str:
    """Return the version of daydream that a worker has."""
    from daydream import __version__

    return __version__
