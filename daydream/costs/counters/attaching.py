"""`attach_counters`: a trace takes over what files of counters say of its kernels."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Sequence
from pathlib import Path

from daydream.costs.counters.amounts import BYTES, FLOP, CountedKernel
from daydream.costs.counters.joining import join
from daydream.costs.counters.tables import kernels_of_table
from daydream.errors import FileError
from daydream.trace.trace import Trace

MOST_BYTES = 1 << 30
INSTRUCTIONS_ONLY = re.compile(
    r"#thread-blocks \d+,\s+kernel instructions|Total number of LDS instructions|memory accesses per kernel"
)
FORMATS = (
    "Nsight Compute's CSV (long, raw, summary), rocprofv3's counter_collection.csv and Kineto's ranges are"
)


def attach_counters(trace: Trace, files: Sequence[str | os.PathLike[str]]) -> Trace:
    """Take FLOP and bytes of a trace's kernels from files of counters, and note how they were joined.

    Files are told apart by what they hold. Of several, a launch has the counters of all: passes of one
    program. Nothing that they say of time is used.

    Args:
        trace: is changed.
        files: Nsight Compute's CSV, rocprofv3's counter CSV, or Kineto JSON with profiler ranges; `.gz` too.

    Returns:
        The trace.

    Raises:
        FileError: a file cannot be read, is damaged, counts neither FLOP nor bytes, or is of another program.

    """
    kernels: list[CountedKernel] = []
    for file in files:
        _merge(kernels, read_kernels(Path(file)), str(file))
    label = ", ".join(Path(file).name for file in files)
    joined = join(trace, kernels, label)
    notes = [*trace.metadata.get("notes", []), *joined.notes]
    trace.metadata = {**trace.metadata, "counters": joined.counters, "notes": notes}
    trace.cache = None
    return trace


def read_kernels(path: Path) -> list[CountedKernel]:
    """Return the launches that a file counted, in order. Raises `FileError` where it has none."""
    try:
        whole = path.read_bytes()
        raw = gzip.decompress(whole) if whole[:2] == b"\x1f\x8b" else whole
    except (OSError, EOFError) as error:
        raise FileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MOST_BYTES:
        raise FileError(f"{path} unpacks to more than 1 GiB; counters of a few steps are enough")
    if raw.lstrip()[:1] in (b"{", b"["):
        return _of_kineto(path)
    text = raw.decode("utf-8", "replace")
    found = kernels_of_table(text, path.name)
    if found:
        return found
    if INSTRUCTIONS_ONLY.search(text):
        raise FileError(f"{path} counts instructions, and neither FLOP nor bytes of memory; {FORMATS} read")
    what = "no launches" if found is not None else "no counters that are known"
    raise FileError(f"{path} holds {what}; {FORMATS} read")


def _of_kineto(path: Path) -> list[CountedKernel]:
    from daydream.costs.kineto_counters import read_counters

    amounts = ((one["name"], {FLOP: one["flop"], BYTES: one["bytes"]}) for one in read_counters(path))
    return [
        CountedKernel(name, None, {key: float(value) for key, value in told.items() if value is not None})
        for name, told in amounts
    ]


def _merge(kernels: list[CountedKernel], more: list[CountedKernel], file: str) -> None:
    """Add the counters of another pass over the same launches; or its launches, where it is the first."""
    if not kernels:
        kernels += more
        return
    if [(one.name, one.blocks) for one in kernels] != [(one.name, one.blocks) for one in more]:
        raise FileError(f"{file} counts other launches than the file before it; give passes of one program")
    for one, other in zip(kernels, more, strict=True):
        one.metrics.update(other.metrics)
