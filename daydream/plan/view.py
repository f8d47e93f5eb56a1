"""The view of a plan: the best strategy, what it would take for the second to win, and the others beside it."""

from __future__ import annotations

from collections.abc import Iterator

from daydream.plan.checkpointing import Choice
from daydream.plan.search import SHOWN, Candidate, Plan, needed_bytes
from daydream.report.blocks import (
    FADED,
    NEUTRAL,
    Block,
    Code,
    Column,
    Drawing,
    Headline,
    Kind,
    Notes,
    Row,
    Table,
    Text,
    number,
    range_text,
    time_text,
    view,
)
from daydream.text import bytes_text, capacity_text, counted, listed

DRAWING = """<svg viewBox="-5 -25 650 270" overflow="visible" role="img" aria-label="memory over step time">
<text y="-10" font-size="12" fill="currentColor">memory (up) over step time (right), from 0;
blue: none needs less of time, memory and GPUs</text>{}</svg>"""
DOT = '<circle cx="{:.1%}" cy="{:.1%}" r="5" fill="{}"><title>{}: {}, {}</title></circle>'
COLUMNS = [
    Column("strategy", width=44, keep="both"),
    Kind.COUNT("GPUs"),
    Kind.TIME("step"),
    Kind.BYTES("memory"),
    Kind.COUNT("hours", spare=2),
    Kind.COUNT("dollars", spare=1),
    Column("bound by, lost to"),
]
OF_BLOCKS = [
    *map(Column, ("block", "change", "chosen")),
    Kind.TIME("costs"),
    Kind.BYTES("saves"),
]


def plan(found: Plan, *, verbose: bool = False, top: int = SHOWN) -> list[Block]:
    """Return the best strategy and those that follow; `verbose` all of them, drawn."""
    gpus = listed([f"{each:,}" for each in found.gpus])
    samples = counted(found.batch, "sample")
    job = f"{gpus} GPUs of {capacity_text(found.capacity_bytes)}, {samples} a step"
    shown: list[Block] = [Headline(f"nothing fits {job}")]
    if found.candidates:
        shown = [*_best(found, job)]
    for tip in found.advice:
        needs = bytes_text(needed_bytes(tip.memory_bytes))
        shown.append(Text(f"{tip.strategy}: {needs}", f"{tip.change}: "))
    rows = [(each, "") for each in found.candidates[: None if verbose else top]]
    rows += [(found.own, "your own: ")] if found.own else []
    if rows:
        table = Table(COLUMNS, [_row(found, *row) for row in rows], name="strategies")
        legend = "N x M: N micro-batches of M samples for each replica"
        shown += [table, Text(legend, aside=True)]
    if verbose and found.candidates:
        shown.append(Drawing("", DRAWING.format("".join(_dots(found)))))
    seen = found.seen
    parts = [f"{counted(seen.possible, 'strategy', 'strategies')}: {seen.predicted:,} predicted"]
    for reason, count in sorted(seen.impossible.items(), key=lambda one: -one[1]):
        parts.append(f"{count:,} not possible ({reason})")
    parts += [f"{seen.too_large:,} too large", f"{seen.dominated:,} slower for certain"]
    notes = Notes(found.notes, aside=not verbose)
    return [*shown, Text(", ".join(parts), "seen: "), notes]


def _best(found: Plan, job: str) -> Iterator[Block]:
    """Yield what the best takes and needs, and how far it is ahead."""
    best, *others = found.candidates
    likely = range_text(best.step_low_ns, best.step_high_ns)
    yield Headline(f"{best.strategy}: {time_text(best.step_ns)} per step (90% interval {likely})")
    held = bytes_text(best.memory_bytes)
    needs = bytes_text(needed_bytes(best.memory_bytes))
    memory = f"{held} of tensors, {needs} with CUDA's context and the allocator's unused rest"
    yield Text(f"{job}; {memory}", "of ")
    if best.hours is not None:
        price = "" if best.dollars is None else f", {number(best.dollars)} dollars"
        yield Text(f"{number(best.hours)} hours{price}", "all tokens: ")
    if turn := found.turn:
        times = f"{'less' if turn.factor < 1 else 'more'} than {number(turn.factor)} times"
        wins = f"{others[0].strategy} wins if {turn.part} takes {times} what is predicted"
        yield Text(wins, "the second: ")
    if within := sum(each.step_ns <= best.step_high_ns for each in others):
        yield Text(counted(within, "other strategy", "other strategies"), "within the interval: ")


def choice(found: Choice, *, verbose: bool = False) -> list[Block]:
    """Return what a choice of blocks makes of a step, the blocks by what a byte costs, and the code."""
    rows = [
        Row((one.block, one.change, "yes" * one.chosen, one.cost_ns, one.saved_bytes))
        for one in found.blocks
        if one.chosen or verbose
    ]
    return [
        *view(found.prediction, verbose=verbose),
        Table(OF_BLOCKS, rows, name="blocks"),
        Code(found.code),
        Notes([] if found.exact else ["a better choice may have been missed"]),
    ]


def _row(found: Plan, each: Candidate, head: str) -> Row:
    fits = needed_bytes(each.memory_bytes) <= found.capacity_bytes
    bound = ", ".join(dict.fromkeys([each.bound, each.lost_to])) if fits else "does not fit"
    gpus = each.gpus if len(found.gpus) > 1 else None
    costs = [one and round(one, 0 if one >= 100 else 2) for one in (each.hours, each.dollars)]
    cells = f"{head}{each.strategy}", gpus, each.step_ns, each.memory_bytes, *costs, bound
    return Row(cells, style=NEUTRAL if fits else FADED)


def _dots(found: Plan) -> list[str]:
    """Return the candidates by step and memory as SVG, those that none beats in blue."""
    longest = max(each.step_ns for each in found.candidates)
    most = max(each.memory_bytes for each in found.candidates)
    return [
        DOT.format(
            each.step_ns / longest,
            1 - each.memory_bytes / most,
            "#1f6feb" if each.best_of else "#c4cad1",
            each.strategy,
            time_text(each.step_ns),
            bytes_text(each.memory_bytes),
        )
        for each in found.candidates
    ]
