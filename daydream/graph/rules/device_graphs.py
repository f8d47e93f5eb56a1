"""CUDA and HIP graphs: one launch, many kernels.

The nodes of a graph launch share its correlation id and run in order. Profilers record only some of a
graph's nodes at times: a hole between two recorded nodes is device work that was not traced, and takes part
in a what-if as such. Treated as idle time, it would be missing from the step. So is the time ahead of the
first task of a stream, if nothing in the trace explains it.
"""

from __future__ import annotations

import numpy as np

from daydream.arrays import distinct_rows
from daydream.graph.draft import DeviceWork, Draft
from daydream.graph.rules.latencies import ready
from daydream.graph.rules.thresholds import GRAPH_HOLE_NS, HEAD_NS
from daydream.graph.tables import CPU, KERNEL, UNTRACED_HEAD
from daydream.lazy import regex
from daydream.text import counted

BEGIN_CAPTURE = regex(r"StreamBeginCapture")
GRAPH_WORDS = {"cuda": "CUDA graph", "rocm": "HIP graph"}


def fill_holes(draft: Draft) -> None:
    """Put untraced work into the holes between nodes of a graph launch that runs on one stream."""
    named = GRAPH_WORDS.get(draft.trace.metadata.get("vendor", "cuda"), "device graph")
    captured = int(draft.named(BEGIN_CAPTURE.search)[draft.kind == CPU].sum())
    if captured:
        draft.note(
            f"{counted(captured, f'{named} is', f'{named}s are')} captured here: calls between begin and "
            "end of a capture run nothing; their work runs when the graph is replayed."
        )
    work = draft.device_work
    if work is None or (work.launch < 0).all():  # nothing tells a graph's hole from a pause
        return
    end = work.start + work.duration
    same = (
        (work.unit[1:] == work.unit[:-1]) & (work.lane[1:] == work.lane[:-1]) & (work.unit[1:] >= 0)
    )
    same &= work.start[1:] - end[:-1] > GRAPH_HOLE_NS
    units = work.unit[
        distinct_rows([work.unit, work.lane])[0]
    ]  # again for each further stream of a unit
    hole = np.flatnonzero(same & ~np.isin(work.unit[1:], units[1:][units[1:] == units[:-1]]))
    after = hole + 1
    whole = {name: np.insert(values, after, values[after]) for name, values in vars(work).items()}
    new = after + np.arange(len(after))
    whole["row"][new] = -1
    whole["start"][new] = end[hole]
    whole["duration"][new] = work.start[after] - end[hole]
    draft.device_work = DeviceWork(**whole)
    if len(hole):
        _count_untraced(
            draft,
            whole["duration"][new],
            f"{counted(len(hole), 'hole')} between recorded nodes of {named}s",
        )


def fill_heads(draft: Draft) -> None:
    """Put untraced work in front of a stream's first task that started long after all that could hold it.

    It was launched before the window, most often by a graph's launch.
    """
    firsts = np.array([tasks[0] for _, tasks in draft.streams()], np.int64)
    firsts = firsts[draft.launch[firsts] >= 0]
    firsts = firsts[draft.start_ns[firsts] - ready(draft, firsts) > HEAD_NS]
    if not len(firsts):
        return
    begun = ready(draft, firsts)
    duration = draft.start_ns[firsts] - begun
    draft.add(
        len(firsts),
        lane=draft.lane[firsts],
        kind=KERNEL,
        phase=draft.phase[firsts],
        name=draft.code("name", UNTRACED_HEAD),
        order=draft.order[draft.launch[firsts]] - 1,
        start_ns=begun,
        duration_ns=duration,
        release_ns=begun,
    )
    streams = counted(len(firsts), "stream")
    _count_untraced(
        draft,
        duration,
        f"{streams} began with work launched before the window that was not recorded",
    )


def _count_untraced(draft: Draft, duration_ns: np.ndarray, what: str) -> None:
    draft.facts.untraced_ns += int(duration_ns.sum())
    draft.note(
        f"{what}, {duration_ns.sum() / 1e6:,.2f} ms in total, counted as untraced device work."
    )
