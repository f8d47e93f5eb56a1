"""An explanation: what bounds the step, what could be avoided, and the causes of its time."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from daydream.costs.counters.listing import counters_table
from daydream.costs.counters.quantities import QUANTITIES
from daydream.predict.basis import whole_recording
from daydream.predict.explain import NOT_RECORDED
from daydream.predict.memory import MemoryAnswer
from daydream.predict.notes import UNMOVED
from daydream.report.blocks import Block, Column, Figures, Kind, Notes, Row, Table, Text, Title
from daydream.report.format import (
    error_text,
    listed,
    percent,
    printable,
    shortened,
    speedup,
    tail,
    time_text,
)
from daydream.report.views.breakdown import COLORS, REST
from daydream.report.views.memory import FITS, memory_change, memory_line, recording_notes
from daydream.report.views.memory import verdict as memory_verdict
from daydream.report.views.step import about_steps, code_of, replayed_text
from daydream.simulate.critical_path import ON_CPU, Bound, PathCause
from daydream.text import bytes_text, counted

if TYPE_CHECKING:
    from daydream.memory.result import DeviceMemory
    from daydream.predict.breakdown import Share
    from daydream.predict.explain import Explanation, PeakShare
    from daydream.predict.suggest import Avoidable, WhatIfResult
    from daydream.trace.trace import Trace

SMALLEST = 0.002  # of the step: causes below it are summed up
LABEL, LAYER, PATH, SOURCE = (
    34,
    40,
    50,
    90,
)  # characters of a name, of paths and of a line of the program
HALF = 0.5
WORTH_A_WORD = 0.05  # of the critical path
MANY = 10
# How many avoidable costs and causes an answer shows, and how many costs at all.
FIRST_COSTS, FIRST_CAUSES, MOST_COSTS, MOST_IDLE = 2, 6, 5, 3
MOST_COUNTED = 8  # kernels with counters: those that take longest
NO_SAVING = "No what-if of the list would save half a percent of the step."
AVOIDABLE = "biggest avoidable costs, each simulated"
OF_COSTS = 5  # the margin of what is said below the number of a cost
MANY_KINDS = {  # kind -> what memory of it is called
    "optimizer_state": "optimizer states", "temporary": "temporary tensors", "unknown": "of an unknown kind",
}  # fmt: skip
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


def explanation(found: Explanation, *, verbose: bool = False) -> list[Block]:
    """Return what bounds the step, the largest avoidable costs and the causes of its time.

    With `verbose` all of these, what goes on off the critical path, and the notes.
    """
    worth = found.worth_it
    blocks: list[Block] = [
        *map(Text, whole_recording(found.replay.graph.trace)),
        Text(verdict(found), margin=0),
        _figures(found),
        *about_steps(found.replay),
        *_memory(found),
        *avoidable_costs(found, MOST_COSTS if verbose else FIRST_COSTS, others=verbose),
        *([] if worth or verbose else [Text(NO_SAVING)]),
        cause_table(found, verbose=verbose),
    ]
    if verbose:
        counters = counted_sentences(found.replay.graph.trace)
        return [
            *blocks,
            Notes(beside(found), "off the critical path", aside=False),
            Notes(_idle_costs(found), "large but not worth removing", aside=False),
            Notes(counters, "what counters say of kernels", aside=False),
            Notes(found.notes),
        ]
    others = len(worth) - FIRST_COSTS
    own = set(found.notes) - set(found.replay.notes)
    more = [counted(others, "avoidable cost")] if others > 0 else []
    more += [counted(len(own), "note")] if own else []
    said = ", ".join([*more, "work and waits off the critical path"])
    return [*blocks, Text(said, "-v adds: ", aside=True), *recording_notes(found.replay.notes)]


def explain_json(found: Explanation) -> dict[str, Any]:
    """Return the object `explain --json` prints: the figures, and the sentences that tell them."""
    said = found.to_json()
    for entry, cost in zip(said["avoidable"], found.avoidable, strict=True):
        entry["sentence"] = sentence(cost)
    return {"verdict": verdict(found), **said, "beside": beside(found)}


def _figures(found: Explanation) -> Figures:
    """Return the step that is explained, after a change if there is one."""
    replay, after = found.replay, found.after
    if after is None:
        what = "start-up" if replay.start_up_ns else "profiler"
        measured = replay.basis_measured_ns  # none where it is estimated
        figures = (
            [(f"without {what}", "", "")]
            if measured is None
            else [("measured", time_text(measured), "")]
        )
        name, _, rest = replayed_text(replay).partition(" ")
        figure, _, error = rest.partition(" (")
        return Figures([*figures, (name, figure, error.removesuffix(")"))], "step time")
    error = error_text(replay.basis_error, replay.error)
    simulated = f"{time_text(after.simulated_ns)} after {shortened(after.optimization, LABEL)}"
    return Figures(
        [("replayed", time_text(after.replayed_ns), ""), ("simulated", simulated, error)],
        "step time",
    )


def cause_table(found: Explanation, *, verbose: bool) -> Table:
    """Return the causes of the step's time; verbose with their largest parts."""
    shown = [each for each in found.causes if abs(each.share) >= SMALLEST]
    if not verbose:
        shown = [
            each
            for at, each in enumerate(shown)
            if at < FIRST_CAUSES or each.share >= 2 * WORTH_A_WORD
        ]
    rest = sum(each.ns for each in found.causes if each not in shown)
    steps = len(found.steps)
    columns = [
        Column("what a step waits for" + ("" if steps == 1 else f" (mean of {steps})"), width=60),
        Column("time", Kind.TIME, bar=True), Column("share", Kind.PERCENT), Column("mostly", width=LABEL + 8),
    ]  # fmt: skip
    rows = [
        Row((each.cause.label if verbose else each.cause.explained, each.ns, each.share,
             _part(each) if verbose else ""), color=COLORS[each.cause.label])
        for each in shown
    ]  # fmt: skip
    if rest:
        rows.append(Row((REST, rest, rest / max(found.step_ns, 1), "")))
    return Table(columns, rows, found.step_ns)


def _part(share: Share) -> str:
    """Return the largest part of a cause and how much of it that is."""
    if not share.largest:
        return ""
    part = share.largest[0]
    return f"{shortened(part.name, LABEL)} {100 * part.ns / max(share.ns, 1):.0f} %"


# What bounds the step


def verdict(explanation: Explanation) -> str:
    """Return what bounds the step, in one sentence."""
    step = explanation.replayed_ns
    if explanation.without_device is None:
        what = f", and all of {time_text(step)} is work of CPU threads"
        if explanation.bound is Bound.COMMUNICATION:
            what = f". {_by_communication(explanation)}"
        return f"CPU only: nothing is launched to a device{what}."
    without_cpu = _predicted(explanation.without_cpu)
    without_device = _predicted(explanation.without_device)
    still = "still " if (explanation.without_cpu.saving_ns or 0) < SMALLEST * step else ""
    floor = f"without any CPU cost the step would {still}take {without_cpu} of {time_text(step)}"
    if explanation.bound is Bound.UNRECORDED:
        missing = sum(explanation.share(cause) for cause in NOT_RECORDED)
        if pauses := explanation.share(PathCause.PAUSES):
            return (
                f"What bounds the step cannot be told: no CPU work was recorded, and the device pauses for "
                f"{percent(pauses)} of the critical path."
            )
        return f"What bounds the step cannot be told: {percent(missing)} of it is work that was not recorded."
    said = {
        Bound.GPU: _bound_by_gpu, Bound.COMMUNICATION: _bound_by_transfers, Bound.COPIES: _bound_by_transfers,
        Bound.TURNS: _in_turns, Bound.BOTH: _by_both,
    }  # fmt: skip
    return said.get(explanation.bound, _bound_by_cpu)(explanation, without_device, floor)


def _bound_by_gpu(explanation: Explanation, _without_device: str, floor: str) -> str:
    told = queue_wait(explanation) or _beside_communication(explanation) or _beside_cpu(explanation)
    return f"GPU-bound; {told + ', and ' if told else ''}{floor}."


def _bound_by_transfers(explanation: Explanation, _without_device: str, floor: str) -> str:
    share = percent(explanation.bound_share(explanation.bound))
    what = f"Bound by {explanation.bound.label}, {share} of the critical path"
    if explanation.bound is Bound.COMMUNICATION:
        what = _by_communication(explanation)
    return f"{what}; {floor}."


def _in_turns(explanation: Explanation, without_device: str, _floor: str) -> str:
    alone = _each_alone(explanation, without_device)
    return f"CPU and device take turns: {alone}{_waiting(explanation)}."


def _by_both(explanation: Explanation, without_device: str, _floor: str) -> str:
    alone, share = (
        _each_alone(explanation, without_device),
        percent(explanation.bound_share(Bound.CPU)),
    )
    return f"Bound by CPU and device alike: {alone}; the critical path runs {share} on the CPU."


def _each_alone(explanation: Explanation, without_device: str) -> str:
    return (
        f"with no CPU cost at all the step would take {_predicted(explanation.without_cpu)}, with an "
        f"infinitely fast device {without_device}, and now it takes {time_text(explanation.replayed_ns)}"
    )


def _by_communication(explanation: Explanation) -> str:
    share, none = (
        percent(explanation.bound_share(Bound.COMMUNICATION)),
        explanation.without_communication,
    )
    said = f"Bound by communication, {share} of the critical path"
    return said if none is None else f"{said}: without it the step would take {_predicted(none)}"


def _bound_by_cpu(explanation: Explanation, without_device: str, floor: str) -> str:
    step = time_text(explanation.replayed_ns)
    infinite = (
        f"with an infinitely fast device the step would still take {without_device} of {step}"
    )
    if (
        explanation.bound_share(Bound.CPU) < HALF
    ):  # on the critical path the device has taken over in part
        return f"CPU-bound, and the device waits for it repeatedly: {infinite}; {floor}."
    mine = [each for each in explanation.causes if each.bound in ON_CPU]
    mine = mine[:1] + [each for each in mine[1:2] if each.share >= WORTH_A_WORD]
    said = [f"{percent(each.share)} {each.cause.label}" for each in mine]
    what = "Bound by data loading" if explanation.bound is Bound.LOADING else "CPU-bound"
    return (
        f"{what}: the critical path is {listed(said)}; {infinite}, and the "
        f"device is busy {percent(explanation.device_busy_share or 0)} of the time."
        f"{explanation.if_recording_cost_more}"
    )


def _beside_communication(explanation: Explanation) -> str:
    """Return that other work takes nearly as long as the communication that is most of the critical path."""
    share, without = explanation.bound_share(Bound.COMMUNICATION), explanation.without_communication
    if share < HALF or without is None:
        return ""
    return (
        f"communication is {percent(share)} of the critical path, but work that runs at the same time would "
        f"still take {_predicted(without)}"
    )


def _beside_cpu(explanation: Explanation) -> str:
    """Return that the device has work beside the CPU that is most of the critical path."""
    share = explanation.bound_share(Bound.CPU)
    if share < HALF:
        return ""
    return (
        f"the critical path runs {percent(share)} on the CPU, but meanwhile the device has work that takes "
        "nearly as long"
    )


def queue_wait(explanation: Explanation) -> str:
    """Return that most of the time in launch calls is queue wait, if it is; else an empty text."""
    launching = explanation.launch_calls
    if launching is None or launching.queue_wait_ns < HALF * max(launching.total_ns, 1):
        return ""
    waited, total = time_text(launching.queue_wait_ns), time_text(launching.total_ns)
    return f"most of the time in launch calls ({waited} of {total} per step) is queue wait"


def beside(explanation: Explanation) -> list[str]:
    """Return what goes on beside the critical path, a sentence each."""
    said = []
    launching = explanation.launch_calls
    if explanation.device_busy_share is not None:
        missing = explanation.share(PathCause.UNTRACED_DEVICE)
        more = (
            f" with recorded work, and {percent(missing)} with work that was not recorded"
            if missing
            else ""
        )
        said.append(
            f"The device is busy {percent(explanation.device_busy_share)} of the step{more}."
        )
    if launching is not None:
        number_of = counted(round(launching.calls_per_step), "launch call")
        calls = f"Launching takes {time_text(launching.total_ns)} in {number_of} per step"
        if launching.queue_wait_ns:
            depth = explanation.graph.facts.queue_depth
            calls += (
                f", {time_text(launching.queue_wait_ns)} of it waiting for room in the launch queue"
            )
            calls += f" ({counted(depth, 'launch', 'launches')} deep)" if depth else ""
        said.append(f"{calls}.")
    if explanation.synchronization_wait_ns:
        waited = time_text(explanation.synchronization_wait_ns)
        said.append(f"CPU calls wait {waited} per step for device work.")
    return [
        *said, *map(_reached, explanation.kernels), *_convolutions(explanation), *_communication(explanation)
    ]  # fmt: skip


def _convolutions(explanation: Explanation) -> list[str]:
    if not explanation.general_convolutions_ns:
        return []
    takes = time_text(explanation.general_convolutions_ns)
    said = f"Convolutions take {takes} in cuDNN's general algorithms; `torch.backends.cudnn.benchmark = True`"
    return [
        f"{said} lets it measure which is fastest. What that gives cannot be told from a trace."
    ]


def _reached(kernels: PeakShare) -> str:
    """Return what kernels reach of the device's peak: what is far below it may be done better."""
    rate = "bandwidth" if kernels.peak == "memory" else "arithmetic"
    name = shortened(printable(kernels.name), LABEL)
    takes, share = time_text(kernels.ns), percent(kernels.share_of_peak)
    return f"{name} takes {takes} at {share} of the device's peak {rate}."


def _communication(explanation: Explanation) -> list[str]:
    found, without = explanation.communication, explanation.without_communication
    if found is None:
        return []
    total = f"Collectives run {time_text(found.total_ns)} per step"
    if found.exposed_ns <= SMALLEST * explanation.step_ns:
        total += ", all of it hidden: "
    else:
        total += f", {time_text(found.exposed_ns)} of it on the critical path; "
    hiding = [
        f"{time_text(each.ns)} run during {each.cause.label}"
        for each in found.behind[:2]
        if each.ns > SMALLEST * found.total_ns
    ]
    said = (total + listed(hiding)).rstrip(" :;") + "."
    if without is not None and without.predicted_ns is not None:
        as_now = abs(without.saving_ns or 0) < SMALLEST * explanation.step_ns
        said += f" Without them the step would take {_predicted(without)}{', as now' * as_now}."
    return [said]


def _waiting(explanation: Explanation) -> str:
    if not explanation.synchronization_wait_ns:
        return ""
    return (
        f", {time_text(explanation.synchronization_wait_ns)} of which CPU calls wait for the device"
    )


def _predicted(asked: WhatIfResult) -> str:
    ns = asked.predicted_ns
    return "an unknown time" if ns is None else time_text(min(ns, asked.replayed_ns))


# What could be avoided


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


def avoidable_costs(
    found: Explanation, most: int = MOST_COSTS, *, others: bool = True
) -> list[Block]:
    """Return the costs worth a change, the largest first, each with what to type and to write.

    With `others` also what other what-ifs would save of it.
    """
    worth = found.worth_it[:most]
    blocks: list[Block] = [Title(AVOIDABLE)] if worth else []
    for place, cost in enumerate(worth, 1):
        blocks.append(Text(sentence(cost), f"{place}. "))
        told = cost.best or cost.limit
        if told is None or told.predicted_ns is None:
            continue
        saving_ns = cost.saving_ns or 0
        saved = f"{time_text(saving_ns)}, {speedup(found.replayed_ns, told.predicted_ns)}"
        if saving_ns > MORE * cost.cost_ns:
            saved += "; it removes other work as well"
        elif saving_ns < HALF * cost.cost_ns and cost.sort not in IN_PART:
            saved += " (then limited by other work)"
        if cost.best is None:
            advice = ADVICE.get(cost.sort)
            blocks.append(
                Text(f"removing it saves {saved}{f'; {advice}' if advice else ''}", margin=OF_COSTS)
            )
            continue
        saved += _others(cost) if others else ""
        blocks.append(Text(f"{command(told)}   saves {saved}", margin=OF_COSTS))
        blocks += code_of(told.code, OF_COSTS)
    return blocks


def _idle_costs(found: Explanation) -> list[str]:
    """Return costs that it gains next to nothing to remove, or that no what-if removes, each with why."""
    idle = [
        cost
        for cost in found.avoidable
        if cost not in found.worth_it
        and (cost.best or cost.limit or cost.whatifs)
        and (cost.best is not None or cost.sort not in IN_PART)
    ]
    return [f"{sentence(cost)} {_why_not(found, cost)}" for cost in idle[:MOST_IDLE]]


def _why_not(explanation: Explanation, cost: Avoidable) -> str:
    best = cost.best
    if best is None and cost.limit is not None:
        return f"Without it the step would save {_gain(explanation, cost)}."
    if best is None:
        reasons = list(
            dict.fromkeys(f"{each.optimization}: {each.reason}" for each in cost.whatifs)
        )
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
    part = (
        "most of it"
        if cost.label_share > HALF
        else time_text(cost.label_share * cost.cost_ns) + " of it"
    )
    return f", {part} in {_label(cost)}{_where(cost)}"


def _where(cost: Avoidable) -> str:
    """Return layer, phase and source line of a cost, as far as they are known."""
    parts = [f"layer {tail(printable(cost.layer), PATH)}"] if cost.layer else []
    parts += [cost.phase] if cost.phase and cost.phase != "other" else []
    parts += [tail(printable(cost.source), SOURCE)] if cost.source else []
    return f" ({', '.join(parts)})" if parts else ""


# Memory and counters


def _memory(found: Explanation) -> list[Block]:
    """Return the peak of a step, what most of it is; and where it may not fit, what makes it smaller."""
    memory = found.memory
    if memory is None:
        return memory_line(MemoryAnswer(unsaid=found.memory_unsaid))
    change = memory_change(memory, changes=found.after is not None)
    blocks: list[Block] = [
        Text(f"peak memory {change}{memory_verdict(memory)}; {_most_of(memory.holders)}")
    ]
    if memory.capacity_bytes is None or memory.fits:
        return blocks
    alone = memory.by_kind.get("parameter", 0)
    if alone > memory.capacity_bytes:
        only = "only sharding them or fewer bits for them helps"
        blocks.append(Text(f"its parameters alone take {bytes_text(alone)}: {only}", margin=4))
    if not memory.whatifs:
        return [*blocks, Text("no what-if for its largest holders makes it smaller", margin=4)]
    best = memory.whatifs[0]
    step = "" if best.predicted_ns is None else f"; step {time_text(best.predicted_ns)}"
    needs = f" ({best.needs})" if best.needs else ""
    said = f"{command(best)}   peak {bytes_text(best.after_bytes)}, {FITS[best.fits]}{step}{needs}"
    return [*blocks, Text(said, margin=4), *code_of(best.code, 4)]


def _most_of(device: DeviceMemory) -> str:
    """Return what most of a device's peak is, and where in the step it is."""
    kind, nbytes = max(device.by_kind.items(), key=lambda each: each[1], default=("unknown", 0))
    layer = device.peak_layer and tail(device.peak_layer, LAYER)
    where = ", ".join(part for part in (device.peak_phase, layer) if part)
    share = percent(nbytes / max(device.peak_allocated_bytes or 0, 1))
    return f"{share} of it {MANY_KINDS.get(kind, kind + 's')}{f', reached in {where}' if where else ''}"


def counted_sentences(trace: Trace | None) -> list[str]:
    """Return a sentence for each of the kernels that take longest and were counted, and one for each sum."""
    if trace is None or not (
        trace.metadata.get("counters") or trace.metadata.get("counted_windows")
    ):
        return []
    rows = counters_table(trace)
    kernels = [row for row in rows if "total_ns" in row]
    return [_sentence(row) for row in (*kernels[:MOST_COUNTED], *rows[len(kernels) :])]


def _sentence(row: dict[str, float | str]) -> str:
    told = [f"{name} {_figure(row[name])}" for name in QUANTITIES if name in row]
    each = "a launch" if "total_ns" in row else "in all"
    return f"{row['kernel']:.60}: {', '.join(told)} {each} ({row['counted']:,} of {row['launches']:,} counted)."


def _figure(value: float | str) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
