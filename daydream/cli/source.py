"""Where a trace comes from: what a command line asks to read, and reading it with progress shown."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from daydream.errors import NotApplicableError, TraceError
from daydream.transforms.registry import typed
from daydream.transforms.stages import PARALLEL

if TYPE_CHECKING:
    from typing_extensions import Self

    from daydream.predict.replay import Replay
    from daydream.trace.cached_trace import CacheEntry
    from daydream.trace.trace import Trace

AUTO = "auto"  # `--steps` then says how steps are found, else which are read
LAYOUT = 3  # of what a cache entry holds: goes up with every change of it
BLOCK = 1 << 20
SLOW = (
    "note: the compiled engine is missing or outdated, so simulations take about 10 times as long; "
    "install daydream from its source again, where there is a C compiler"
)
PATIENCE_S = 2.0
EVERY_S = 0.1
BAR = 24
LINES = "DAYDREAM_PROGRESS_LINES"  # a variable that another program sets to read the progress: a line each
LONGEST = 48  # what is said before the bar, so that the line fits a terminal
STYLES = {  # instead of shades that light or dark terminals hardly show
    "bar.back": "dim",
    "bar.complete": "green",
    "bar.finished": "green",
    "bar.pulse": "green",
    "progress.elapsed": "none",
    "progress.percentage": "none",
}
T = TypeVar("T")


@dataclass(frozen=True)
class TraceRequest:
    """Which trace a command is about, and how it is read.

    Args:
        traces: The files or folders, as typed.
        step_marker (REGEX): Annotations that begin a step, if unlike 'step 12' (importing).
        steps (A:B): Use only steps A to B-1 of each rank (':' = all; by default a run of steps that is
            representative of a long recording). 'auto' finds steps by the period of the launches,
            when importing.
        max_unpacked (SIZE): Largest size to unpack to [default: 64 GB and 200 times the file].
        handles (FILE): Debug handles of compiled kernels, or Inductor's mapping (JSON).
        capture (FILE): Recording of the capture of the CUDA or HIP graphs it replays.
        counters (FILE): Hardware counters of the same kernels, from Nsight Compute, rocprof, NVBit,
            AccelProf, Kineto or Luthier (sums; FILE@100-200 for these kernels); repeat for several
            passes.
        cluster (NAME): Machines of a job that was recorded in a fake world (collect --world), or a file.
        no_cache: Read the trace again and store nothing (DAYDREAM_CACHE: where).
    """

    traces: tuple[str, ...] = ()
    step_marker: str | None = None
    steps: str | None = None
    max_unpacked: int | None = None
    handles: str | None = None
    capture: str | None = None
    counters: tuple[str, ...] = ()
    cluster: str | None = None
    no_cache: bool = False

    @property
    def trace(self) -> str:
        """The trace, as typed. Raises a usage error where there is none."""
        if not self.traces:
            raise usage_error("missing argument 'TRACE'")
        return self.traces[0]

    @property
    def each(self) -> list[TraceRequest]:
        """A request for each trace, of several."""
        return [replace(self, traces=(trace,)) for trace in self.traces]

    @property
    def words(self) -> list[str]:
        """What to type to have the same trace read again."""
        names = ("step_marker", "steps", "handles", "capture", "cluster")
        given = typed({name: getattr(self, name) for name in names})
        return [self.trace, *given, *(f"--counters={file}" for file in self.counters)]

    def load(self, progress: Progress, **how: Any) -> Trace:
        """Return the trace as `read` does, on the cluster that was named.

        Raises `NotApplicableError` where a change would divide work that ranks share already.
        """
        from daydream.trace.recorded_steps import shared_already

        trace = self.read(progress, **how)
        change = click.get_current_context().params.get("change")
        divides = change and any(each.stage == PARALLEL for each in change.optimizations)
        if divides and (reason := shared_already(trace)):
            raise NotApplicableError(reason)
        if self.cluster is not None:
            if "fake_world" not in trace.metadata:
                raise usage_error(
                    "--cluster goes with a trace of a fake world (daydream collect --world)"
                )
            trace.metadata["fake_world"]["cluster"] = self.cluster
        return trace

    def read(
        self, progress: Progress, *, keep: bool = True, typical: bool = False, **how: Any
    ) -> Trace:
        """Return the trace, from the user's cache if it is there, which `keep` allows.

        With `typical` it is that of the steps that stand for a long recording, unless the user names some.
        `how` is for `daydream.load`.

        Raises `TraceError` if it is not usable.
        """
        import daydream
        from daydream.arrays import keep_freed_memory
        from daydream.trace.recorded_steps import TYPICAL, is_long

        # These files are of all that was recorded, and what the cache holds is the trace's own content.
        attached = bool(self.handles or self.capture or self.counters)
        typical &= not attached
        if keep:  # a question follows: it makes and drops arrays as long as the trace
            keep_freed_memory()
        if self.step_marker is not None or self.steps == AUTO:
            if self.step_marker is not None and self.steps == AUTO:
                raise usage_error("--step-marker and --steps auto exclude each other")
            from daydream.collect.importers.formats import format_of

            for source in map(Path, self.traces):
                if source.is_file() and format_of(source) == "parquet":
                    raise TraceError(
                        f"{source} is an imported trace, and its steps were found at import.\n"
                        "Give --step-marker or --steps auto to `daydream import` on the profiler's file."
                    )

        def show(name: str, share: float) -> None:
            if share < 1:
                progress(f"reading {name}", share)
            else:
                progress(f"processing {name}")

        progress(f"reading {self.trace}")
        entry = None
        if (
            keep
            and not attached
            and not self.no_cache
            and self.max_unpacked is None
            and len(self.traces) == 1
        ):
            entry = cache_entry(self.trace, self.step_marker, f"{self.steps} {self.cluster}")
        if entry is not None:
            from daydream.trace.cached_trace import cached_trace

            found = cached_trace(entry)
            if found is not None and (typical or "typical_run" not in found.metadata):
                found.file = Path(self.trace).name if Path(self.trace).is_file() else None
                return found
        steps = TYPICAL if typical and self.steps is None else self.steps
        trace = daydream.load(
            *self.traces,
            step_marker=self.step_marker,
            steps=steps,
            progress=show,
            max_unpacked=self.max_unpacked,
            **how,
        )
        if typical and self.steps == AUTO:
            trace = trace.of_steps(TYPICAL)
        # What is kept of a long recording is what answers are made from.
        kept = typical or self.steps not in (None, AUTO) or not is_long(len(trace))
        trace.cache = entry if kept else None
        if attached:
            self._attach(trace)
        return trace

    def replay(
        self, progress: Progress, *, typical: bool = True, table: str | None = None
    ) -> Replay:
        """Return the replay of the trace, of a long one where `typical` of the steps that stand for it.

        `table` is a file of measured times.
        """
        import daydream

        trace = self.load(progress, typical=typical)
        progress(f"replaying {self.trace}")
        return daydream.replay(trace, table=table)

    def ask_rows(self, doing: str, ask: Callable[[Trace], T]) -> T:
        """Return what a question about the trace's rows gives, which needs no replay."""
        with working() as progress:
            trace = self.load(progress, keep=False)
            progress(doing)
            return ask(trace)

    def _attach(self, trace: Trace) -> None:
        """Give compiled and replayed kernels what they came from, and kernels their counters."""
        if self.handles and self.capture:
            raise usage_error("--handles and --capture exclude each other")
        if self.handles:
            from daydream.collect.captures_beside import attach_file

            attach_file(trace, Path(self.handles))
        if self.capture:
            from daydream.collect import load
            from daydream.collect.captures_beside import attach_capture
            from daydream.collect.importers.kineto.blocks import launched_kernels

            file = Path(self.capture)
            most = self.max_unpacked
            capture = load(file, max_unpacked=most)
            attach_capture(
                trace, capture, launched_kernels(file, most) if file.suffix != ".parquet" else {}
            )
        if self.counters:
            from daydream.costs.counters.attaching import attach_counters

            attach_counters(trace, self.counters)


@dataclass(frozen=True)
class Script:
    """A training script that a command runs and records.

    Args:
        target: The script, or the module.
        args: Its arguments.
        module: Run a module, as `python -m` does.
        nproc_per_node: Start N processes (torch.distributed.run): one trace of all ranks.
    """

    target: str
    args: tuple[str, ...] = ()
    module: bool = False
    nproc_per_node: int | None = None

    def check(self) -> None:
        """Raise a usage error if the script is not there."""
        if self.module or Path(self.target).exists():
            return
        hint = ""
        if Path(self.target).name.startswith(("python", "torchrun")):
            hint = " Name the training script alone; --nproc-per-node starts several processes."
        text = f"{self.target!r} is not a file.{hint}"
        raise click.BadParameter(
            text,
            click.get_current_context(),
            param_hint="SCRIPT",
        )

    def record(self, path: Path, recording: Any, **how: Any) -> Any:
        """Run the script and return what was collected; print how it goes and what went wrong.

        Args:
            path: where the trace goes.
            recording: a `Recording`: what is recorded, and with which change.
            **how: as `daydream.collect.launcher.runner.collect` has it.
        """
        from daydream.cli import message
        from daydream.collect.launcher.runner import collect, command_line

        line = command_line(
            self.target, self.args, module=self.module, nproc_per_node=self.nproc_per_node
        )
        done = collect(
            line, path, recording, say=lambda text: click.echo(f"daydream: {text}", err=True), **how
        )
        for problem in done.problems:
            click.echo(message(problem) if done.path is None else f"note: {problem}", err=True)
        return done


def usage_error(text: str) -> click.UsageError:
    """Return a usage error of the command that runs."""
    return click.UsageError(text, click.get_current_context())


# Progress ----------------------------------------------------------------------------------------


class Progress:
    """Call it with what is being done and, where known, the share done; it is shown on a terminal only.

    Used in a `with` statement; the line is gone at its end. With `DAYDREAM_PROGRESS_LINES=1` there are
    lines instead, `progress 0.25 reading t.json`, -1 where the share is not known.
    """

    def __init__(self, stream: TextIO | None = None, *, patience_s: float = PATIENCE_S) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._timer = threading.Timer(patience_s, self._show)
        self._timer.daemon = True
        self._what = ""
        self._share = -1.0
        self._over = threading.Event()
        self._in_lines = os.environ.get(LINES) == "1"
        self._told_s = 0.0

    def __call__(self, what: str, share: float = -1.0) -> None:
        """Say what is being done; a share below 0 is unknown."""
        is_new = what[:LONGEST] != self._what
        self._what = what[:LONGEST]
        self._share = share
        if self._in_lines and (is_new or time.monotonic() - self._told_s > EVERY_S):
            self._told_s = time.monotonic()
            self._stream.write(f"progress {share:.3f} {' '.join(self._what.split())}\n")
            self._stream.flush()

    def __enter__(self) -> Self:
        self._begin_s = time.monotonic()
        if self._stream.isatty():
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._timer.cancel()
        if self._timer.ident is not None:
            self._timer.join()

    def _show(self) -> None:
        from rich import progress  # only now: it takes longer than many an answer
        from rich.theme import Theme

        from daydream.report.text import console

        there = console(self._stream)
        if there.is_dumb_terminal:
            return  # it cannot take a line back
        there.push_theme(Theme(STYLES))
        line = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(BAR),
            progress.TaskProgressColumn(),
            progress.TimeElapsedColumn(),
            console=there,
            transient=True,
            auto_refresh=False,
            get_time=time.monotonic,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        line.add_task(self._what, total=None)
        (task,) = line.tasks
        task.start_time = self._begin_s
        with line:
            there.show_cursor()  # a process that is killed could not bring it back
            while not self._over.is_set():
                known = self._share >= 0
                task.description = self._what
                task.total, task.completed = (1.0, min(self._share, 1.0)) if known else (None, 0.0)
                line.refresh()
                self._over.wait(EVERY_S)


@contextlib.contextmanager
def working() -> Iterator[Progress]:
    """Show progress; what others print meanwhile (a user's own file, a library) goes to stderr.

    After long work a note says where the compiled engine is missing.
    """
    begin = time.monotonic()
    with Progress() as progress, contextlib.redirect_stdout(sys.stderr):
        yield progress
    if time.monotonic() - begin > PATIENCE_S:
        note_missing_engine()


@cache  # once
def note_missing_engine() -> None:
    """Print a note on stderr where the compiled engine is missing or outdated, which nobody asked for."""
    from daydream.compiled import VARIABLE, engine

    if engine() is None and VARIABLE not in os.environ:
        click.echo(SLOW, err=True)


# The cache -----------------------------------------------------------------------------------------


def cache_entry(source: str, step_marker: str | None, steps: str | None) -> CacheEntry | None:
    """Return the entry of a trace file, or a folder of them; None if nothing is to be kept of it.

    The key is a digest of all bytes of the files, so that an answer is never that of other bytes: time and
    size of a file may stay as they were when its content changes. Traces are small compared to the work that
    they cause: a digest takes a second a gigabyte, importing ten, and parquet is a tenth of JSON.
    """
    from daydream.files.cache import cache_folder

    if cache_folder() is None:
        return None

    def key_now() -> str | None:
        return _key(source, [str(step_marker), str(steps)])

    key = key_now()
    if key is None:
        return None
    from daydream.trace.cached_trace import CacheEntry

    return CacheEntry(key, key_now)


def _key(source: str, asked: list[str]) -> str | None:
    import hashlib

    import numpy as np

    import daydream

    digest = hashlib.blake2b(digest_size=24)
    files = [Path(source)]
    try:
        if files[0].is_dir():
            from daydream.collect.importers.formats import trace_files

            files = trace_files(files)
        # which code works here: a checkout that is worked on has one version for many
        folders = [str(Path(__file__).parent.parent)]
        found = []
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.name.endswith((".py", ".so", ".pyd")):
                        about = entry.stat()
                        found.append(f"{entry.path} {about.st_size} {about.st_mtime_ns}")
                    elif entry.is_dir(follow_symlinks=False) and entry.name != "__pycache__":
                        folders.append(entry.path)
        for part in (f"{LAYOUT} {daydream.__version__} {np.__version__}", *asked, *sorted(found)):
            digest.update(part.encode() + b"\0")
        for path in files:
            digest.update(os.fsencode(path.name) + b"\0" + _content(path))
    except (OSError, ValueError):  # reading it tells why; a folder may hold no trace
        return None
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    import hashlib

    digest = hashlib.blake2b()
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    with path.open("rb", buffering=0) as file:
        block = bytearray(BLOCK)
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.digest()
