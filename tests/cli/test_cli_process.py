"""The program as a process: its start, its terminal, how it ends."""

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios

import pytest
from command_line import daydream, process
from shared import EXAMPLES, GPT

from daydream.cli import load_numpy, run_to_its_end

CODE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SETTINGS = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def daydream_on_terminal(*args, folder, columns, lines=50, **environment):
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


def _pieces(terminal):
    try:
        while piece := os.read(terminal, 65536):
            yield piece
    except OSError:  # the other side has closed: so Linux says the end
        return


# The program as a process: its start, its terminal, how it ends


# Closed streams, and signals that end a command: real processes in a shell's hands


pytestmark = pytest.mark.skipif(os.name != "posix", reason="shells and signals as Unix has them")
COMMAND = shlex.join([sys.executable, "-m", "daydream"])


def shell(line, folder):
    return subprocess.run(
        ["/bin/sh", "-c", line], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("closed", [pytest.param("2>&-", marks=pytest.mark.slow), "<&- >&- 2>&-"])
def test_closed_streams_lose_what_is_said_and_nothing_else(closed, folder):
    imported = (folder / "step.parquet").read_bytes()
    done = shell(f"{COMMAND} import step.json.gz --force {closed}", folder)

    assert done.returncode == 0, done.stderr
    assert (folder / "step.parquet").read_bytes() == imported
    assert "Traceback" not in done.stdout
    assert (bool(done.stdout), done.stderr) == (closed == "2>&-", "")


def test_a_failure_behind_closed_streams_still_has_its_code(folder):
    closed = f"{COMMAND} $words >&- 2>&-; echo $?"
    line = f"words='info gone.parquet'; {closed}; words='rank --pairs x gone.parquet'; {closed}"
    assert shell(line, folder).stdout == "1\n2\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
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
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_to_its_end(lambda: signal.raise_signal(signal.SIGHUP) or 3) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_one_that_comes_again_kills():
    code = (
        "import signal, time\n"
        "from daydream import cli as errors\n"
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


# Nothing is imported that a command does not use


PROGRAM = """
import sys
from daydream.cli import main
for words in " ".join(sys.argv[1:]).split(", "):
    try:
        main(words.split())
    except SystemExit as done:
        if done.code:
            sys.exit(done.code)
    print(" ".join(sorted(sys.modules)), file=sys.stderr)
"""
HEAVY = {"torch", "pandas", "networkx", "numba", "rich", "matplotlib", "distributed", "dask"}
LIGHT = {"ctypes", "numpy", "pyarrow", "msgspec", "daydream.predict.prediction", "daydream.trace.trace"}


def modules_after(*args, folder, cache="off"):
    """Return the modules that are loaded after each of some commands."""
    done = process(*args, folder=folder, command=("-c", PROGRAM), DAYDREAM_CACHE=cache)
    assert done.code == 0, done.err
    return [{*line.split()} for line in done.err.splitlines() if " numbers " in line or " os " in line]


def test_commands_import_no_more_than_they_use(folder):
    questions = (f"whatif amp {EXAMPLES / name}" for name in ("train_gpt_h200.parquet", GPT.name))
    shown, *others, loaded = modules_after(
        f"--help, {', '.join(questions)}, "
        "whatif amp -o o.json --trace step.parquet, explain --trace step.parquet, "
        "rank --trace step.parquet, "
        "compare step.parquet step.parquet, import step.json.gz -o new.parquet, "
        "sweep scale --set factor=0.5 --on gpu --trace step.parquet, "
        "scaling --gradient-mb 10 --workers 1 --bandwidth 10 --trace step.parquet",
        folder=folder,
    )

    assert not shown & (LIGHT | HEAVY)
    for most, after in zip((110, 131), others, strict=False):
        ours = {name for name in after if name.split(".")[0] in {"daydream", "optimizations"}}
        assert len(ours) <= most, sorted(ours)
    assert {"numpy", "pyarrow.parquet"} <= loaded
    assert not loaded & {"daydream.report.page", *HEAVY}


def test_a_kept_answer_reads_no_parquet_and_builds_no_graph(folder, tmp_path):
    kept = str(tmp_path / "kept")
    daydream("replay --trace step.parquet", folder=folder, DAYDREAM_CACHE=kept)
    (second,) = modules_after("replay --trace step.parquet", folder=folder, cache=kept)

    building = {"pyarrow", "daydream.graph.build", "daydream.trace.trace_file"}
    unused = {
        "difflib", "daydream.costs.resize.growth", "daydream.predict.suggest", "daydream.memory.lifetimes",
        "daydream.memory.narrow", "daydream.report.views.ranking",
    }  # fmt: skip
    assert not second & (building | unused | HEAVY)
    assert "csv" not in second  # the peaks of a GPU


def test_numpy_is_loaded_without_threads_and_leaves_the_environment_as_it_was(folder, monkeypatch):
    program = (
        "import os; from daydream.cli import load_numpy; load_numpy(); import numpy\n"
        "print(len(os.listdir('/proc/self/task') if os.path.isdir('/proc/self/task') else [0]))\n"
        "print([name for name in os.environ if name.endswith('_NUM_THREADS')])"
    )
    for name in [name for name in os.environ if name.endswith("_NUM_THREADS")]:
        monkeypatch.delenv(name)

    assert process(folder=folder, command=("-c", program)).out == "1\n[]\n"
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    load_numpy()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"


# What the commands show on a terminal, and what they write where there is none


WHATIF = ["whatif", "scale", "--on", "gpu", "--factor", "0.5", "--trace", "step.parquet"]
GREEN, RED, BOLD = "\x1b[32m", "\x1b[31m", "\x1b[1m"


@pytest.fixture
def on_terminal(folder):
    return lambda *args, columns=96, **environment: daydream_on_terminal(
        *args, folder=folder, columns=columns, **environment
    )


def test_a_terminal_gets_lines_that_fit_and_colours_for_better_and_worse(on_terminal, ask):
    shown = on_terminal(*WHATIF, columns=80)

    assert 80 - 24 < max(map(len, CODE.sub("", shown).splitlines())) <= 80
    headline = shown.splitlines()[0]
    assert f" ms per step, {GREEN}1.68x\x1b[0m (90% interval " in headline, headline
    assert f"{BOLD}  what a step waits for " in shown
    changes = [line for line in shown.splitlines() if line.startswith("    ") and "\x1b[3" in line]
    assert changes
    assert {RED in line for line in changes} == {"+" in line for line in changes}


@pytest.mark.parametrize("columns", ["60", "200"])
def test_what_is_piped_does_not_depend_on_the_terminal(ask, columns):
    plain = ask(*WHATIF, COLUMNS=columns, FORCE_COLOR="1", TERM="xterm-256color").out

    assert "\x1b" not in plain
    assert plain == ask(*WHATIF).out
