"""Engines: who answers many questions that do not depend on each other.

    local                    this process, one after the other
    processes[:N]            N processes of this machine
    dask[:N]                 a Dask cluster of N processes that is started for it and ended after it
    dask:tcp://HOST:PORT     the workers of a Dask scheduler that runs already

Answers and their order are the same on all of them. A worker makes its state (a trace's graph)
once, from what it is sent; it reads no file of this machine unless it runs on it.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from daydream.errors import DaydreamError

Answers = Generator[list[Any], None, None]

MOST_WORKERS = 4096
DIED = (
    "a worker process ended before it had answered: killed, out of memory perhaps, or never started.\n"
    'Use fewer workers. A script of your own needs its calls under `if __name__ == "__main__":`.'
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
        raise DaydreamError(f"unknown engine {text!r}; choose local, processes[:N] or dask[:N|:ADDRESS]")
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
        raise DaydreamError(
            "the engine dask needs the package `distributed`: pip install 'daydream[dask]'"
        ) from error
    return distributed
