"""An explanation: what bounds the step, what could be avoided, and the causes of its time."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from daydream.costs.counters.quantities import QUANTITIES, counters_table
from daydream.predict.basis import UNMOVED
from daydream.predict.explain import NOT_RECORDED
from daydream.predict.memory import MemoryAnswer
from daydream.report.blocks import (
    Block,
    Column,
    Figures,
    Notes,
    Row,
    Table,
    Text,
    Title,
    error_text,
    listed,
    percent,
    printable,
    shortened,
    speedup,
    tail,
    time_text,
    times,
)
from daydream.report.views.breakdown import REST, columns, times_row
from daydream.report.views.memory import FITS, memory_change, memory_line, recording_notes
from daydream.report.views.memory import verdict as memory_verdict
from daydream.report.views.step import about_steps, code_of, replayed_figure
from daydream.simulate.critical_path import ON_CPU, Bound, PathCause
from daydream.text import bytes_text, counted
from daydream.trace.recorded_steps import made_up, whole_recording

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from daydream.predict.explain import Explanation
    from daydream.predict.suggest import Avoidable, WhatIfResult
    from daydream.trace.trace import Trace

SMALLEST = 0.002  # of the step: causes below it are summed up
# Characters of names, paths and lines of the program
LABEL = 34
LAYER = 40
PATH = 50
SOURCE = 90
HALF = 0.5
WORTH_A_WORD = 0.05  # of the critical path
MANY = 10
# How many avoidable costs and causes an answer shows, and how many costs at all.
FIRST_COSTS = 2
FIRST_CAUSES = 6
MOST_COSTS = 5
MOST_IDLE = 3
MOST_COUNTED = 8  # kernels with counters: those that take longest
NO_SAVING = "No what-if of the list would save half a percent of the step."
AVOIDABLE = "biggest avoidable costs, each simulated"
OF_COSTS = 5  # the margin of what is said below the number of a cost
MANY_KINDS = {  # kind -> what memory of it is called
    "optimizer_state": "optimizer states",
    "temporary": "temporary tensors",
    "unknown": "of an unknown kind",
}
IN_PART = {  # work that has to be done somehow: a what-if removes a part of it
    "launch-bound CPU",
    "CPU operators",
    "memory-bound kernels",
    "other kernels",
    "small-kernel chains",
    "optimizer",
    "32-bit kernels",
}
MORE = 1.2  # a what-if that saves so many times what its cause costs removes other work too
ADVICE = {  # what to do where no what-if does it
    "idle gap": "see what this thread does there",
    "other copies": "keep on the device what is needed there again",
    "exposed communication": "a faster network, or less to send",
    "work between batches": "let workers do it: DataLoader(dataset, num_workers=4, collate_fn=prepare)",
}
# A cost in a sentence; `most` is where the largest part of it lies, `where` where all of it does.
COSTS = {
    "synchronization": "{calls} of {label} wait{s} {takes} for the device{where}",
    "data loading": "The step waits {takes} for its data{most}",
    "exposed communication": "Communication takes {takes} on the critical path{most}",
    "stragglers": "Other ranks are waited for: the critical path runs {takes} on them{most}",
    "copies to the device": "Copies to the device hold up the kernels' stream for {takes}{where}",
    "other copies": "Copies hold up the kernels' stream for {takes}{most}",
    "launch-bound CPU": "Operators, launches and the time between them take {takes}{most}",
    "CPU operators": "Operators of the model and the time between them take {takes}{most}",
    "small-kernel chains": "Small kernels and pauses between kernels ({many}) take {takes}{most}",
    "memory-bound kernels": "Kernels bound by memory ({many}) take {takes}{most}",
    "optimizer": "The optimizer takes {takes} of the critical path{most}",
    "other kernels": "Kernels not known to be bound by memory ({many}) take {takes}{most}",
    "work between batches": "The program's own work between batches takes {takes}{most}",
    "32-bit kernels": "FP32 kernels ({many}) take {takes}{most}",
    "idle gap": "{takes} per step without recorded work after {label}{where}",
    "blocking copies": "{calls} of {label} block{s} the CPU for {takes}, copying {direction}{where}",
}


def explanation(
    found: Explanation,
    *,
    verbose: bool = False,
    words: Sequence[str] = (),
) -> Iterator[Block]:
    """Return what bounds the step, the largest avoidable costs and the causes of its time.

    With `verbose` all of these, what goes on off the critical path, and the notes. `words` name the trace at
    the end of each command, so that it can be pasted.
    """
    worth = found.worth_it
    trace = found.replay.graph.trace
    yield from map(Text, whole_recording(trace))
    yield Text(verdict(found), margin=0)
    yield _figures(found)
    yield from about_steps(found.replay)
    yield from _memory(found, words)
    yield from _costs(found, words, verbose=verbose)
    if not (worth or verbose):
        yield Text(NO_SAVING)
    yield _causes(found, verbose=verbose)
    if verbose:
        yield Notes(beside(found), "off the critical path", aside=False)
        yield Notes(_idle_costs(found), "large but not worth removing", aside=False)
        yield Notes(counted_sentences(trace), "what counters say of kernels", aside=False)
        yield Notes(found.notes)
        return
    others = len(worth) - FIRST_COSTS
    own = set(found.notes) - set(found.replay.notes)
    more = [counted(others, "avoidable cost")] if others > 0 else []
    if own:
        more.append(counted(len(own), "note"))
    said = ", ".join([*more, "work and waits off the critical path"])
    yield Text(said, "-v adds: ", aside=True)
    yield from recording_notes(found.replay.notes)


def explain_json(found: Explanation) -> dict[str, Any]:
    """Return the object `explain --json` prints: the figures, and the sentences that tell them."""
    said = found.to_json()
    for entry, cost in zip(said["avoidable"], found.avoidable, strict=True):
        entry["sentence"] = sentence(cost)
    return {"verdict": verdict(found), **said, "beside": beside(found)}


def _figures(found: Explanation) -> Figures:
    """Return the step that is explained, after a change if there is one."""
    replay = found.replay
    after = found.after
    if after is not None:
        error = error_text(replay)
        simulated = f"{time_text(after.simulated_ns)} after {shortened(after.optimization, LABEL)}"
        figures = [("replayed", time_text(after.replayed_ns), ""), ("simulated", simulated, error)]
        return Figures(figures, "step time")
    measured = times(
        "step time", ("measured", replay.basis_measured_ns, made_up(replay.graph.recorded) or "")
    )
    name, time, error = replayed_figure(replay)
    if not measured.figures:  # the step is estimated
        error = f"without {'start-up' if replay.start_up_ns else 'the profiler'}, {error}"
    return measured._replace(figures=[*measured.figures, (name, time, error)])


def _causes(found: Explanation, *, verbose: bool) -> Table:
    """Return the causes of the step's time; verbose with their largest parts."""
    shown = [
        each
        for at, each in enumerate(found.causes)
        if abs(each.share) >= SMALLEST
        and (verbose or at < FIRST_CAUSES or each.share >= 2 * WORTH_A_WORD)
    ]
    rest = sum(each.ns for each in found.causes if each not in shown)
    mean = "" if len(found.steps) == 1 else f" (mean of {len(found.steps)})"
    first, *others = columns(f"what a step waits for{mean}", ["time"])
    rows = []
    for each in shown:
        part = ""
        if verbose and each.largest:
            largest = each.largest[0]
            part = f"{shortened(largest.name, LABEL)} {largest.ns / max(each.ns, 1):.0%}"
        row = times_row(each.cause.label, [each.ns], found.step_ns)
        name = each.cause.label if verbose else each.cause.explained
        rows.append(row._replace(cells=(name, *row.cells[1:], part)))
    if rest:
        rows.append(Row((*times_row(REST, [rest], found.step_ns).cells, "")))
    heads = [first._replace(width=60), *others, Column("mostly", width=LABEL + 8)]
    return Table(heads, rows, found.step_ns)


# What bounds the step


def verdict(found: Explanation) -> str:
    """Return what bounds the step, in one sentence."""
    bound = found.bound
    step = time_text(found.replayed_ns)
    on_path = percent(found.bound_share(bound))
    none = found.without_communication
    communication = f"Bound by communication, {on_path} of the critical path"
    if none is not None:
        communication += f": without it the step would take {_predicted(none)}"
    if found.without_device is None:
        what = f", and all of {step} is work of CPU threads"
        what = f". {communication}" if bound is Bound.COMMUNICATION else what
        return f"CPU only: nothing is launched to a device{what}."
    if bound is Bound.UNRECORDED:
        pauses = found.share(PathCause.PAUSES)
        if pauses:
            why = f"no CPU work was recorded, and the device pauses for {percent(pauses)} of the critical path"
        else:
            missing = sum(found.share(cause) for cause in NOT_RECORDED)
            why = f"{percent(missing)} of it is work that was not recorded"
        return f"What bounds the step cannot be told: {why}."
    cpu = _predicted(found.without_cpu)
    device = _predicted(found.without_device)
    still = "still " * ((found.without_cpu.saving_ns or 0) < SMALLEST * found.replayed_ns)
    floor = f"without any CPU cost the step would {still}take {cpu} of {step}"
    alone = (
        f"with no CPU cost at all the step would take {cpu}, with an infinitely fast device {device}, and now "
        f"it takes {step}"
    )
    infinite = f"with an infinitely fast device the step would still take {device} of {step}"
    if bound is Bound.GPU:
        told = queue_wait(found) or _hidden(found)
        return f"GPU-bound; {told}{', and ' if told else ''}{floor}."
    if bound is Bound.COMMUNICATION:
        return f"{communication}; {floor}."
    if bound is Bound.COPIES:
        return f"Bound by {bound.label}, {on_path} of the critical path; {floor}."
    if bound is Bound.TURNS:
        waits = ""
        if found.synchronization_wait_ns:
            waited = time_text(found.synchronization_wait_ns)
            waits = f", {waited} of which CPU calls wait for the device"
        return f"CPU and device take turns: {alone}{waits}."
    on_cpu = found.bound_share(Bound.CPU)
    if bound is Bound.BOTH:
        return f"Bound by CPU and device alike: {alone}; the critical path runs {percent(on_cpu)} on the CPU."
    if on_cpu < HALF:  # on the critical path the device has taken over in part
        return f"CPU-bound, and the device waits for it repeatedly: {infinite}; {floor}."
    mine = [each for each in found.causes if each.bound in ON_CPU]
    mine = mine[:1] + [each for each in mine[1:2] if each.share >= WORTH_A_WORD]
    said = listed([f"{percent(each.share)} {each.cause.label}" for each in mine])
    what = "Bound by data loading" if bound is Bound.LOADING else "CPU-bound"
    busy = percent(found.device_busy_share or 0)
    return (
        f"{what}: the critical path is {said}; {infinite}, and the device is busy {busy} of the time."
        f"{found.if_recording_cost_more}"
    )


def _hidden(found: Explanation) -> str:
    """Return that the device has other work beside what is most of the critical path."""
    share = found.bound_share(Bound.COMMUNICATION)
    without = found.without_communication
    if share >= HALF and without is not None:
        return (
            f"communication is {percent(share)} of the critical path, but work that runs at the same time would "
            f"still take {_predicted(without)}"
        )
    share = found.bound_share(Bound.CPU)
    if share < HALF:
        return ""
    return (
        f"the critical path runs {percent(share)} on the CPU, but meanwhile the device has work that takes "
        "nearly as long"
    )


def queue_wait(found: Explanation) -> str:
    """Return that most of the time in launch calls is queue wait, if it is; else an empty text."""
    launching = found.launch_calls
    if launching is None or launching.queue_wait_ns < HALF * max(launching.total_ns, 1):
        return ""
    waited = time_text(launching.queue_wait_ns)
    total = time_text(launching.total_ns)
    return f"most of the time in launch calls ({waited} of {total} per step) is queue wait"


def beside(found: Explanation) -> list[str]:
    """Return what goes on off the critical path, a sentence each."""
    said = []
    launching = found.launch_calls
    transfers = found.communication
    if found.device_busy_share is not None:
        missing = found.share(PathCause.UNTRACED_DEVICE)
        more = f" with recorded work, and {percent(missing)} with work that was not recorded"
        busy = percent(found.device_busy_share)
        said.append(f"The device is busy {busy} of the step{more if missing else ''}.")
    if launching is not None:
        calls = counted(round(launching.calls_per_step), "launch call")
        text = f"Launching takes {time_text(launching.total_ns)} in {calls} per step"
        if launching.queue_wait_ns:
            depth = found.graph.facts.queue_depth
            waited = time_text(launching.queue_wait_ns)
            text += f", {waited} of it waiting for room in the launch queue"
            if depth:
                text += f" ({counted(depth, 'launch', 'launches')} deep)"
        said.append(f"{text}.")
    if found.synchronization_wait_ns:
        waited = time_text(found.synchronization_wait_ns)
        said.append(f"CPU calls wait {waited} per step for device work.")
    for kernels in found.kernels:  # what is far below the device's peak may be done better
        rate = "bandwidth" if kernels.peak == "memory" else "arithmetic"
        name = shortened(printable(kernels.name), LABEL)
        reached = f"at {percent(kernels.share_of_peak)} of the device's peak {rate}"
        said.append(f"{name} takes {time_text(kernels.ns)} {reached}.")
    if found.general_convolutions_ns:
        said.append(
            f"Convolutions take {time_text(found.general_convolutions_ns)} in cuDNN's general algorithms; "
            "`torch.backends.cudnn.benchmark = True` lets it measure which is fastest. What that gives cannot "
            "be told from a trace."
        )
    if transfers is None:
        return said
    text = f"Collectives run {time_text(transfers.total_ns)} per step"
    if transfers.exposed_ns <= SMALLEST * found.step_ns:
        text += ", all of it hidden: "
    else:
        text += f", {time_text(transfers.exposed_ns)} of it on the critical path; "
    hiding = [
        f"{time_text(each.ns)} run during {each.cause.label}"
        for each in transfers.behind[:2]
        if each.ns > SMALLEST * transfers.total_ns
    ]
    text = (text + listed(hiding)).rstrip(" :;") + "."
    without = found.without_communication
    if without is not None and without.predicted_ns is not None:
        as_now = abs(without.saving_ns or 0) < SMALLEST * found.step_ns
        text += f" Without them the step would take {_predicted(without)}{', as now' * as_now}."
    return [*said, text]


def _predicted(asked: WhatIfResult) -> str:
    ns = asked.predicted_ns
    return "an unknown time" if ns is None else time_text(min(ns, asked.replayed_ns))


# What could be avoided


def sentence(cost: Avoidable) -> str:
    """Return an avoidable cost in a sentence."""
    sort, _, direction = cost.sort.partition("blocking copies ")
    number = cost.count_per_step
    label = shortened(printable(cost.label or "a call without a name"), 2 * LABEL)
    parts = [
        cost.layer and f"layer {tail(printable(cost.layer), PATH)}",
        "" if cost.phase == "other" else cost.phase,
        cost.source and tail(printable(cost.source), SOURCE),
    ]
    where = ", ".join(filter(None, parts))
    where = f" ({where})" if where else ""
    part = f"{time_text(cost.label_share * cost.cost_ns)} of it"
    part = "most of it" if cost.label_share > HALF else part
    said = COSTS[sort or "blocking copies"].format(
        takes=time_text(cost.cost_ns),
        calls=f"{number:,.3g} call{'s' * (number != 1)} per step",
        many=f"{number:,.3g} per step" if number < MANY else f"{round(number):,} per step",
        s="s" * (number == 1),
        label=label,
        where=where,
        most="" if cost.label is None else f", {part} in {label}{where}",
        direction=direction,
    )
    return f"{said}."


def _command(asked: WhatIfResult, words: Sequence[str] = ()) -> str:
    """Return the words to type."""
    return printable(shlex.join([*asked.command, *words]))


def _costs(found: Explanation, words: Sequence[str], *, verbose: bool) -> Iterator[Block]:
    """Return the costs worth a change, the largest first, each with what to type and to write.

    Verbose also with what other what-ifs would save of it.
    """
    worth = found.worth_it[: MOST_COSTS if verbose else FIRST_COSTS]
    if worth:
        yield Title(AVOIDABLE)
    for place, cost in enumerate(worth, 1):
        yield Text(sentence(cost), f"{place}. ")
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
            advice = f"; {ADVICE[cost.sort]}" if cost.sort in ADVICE else ""
            yield Text(f"removing it saves {saved}{advice}", margin=OF_COSTS)
            continue
        others = [
            f"{each.optimization} {time_text(each.saving_ns)}"
            for each in cost.whatifs[1:]
            if verbose and each.saving_ns is not None and each.saving_ns > 0
        ]
        if others:
            saved += f"   (or {listed(others)})"
        yield Text(f"{_command(told, words)}   saves {saved}", margin=OF_COSTS)
        yield from code_of(told.code, OF_COSTS)


def _idle_costs(found: Explanation) -> list[str]:
    """Return costs that it gains next to nothing to remove, or that no what-if removes, each with why."""
    idle = [
        cost
        for cost in found.avoidable
        if cost not in found.worth_it
        and (cost.best or cost.limit or cost.whatifs)
        and (cost.best is not None or cost.sort not in IN_PART)
    ]
    said = []
    for cost in idle[:MOST_IDLE]:
        best = cost.best
        saving_ns = cost.saving_ns or 0
        gain = f"only {time_text(saving_ns)}" if saving_ns > 0 else "nothing"
        busy = {Bound.GPU: "device", Bound.CPU: "CPU", Bound.LOADING: "loader"}.get(found.bound)
        if busy and saving_ns < HALF * cost.cost_ns:
            gain += f": the {busy} has work meanwhile"
        if best is None and cost.limit is not None:
            why = f"Without it the step would save {gain}"
        elif best is None:
            reasons = (f"{each.optimization}: {each.reason}" for each in cost.whatifs)
            why = listed(list(dict.fromkeys(reasons)))
        elif -saving_ns >= UNMOVED * found.replayed_ns:
            why = f"`{_command(best)}` would make the step {time_text(-saving_ns)} longer"
        else:
            why = f"`{_command(best)}` saves {gain}"
        said.append(f"{sentence(cost)} {why}.")
    return said


# Memory and counters


def _memory(found: Explanation, words: Sequence[str]) -> Iterator[Block]:
    """Return the peak of a step, what most of it is; and where it may not fit, what makes it smaller."""
    memory = found.memory
    if memory is None:
        yield from memory_line(MemoryAnswer(unsaid=found.memory_unsaid))
        return
    device = memory.holders
    change = memory_change(memory, changes=found.after is not None)
    kind, nbytes = max(device.by_kind.items(), key=lambda each: each[1], default=("unknown", 0))
    layer = device.peak_layer and tail(device.peak_layer, LAYER)
    where = ", ".join(part for part in (device.peak_phase, layer) if part)
    share = percent(nbytes / max(device.peak_allocated_bytes or 0, 1))
    most = f"{share} of it {MANY_KINDS.get(kind, kind + 's')}{f', reached in {where}' if where else ''}"
    yield Text(f"peak memory {change}{memory_verdict(memory)}; {most}")
    if memory.capacity_bytes is None or memory.fits:
        return
    alone = memory.by_kind.get("parameter", 0)
    if alone > memory.capacity_bytes:
        only = "only sharding them or fewer bits for them helps"
        yield Text(f"its parameters alone take {bytes_text(alone)}: {only}", margin=4)
    if not memory.whatifs:
        yield Text("no what-if for its largest holders makes it smaller", margin=4)
        return
    best = memory.whatifs[0]
    step = "" if best.predicted_ns is None else f"; step {time_text(best.predicted_ns)}"
    needs = f" ({best.needs})" if best.needs else ""
    said = f"{_command(best, words)}   peak {bytes_text(best.after_bytes)}, {FITS[best.fits]}{step}{needs}"
    yield Text(said, margin=4)
    yield from code_of(best.code, 4)


def counted_sentences(trace: Trace | None) -> list[str]:
    """Return a sentence for each of the kernels that take longest and were counted, and one for each sum."""
    metadata = {} if trace is None else trace.metadata
    if trace is None or not (metadata.get("counters") or metadata.get("counted_windows")):
        return []
    rows = counters_table(trace)
    kernels = [row for row in rows if "total_ns" in row]
    said = []
    for row in (*kernels[:MOST_COUNTED], *rows[len(kernels) :]):
        values = {name: row[name] for name in QUANTITIES if name in row}
        told = [f"{n} {v:,}" if isinstance(v, int) else f"{n} {v:.3g}" for n, v in values.items()]
        each = "a launch" if "total_ns" in row else "in all"
        number = f"({row['counted']:,} of {row['launches']:,} counted)"
        said.append(f"{row['kernel']:.60}: {', '.join(told)} {each} {number}.")
    return said
