"""`attach_counters`: a trace takes over what files of counters say of its kernels."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from daydream.costs.counters.accelprof import of_accelprof
from daydream.costs.counters.amounts import BYTES, FLOP, CountedKernel
from daydream.costs.counters.joining import base_name, join
from daydream.costs.counters.nvbit import is_nvbit, kernels_of_nvbit
from daydream.costs.counters.rocprof_json import TOOL, kernels_of_json
from daydream.costs.counters.tables import kernels_of_table
from daydream.costs.counters.totals import Totals, attach_totals, totals_of_luthier, window_of
from daydream.errors import FileError
from daydream.trace.trace import Trace

MOST_BYTES = 1 << 30
HEAD = 1 << 16  # bytes of a JSON file in which rocprofv3 names itself
FORMATS = (
    "Nsight Compute's CSV (long, raw, summary), rocprofv3's counter_collection.csv and JSON, NVBit's "
    "instr_count and opcode_hist, Luthier's and AccelProf's text and Kineto's ranges are"
)


def attach_counters(trace: Trace, files: Sequence[str | os.PathLike[str]]) -> Trace:
    """Take FLOP, bytes and what else was counted of a trace's kernels, and note how they were joined.

    Files are told apart by what they hold. Of several, a launch has the counters of all: passes of one
    program. Sums over many launches (Luthier) stay sums: of all kernels, or of those from the 101st to the
    201st for a file given as `FILE@100-200`. Nothing that they say of time is used.

    Args:
        trace: is changed.
        files: Nsight Compute's CSV, rocprofv3's counter CSV or JSON, output of NVBit, Luthier or AccelProf,
            or Kineto JSON with profiler ranges; `.gz` too.

    Returns:
        The trace.

    Raises:
        FileError: a file cannot be read, is damaged, counts nothing that is known, or is of another program.

    """
    kernels: list[CountedKernel] = []
    windows: list[dict[str, Any]] = []
    notes: list[str] = []
    labels = []
    for file in files:
        path, window = _path_of(file)
        found = read_counted(path)
        if isinstance(found, Totals):
            entry, said = attach_totals(trace, found, window, path.name)
            windows.append(entry)
            notes.append(said)
            continue
        if window is not None:
            raise FileError(
                f"{path} tells kernels apart: it takes no window such as @{window[0]}-{window[1]}"
            )
        _merge(kernels, found, str(path))
        labels.append(path.name)
    metadata = dict(trace.metadata)
    if kernels:
        joined = join(trace, kernels, ", ".join(labels))
        metadata["counters"] = joined.counters
        notes = [*joined.notes, *notes]
    if windows:
        metadata["counted_windows"] = windows
    trace.metadata = {**metadata, "notes": [*metadata.get("notes", []), *notes]}
    trace.cache = None
    return trace


def read_counted(path: Path) -> list[CountedKernel] | Totals:
    """Return a file's launches, in order, or its sums. Raises `FileError` if it has neither."""
    raw = _unpacked(path)
    if raw.lstrip()[:1] in (b"{", b"["):
        return kernels_of_json(raw, str(path)) if TOOL.encode() in raw[:HEAD] else _of_kineto(path)
    text = raw.decode("utf-8", "replace")
    luthier = totals_of_luthier(text, str(path))
    if is_nvbit(text):
        if luthier is not None:
            raise FileError(f"{path} is output of NVBit and of Luthier, mixed; give one file a run")
        return kernels_of_nvbit(text, str(path))
    found = luthier or of_accelprof(text, str(path))
    if found is None:
        found = kernels_of_table(text, path.name)
    if not found:
        what = "no launches" if found is not None else "no counters that are known"
        raise FileError(f"{path} holds {what}; {FORMATS} read")
    return found


def _path_of(file: str | os.PathLike[str]) -> tuple[Path, tuple[int, int] | None]:
    """Return the path and the window of `FILE@100-200`; a file that is really named so is itself."""
    if Path(file).exists():
        return Path(file), None
    path, window = window_of(os.fspath(file))
    return Path(path), window


def _unpacked(path: Path) -> bytes:
    """Return the content of a file, unpacked, which is not more than a file of counters can be."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as whole:
            raw = bytes(whole.read(MOST_BYTES + 1))
    except (OSError, EOFError, zlib.error) as error:
        raise FileError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if len(raw) > MOST_BYTES:
        raise FileError(f"{path} unpacks to more than 1 GiB; counters of a few steps are enough")
    return raw


def _of_kineto(path: Path) -> list[CountedKernel]:
    from daydream.costs.kineto_counters import read_ranges

    found = []
    for one in read_ranges(path):
        told = {FLOP: one["flop"], BYTES: one["bytes"]}
        known = {key: float(value) for key, value in told.items() if value is not None}
        found.append(CountedKernel(one["name"], None, {**one["metrics"], **known}))
    return found


def _merge(kernels: list[CountedKernel], more: list[CountedKernel], file: str) -> None:
    """Add the counters of another pass over the same launches; or its launches, where it is the first."""
    if not kernels:
        kernels += more
        return
    if len(kernels) != len(more) or not all(map(_same, kernels, more)):
        raise FileError(
            f"{file} counts other launches than the file before it; give passes of one program"
        )
    for one, other in zip(kernels, more, strict=True):
        one.metrics.update(other.metrics)
        one.ordered &= other.ordered
        one.blocks = other.blocks if one.blocks is None else one.blocks


def _same(one: CountedKernel, other: CountedKernel) -> bool:
    """Tell whether two launches are the same one, as two profilers spell it."""
    grids = {one.blocks, other.blocks} - {None}
    return base_name(one.name) == base_name(other.name) and len(grids) <= 1
