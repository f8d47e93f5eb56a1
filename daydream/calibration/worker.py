"""The process that runs operators, and how it is asked: torch's native code may crash on a call, and only it ends.

It reads lines of JSON from its input, first how to work, then a call a line, and answers each with a
line: what the machine is, then a time or the reason why there is none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from daydream.calibration.operators import OperatorCall, RebuildError, Run, rebuild
from daydream.calibration.timing import number_format, time_ns
from daydream.costs.device.measured import CPU
from daydream.errors import DaydreamError

MOST_OF_MEMORY = 0.5  # of what is free: inputs of a call; its result and scratch need room too
TORCH_RAISES = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
)  # also for memory that is not there
LONGEST = 120  # characters of a reason
NO_TORCH = "calibrate runs operators of torch, which is not installed here; install torch"
NO_GPU = (
    "this trace's work ran on a GPU, and torch finds none here.\n"
    "Run calibrate on the machine with the GPU that the question is about."
)


PATIENCE_S = 20.0  # for a call beyond its limit: libraries load and choose kernels in the first


class Worker:
    """A process that times calls; a new one takes over where one has died. `close` ends it.

    Raises `DaydreamError` if torch or the device is not there.
    """

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
        self._start()

    def time(self, call: OperatorCall, limit_s: float) -> dict[str, Any]:
        """Return `duration_ns` and `repeats`, or the `reason` for none; waits `limit_s` at most."""
        if self._process.returncode is not None:
            self._start()
        patience = max(min(self._patience_s, limit_s), 0.0)
        timer = threading.Timer(patience, self._process.kill)
        timer.start()
        begin = time.monotonic()
        answer = self._exchange(asdict(call))
        timer.cancel()
        late = time.monotonic() - begin >= patience
        if answer is not None:
            return answer
        code = self.close()
        return {
            "reason": f"took longer than {patience:.3g} s"
            if late
            else f"torch crashed on it (exit {code})"
        }

    def close(self) -> int:
        """End the process and return its exit code."""
        self._process.kill()
        self._process.communicate()
        return self._process.returncode

    def _start(self) -> None:
        places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "daydream.calibration.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": places},
        )
        no_start = {"error": "the process that should run operators did not start"}
        self.machine = self._exchange(self._settings) or no_start
        if "error" in self.machine:
            self.close()
            raise DaydreamError(self.machine["error"])

    def _exchange(self, message: dict[str, Any]) -> dict[str, Any] | None:
        """Send a line and return the answer, None if the process has died."""
        sent = self._process.stdin
        answers = self._process.stdout
        if sent is None or answers is None:
            return None
        try:
            sent.write(json.dumps(message) + "\n")
            sent.flush()
            line = answers.readline()
            return dict(json.loads(line)) if line.endswith("\n") else None
        except OSError:  # it died before it read this
            return None


def main() -> None:
    """Answer lines until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    settings = json.loads(sys.stdin.readline())
    machine = _machine(settings["device"], settings["threads"])
    print(json.dumps(machine), file=answers, flush=True)
    if "error" in machine:
        return
    for line in sys.stdin:
        call = json.loads(line)
        call["output"] = tuple(call["output"]) if call["output"] is not None else None
        try:
            nanoseconds, repeats = _time(OperatorCall(**call), settings)
            answer: dict[str, Any] = {"duration_ns": nanoseconds, "repeats": repeats}
        except RebuildError as error:
            answer = {"reason": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


def _machine(device: str, threads: int | None) -> dict[str, str]:
    """Return the name of the device and torch's version, or an error where either is not there."""
    try:
        import torch
    except ImportError:
        return {"error": NO_TORCH}
    if threads is not None:
        torch.set_num_threads(threads)
    if device == CPU:
        return {"device": CPU, "torch": torch.__version__}
    if not torch.cuda.is_available():
        return {"error": NO_GPU}
    return {"device": str(torch.cuda.get_device_name()), "torch": torch.__version__}


def _time(call: OperatorCall, settings: dict[str, Any]) -> tuple[float, int]:
    """Return the time of a call in ns and its repetitions."""
    import torch

    device = settings["device"]
    if call.nbytes > MOST_OF_MEMORY * _free_bytes(device):
        raise RebuildError("it needs more memory than is free here")
    refused = ""
    with torch.no_grad(), number_format(call.dtype):
        ways: list[Run] = []
        try:
            ways = rebuild(call, device, trains=settings["trains"])
        except TORCH_RAISES as error:
            refused = _first_sentence(error)
        for run in ways:
            try:
                run()
                return time_ns(run, device, settings["call_limit_s"])
            except TORCH_RAISES as error:
                refused = refused or _first_sentence(error)
    raise RebuildError(f"torch refuses it: {refused}")


def _first_sentence(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].partition(". ")[0][:LONGEST]


def _free_bytes(device: str) -> float:
    import torch

    if device != CPU:
        return float(torch.cuda.mem_get_info()[0])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # not on this system
        return float("inf")


if __name__ == "__main__":
    main()
