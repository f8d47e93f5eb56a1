"""Commands of daydream as forks of this process, which has imported what they need: many a second."""

import contextlib
import os
import signal
import sys
import tempfile
import time

BROKEN = 70  # exit code of a fork that failed in what is not the command's
LATE_S = 120.0


def load():
    """Import what the commands import, so that a fork is at work at once."""
    import pyarrow.csv
    import pyarrow.parquet

    import daydream
    from daydream.cli import KNOWN, collect, output, source, sweep, whatif
    from daydream.collect.importers.kineto import reader
    from daydream.collect.launcher import runner
    from daydream.report.html import page

    loaded = (
        pyarrow, daydream, KNOWN, collect, output, source, sweep, whatif,
        runner, reader, page,
    )  # fmt: skip
    assert all(loaded)


def start(arguments, folder, wait=lambda: None):
    """Return the process id of a command in a folder, whose `tmp` it uses; `wait` runs before it.

    It leads a group of its own, has no terminal, and what it says goes to `said`.
    """
    child = os.fork()
    if child:
        return child
    code = BROKEN
    try:
        os.setsid()
        os.chdir(folder)
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, stream in enumerate((nothing, said, said)):
            os.dup2(stream, number)
        os.environ["TMPDIR"], tempfile.tempdir = str(folder / "tmp"), None
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from daydream.cli import main

        wait()
        try:
            main(list(arguments))
        except SystemExit as error:
            code = int(error.code or 0)
        sys.stdout.flush()
    finally:
        os._exit(code)


def end(child):
    """Return a command's exit code, negative for the signal that ended it. Raises where it never ends."""
    until = time.monotonic() + LATE_S
    while time.monotonic() < until:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    kill_group(child)
    raise TimeoutError(f"a command ran for {LATE_S:.0f} s")


def is_over(child):
    """Return whether a command has ended; `end` still tells how."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_group(leader):
    """Kill a command and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def names(folder):
    """Return the names in a folder."""
    return {path.name for path in folder.iterdir()}
