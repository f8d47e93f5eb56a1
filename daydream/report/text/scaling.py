"""How a trace scales, as text and as a table for notebooks: `daydream scaling`."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from daydream.report.text.layout import WIDTH, Screen, Table, Words, headed, notes
from daydream.report.text.numbers import UNITS, count, error_text, percent, time_text
from daydream.report.text.peak_memory import (
    about_memory,
    memory_columns,
    memory_notes,
    recording_notes,
    too_large,
)

if TYPE_CHECKING:
    from daydream.predict.scaling import Scaled, Scaling

LOSS = "bound by, lost to"  # the head of the last column
FADED = ' style="opacity:0.5"'  # of a row of HTML that does not fit
STEP = 3  # the column of the step's time


def scaling_text(scaling: Scaling) -> Screen:
    """Return what most workers give, and a row for each number of workers."""
    waits = scaling.waits
    said = (
        "efficiency: the throughput of each worker against that of one alone. overhead: what exchanging "
        "gradients costs besides transfers. exposed: transfers that the step waits for."
    )
    if scaling.contention is not None and scaling.contention.slows:
        said = said.removesuffix(".") + ", and what they slow kernels that run meanwhile."
    if waits:
        said += " waiting: for slower workers."
    rows = _rows(scaling)
    faded = too_large([row.memory for row in scaling.rows])
    known = [place for place, head in enumerate(rows[0]) if head.startswith(("memory, ", "in "))]
    spare = [place for place in range(STEP + 1, len(rows[0]) - 1) if place not in known]
    plain = WIDTH if known else None
    table = Table(rows, words=[LOSS], spare=spare, faded=faded, plain=plain)
    of_memory = about_memory(row.memory for row in scaling.rows)
    own = [note for note in scaling.notes if note not in {*scaling.replay.notes, *of_memory}]
    counted = [*memory_notes(of_memory), *recording_notes(scaling.replay.notes)]
    return Screen([
        *headed(scaling_headline(scaling)), "", table, Words(said), *notes(own),
        *map(Words, counted),
    ])  # fmt: skip


def scaling_headline(scaling: Scaling) -> list[str]:
    """Return what the largest number of workers gives, and what it was predicted from."""
    most, replay = scaling.rows[-1], scaling.replay
    workers = count(most.workers, "worker")
    lost = f"most is lost to {most.lost_to}; " if most.lost_to else ""
    step_ns = scaling.replayed_ns if scaling.measured_ns is None else scaling.measured_ns
    recorded = f"{time_text(step_ns)} on {count(scaling.recorded_workers, 'worker')}"
    return [
        f"{workers}: {most.throughput:,.2f}x the throughput of one, efficiency {percent(most.efficiency)}",
        f"{lost}from a step of {recorded}, {error_text(scaling.replay_error, replay.error)}",
    ]


def scaling_html(scaling: Scaling) -> str:
    """Return the table for notebooks."""
    head, *rows = _rows(scaling)
    faded = too_large([row.memory for row in scaling.rows])
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    for place, row in enumerate(rows, 1):
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
        lines.append(f"<tr{FADED if place in faded else ''}>{cells}</tr>")
    return "<table>" + "".join(lines) + "</table>"


def _rows(scaling: Scaling) -> list[list[str]]:
    unit, size = UNITS[0] if scaling.alone_ns >= 1e6 else UNITS[1]
    digits = 1 if scaling.alone_ns >= 100 * size else 2 if scaling.alone_ns >= 10 * size else 3
    names = ["overhead", "exposed", *(["waiting"] if scaling.waits else [])]

    def times(row: Scaled) -> list[str]:
        shown = [row.step_ns, row.overhead_ns, row.exposed_ns, *([row.waiting_ns] if scaling.waits else [])]
        return [f"{ns / size:,.{digits}f}" for ns in shown]

    head = ["workers", "throughput", "efficiency", f"step, {unit}", *names, LOSS]
    rows = [
        [
            f"{row.workers:>7,}",
            f"{row.throughput:,.2f}x",
            percent(row.efficiency),
            *times(row),
            # If a loss is what bounds a step, it is the largest one too.
            row.bound if row.lost_to in {row.bound, None} else f"{row.bound}, {row.lost_to}",
        ]
        for row in scaling.rows
    ]
    return memory_columns([head, *rows], [row.memory for row in scaling.rows], len(head) - 1)
