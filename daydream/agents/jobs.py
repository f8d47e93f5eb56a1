"""A question of the command line, asked in a process of its own that ends with the one who asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from daydream.errors import DaydreamError
from daydream.lazy import regex

PROGRESS = "DAYDREAM_PROGRESS_LINES"  # `daydream.cli.progress` then prints progress as lines
PROGRESS_LINE = regex(r"progress (-?\d+(?:\.\d+)?) (.+)")
LARGEST_ANSWER = 256 << 20  # bytes; the JSON of a trace of many layers has a few MB
LARGEST_LINE = 1 << 16
KEPT_LINES = 40  # of what was printed on stderr
GRACE_S = 1.5  # from the request to end to the end of a process that does not

# Modules are looked for where this process finds them, not in the current folder, which is the agent's. Of a
# server that is killed no question outlives it: Linux can promise that.
START = """
import sys
sys.path[:] = {path!r}
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 15)
from daydream.cli import main
main({words!r})
"""

Tell = Callable[[str, float], Awaitable[None]]


async def ask(words: Sequence[str], *, folder: Path, tell: Tell) -> dict[str, Any]:
    """Return what `daydream WORDS` prints, which `--json` is among, run in this folder.

    The process and all that it started is ended when the caller is cancelled.

    Args:
        words: the command and its options.
        folder: where it runs.
        tell: called with what is being done and the share done, below 0 where that is unknown.

    Raises:
        DaydreamError: there is no answer; the message is what the command said.
    """
    path = [each for each in sys.path if each not in {"", "."}]
    process: Any = await anyio.open_process(
        [sys.executable, "-c", START.format(path=path, words=list(words))],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, PROGRESS: "1"},
    )
    answer, errors = bytearray(), list[str]()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_read_errors, process.stderr, errors, tell)
            async for chunk in process.stdout:
                answer += chunk
                if len(answer) > LARGEST_ANSWER:
                    process.kill()
                    break
        await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    if len(answer) > LARGEST_ANSWER:
        raise DaydreamError(f"the answer is larger than {LARGEST_ANSWER >> 20} MiB")
    try:
        found: dict[str, Any] = json.loads(answer)
    except ValueError:
        reason = _error_in(errors) or f"no answer: exit code {process.returncode}"
        raise DaydreamError(reason) from None
    return found


async def _read_errors(stream: Any, kept: list[str], tell: Tell) -> None:
    """Pass progress on and keep the last of the other lines."""
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-LARGEST_LINE:]
        for line in (each.decode(errors="replace") for each in lines):
            if progress := PROGRESS_LINE.fullmatch(line):
                await tell(progress[2], float(progress[1]))
            else:
                kept.append(line)
        del kept[:-KEPT_LINES]


def _error_in(lines: Sequence[str]) -> str:
    """Return the last message that begins with `error:`, without the advice to look at `--help`."""
    found: list[str] = []
    for line in lines:
        if line.startswith("error: "):
            found = [line.removeprefix("error: ")]
        elif found and line.startswith("  "):
            found.append(line.strip())
    return "\n".join(found)


async def _end(process: Any) -> None:
    """End a process and all that it started: first as a terminal would, then for good."""
    if process.returncode is None:
        _signal(process, "SIGTERM")
        with anyio.move_on_after(GRACE_S):
            await process.wait()
    _signal(process, "SIGKILL")  # what it started may not have ended with it
    await process.aclose()


def _signal(process: Any, name: str) -> None:
    with suppress(ProcessLookupError, PermissionError):  # nobody is left in its group
        if hasattr(os, "killpg"):
            os.killpg(process.pid, getattr(signal, name))
        else:
            process.kill()
