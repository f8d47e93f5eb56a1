"""The traces to run on: public ones where they are at hand, else made by the tests' machine model."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared" / "traces" / "kineto"
PUBLIC = ("rtx2080ti_resnet_30_iterations", "v100_recsys_rank1of2_copy_waits", "a100_resnet_ddp_rank0of2")
NUMBERS = re.compile(
    rb'("(?:ts|id|correlation|External id|external id|Ev Idx|Profiler Event Index|Sequence number'
    rb'|wait_on_cuda_event_record_corr_id)": ?|ProfilerStep#)([1-9]\d*)'
)


@dataclass(frozen=True)
class Source:
    """A Kineto trace as .json.gz; `name` is what tables call it."""

    name: str
    path: Path


@contextmanager
def sources(*, quick: bool = False) -> Iterator[list[Source]]:
    """Give the larger public traces; without them, two that the machine model makes."""
    found = [Source(name, SHARED / f"{name}.json.gz") for name in PUBLIC]
    found = [source for source in found if source.path.exists()]
    if quick:
        found = found[-1:]
    if found:
        yield found
        return
    with TemporaryDirectory(prefix="daydream-benchmark-") as folder:
        made = []
        for layers, steps in [(60, 6)] if quick else [(60, 12), (120, 24)]:
            path = machine_trace(Path(folder) / f"{layers}.json.gz", layers, steps)
            made.append(Source(f"machine model, {layers} layers, {steps} steps", path))
        yield made


def machine_trace(path: Path, layers: int, steps: int) -> Path:
    """Write a trace of data-parallel training on the machine model: three streams, two threads."""
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from dataclasses import replace

    from machine.programs import multi_stream

    replace(multi_stream(layers), steps=steps + 2).run().write(path, 1, steps)
    return path


def unpacked(source: Path, target: Path) -> Path:
    """Write a .json.gz as .json."""
    with gzip.open(source) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 22)
    return target


def largest(chosen: Sequence[Source]) -> Source:
    """Return the one with the largest file."""
    return max(chosen, key=lambda source: source.path.stat().st_size)


def replicate(source: Path, target: Path, size: int) -> int:
    """Write at least `size` bytes of JSON: one trace again and again, in its own layout; return how often.

    Each copy has later times and ids, correlations, sequence and step numbers of its own.
    """
    with gzip.open(source) as file:
        text = file.read()
    begin = re.search(rb'"traceEvents":\s*\[', text)
    if begin is None:
        raise ValueError(f"{source} holds no traceEvents")
    stop = _end_of_list(text, begin.end())
    pieces = NUMBERS.split(text[begin.end() : stop])
    literals, words, numbers = pieces[0::3], pieces[1::3], [int(number) for number in pieces[2::3]]
    groups = [0 if b'"ts"' in word else 1 if b"#" in word else 2 for word in words]
    heads = [literal + word for literal, word in zip(literals, words, strict=False)]
    values = [[n for n, group in zip(numbers, groups, strict=True) if group == which] for which in range(3)]
    usual = [n for n in values[2] if n < 1 << 31]
    steps = [
        max(values[0]) - min(values[0]) + 1_000_000,  # microseconds: one second between copies
        max(values[1], default=0) - min(values[1], default=0) + 1,
        max(usual, default=0) + 1,
    ]
    written = copies = 0
    with target.open("wb") as file:
        file.write(text[: begin.end()])
        while written < size:
            shift = [copies * step for step in steps]
            parts = [
                b"%b%d" % (head, n + shift[g]) for head, n, g in zip(heads, numbers, groups, strict=True)
            ]
            body = b"".join((b"," if copies else b"", *parts, literals[-1]))
            written += file.write(body)
            copies += 1
        file.write(text[stop:])
    return copies


def _end_of_list(text: bytes, begin: int) -> int:
    """Return where the list of events ends: the last bracket at which a list of objects can end."""
    ends = [match.start() for match in re.finditer(rb"(?<=[}\s])\](?=\s*[,}])", text[-65536:])]
    for end in ends:
        stop = len(text) - min(len(text), 65536) + end
        if stop > begin and text[:stop].rstrip()[-1:] == b"}":
            return stop
    raise ValueError("the end of traceEvents was not found")


def free_memory() -> int:
    """Return bytes of memory that are free to use, 0 if unknown."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 0
