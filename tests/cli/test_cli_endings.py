"""Closed streams, and signals that end a command: real processes in a shell's hands."""

import os
import shlex
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells and signals as Unix has them")
COMMAND = shlex.join([sys.executable, "-m", "daydream"])


def shell(line, folder):
    return subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lose_what_is_said_and_nothing_else(closed, folder):
    imported = (folder / "step.parquet").read_bytes()
    done = shell(f"{COMMAND} import step.json.gz --force {closed}", folder)

    assert done.returncode == 0, done.stderr
    assert (folder / "step.parquet").read_bytes() == imported
    assert "Traceback" not in done.stdout + done.stderr
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    assert bool(done.stderr) == ("2>&-" not in closed)


def test_a_failure_behind_closed_streams_still_has_its_code(folder):
    assert shell(f"{COMMAND} info gone.parquet 2>&-", folder).returncode == 1
    assert shell(f"{COMMAND} info --trace 2>&- >&-", folder).returncode == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_command_that_cleans_up(number, folder):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] != []
    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert process.returncode == 128 + number
    assert err.strip() == b""
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


# The command line as it is, but its writing of a trace never ends.
WRITING = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import daydream.files.atomic
from daydream.cli import main
real = daydream.files.atomic.write_whole
def slow(path, write, force):
    def forever(temporary):
        write(temporary)
        print("writing", flush=True, file=sys.__stdout__)
        time.sleep(60)
    real(path, forever, force=force)
daydream.files.atomic.write_whole = slow
main(["import", "step.json.gz", "-o", "new.parquet"])
"""


def test_a_signal_that_was_to_be_ignored_is():
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from daydream.cli.errors import run_to_its_end\n"
        "def command():\n"
        "    signal.raise_signal(signal.SIGHUP)\n"
        "    return 3\n"
        "raise SystemExit(run_to_its_end(command))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 3


def test_one_that_comes_again_kills():
    code = (
        "import signal, time\n"
        "from daydream.cli import errors\n"
        "errors.AGAIN_S = 0.0\n"
        "def command():\n"
        "    try:\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "    except KeyboardInterrupt:\n"
        "        time.sleep(0.01)\n"
        "        signal.raise_signal(signal.SIGTERM)\n"
        "raise SystemExit(errors.run_to_its_end(command))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -signal.SIGTERM
