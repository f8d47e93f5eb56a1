"""Import profiler files: one function from files of any known format to a `Trace`."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from daydream.arrays import hand_back_freed_memory
from daydream.collect.derive.build import derive
from daydream.collect.derive.recording import Recording
from daydream.collect.importers.formats import FORMATS, Options, format_of, trace_files
from daydream.errors import TraceError
from daydream.files.input_files import StrPath
from daydream.parallel import Engine, engine_of, map_on
from daydream.trace.memory_events import MemoryEvents
from daydream.trace.schema import FIELDS, UNKNOWN, Columns, Texts
from daydream.trace.trace import Trace

if TYPE_CHECKING:
    from concurrent.futures import Executor

ALIGNED_NS = 86_400_000_000_000  # ranks of one run were recorded on one day
LARGEST_RANK = 2**31
LARGE = 1 << 20  # rows; below, what is freed is small beside what every process has
Progress = Callable[[str, float], None]


def import_trace(
    sources: Sequence[StrPath],
    *,
    step_marker: str | None = None,
    steps: str | None = None,
    ranks: Sequence[int] | None = None,
    progress: Progress | None = None,
    engine: str | Engine | Executor = "local",
    max_unpacked: int | None = None,
    etrecord: StrPath | None = None,
) -> Trace:
    """Return one trace of profiler files or folders of them; several files are several ranks.

    The format is told by content: Kineto JSON, nsys SQLite, rocprofv3 JSON or CSV tables, JAX's xplane.pb
    (each also gzipped), an ExecuTorch ETDump (`etrecord` is the ETRecord of its program) or table of its
    Inspector, or a daydream parquet trace. `step_marker` is a regular expression over annotation names,
    `steps="auto"` finds steps by the period of the launches. `ranks` are the ranks of the
    files in their order, where neither the files nor their names tell them; without them files that
    cannot be of one job, or that claim one rank, are refused. `progress` is
    called with a file name and the share read. `engine` reads the files of several ranks side by
    side, see `daydream.parallel`; its workers have to see them. `max_unpacked` is to how many bytes a
    packed file may unpack, see `daydream.load`. Raises `TraceError` if a file is not a usable trace.
    """
    files = trace_files(sources)
    formats = [format_of(path) for path in files]
    _check_together(files, formats, etrecord)
    if formats[0] == "parquet":
        if step_marker is not None or steps is not None or ranks is not None:
            raise TraceError(
                f"{files[0]} is an imported trace, its steps and ranks are settled; import the profiler's "
                "file again to choose others"
            )
        return Trace.load(files[0], max_unpacked=max_unpacked)
    engine = engine_of(engine if len(files) > 1 else "local")
    options = Options(max_unpacked, etrecord=None if etrecord is None else Path(etrecord))
    kinds = dict(zip(files, formats, strict=True))
    runs = [
        ([path.resolve() if engine.elsewhere else path for path in run], kinds[run[0]])
        for run in FORMATS[formats[0]].runs_of(files)
    ]
    say = None if engine.local or progress is None else partial(progress, f"{len(files)} files")
    how = engine.elsewhere, options, progress if engine.local else None
    found = map_on(engine, _reading, how, runs, batch=1, progress=say)
    recordings = [recording for of_run in found for recording in of_run]
    names = [run[0].name for (run, _), of_run in zip(runs, found, strict=True) for _ in of_run]
    del found
    if ranks is None:
        _give_ranks(recordings, names)
    else:
        _set_ranks(recordings, ranks)
    _hand_back(sum(map(len, recordings)))  # what reading has left
    origin = min(int(recording.metadata.get("origin_ns", 0)) for recording in recordings)
    for recording in recordings:
        _move(recording, origin)
    if engine.local:
        traces = []
        while recordings:  # one after the other let go: they are as large as the traces
            traces.append(derive(recordings.pop(0), step_marker, steps))
    else:
        traces = map_on(engine, _deriving, (step_marker, steps), recordings, batch=1)
    trace = traces[0]
    if len(traces) > 1:
        for each, name in zip(traces, names, strict=True):
            each.check(name)
        trace = join_ranks(traces)
    _hand_back(len(trace))  # what deriving has left
    trace.check(str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more")
    return trace


def _check_together(
    files: Sequence[Path], formats: Sequence[str], etrecord: StrPath | None
) -> None:
    """Raise `TraceError` if files of these formats cannot be read together, or with an ETRecord."""
    for path, kind in zip(files, formats, strict=True):
        if len(files) > 1 and FORMATS[kind].whole:
            raise TraceError(FORMATS[kind].whole.format(path))
        if kind != formats[0] and FORMATS[formats[0]].runs:
            raise TraceError(
                f"{path} is not a table of rocprofv3 as the others are; give the files of one profiler."
            )
    if etrecord is not None and formats[0] != "etdump":
        raise TraceError(
            f"{files[0]} is no ETDump, and the ETRecord {etrecord} belongs to one; leave it out"
        )


def _hand_back(rows: int) -> None:
    if rows >= LARGE:
        hand_back_freed_memory()


def _move(recording: Recording, origin: int) -> None:
    """Let the times of a recording count from the common origin, where its clock allows."""
    shift = int(recording.metadata.get("origin_ns", 0)) - origin
    if abs(shift) > ALIGNED_NS:
        recording.note("The ranks' clocks lie more than a day apart; they are not aligned.")
        shift = 0
    if shift:
        recording.columns["start_ns"] = recording["start_ns"].astype(np.int64) + shift
        if recording.memory is not None:
            recording.memory = recording.memory.changed(time_ns=recording.memory["time_ns"] + shift)
    recording.metadata["origin_ns"] = origin


def _deriving(chosen: tuple[str | None, str | None]) -> Callable[[Recording], Trace]:
    """Return what a worker does with a recording."""
    step_marker, steps = chosen
    return lambda recording: derive(recording, step_marker, steps)


def _reading(
    how: tuple[bool, Options, Progress | None],
) -> Callable[[tuple[list[Path], str]], list[Recording]]:
    """Return what a worker does with the files of a run."""
    elsewhere, options, progress = how

    def read(item: tuple[list[Path], str]) -> list[Recording]:
        (path, *beside), kind = item
        if elsewhere and not path.exists():
            raise TraceError(
                f"a worker on {platform.node()} sees no file {path}.\n"
                "All workers need the ranks' files at the same path: a folder that the machines share."
            )
        name = f"{1 + len(beside)} tables" if beside else path.name
        say = None if progress is None else partial(progress, name)
        return FORMATS[kind].read(path, options._replace(beside=beside, progress=say))

    return read


def _give_ranks(recordings: list[Recording], names: list[str]) -> None:
    """Set each recording's rank: what the file says, else what its name says, else its position."""
    if len(recordings) == 1:
        return
    from daydream.collect.importers.ranks import RANK_IN_NAME, need_one_job

    need_one_job(recordings, names)
    said = [recording.metadata.get("rank") for recording in recordings]
    if None not in said and len(set(said)) == len(said):
        return
    matches = [RANK_IN_NAME.search(name) for name in names]
    named = [int(match.group(1)) for match in matches if match]
    if len(named) == len(names) and len(set(named)) == len(named) and max(named) < LARGEST_RANK:
        ranks = named
        source = "the file names"
    else:
        ranks = list(range(len(names)))
        source = "the order of the files"
    _set_ranks(recordings, ranks)
    why = "missing" if None in said else "the same in several files"
    recordings[0].note(f"The ranks were {why}; they were taken from {source}.")


def _set_ranks(recordings: list[Recording], ranks: Sequence[int]) -> None:
    if len(ranks) != len(recordings):
        raise TraceError(
            f"{len(ranks)} ranks were given for {len(recordings)} recordings; give one for each, in order"
        )
    if len(set(ranks)) < len(ranks) or min(ranks) < 0 or max(ranks) >= LARGEST_RANK:
        raise TraceError(
            f"the ranks {', '.join(map(str, ranks))} were given; different numbers from 0 are needed"
        )
    for recording, rank in zip(recordings, ranks, strict=True):
        recording.metadata["rank"] = rank
        recording.columns.pop("rank", None)


def join_ranks(traces: list[Trace]) -> Trace:
    """Return one trace of several ranks on one clock: rows of the ranks one after the other."""
    from daydream.collect.importers.ranks import align_ranks
    from daydream.trace.handle_map import DebugHandleMap

    traces = sorted(traces, key=lambda trace: int(trace.metadata.get("rank", 0)))
    names = [name for name in FIELDS if any(name in trace.columns for trace in traces)]
    rows = np.cumsum([0] + [len(trace) for trace in traces])
    first_step = np.cumsum([0] + [len(trace.metadata["steps"]) for trace in traces])
    ranks = [int(trace.metadata.get("rank", 0)) for trace in traces]
    handles, places = DebugHandleMap.join(
        {rank: trace.handles for rank, trace in zip(ranks, traces, strict=True)}
    )
    first: dict[str, Sequence[int] | np.ndarray] = {
        "parent": rows,
        "step": first_step,
        "handle": [places[rank] for rank in ranks],
    }
    columns: Columns = {}
    texts: Texts = {}
    for name in names:
        codes: dict[str, int] = {}
        parts = [trace[name] for trace in traces]
        for index, trace in enumerate(traces):
            if FIELDS[name].type == "text":
                table = [codes.setdefault(text, len(codes)) for text in trace.text(name)]
                parts[index] = np.array([*table, UNKNOWN], np.int32)[parts[index]]
            elif name in first:
                moved = np.where(parts[index] >= 0, parts[index] + first[name][index], UNKNOWN)
                parts[index] = moved.astype(np.int32)
        columns[name] = np.concatenate(parts)
        if FIELDS[name].type == "text":
            texts[name] = list(codes)
    memory = [trace.memory for trace in traces if trace.memory is not None]
    joined = Trace(
        columns, texts, _join_metadata(traces), MemoryEvents.join(memory) if memory else None
    )
    joined.handles = handles
    align_ranks(joined)
    return joined


def _join_metadata(traces: list[Trace]) -> dict[str, object]:
    each = [trace.metadata for trace in traces]
    metadata = {name: value for name, value in each[0].items() if name != "rank"}
    assumed = [float(one.get("phases_assumed", 0.0)) for one in each]
    metadata |= {
        "ranks": [{"rank": one.get("rank", 0)} for one in each],
        "source": f"{metadata.get('source', '')} and {len(traces) - 1} more",
        "steps": [dict(step) for one in each for step in one["steps"]],
        "phases_assumed": sum(assumed) / len(assumed),
        "step_source": "; ".join(dict.fromkeys(one["step_source"] for one in each)),
        "notes": [f"rank {one['rank']}: {note}" for one in each for note in one.get("notes", [])],
    }
    groups = [group for one in each for group in one.get("groups", [])]
    if groups:
        metadata["groups"] = [
            group for place, group in enumerate(groups) if group not in groups[:place]
        ]
    return metadata
