"""Processes that do timed work on request: a line of JSON in, a line of JSON out.

Each side runs in its own environment and is asked in turn, so that two environments can be
timed side by side. A fresh worker has a peak memory of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

HERE = Path(__file__).resolve().parent


class WorkError(RuntimeError):
    """The worker could not do a job."""


class Worker:
    """A process of `script`, which ends in `serve(...)`; a context manager."""

    def __init__(self, script: str, python: str | Path = sys.executable) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [str(python), str(HERE / script)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, env=environment,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def ask(self, job: str, **arguments: Any) -> Any:
        """Return a job's answer. Raises `WorkError` with the job's own message if it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([job, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            raise WorkError(
                f"{job}: the process ended with code {code}: {said[-1] if said else 'no message'}"
            )
        failure, answer = json.loads(line)
        if failure:
            raise WorkError(failure)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._errors.close()


def serve(jobs: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests until stdin ends; whatever the jobs print goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for line in sys.stdin:
        job, arguments = json.loads(line)
        failure, answer = None, None
        try:
            answer = jobs[job](**arguments)
        except Exception as error:  # noqa: BLE001 - the other side is told
            failure = f"{type(error).__name__}: {error}"
        answers.write(json.dumps([failure, answer]) + "\n")
        answers.flush()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds one call takes."""
    begin = perf_counter()
    work()
    return perf_counter() - begin


def peak_bytes() -> int:
    """Return this process's peak resident memory."""
    try:  # Linux: `ru_maxrss` of a child can be that of the process it was forked from
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def load(path: str) -> dict[str, Any]:
    """Load a .json or .json.gz by `json.load` alone and keep all of it."""
    kept: list[Any] = []

    def work() -> None:
        with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
            kept.append(json.load(file))

    return {"seconds": seconds_of(work), "peak": peak_bytes(), "events": len(kept[0]["traceEvents"])}


if __name__ == "__main__":
    serve({"load": load})
