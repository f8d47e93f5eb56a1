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
from typing import TYPE_CHECKING, Any

import anyio

from daydream.errors import DaydreamError
from daydream.lazy import regex

if TYPE_CHECKING:
    from anyio.abc import Process

PROGRESS = (
    "DAYDREAM_PROGRESS_LINES"  # `daydream.cli.progress` then says in lines what is being done
)
PROGRESS_LINE = regex(r"progress (-?\d+(?:\.\d+)?) (.+)")
LARGEST_ANSWER = 256 << 20  # bytes; the JSON of a trace of many layers has a few MB
LARGEST_LINE = 1 << 16
KEPT_LINES = 40  # of what was said on stderr
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
    code = START.format(path=path, words=list(words))
    process = await anyio.open_process(
        [sys.executable, "-c", code],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, PROGRESS: "1"},
    )
    answer, said = bytearray(), list[str]()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_read_errors, process.stderr, said, tell)
            group.start_soon(_read_answer, process, answer)
        await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
    if len(answer) > LARGEST_ANSWER:
        raise DaydreamError(f"the answer is larger than {LARGEST_ANSWER >> 20} MiB")
    try:
        found = json.loads(answer)
    except ValueError:
        raise DaydreamError(
            _error_in(said) or f"no answer: exit code {process.returncode}"
        ) from None
    if not isinstance(found, dict):
        raise DaydreamError("no answer: the command printed something else than one object")
    return found


async def _read_answer(process: Any, into: bytearray) -> None:
    """Read the answer; end the process where it is larger than it may be."""
    async for chunk in process.stdout:
        into += chunk
        if len(into) > LARGEST_ANSWER:
            process.kill()
            break


async def _read_errors(stream: Any, said: list[str], tell: Tell) -> None:
    """Pass progress on and keep the last of the other lines."""
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-LARGEST_LINE:]
        for line in (each.decode(errors="replace") for each in lines):
            if progress := PROGRESS_LINE.fullmatch(line):
                await tell(progress[2], float(progress[1]))
            else:
                said.append(line)
        del said[:-KEPT_LINES]


def _error_in(said: Sequence[str]) -> str | None:
    """Return the last message that begins with `error:`, without the advice to look at `--help`."""
    begins = [place for place, line in enumerate(said) if line.startswith("error: ")]
    if not begins:
        return None
    first, *others = said[begins[-1] :]
    lines = [
        first.removeprefix("error: "),
        *(each.strip() for each in others if each.startswith("  ")),
    ]
    return "\n".join(line for line in lines if not line.startswith("Try '"))


async def _end(process: Process) -> None:
    """End a process and all that it started, if it runs still: first as a terminal would, then for good."""
    if process.returncode is None:
        _signal(process, signal.SIGTERM)
        with anyio.move_on_after(GRACE_S):
            await process.wait()
    if hasattr(os, "killpg"):
        _signal(process, signal.SIGKILL)  # what it started may not have ended with it
    elif process.returncode is None:
        process.kill()
    await process.aclose()


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(
        ProcessLookupError, PermissionError
    ):  # it has ended, and nobody is left in its group
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
