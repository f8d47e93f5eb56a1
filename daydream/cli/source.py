"""Amounts of memory as they are typed: `24GB`, `79.6GiB`, `512MiB`, bytes without a unit.

Where a trace comes from: `--trace`, `--step-marker`, `--steps`, and reading it with progress shown.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from daydream.lazy import regex

if TYPE_CHECKING:
    from daydream.cli.progress import Progress
    from daydream.parallel.engines import Engine
    from daydream.trace.cached_trace import CacheEntry
    from daydream.trace.trace import Trace

UNITS = " KMGT"
SIZE = regex(r"(\d{1,15}(?:\.\d{1,9})?)\s*(?:([KMGT])(i?)B?|B)?", re.IGNORECASE | re.ASCII)


def bytes_of(text: str) -> int:
    """Return how many bytes a text means: 1 GB is 1e9 bytes, 1 GiB is 2**30, and `G` is GB.

    Raises:
        ValueError: it is no amount, or none of at least one byte.

    """
    from decimal import Decimal  # for those who type one

    found = SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size such as 24GB or 79.6GiB")
    unit = (1024 if found[3] else 1000) ** UNITS.index((found[2] or " ").upper())
    nbytes = int(Decimal(found[1]) * unit)
    if nbytes < 1:
        raise ValueError(f"{text!r} is less than one byte; a size such as 24GB was needed")
    return nbytes


def size(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of an option's value: a click callback."""
    if value is None:
        return None
    try:
        return bytes_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def capacity_option() -> click.Option:
    """Return `--capacity`: an int of bytes, or None."""
    return click.Option(
        ["--capacity"],
        metavar="SIZE",
        callback=size,
        help="What each device may give, such as 24GB or 79.6GiB (bytes without a unit): does it fit?",
    )


MAX_UNPACKED = "daydream.max_unpacked"
NO_CACHE = "daydream.no_cache"
AUTO = "auto"  # `--steps` then says how steps are found, else which are read
HANDLES, CAPTURE = "daydream.handles", "daydream.capture"
COUNTERS = "daydream.counters"
T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])


def _regex(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise click.BadParameter(f"{value!r} is not a regular expression ({error})", ctx, param) from None
    return value


def _steps(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value not in (None, AUTO):
        from daydream.trace.step_range import is_range

        if not is_range(value):
            raise click.BadParameter(
                f"{value!r} is not 'auto', nor a range of steps such as 10:20", ctx, param
            )
    return value


def _size(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep a size for `read`: no command does anything else with it."""
    if value is not None:
        ctx.meta[MAX_UNPACKED] = size(ctx, param, value)


def _no_cache(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    """Keep the wish for `read`."""
    ctx.meta[NO_CACHE] = value


def cache_option() -> click.Option:
    """Return `--no-cache`."""
    return click.Option(
        ["--no-cache"],
        is_flag=True,
        callback=_no_cache,
        expose_value=False,
        help="Read and replay the trace again, and keep nothing of it; DAYDREAM_CACHE says where that lies.",
    )


def _keep_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep a file of debug handles for `read`."""
    if value is not None:
        ctx.meta[HANDLES if param.name == "handles" else CAPTURE] = value


def _keep_counters(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:  # noqa: ARG001
    """Keep files of counters for `read`."""
    if value:
        ctx.meta[COUNTERS] = value


def handle_options() -> list[click.Option]:
    """Return `--handles`, `--capture` and `--counters`, which `read` knows."""
    return [
        click.Option(
            ["--handles"],
            metavar="FILE",
            callback=_keep_file,
            expose_value=False,
            help="What compiled kernels came from: a map of debug handles or Inductor's mapping (JSON).",
        ),
        click.Option(
            ["--capture"],
            metavar="FILE",
            callback=_keep_file,
            expose_value=False,
            help="The recording of the capture of the CUDA or HIP graphs that the trace replays.",
        ),
        counters_option(),
    ]


def counters_option() -> click.Option:
    """Return `--counters`, which `read` knows."""
    return click.Option(
        ["--counters"],
        metavar="FILE",
        multiple=True,
        callback=_keep_counters,
        expose_value=False,
        help="What a profiler counted of the same program's kernels: files of Nsight Compute, rocprof, "
        "NVBit, AccelProf, Kineto or Luthier (sums; FILE@100-200 of these kernels); several times for "
        "several passes.",
    )


def step_options() -> list[click.Option]:
    """Return the options that say where steps come from."""
    return [
        click.Option(
            ["--step-marker"],
            metavar="REGEX",
            callback=_regex,
            help="Annotations that begin a step, when importing; those like 'step 12' are found without it.",
        ),
        click.Option(
            ["--steps"],
            metavar="A:B",
            callback=_steps,
            help="Read steps A to B-1 of each rank alone, ':' for all. By default all, but a long recording "
            "is simulated by a run of its steps that stands for all. 'auto' finds steps by the period of the "
            "launches, when importing.",
        ),
        max_unpacked_option(),
    ]


def max_unpacked_option() -> click.Option:
    """Return `--max-unpacked`, which a command finds with `max_unpacked`."""
    return click.Option(
        ["--max-unpacked"],
        metavar="SIZE",
        callback=_size,
        expose_value=False,
        help="The most that a packed file may unpack to, such as 200GB; by default 64 GB and 200 times "
        "its size.",
    )


def max_unpacked() -> int | None:
    """Return what `--max-unpacked` says, None where it was not given."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(MAX_UNPACKED)


def trace_options() -> list[click.Parameter]:
    """Return `--trace` and the options that say where its steps come from."""
    return [trace_option(required=True), *step_options(), *handle_options(), cache_option()]


def trace_option(*, required: bool = False) -> click.Option:
    """Return `--trace`; not required where another option answers without a trace."""
    said = "A trace that `daydream import` wrote, or anything it accepts."
    return click.Option(["--trace"], required=required, metavar="TRACE", help=said)


def need_trace(trace: str | None) -> str:
    """Return the trace. Raises `click.UsageError` where none was given."""
    if trace is None:
        raise click.UsageError("missing option '--trace'", click.get_current_context())
    return trace


def ask_rows(
    trace: str | None, step_marker: str | None, steps: str | None, doing: str, ask: Callable[[Trace], T]
) -> T:
    """Return what a question about a trace's rows gives, which needs no replay; shows how far it is."""
    from daydream.cli.progress import Progress

    with Progress() as progress, stdout_for_the_result():
        recording = read([need_trace(trace)], step_marker, steps, progress, keep=False)
        progress(doing)
        return ask(recording)


def trace_words(trace: str, step_marker: str | None, steps: str | None) -> list[str]:
    """Return the options that read the same trace again, as typed."""
    given = {"--trace": trace, "--step-marker": step_marker, "--steps": steps, **_files()}
    words = [word for flag, value in given.items() if value is not None for word in (flag, value)]
    return [*words, *(word for file in _counters() for word in ("--counters", file))]


def table_option() -> click.Option:
    """Return `--table`."""
    return click.Option(
        ["--table"],
        metavar="FILE",
        help="Measured times of kernels or operators, CSV or what `daydream calibrate` wrote.",
    )


def json_option() -> click.Option:
    """Return `--json`."""
    return click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object and nothing else.")


def verbose_option(what: str) -> click.Option:
    """Return `-v`, for what does not stand on the first screen."""
    return click.Option(["-v", "--verbose"], is_flag=True, help=f"Show {what}, too.")


def force_option() -> click.Option:
    """Return `--force`."""
    return click.Option(["--force"], is_flag=True, help="Overwrite the output file if it exists.")


def read(
    sources: Sequence[str],
    step_marker: str | None,
    steps: str | None,
    progress: Progress,
    ranks: Sequence[int] | None = None,
    engine: Engine | str = "local",
    *,
    keep: bool = True,
    typical: bool = False,
    etrecord: str | None = None,
) -> Trace:
    """Return the trace of these sources, from the user's cache if it is there, which `keep` allows.

    With `typical` it is that of the steps that stand for a long recording, unless the user names some.

    Raises `TraceError` if they are not usable.
    """
    import daydream
    from daydream.cli.failures import read_from
    from daydream.parallel.engines import keep_freed_memory
    from daydream.trace.step_range import TYPICAL, is_long

    typical &= not _files() and not _counters()  # those are of all that was recorded
    if keep:  # a question follows: it makes and drops arrays as long as the trace
        keep_freed_memory()
    if step_marker is not None and steps == AUTO:
        raise click.UsageError(
            "--step-marker and --steps auto exclude each other", click.get_current_context()
        )
    if step_marker is not None or steps == AUTO:
        _refuse_parquet(sources)

    def show(name: str, share: float) -> None:
        if share < 1:
            progress(f"reading {name}", share)
        else:
            progress(f"sorting out {name}")

    progress(f"reading {sources[0]}")
    read_from.append(sources[0])
    entry = _entry(sources, step_marker, steps) if keep else None
    if entry is not None:
        from daydream.trace.cached_trace import cached_trace

        found = cached_trace(entry)
        if found is not None and (typical or "typical_run" not in found.metadata):
            return found
    trace = daydream.load(
        *sources, step_marker=step_marker, steps=TYPICAL if typical and steps is None else steps, ranks=ranks,
        progress=show, engine=engine, max_unpacked=max_unpacked(), etrecord=etrecord,
    )  # fmt: skip
    if typical and steps == AUTO:
        trace = trace.of_steps(TYPICAL)
    # What is kept of a long recording is what answers are made from.
    trace.cache = entry if typical or steps not in (None, AUTO) or not is_long(len(trace)) else None
    _attach(trace)
    return trace


def _counters() -> tuple[str, ...]:
    """Return the files that `--counters` names."""
    context = click.get_current_context(silent=True)
    return () if context is None else context.meta.get(COUNTERS, ())


def _files() -> dict[str, str]:
    """Return the files that `--handles` and `--capture` name, by option."""
    context = click.get_current_context(silent=True)
    found = {} if context is None else {"--handles": HANDLES, "--capture": CAPTURE}
    return {flag: context.meta[key] for flag, key in found.items() if context and key in context.meta}


def _attach(trace: Trace) -> None:
    """Say of compiled and replayed kernels what they came from, where a file is given that knows."""
    from pathlib import Path

    files = {flag: Path(file) for flag, file in _files().items()}
    if len(files) > 1:
        raise click.UsageError("--handles and --capture exclude each other", click.get_current_context())
    if "--handles" in files:
        from daydream.collect.captures_beside import attach_file

        attach_file(trace, files["--handles"])
    if "--capture" in files:
        from daydream.collect.captures_beside import attach_capture
        from daydream.collect.importers.kineto.blocks import launched_kernels
        from daydream.collect.load import load

        file, most = files["--capture"], max_unpacked()
        capture = load(file, max_unpacked=most)
        attach_capture(trace, capture, launched_kernels(file, most) if file.suffix != ".parquet" else {})
    if _counters():
        from daydream.costs.counters.attaching import attach_counters

        attach_counters(trace, _counters())


def _entry(sources: Sequence[str], step_marker: str | None, steps: str | None) -> CacheEntry | None:
    """Return where the replay is kept; None where a limit is to be tried, or the user wants none."""
    context = click.get_current_context(silent=True)
    if context is None or context.meta.get(NO_CACHE) or max_unpacked() is not None or len(sources) != 1:
        return None
    if _files() or _counters():  # what is kept is the file's own content
        return None
    from daydream.cli.cached import cache_entry

    return cache_entry(sources[0], step_marker, steps)


def _refuse_parquet(sources: Sequence[str]) -> None:
    """Steps are found at import; in a parquet trace they are settled."""
    from pathlib import Path

    from daydream.collect.importers.formats import format_of
    from daydream.errors import TraceError

    for source in map(Path, sources):
        if source.is_file() and format_of(source) == "parquet":
            raise TraceError(
                f"{source} is an imported trace, and its steps were found at import.\n"
                "Give --step-marker or --steps auto to `daydream import` on the profiler's file."
            )


@contextlib.contextmanager
def stdout_for_the_result() -> Iterator[None]:
    """What others print meanwhile (a user's own optimization, a library) goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        yield
