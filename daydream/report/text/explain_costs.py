"""What could be avoided, as text: a sentence for each cost, the command that removes it, the line of code."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from daydream.predict.notes import UNMOVED
from daydream.report.text.layout import MARGIN, Block, Title, Words, printable, section, shortened, tail
from daydream.report.text.numbers import listed, speedup, time_text
from daydream.simulate.critical_path import Bound

if TYPE_CHECKING:
    from daydream.predict.explain import Explanation
    from daydream.predict.suggest import Avoidable, WhatIfResult

MOST = 5  # avoidable costs
MOST_IDLE = 3  # costs whose removal would gain nothing
LABEL = 34
PATH, SOURCE = 50, 90
AVOIDABLE = "what could be avoided, each simulated (add --trace to the command)"
IDLE = "large but not worth removing"
HALF = 0.5
MANY = 10
# Work that has to be done somehow: a what-if removes a part of it, and one that does not apply says nothing.
IN_PART = (
    "launch-bound CPU", "CPU operators", "memory-bound kernels", "other kernels", "small-kernel chains",
    "optimizer", "32-bit kernels",
)  # fmt: skip
MORE = 1.2  # a what-if that saves so many times what its cause costs removes other work too
# What to do where no what-if does it.
ADVICE = {
    "idle gap": "see what this thread does there",
    "other copies": "keep on the device what is needed there again",
    "exposed communication": "a faster network, or less to send",
    "work between batches": "let workers do it: DataLoader(dataset, num_workers=4, collate_fn=prepare)",
}


def sentence(cost: Avoidable) -> str:
    """Return an avoidable cost in a sentence."""
    takes, where = time_text(cost.cost_ns), _where(cost)
    times = cost.count_per_step
    one = times == 1
    calls = f"{times:,.3g} call{'' if one else 's'} per step"
    many = f"{times:,.3g} per step" if times < MANY else f"{round(times):,} per step"
    told = {
        "synchronization": f"{calls} of {_label(cost)} wait{'s' * one} {takes} for the device{where}",
        "data loading": f"The step waits {takes} for its data{_most(cost)}",
        "exposed communication": f"Communication takes {takes} on the critical path{_most(cost)}",
        "stragglers": f"Other ranks are waited for: the critical path runs {takes} on them{_most(cost)}",
        "copies to the device": f"Copies to the device hold up the kernels' stream for {takes}{where}",
        "other copies": f"Copies hold up the kernels' stream for {takes}{_most(cost)}",
        "launch-bound CPU": f"Operators, launches and the time between them take {takes}{_most(cost)}",
        "CPU operators": f"Operators of the model and the time between them take {takes}{_most(cost)}",
        "small-kernel chains": f"Small kernels and pauses between kernels ({many}) take {takes}{_most(cost)}",
        "memory-bound kernels": f"Kernels bound by memory ({many}) take {takes}{_most(cost)}",
        "optimizer": f"The optimizer takes {takes} of the critical path{_most(cost)}",
        "other kernels": f"Kernels not known to be bound by memory ({many}) take {takes}{_most(cost)}",
        "work between batches": f"The program's own work between batches takes {takes}{_most(cost)}",
        "32-bit kernels": f"Kernels in 32 bits ({many}) take {takes}{_most(cost)}",
        "idle gap": f"Nothing is recorded for {takes} per step after {_label(cost)}{where}",
    }
    if cost.sort.startswith("blocking copies"):
        direction = cost.sort.removeprefix("blocking copies ")
        return f"{calls} of {_label(cost)} block{'s' * one} {takes}, copying {direction}{where}."
    return f"{told[cost.sort]}."


def command(asked: WhatIfResult) -> str:
    """Return the words to type, without the trace."""
    return printable(" ".join(shlex.quote(word) for word in asked.command))


def avoidable_costs(explanation: Explanation, most: int = MOST, *, others: bool = True) -> list[Block]:
    """Return the costs worth a change, the largest first, each with what to type and to write.

    With `others` also what other what-ifs would save of it.
    """
    step = explanation.replayed_ns
    worth = explanation.worth_it[:most]
    blocks: list[Block] = ["", Title(AVOIDABLE)] if worth else []
    for place, cost in enumerate(worth, 1):
        head = f"{MARGIN}{place}. "
        hanging = " " * len(head)
        blocks.append(Words(sentence(cost), head, hanging))
        told = cost.best or cost.limit
        if told is None or told.predicted_ns is None:
            continue
        saving_ns = cost.saving_ns or 0
        saved = f"{time_text(saving_ns)}, {speedup(step, told.predicted_ns)}"
        if saving_ns > MORE * cost.cost_ns:
            saved += "; it removes other work as well"
        elif saving_ns < HALF * cost.cost_ns and cost.sort not in IN_PART:
            saved += "; concurrent work then takes over"
        if cost.best is None:
            blocks.append(
                Words(f"without it the step would save {saved}{_advice(cost)}", hanging, hanging + MARGIN)
            )
            continue
        saved += _others(cost) if others else ""
        blocks.append(Words(f"{command(told)}   saves {saved}", hanging, hanging + MARGIN))
        if told.code:
            blocks.append(Words(f"in code: {told.code}", hanging, hanging + MARGIN))
    return blocks


def idle_costs(explanation: Explanation, most: int = MOST_IDLE) -> list[Block]:
    """Return costs that it gains next to nothing to remove, or that no what-if removes, each with why."""
    idle = [
        cost
        for cost in explanation.avoidable
        if cost not in explanation.worth_it
        and (cost.best or cost.limit or cost.whatifs)
        and (cost.best is not None or cost.sort not in IN_PART)
    ]
    return section(IDLE, [f"{sentence(cost)} {_why_not(explanation, cost)}" for cost in idle[:most]])


def _why_not(explanation: Explanation, cost: Avoidable) -> str:
    best = cost.best
    if best is None and cost.limit is not None:
        return f"Without it the step would save {_gain(explanation, cost)}."
    if best is None:
        reasons = list(dict.fromkeys(f"{each.optimization}: {each.reason}" for each in cost.whatifs))
        return f"{listed(reasons)}."
    saving_ns = cost.saving_ns or 0
    if -saving_ns >= UNMOVED * explanation.replayed_ns:
        return f"`{command(best)}` would make the step {time_text(-saving_ns)} longer."
    return f"`{command(best)}` saves {_gain(explanation, cost)}."


def _gain(explanation: Explanation, cost: Avoidable) -> str:
    saving_ns = cost.saving_ns or 0
    gain = f"only {time_text(saving_ns)}" if saving_ns > 0 else "nothing"
    busy = {Bound.GPU: "device", Bound.CPU: "CPU", Bound.LOADING: "loader"}.get(explanation.bound)
    reason = f": the {busy} has work meanwhile" if busy and saving_ns < HALF * cost.cost_ns else ""
    return f"{gain}{reason}"


def _advice(cost: Avoidable) -> str:
    advice = ADVICE.get(cost.sort)
    return f"; {advice}" if advice else ""


def _others(cost: Avoidable) -> str:
    others = [
        f"{each.optimization} {time_text(each.saving_ns)}"
        for each in cost.whatifs[1:] if each.saving_ns is not None and each.saving_ns > 0
    ]  # fmt: skip
    return f"   (or {listed(others)})" if others else ""


def _label(cost: Avoidable) -> str:
    return shortened(printable(cost.label or "a call without a name"), 2 * LABEL)


def _most(cost: Avoidable) -> str:
    """Return where the largest part of a cost lies."""
    if cost.label is None:
        return ""
    part = "most of it" if cost.label_share > HALF else time_text(cost.label_share * cost.cost_ns) + " of it"
    return f", {part} in {_label(cost)}{_where(cost)}"


def _where(cost: Avoidable) -> str:
    """Return layer, phase and source line of a cost, as far as they are known."""
    parts = [f"layer {tail(printable(cost.layer), PATH)}"] if cost.layer else []
    parts += [cost.phase] if cost.phase and cost.phase != "other" else []
    parts += [tail(printable(cost.source), SOURCE)] if cost.source else []
    return f" ({', '.join(parts)})" if parts else ""
