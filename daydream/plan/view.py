"""The view of a plan: the best strategy, what it would take for the second to win, and the others beside it."""

from __future__ import annotations

from daydream.memory.prediction import CONTEXT
from daydream.plan.checkpointing import Choice
from daydream.plan.predictor import Candidate
from daydream.plan.search import SHOWN, Plan
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
)
from daydream.report.format import number, range_text, time_text
from daydream.report.view import view
from daydream.text import bytes_text, capacity_text, counted, listed

WIDE, HIGH = 640, 240  # pixels of the drawing
CLOSE = 0.02  # of capacity, besides the context: what is left may be too little
DOT = '<circle cx="{:.0f}" cy="{:.0f}" r="5" fill="{}"><title>{}: {}, {}</title></circle>'
COLUMNS = [
    Column("strategy", width=44, keep="both"),
    Kind.COUNT("GPUs"),
    Kind.TIME("step"),
    Kind.BYTES("memory"),
    Kind.COUNT("hours", spare=2),
    Kind.COUNT("dollars", spare=1),
    Column("bound by, lost to"),
]


def plan(found: Plan, *, verbose: bool = False, top: int = SHOWN) -> list[Block]:
    """Return the best strategy and those that follow; `verbose` all of them, drawn."""
    gpus, capacity = listed([f"{each:,}" for each in found.gpus]), found.capacity_bytes
    job = f"{gpus} GPUs of {capacity_text(capacity)}, {counted(found.batch, 'sample')} a step"
    if not found.candidates:
        blocks: list[Block] = [Headline(f"nothing fits {job}")]
        blocks += [
            Text(f"{each.strategy}: {bytes_text(each.memory_bytes)}", f"{each.change}: ")
            for each in found.advice
        ]
    else:
        best, *others = found.candidates
        time = f"{time_text(best.step_ns)} per step"
        likely = range_text(best.step_low_ns, best.step_high_ns)
        left = capacity - best.memory_bytes
        close = " for CUDA's context, too close to tell"
        close = close if left < CLOSE * capacity + CONTEXT[1] else ""
        memory = f"{bytes_text(best.memory_bytes)} of memory, {bytes_text(left)} left{close}"
        blocks = [
            Headline(f"{best.strategy}: {time} (90% interval {likely})"),
            Text(f"{job}; {memory}", "of "),
        ]
        if best.hours is not None:
            price = "" if best.dollars is None else f", {number(best.dollars)} dollars"
            blocks.append(Text(f"{number(best.hours)} hours{price}", "all tokens: "))
        if others and found.turn is not None:
            said = f"{'less' if found.turn.factor < 1 else 'more'} than {number(found.turn.factor)} times"
            wins = f"{others[0].strategy} wins if {found.turn.part} takes {said} what is predicted"
            blocks.append(Text(wins, "the second: "))
        within = sum(each.step_ns <= best.step_high_ns for each in others)
        if within:
            said = counted(within, "other strategy", "other strategies")
            blocks.append(Text(said, "within the interval: "))
    rows = [_row(found, each) for each in found.candidates[: None if verbose else top]]
    rows += [_row(found, found.own, "your own: ")] if found.own is not None else []
    if rows:
        blocks.append(Table(COLUMNS, rows, name="strategies"))
        blocks.append(Text("N x M: N micro-batches of M samples for each replica", aside=True))
    if verbose and rows:
        blocks.append(Drawing("", _drawn(found)))
    seen = found.seen
    reasons = sorted(seen.impossible.items(), key=lambda one: -one[1])
    why = [f"{count:,} not possible ({reason})" for reason, count in reasons]
    why += [f"{seen.too_large:,} too large", f"{seen.dominated:,} slower for certain"]
    said = f"{counted(seen.possible, 'strategy', 'strategies')}: {seen.predicted:,} predicted, "
    return [*blocks, Text(said + ", ".join(why), "seen: "), Notes(found.notes, aside=not verbose)]


def choice(found: Choice, *, verbose: bool = False) -> list[Block]:
    """Return what a choice of blocks makes of a step, the blocks by what a byte costs, and the code."""
    columns = [
        Column("block"),
        Column("change"),
        Column("chosen"),
        Kind.TIME("costs"),
        Kind.BYTES("saves"),
    ]
    rows = [
        Row((one.block, one.change, "yes" if one.chosen else "", one.cost_ns, one.saved_bytes))
        for one in found.blocks
        if one.chosen or verbose
    ]
    said = "" if found.exact else "a better choice may have been missed"
    return [
        *view(found.prediction, verbose=verbose),
        Table(columns, rows, name="blocks"),
        *map(Code, found.code.splitlines()),
        Notes([said] if said else []),
    ]


def _row(found: Plan, each: Candidate, head: str = "") -> Row:
    fits = each.memory_bytes <= found.capacity_bytes
    bound = ", ".join(dict.fromkeys([each.bound, each.lost_to])) if fits else "does not fit"
    gpus = each.gpus if len(found.gpus) > 1 else None
    costs = [one and round(one, 0 if one >= 100 else 2) for one in (each.hours, each.dollars)]
    cells = (each.step_ns, each.memory_bytes, *costs, bound)
    return Row((f"{head}{each.strategy}", gpus, *cells), style=NEUTRAL if fits else FADED)


def _drawn(found: Plan) -> str:
    """Return the candidates by step and memory as SVG, those that none beats in blue."""
    longest = max((each.step_ns for each in found.candidates), default=1)
    dots = []
    for each in found.candidates:
        x, y = WIDE * each.step_ns / longest, HIGH * (1 - each.memory_bytes / found.capacity_bytes)
        color = "#1f6feb" if each.best_of else "#c4cad1"
        said = each.strategy, time_text(each.step_ns), bytes_text(each.memory_bytes)
        dots.append(DOT.format(x, y, color, *said))
    label = 'role="img" aria-label="memory over step time"'
    return f'<svg viewBox="-5 -5 {WIDE + 10} {HIGH + 10}" {label}>{"".join(dots)}</svg>'
