"""Run a training script as it is, in processes of its own, and keep the trace that they record.

The script is started as always, with one folder in front of PYTHONPATH whose `sitecustomize`
reaches every Python process below. Nothing is executed on the script's behalf, so `__main__`,
exit codes, signals, launchers and workers are what they are without us. The processes meet in a
temporary folder, away from the script's own files: there they leave their traces, and what they have
to say.

What is said while a step takes long, as first steps do that compile or load: not nothing.

Signals to us go on to the process that we started; it decides what they mean.

What the processes tell us are lines appended to one file. A file and not a pipe, because it reaches through
launchers that close what they do not know. Lines are short, and appending one is a single write, so lines of
several processes do not mix.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from daydream import lazy
from daydream.errors import OutputError
from daydream.files.atomic import own_folder, try_folder_of, write_whole
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

VARIABLE = "DAYDREAM_COLLECT"  # the environment variable that holds the folder
OWNER = "DAYDREAM_COLLECT_OWNER"  # and the one that says which process started this one
SETTINGS = "settings.json"
MESSAGES = "messages"
HELLO = ".hello"
INTERRUPTED_EARLY = "interrupted before a step was captured"


def trace_path(folder: Path, pid: int | str, name: str) -> Path:
    """Return where a process leaves its trace; its file name is the final one, which becomes its source."""
    return folder / str(pid) / name


def changed_path(path: Path) -> Path:
    """Return where the trace of steps with a change stands, beside that of the unchanged ones."""
    return path.with_name(f"{path.stem}.changed{path.suffix}")


def tell(folder: Path, **message: Any) -> bool:
    """Append a message. Returns False if that is not possible, as on a full disk."""
    line = json.dumps({"pid": os.getpid(), **message}) + "\n"
    try:
        with open(folder / MESSAGES, "ab", buffering=0) as file:
            return file.write(line.encode()) == len(line)
    except OSError:
        return False


def messages(folder: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the messages of a folder as they come in, and None where there is none as yet; without an end."""
    left = b""
    read = 0
    while True:
        with contextlib.suppress(FileNotFoundError), (folder / MESSAGES).open("rb") as file:
            file.seek(read)
            left += file.read()
            read = file.tell()
        *lines, left = left.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:  # cut off when the disk was full
                continue
            if isinstance(message, dict):
                yield message
        yield None


FIRST_S = 10.0  # of silence; then after twice as long, and so on
BEFORE = "waiting for training steps"
WARMING_UP = re.compile(r"warming up: step (\d+)")


class LongSteps:
    """Says how long the step that runs has taken. It hears what the recorded process tells."""

    def __init__(
        self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._clock = clock
        self._step = ""  # the one that runs; empty where no step is waited for
        self._compiling = False
        self._begin = 0.0
        self._next_s = FIRST_S

    def heard(self, text: str) -> None:
        """Take in the progress that a process tells, at the end of each step."""
        self._step = "the step that is captured" if text.startswith("capturing") else ""
        if text == BEFORE:
            self._step = BEFORE
        elif warming_up := WARMING_UP.match(text):
            self._step = f"step {int(warming_up.group(1)) + 1}"
        self._restart()

    def compiles(self, on: bool) -> None:  # noqa: FBT001 - a switch
        """Take in that the process begins to compile, or has done so. The first time that begins step 1."""
        self._compiling = on
        if on and self._step == BEFORE:
            self._step = "step 1"
            self._restart()

    def look(self) -> None:
        """Say how long it has taken, if it is time to."""
        took = self._clock() - self._begin
        if not self._step or took < self._next_s:
            return
        while took >= self._next_s:
            self._next_s *= 2
        if self._step == BEFORE:
            self._say(f"no training step yet after {took:.0f} s")
        else:
            compiling = "compiling: " if self._compiling else ""
            self._say(f"{compiling}{self._step} has taken {took:.0f} s")

    def _restart(self) -> None:
        self._begin = self._clock()
        self._next_s = FIRST_S


PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
FROM_THE_KEYBOARD = ("SIGINT", "SIGQUIT")  # Ctrl-C, Ctrl-\


@contextlib.contextmanager
def passing_on(came: list[int]) -> Iterator[Callable[[subprocess.Popen[Any]], None]]:
    """Pass signals on to the child that the yielded function is called with, and outlive them.

    They are added to `came`. A terminal sends Ctrl-C to its whole foreground group, child included;
    passing that on would interrupt the child's own cleaning up a second time.
    """
    children: list[subprocess.Popen[Any]] = []

    def arrived(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        for child in children:
            pass_on(child, number)

    def pass_on(child: subprocess.Popen[Any], number: int) -> None:
        if signal.Signals(number).name not in FROM_THE_KEYBOARD or not _in_the_foreground():
            child.send_signal(number)

    def started(child: subprocess.Popen[Any]) -> None:
        children.append(child)
        for number in came[:]:  # that came before
            pass_on(child, number)

    before = {}
    if threading.current_thread() is threading.main_thread():  # Python lets no other thread do this
        for name in PASSED_ON:
            number = getattr(signal, name, None)
            # What we were started to ignore (nohup), the child ignores as well.
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, arrived)
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_the_foreground() -> bool:
    with contextlib.suppress(OSError), open("/dev/tty", "rb", buffering=0) as terminal:
        return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    return False


INJECT = Path(__file__).with_name("inject")
WAITING = "waiting for"  # how progress begins in a process that has not trained yet
TRAINS_ON = (
    "the script trains on without the change; the result comes when it ends (or give --stop-after)"
)
LOOK_EVERY_S = 0.25
FEW, LOOK_AGAIN_S = 6, 5.0  # lines of a count that are all shown; seconds between the others
SILENT_S = 10.0  # an interpreter starts in well under a second, on a slow network disk in a few

Say = Callable[[str], None]


@dataclass(frozen=True)
class Recording:
    """What to record: steps to capture, after how many others, and whether the script then ends.

    `change` (names, options, rounds, steps of a block) is then made for real, in turns with
    unchanged steps. `with_stack` records which function of the script called what, `memory` its allocations
    and frees. `fake_world` is the world in which it runs as one rank: `world_size`, `rank`, `cluster`;
    `emulated` what is emulated: `device`, and `cpu` as `daydream.world.cpu` has it.
    """

    steps: int = 3
    warmup: int = 5
    stop_after: bool = False
    change: dict[str, Any] | None = None
    with_stack: bool = False
    memory: bool = True
    fake_world: dict[str, Any] | None = None
    emulated: dict[str, Any] | None = None


@dataclass
class Collected:
    """What came of it: the script's exit code, the trace if there is one, and what went wrong.

    `changed` is the trace of the steps with a change, where one was made and they were recorded.
    """

    exit_code: int
    path: Path | None = None
    changed: Path | None = None
    problems: list[str] = field(default_factory=list)


def command_line(
    target: str, args: Sequence[str], *, module: bool, nproc_per_node: int | None = None
) -> list[str]:
    """Return how Python runs this script or module, under torch's launcher where processes are asked for."""
    launcher = []
    if nproc_per_node is not None:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(nproc_per_node)]
    return [sys.executable, *launcher, *(["-m"] if module else []), target, *args]


def collect(
    command: Sequence[str],
    output: Path,
    recording: Recording,
    *,
    force: bool = False,
    say: Say = lambda _: None,
    own_stdout: bool = False,
    kept: bool = True,
) -> Collected:
    """Run a command to its end and save the trace of its training steps.

    `say` gets a line for every stage. With `own_stdout` the command's output goes to
    stderr. The name of a trace that is not `kept` is not told. Raises `OutputError` before anything is
    run if the trace could not be written.
    """
    try_folder_of(output)
    with own_folder("daydream-collect") as folder:
        (folder / SETTINGS).write_text(json.dumps({"name": output.name, **vars(recording)}))
        run = _Run(folder, output, recording, force=force, say=say, kept=kept)
        code = run.follow(command, own_stdout=own_stdout)
        return run.result(code)


class _Run:
    """A running command, as seen from outside."""

    def __init__(
        self, folder: Path, output: Path, recording: Recording, *, force: bool, say: Say, kept: bool
    ) -> None:
        self._folder = folder
        self._output = output
        self._force = force
        self._say = say
        self._kept = kept
        world = recording.fake_world
        self._world = lazy.ask("environment", world) if world else {}
        self._result_waits = recording.change is not None and not recording.stop_after
        self._messages = messages(folder)
        self._root = 0  # the process that we started
        self._speaker: int | None = None  # the process whose progress is shown
        self._said = ""
        self._alike = 0
        self._said_at = 0.0
        self._long_steps = LongSteps(say)
        self._began: set[int] = set()
        self._moved: set[int] = set()  # processes that came further than the start
        self._ended: dict[int, dict[str, Any]] = {}
        self._saved: Path | None = None
        self._kept_once = False  # or that was tried
        self._problems: list[str] = []
        self._signals: list[int] = []  # that came to us

    def follow(self, command: Sequence[str], *, own_stdout: bool) -> int:
        """Run the command to its end and show what it does. Returns its exit code as a shell sees it."""
        path = [str(INJECT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            **self._world,
            VARIABLE: str(self._folder),
            "PYTHONPATH": os.pathsep.join(path),
        }
        sys.stdout.flush()
        sys.stderr.flush()
        begin = time.monotonic()
        warned = False
        with passing_on(self._signals) as started:
            child = subprocess.Popen(command, env=environment, stdout=2 if own_stdout else None)  # noqa: S603
            started(child)
            self._root = child.pid
            over = threading.Event()

            def wait() -> None:
                child.wait()
                over.set()

            threading.Thread(target=wait, daemon=True).start()
            while not over.wait(LOOK_EVERY_S):
                self._look()
                self._long_steps.look()
                if (
                    not warned
                    and time.monotonic() - begin > SILENT_S
                    and not any(self._folder.glob(f"*{HELLO}"))
                ):
                    warned = True
                    self._say(
                        "nothing heard from the script's interpreter yet; is it isolated (-I, -E, -S)?"
                    )
        self._look()
        return child.returncode if child.returncode >= 0 else 128 - child.returncode

    def _look(self) -> None:
        while (message := next(self._messages)) is not None:
            pid = message["pid"]
            if message["what"] == "began":
                self._began.add(pid)
                if self._speaker is None:
                    self._show(f"{WAITING} training steps")
            elif message["what"] == "compiling":
                if self._speaker in {None, pid}:
                    self._long_steps.compiles(bool(message["on"]))
            elif message["what"] == "progress":
                if not message["text"].startswith(WAITING):
                    self._moved.add(pid)
                    self._speaker = self._speaker or pid
                if self._speaker in {None, pid}:
                    self._long_steps.heard(message["text"])
                    self._show(message["text"])
            else:
                self._ended[pid] = message
        own = trace_path(self._folder, self._root, self._output.name)
        if self._saved is None and not self._kept_once and own.exists():
            self._kept_once = True
            # Kept at once: the script may train for days, and be killed in the end.
            # Where it cannot be, as on a full disk, that is tried and told again at the end.
            with contextlib.suppress(OutputError):
                self._keep(own)
                self._show(f"captured, wrote {self._saved}" if self._kept else "captured")
        elif self._saved is not None and self._result_waits and not self._ended:
            self._result_waits = False
            self._show(TRAINS_ON)

    def _show(self, text: str) -> None:
        """Say what is new; of a long count the first lines, and then one now and then."""
        if text == self._said:
            return
        alike = re.sub(r"\d+", "0", text) == re.sub(r"\d+", "0", self._said)
        self._said = text
        self._alike = self._alike + 1 if alike else 0
        now = time.monotonic()
        if self._alike < FEW or now - self._said_at > LOOK_AGAIN_S:
            self._said_at = now
            self._say(text)

    def result(self, code: int) -> Collected:
        """Return what came of it, after merging the ranks' traces."""
        if self._saved is None and (traces := self._traces(self._output.name)):
            self._merge(traces)
        failed = self._failures()
        if self._saved is None and not self._folder.exists():
            failed = [_removed(self._folder)]
        elif self._saved is None and self._interrupted(code):
            # Those that were killed meanwhile have nothing else to say.
            failed = [text for text in failed if INTERRUPTED_EARLY in text][:1] or [
                INTERRUPTED_EARLY + "."
            ]
        elif self._saved is None and not failed:
            failed = [self._why_nothing()]
        return Collected(code, self._saved, self._changed(), [*self._problems, *failed])

    def _traces(self, name: str) -> dict[int, Path]:
        """Return the traces of this name that processes left, by process."""
        found = (path for path in self._folder.glob("[0-9]*/*") if path.name == name)
        return {int(path.parent.name): path for path in found}

    def _changed(self) -> Path | None:
        """Save the trace of the steps with a change beside the other, if there is one."""
        traces = self._traces(changed_path(self._output).name)
        if self._saved is None or not traces:
            return None
        merged, _ = merge(traces, self._ended, self._root)
        target = changed_path(self._saved)
        write_whole(target, _writing(merged), force=True)
        return target

    def _merge(self, traces: dict[int, Path]) -> None:
        if len(traces) > 1:
            self._show(f"merging the traces of {len(traces)} processes")
        merged, notes = merge(traces, self._ended, self._root)
        self._problems += notes
        self._keep(merged)

    def _keep(self, trace: Path | Trace) -> None:
        target = self._output
        while True:
            try:
                write_whole(target, _writing(trace), force=self._force)
                break
            except OutputError:
                if self._force or not target.exists():
                    raise
            target = _free_name(self._output)
        if target != self._output:
            self._problems.append(
                f"{self._output} appeared while the script ran; the trace is in {target}"
            )
        self._saved = target

    def _failures(self) -> list[str]:
        """Return what processes say that could not save a trace, those that trained first."""
        told = {pid: str(each["failed"]) for pid, each in self._ended.items() if each["failed"]}
        lost = self._moved - set(self._ended)
        trained = {pid: text for pid, text in told.items() if pid in self._moved}
        if self._saved is None:  # with a trace in hand, those that never trained do not matter
            told = trained or told
            if not self._moved and self._root in told:
                told = {self._root: told[self._root]}
        else:
            told = trained
            lost = set()
        texts = list(dict.fromkeys(self._named(pid, text) for pid, text in sorted(told.items())))
        return texts + [_left(pid) for pid in sorted(lost)]

    def _named(self, pid: int, text: str) -> str:
        rank = self._ended[pid].get("rank")
        return text if rank is None or len(self._moved) < 2 else f"rank {rank}: {text}"

    def _interrupted(self, code: int) -> bool:
        """Return whether Ctrl-C ended the script, and no process that trained says otherwise."""
        failed = any(
            each["failed"] and pid in self._moved and INTERRUPTED_EARLY not in str(each["failed"])
            for pid, each in self._ended.items()
        )
        return not failed and (signal.SIGINT in self._signals or code == 128 + signal.SIGINT)

    def _why_nothing(self) -> str:
        if not (self._folder / f"{self._root}{HELLO}").exists():
            return (
                "nothing was heard from the script: its interpreter does not read PYTHONPATH or runs no "
                "sitecustomize.\nThe options -I, -E and -S do that, and so does a disk with no space left.\n"
                "Run the script without them."
            )
        if not self._began:
            return "the script never imported torch, so there was no training step to record."
        return _left(min(self._began))


def _writing(trace: Path | Trace) -> Callable[[str], Any]:
    """Return what makes a file of a trace that is in memory, or already one, perhaps on another disk."""
    if isinstance(trace, Path):
        return lambda temporary: shutil.copyfile(trace, temporary)
    return lambda temporary: trace.save(temporary, force=True)


def _removed(folder: Path) -> str:
    return (
        f"{folder} was removed while the script ran: there its processes leave what they record.\n"
        "Set TMPDIR to a folder that the script leaves alone."
    )


def _left(pid: int) -> str:
    return (
        f"process {pid} ended without saving what it had captured: it was killed, crashed or called "
        "os._exit.\nGive --stop-after, or fewer --warmup and --steps: the trace is then complete before that."
    )


def _free_name(path: Path) -> Path:
    number = 2
    while (free := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    return free


TIMES = "unprofiled_step_ns"


def merge(
    traces: Mapping[int, Path], ended: Mapping[int, Mapping[str, Any]], root: int
) -> tuple[Trace | Path, list[str]]:
    """Return the trace of a run, and sentences about what is missing from it.

    `traces` are files by process id, `ended` what the processes said in the end, `root` the
    process that was started. Ranks of one job become one trace. Processes that trained
    without knowing of each other do not: of them one is kept, the root's if it has one.
    A single file is returned as it is.
    """
    world = max((int(each["world"]) for each in ended.values() if each.get("world")), default=1)
    if len(traces) == 1:
        (path,) = traces.values()
        return path, _missing(world, 1)
    from daydream.trace.trace import Trace

    loaded = {pid: Trace.load(path) for pid, path in sorted(traces.items())}
    for pid, trace in loaded.items():
        rank = ended.get(pid, {}).get("rank")
        if rank is not None:
            trace.metadata["rank"] = rank
    ranks = [trace.metadata.get("rank") for trace in loaded.values()]
    if world == 1 or None in ranks or len(set(ranks)) < len(ranks):
        kept = root if root in traces else min(traces)
        return traces[kept], [
            f"{len(traces)} processes trained independently of each other; the trace is that of {kept}."
        ]
    return joined_ranks([*loaded.values()]), _missing(world, len(traces))


def _missing(world: int, found: int) -> list[str]:
    if found >= world:
        return []
    return [f"The job has {counted(world, 'rank')}; {found} of them ran here and left a trace."]


def joined_ranks(traces: list[Trace]) -> Trace:
    """Return one trace on one clock: that of the rank whose origin is the earliest."""
    import numpy as np

    from daydream.collect.importers import join_ranks
    from daydream.collect.importers.ranks import move
    from daydream.trace.metadata import OF_EACH_RANK

    origin = min(trace.metadata.get("origin_ns", 0) for trace in traces)
    for trace in traces:
        rank = int(trace.metadata["rank"])
        trace.columns["rank"] = np.full(len(trace), rank, np.int32)
        if (memory := trace.memory) is not None:
            trace.memory = memory.changed(rank=np.full(len(memory), rank))
        for step in trace.metadata["steps"]:
            step["rank"] = rank
        move(trace, {rank: trace.metadata.get("origin_ns", 0) - origin})
        trace.metadata["origin_ns"] = origin
    source = traces[0].metadata.get("source")
    joined = join_ranks(traces)
    joined.metadata["source"] = source  # each process named its part after the whole
    ranks = sorted(joined.metadata["ranks"], key=lambda each: each["rank"])
    for name in OF_EACH_RANK:  # the plain name has the lowest rank's
        found = {trace.metadata["rank"]: trace.metadata.get(name) for trace in traces}
        known = {rank: value for rank, value in found.items() if value is not None}
        joined.metadata.pop(name, None)
        if not known:
            continue
        joined.metadata[name] = known[min(known)]
        if (
            name == TIMES or len({str(value) for value in found.values()}) > 1
        ):  # times: of every rank
            for each in ranks:
                if each["rank"] in known:
                    each[name] = known[each["rank"]]
    return joined
