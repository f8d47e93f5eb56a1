"""The engine of Dask: a cluster that is started for the work, or the workers of one that runs already."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import pickle
import uuid
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from daydream.errors import DaydreamError
from daydream.parallel.engines import DIED, Answers, Engine, distributed_package, keep_freed_memory
from daydream.parallel.processes import without_interrupts
from daydream.parallel.worker import forget, work

LARGE = 1 << 20  # bytes
ANSWER_S = 10  # how long a scheduler has to answer


def on_dask(engine: Engine, count: int, packed: bytes, batches: Sequence[Sequence[Any]]) -> Answers:
    """Yield the answers to each batch, in their order."""
    distributed = distributed_package()
    key = uuid.uuid4().hex
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(_client(distributed, engine, count))
        stack.callback(_let_go, client, key, engine)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that what is sent is large: it is sent once
            [state] = client.scatter([packed], broadcast=True, hash=False)
            futures = [
                client.submit(work_packed, key, state, _handed(client, items), pure=False)
                for items in batches
            ]
        stack.callback(client.cancel, futures)
        try:
            for future in futures:
                yield pickle.loads(future.result())  # noqa: S301 - made by `work_packed`
        except (distributed.KilledWorker, concurrent.futures.CancelledError):
            # Cancelled is what waited for a state that was lost with the only worker that had it.
            raise DaydreamError(DIED) from None


def _handed(client: Any, items: Sequence[Any]) -> Any:
    """Return items as they are sent: large ones straight to a worker, not through the scheduler."""
    packed = pickle.dumps(items, protocol=5)
    return packed if len(packed) < LARGE else client.scatter([packed], hash=False)[0]


def _let_go(client: Any, key: str, engine: Engine) -> None:
    if engine.elsewhere:
        client.run(forget, key)


@contextlib.contextmanager
def _client(distributed: Any, engine: Engine, count: int) -> Iterator[Any]:
    """Give a client of the scheduler at the engine's address, or of a cluster that lives as long."""
    log = logging.getLogger("distributed")
    before = log.level
    log.setLevel(logging.CRITICAL)  # what matters is raised
    try:
        with contextlib.ExitStack() as stack:
            if engine.address is not None:
                yield _connected(distributed, engine.address, stack)
            else:
                with without_interrupts():  # until there is something that ends what was started
                    client = _started(distributed, count, stack)
                yield client
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


def _started(distributed: Any, count: int, stack: contextlib.ExitStack) -> Any:
    """Return a client of a cluster of this machine; the stack ends both."""
    try:
        cluster = distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, processes=True, memory_limit=0,
            dashboard_address="127.0.0.1:0", silence_logs=logging.CRITICAL,
        )  # fmt: skip
    except RuntimeError:  # so says the package if a worker ends before it has begun
        raise DaydreamError(DIED) from None
    stack.enter_context(cluster)
    client = stack.enter_context(distributed.Client(cluster))
    client.run(keep_freed_memory)
    return client


# What workers run ----------------------------------------------------------------------------------


def work_packed(key: str, packed: bytes, items: bytes) -> bytes:
    """Return what `work` does, in one piece: arrays that Dask sends by itself arrive read-only."""
    asked = pickle.loads(items)  # noqa: S301 - made by `on_dask`
    return pickle.dumps(work(key, packed, asked), protocol=5)


def version() -> str:
    """Return the version of daydream that a worker has."""
    from daydream import __version__

    return __version__
