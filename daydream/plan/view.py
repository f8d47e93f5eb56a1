"""The view of a plan: the best strategy, what it would take for the second to win, and the others beside it."""

from __future__ import annotations

from collections.abc import Iterator

from daydream.plan.search import SHOWN, Candidate, Plan
from daydream.report.blocks import (
    FADED,
    NEUTRAL,
    Block,
    Column,
    Drawing,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
)
from daydream.report.format import number, range_text, time_text
from daydream.text import bytes_text, capacity_text, counted, listed

WIDE, HIGH = 640, 240  # pixels of the drawing
CLOSE = 0.02  # of capacity: what is left may be too little


def plan(found: Plan, *, verbose: bool = False, top: int = SHOWN) -> list[Block]:
    """Return the best strategy and those that follow; `verbose` all of the front, drawn."""
    gpus = listed([f"{number:,}" for number in found.gpus])
    job = f"{gpus} GPUs of {capacity_text(found.capacity_bytes)}, {counted(found.batch, 'sample')} a step"
    blocks: list[Block] = [*(_answer(found, job) if found.candidates else _nothing(found, job))]
    shown = found.candidates if verbose else found.candidates[:top]
    rows = [_row(found, each) for each in shown]
    if found.own is not None:
        fits = found.own.memory_bytes <= found.capacity_bytes
        style = NEUTRAL if fits else FADED
        rows.append(_row(found, found.own, "your own: ")._replace(style=style))
    if rows:
        dollars = "dollars" if found.tokens else "dollars an hour"
        columns = [
            Column("strategy", width=44, keep="both"),
            Kind.COUNT("GPUs"),
            Kind.TIME("step"),
            Kind.BYTES("memory"),
            Kind.COUNT("hours", spare=2),
            Kind.COUNT(dollars, spare=1),
            Column("bound by, lost to"),
        ]
        blocks.append(Table(columns, rows, name="strategies"))
    if verbose and len(found.candidates) > 1:
        blocks.append(Drawing("", _drawn(found)))
    return [*blocks, Text(_seen(found), "seen: "), Notes(found.notes, aside=not verbose)]


def _answer(found: Plan, job: str) -> Iterator[Block]:
    best, *others = found.candidates
    yield Headline(
        f"{best.strategy}: {time_text(best.step_ns)} per step "
        f"(90% interval {range_text(best.step_low_ns, best.step_high_ns)})"
    )
    yield Text(job, "for ")
    left = found.capacity_bytes - best.memory_bytes
    close = ": too close to tell whether it fits" if left < CLOSE * found.capacity_bytes else ""
    yield Text(f"{bytes_text(best.memory_bytes)}, {bytes_text(left)} left{close}", "memory: ")
    if found.own is not None:
        ratio = number(found.own.step_ns / best.step_ns)
        fits = "" if found.own.memory_bytes <= found.capacity_bytes else ", and do not fit"
        yield Text(f"{time_text(found.own.step_ns)}, {ratio}x the best{fits}", "your own settings: ")
    if others and found.turn is None:
        yield Text("no single part of the step would let the second win")
    elif others and found.turn is not None:
        turn = found.turn
        yield Text(
            f"{others[0].strategy} ({time_text(others[0].step_ns)}) wins if {turn.part} takes "
            f"{'less' if turn.factor < 1 else 'more'} than {number(turn.factor)} times what is predicted",
            "the second: ",
        )


def _nothing(found: Plan, job: str) -> Iterator[Block]:
    said = "nothing that fits can be predicted" if found.seen.too_large == 0 else "nothing fits"
    yield Headline(f"{said}: {job}")
    if found.least is not None:
        least = f"{found.least.strategy}: {bytes_text(found.least.memory_bytes)}"
        yield Text(least, "the least that any needs: ")
    for each in found.advice:
        yield Text(
            f"{each.change}: {each.strategy} needs {bytes_text(each.memory_bytes)}", "would fit with "
        )
    if not found.advice:
        yield Text("no number of GPUs or samples that was tried would help; use GPUs with more memory")


def _row(found: Plan, each: Candidate, head: str = "") -> Row:
    bound = each.bound if each.lost_to in ("", each.bound) else f"{each.bound}, {each.lost_to}"
    return Row(
        (
            f"{head}{each.strategy}",
            each.gpus if len(found.gpus) > 1 else None,
            each.step_ns,
            each.memory_bytes,
            each.hours,
            each.dollars,
            bound,
        ),
        style=NEUTRAL,
    )


def _seen(found: Plan) -> str:
    seen = found.seen
    reasons = {**seen.invalid, **seen.refused}
    most = sorted(reasons, key=lambda why: -reasons[why])
    why = listed([f"{each} {reasons[each]:,}" for each in most], 3)
    said = [
        f"{sum(reasons.values()):,} not possible ({why})" if reasons else "",
        f"{seen.too_large:,} too large",
        f"{seen.dominated:,} slower for certain",
        f"{seen.predicted:,} predicted",
    ]
    return f"{counted(seen.possible, 'strategy', 'strategies')}: {', '.join(filter(None, said))}"


def _drawn(found: Plan) -> str:
    """Return the candidates by step and memory as SVG, those of the front dark, and larger the more they cost."""
    times = [each.step_ns for each in found.candidates]
    sizes = [each.memory_bytes for each in found.candidates]
    dots = []
    for place, each in enumerate(found.candidates):
        x = 10 + (WIDE - 20) * (each.step_ns - min(times)) / (max(times) - min(times) or 1)
        y = HIGH - 10 - (HIGH - 20) * each.memory_bytes / max(*sizes, found.capacity_bytes)
        color = "#1f6feb" if place in found.front else "#c4cad1"
        about = f"{each.strategy}: {time_text(each.step_ns)}, {bytes_text(each.memory_bytes)}"
        size = 3 + 3 * each.gpus / found.gpus[-1]
        dots.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{size:.0f}" fill="{color}"><title>{about}</title></circle>'
        )
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="memory over step time">{"".join(dots)}</svg>'
    )
