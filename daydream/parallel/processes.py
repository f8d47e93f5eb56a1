"""The engine of processes: workers of this machine, which end with this process and never see Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from daydream.errors import DaydreamError
from daydream.parallel.engines import DIED, Answers, Engine, keep_freed_memory
from daydream.parallel.worker import work

MANAGER_S = 10  # how long the thread behind a pool may take to end, once its processes have


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


def on_processes(_engine: Engine, count: int, packed: bytes, batches: Sequence[Sequence[Any]]) -> Answers:
    """Yield the answers to each batch, in their order."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    from daydream.files.own_folders import own_folder

    # Not by fork: it copies locks that other threads (of Arrow, of a progress line) hold.
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    with own_folder("daydream") as folder:
        path = folder / "shared"
        path.write_bytes(packed)
        pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin)
        done = False
        try:
            with without_interrupts():
                futures = [pool.submit(work, str(path), path, items) for items in batches]
            for future in futures:
                yield future.result()
            done = True
        except BrokenProcessPool:
            raise DaydreamError(DIED) from None
        finally:
            manager = getattr(pool, "_executor_manager_thread", None)
            pool.shutdown(wait=done, cancel_futures=True)
            started = set(multiprocessing.active_children()) - before
            for process in started:
                process.terminate()
            for process in started:
                process.join()
            if manager is not None:  # it lets go of the pool's semaphores, which are told as leaked else
                manager.join(MANAGER_S)
