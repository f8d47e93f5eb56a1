"""The worker as the calibration sees it: it takes calls, and may die of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from daydream.calibration.operators import OperatorCall
from daydream.errors import DaydreamError

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE_S = (
    20.0  # for a single call beyond its limit: libraries load and choose kernels in the first
)


class Worker:
    """A process that times calls; a new one takes over where one has died. Used in a `with` statement."""

    def __init__(
        self,
        *,
        device: str,
        threads: int | None,
        trains: bool,
        call_limit_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._settings = {
            "device": device,
            "threads": threads,
            "trains": trains,
            "call_limit_s": call_limit_s,
        }
        self._patience_s = call_limit_s + patience_s
        self._process: subprocess.Popen[str] | None = None
        self.machine: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def time(self, call: OperatorCall, limit_s: float) -> dict[str, Any]:
        """Return `duration_ns` and `repeats`, or the `reason` for none; waits `limit_s` at most."""
        if self._process is None:
            self._start()
        patience = max(min(self._patience_s, limit_s), 0.0)
        late = threading.Event()
        process = self._process

        def give_up() -> None:
            late.set()
            if process is not None:
                process.kill()

        timer = threading.Timer(patience, give_up)
        timer.start()
        try:
            answer = self._exchange(asdict(call))
        finally:
            timer.cancel()
        if answer is not None:
            return answer
        code = self._stop()
        return {
            "reason": f"took longer than {patience:.3g} s"
            if late.is_set()
            else f"torch crashed on it (exit {code})"
        }

    def _start(self) -> None:
        """Start a process. Raises `DaydreamError` if torch or the device is not there."""
        places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "daydream.calibration.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": places},
        )
        machine = self._exchange(self._settings)
        if machine is None or "error" in machine:
            self._stop()
            raise DaydreamError(
                machine["error"]
                if machine
                else "the process that should run operators did not start"
            )
        self.machine = machine

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Send a line and return the answer, None if the process has died."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            return dict(json.loads(line)) if line.endswith("\n") else None
        except OSError:  # it died before it read this
            return None

    def _stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        process.communicate()
        return process.returncode
