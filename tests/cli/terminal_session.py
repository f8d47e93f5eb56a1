"""A command line run on a terminal of its own."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SETTINGS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def daydream_on_terminal(*args: str, folder: Path, columns: int, lines: int = 50, **environment: str) -> str:
    """Return what a terminal gets from stdout and nothing else; stderr goes nowhere."""
    inherited = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-m", "daydream", *args], cwd=folder, stdin=theirs, stdout=theirs,
        stderr=subprocess.DEVNULL, env={**inherited, "TERM": "xterm-256color", **environment},
    ) as process:  # fmt: skip
        os.close(theirs)
        written = b"".join(_pieces(ours))
    os.close(ours)
    assert process.returncode == 0
    return written.decode().replace("\r\n", "\n")


def _pieces(terminal: int):
    try:
        while piece := os.read(terminal, 65536):
            yield piece
    except OSError:  # the other side has closed: so Linux says the end
        return


def without_codes(text: str) -> str:
    """Return what is to be read, as it would be piped: rich fills lines of a table with spaces."""
    return "\n".join(line.rstrip() for line in CODE.sub("", text).split("\n"))
