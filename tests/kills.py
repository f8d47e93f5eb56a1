"""Kill commands at any moment, and let some race; print the counts. From the root of the repository:

    python -m tests.kills --kills 500 --rounds 1000

Exit code 1 if a file was damaged, something was left behind, or not exactly one writer succeeded.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # pytest has this folder on its path

from machine.programs import PROGRAMS

# -- commands as forks of this process, which has imported what they need ------------------------------

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
    from daydream.report import page

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


# -- kills ------------------------------------------------------------------------------------------

SAID_EVERY = 50

TRAIN = """
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
"""


@dataclass(frozen=True)
class Command:
    """A command that writes `output`, and one that writes it again; `whole` tells a whole file.

    `begun` names, relative to the folder, what is there once it writes. It takes about `took_s`, and writes
    for about `writes_s`.
    """

    name: str
    arguments: tuple[str, ...]
    again: tuple[str, ...]
    again_code: int
    output: str
    begun: str
    took_s: float
    writes_s: float
    whole: Callable[[Path], bool]


@dataclass
class Counts:
    """How many commands were killed, how many of them had begun to write, and what went wrong."""

    killed: Counter[str] = field(default_factory=Counter)
    writing: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    damaged: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def lines(self):
        """Return the counts as they are printed."""
        rows = [
            f"{name:<8} {self.killed[name]:>4} killed, {self.writing[name]:>4} of them with something begun, "
            f"{self.done[name]:>4} with the file in its place"
            for name in self.killed
        ]
        total = (
            f"{sum(self.killed.values())} kills: {len(self.damaged)} damaged, {len(self.left)} left behind"
        )
        return [*rows, *self.damaged, *self.left, total]


def commands(folder, *, torch):
    """Return the commands, for a folder that holds `step.json.gz` and gets what else they need."""
    (folder / "tmp").mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "idle.py").write_text("")
    wanted = {
        "import": ("new.parquet", ("import", "step.json.gz", "-o", "new.parquet")),
        "html": ("new.html", ("replay", "--trace", "step.json.gz", "--no-ranking", "--html", "new.html")),
        "sweep": (
            "new.csv",
            ("sweep", "scale", "--set", "factor=0.5,2", "--trace", "step.json.gz", "-o", "new.csv"),
        ),
    }
    found = []
    for name, (output, arguments) in wanted.items():
        took_s, expected = whole_run(arguments, folder, output)

        def same(path, expected=expected):
            return path.read_bytes() == expected

        again = (*arguments, "--force")
        found.append(Command(name, arguments, again, 0, output, f".{output}.*", took_s, 0.02 * took_s, same))
    if torch:
        collect = ("collect", "--steps", "1", "--warmup", "1", "-o", "run.parquet")
        again = (*collect, "--force", "idle.py")
        begun, training = "tmp/*/[0-9]*/", (*collect, "train.py")
        took_s, _ = whole_run(training, folder, "run.parquet")
        writes_s = 0.8 * took_s  # it has begun when torch is there
        found.append(
            Command("collect", training, again, 1, "run.parquet", begun, took_s, writes_s, can_be_read)
        )
    return found


def whole_run(arguments, folder, output):
    """Return how long a command takes that nobody kills, and what it writes."""
    begin = time.monotonic()
    if end(start(arguments, folder)):
        raise RuntimeError(f"{arguments[0]} fails: {(folder / 'said').read_text()}")
    took_s, content = time.monotonic() - begin, (folder / output).read_bytes()
    (folder / output).unlink()
    return took_s, content


def can_be_read(path):
    """Return whether this is a whole trace; no two recordings are the same."""
    from daydream.trace.trace import Trace

    return len(Trace.load(path)) > 0


def kill_one(command, folder, dice, counts):
    """Kill a command at any time or while it writes, alone or with all it started; then run it again."""
    at_any_time = dice.random() < 0.4
    with_all = dice.random() < 0.5
    before = names(folder)
    child = start(command.arguments, folder)
    if at_any_time:
        time.sleep(dice.uniform(0, command.took_s))
    else:
        while not any(folder.glob(command.begun)) and not is_over(child):
            time.sleep(0.0005)
        time.sleep(dice.uniform(0, command.writes_s))
    if with_all:
        kill_group(child)
    else:
        os.kill(child, signal.SIGKILL)
    if end(child) != -signal.SIGKILL:
        (folder / command.output).unlink(missing_ok=True)
        return  # it was faster
    counts.killed[command.name] += 1
    hidden = [name for name in (*names(folder), *names(folder / "tmp")) if name.endswith(".daydream")]
    counts.writing[command.name] += bool(hidden)
    target = folder / command.output
    if target.exists():
        counts.done[command.name] += 1
        if not command.whole(target):
            counts.damaged.append(f"{command.name}: {command.output} of {target.stat().st_size} bytes")
    code = end(start(command.again, folder))
    kill_group(child)  # a script that went on
    if code != command.again_code:
        counts.damaged.append(f"{command.name}: the next run ended with {code}")
    if command.again_code == 0 and not command.whole(target):
        counts.damaged.append(f"{command.name}: the next run wrote another {command.output}")
    after = names(folder) - before - {command.output, "said"}
    # Torch keeps what it compiled among the temporary files, too.
    left = [*after, *(name for name in names(folder / "tmp") if name.startswith("daydream"))]
    counts.left.extend(f"{command.name}: {name}" for name in left)
    target.unlink(missing_ok=True)


def kill_many(number, folder, say, *, seed, torch):
    """Kill so many commands, each kind in turn, and return what came of it; `say` gets it now and then."""
    dice, counts, said = random.Random(seed), Counts(), 0
    every = commands(folder, torch=torch)
    while sum(counts.killed.values()) < number:
        fewest = min(every, key=lambda each: counts.killed[each.name] * each.took_s**0.5)  # more of the quick
        kill_one(fewest, folder, dice, counts)
        if (so_far := sum(counts.killed.values())) > said and so_far % SAID_EVERY == 0:
            said = so_far
            say(counts.lines()[-1])
    return counts


# -- several writers of one file at once, without `--force` ----------------------------------------------

WRITERS = 3
REFUSED = 1


def race(rounds, folder):
    """Let three imports write one file, so many times, and return what was wrong."""
    arguments = ("import", "step.json.gz", "-o", "won.parquet")
    target, wrong = folder / "won.parquet", []
    if end(start(arguments, folder)):
        raise RuntimeError(f"import fails: {(folder / 'said').read_text()}")
    expected = target.read_bytes()
    before = names(folder)
    for number in range(rounds):
        target.unlink()
        reading, writing = os.pipe()

        def wait(reading=reading, writing=writing):
            os.close(writing)
            os.read(reading, 1)  # all begin when the pipe is closed

        writers = [start(arguments, folder, wait) for _ in range(WRITERS)]
        os.close(reading)
        os.close(writing)
        codes = sorted(end(each) for each in writers)
        if codes != [0, *[REFUSED] * (WRITERS - 1)]:
            wrong.append(f"round {number}: exit codes {codes}")
        if target.read_bytes() != expected:
            wrong.append(f"round {number}: another file")
        if names(folder) != before or names(folder / "tmp"):
            wrong.append(f"round {number}: something was left behind")
    return wrong


# -- the command line -----------------------------------------------------------------------------------


def main():
    """Run what is asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    os.environ["DAYDREAM_CACHE"] = "off"  # not the user's own
    load()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    try:
        return run(asked.kills, asked.rounds, asked.seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(kills, rounds, seed, folder):
    """Return the exit code of so many kills and rounds."""
    wrong = 0
    for name in ("killed", "raced"):
        (folder / name).mkdir()
        PROGRAMS["synchronizing"]().run(steps=30).write(folder / name / "step.json.gz", 24, 27)
    if kills:
        torch = importlib.util.find_spec("torch") is not None
        counts = kill_many(kills, folder / "killed", say, seed=seed, torch=torch)
        say(*counts.lines())
        wrong += len(counts.damaged) + len(counts.left)
    if rounds:
        (folder / "raced" / "tmp").mkdir()
        failed = race(rounds, folder / "raced")
        say(*failed, f"{rounds} rounds of three writers: exactly one succeeded in {rounds - len(failed)}")
        wrong += len(failed)
    return int(wrong > 0)


def say(*lines):
    """Print lines at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


sys.exit(main())
