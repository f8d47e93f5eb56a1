"""An explanation as text: `daydream explain`. Sentences, each figure beside what it was read from."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from daydream.predict.basis import whole_recording
from daydream.predict.explain import NOT_RECORDED
from daydream.report.text.counted import counted_sentences
from daydream.report.text.explain_costs import avoidable_costs, idle_costs, sentence
from daydream.report.text.layout import (
    Block,
    Figures,
    Screen,
    Table,
    Words,
    fitting,
    notes,
    printable,
    section,
    shortened,
)
from daydream.report.text.numbers import (
    about_steps,
    count,
    error_text,
    listed,
    measured_text,
    number,
    percent,
    replayed_text,
    scale,
    time_text,
)
from daydream.report.text.peak_memory import explained_memory, recording_notes
from daydream.simulate.critical_path import ON_CPU, Bound, PathCause

if TYPE_CHECKING:
    from daydream.predict.breakdown import Share
    from daydream.predict.explain import Explanation, PeakShare
    from daydream.predict.suggest import WhatIfResult

SMALLEST = 0.002  # of the step: causes below it are summed up
LABEL = 34
LEAST_PART = 8  # of a name beside its figure
PARTS = 2
HALF = 0.5
WORTH_A_WORD = 0.05  # of the critical path
# Of the first screen: how many avoidable costs, and how many causes where there is room for more.
FIRST_COSTS, FEW_CAUSES, MOST_CAUSES = 2, 3, 8
OFF_PATH = "off the critical path"
NO_SAVING = "No what-if of the list would save half a percent of the step."


def explain_text(explanation: Explanation, *, verbose: bool = False) -> Screen:
    """Return what bounds the step, the largest avoidable costs and the causes of its time.

    With `verbose` all of these, what goes on off the critical path, and the notes.
    """
    top: list[Block] = [
        *map(Words, whole_recording(explanation.replay.graph.trace)),
        Words(verdict(explanation), "", ""),
        Figures(_headline(explanation)),
        *map(Words, about_steps(explanation.replay)),
        *explained_memory(explanation),
    ]
    if verbose:
        return Screen([
            *top,
            "",
            _causes(explanation),
            *section(OFF_PATH, beside(explanation)),
            *avoidable_costs(explanation),
            *idle_costs(explanation),
            *section("what counters say of kernels", counted_sentences(explanation.replay.graph.trace)),
            *notes(explanation.notes),
        ])  # fmt: skip
    bottom = [Words(note) for note in recording_notes(explanation.replay.notes)]
    screens = (
        Screen([
            *top,
            *_first_costs(explanation, costs),
            "",
            _causes(explanation, causes),
            *([Words(_more(explanation, costs))] if more else []),
            *bottom,
        ])
        for costs, fewest, more in ((FIRST_COSTS, FEW_CAUSES, True), (1, 1, True), (1, 1, False))
        for causes in range(MOST_CAUSES, fewest - 1, -1)
    )  # fmt: skip
    return fitting(screens)


def _first_costs(explanation: Explanation, most: int) -> list[Block]:
    """Return the largest avoidable costs; if none is worth it, that."""
    return avoidable_costs(explanation, most, others=False) or ["", Words(NO_SAVING)]


def _more(explanation: Explanation, shown: int) -> str:
    """Return what does not stand on the first screen."""
    others = len(explanation.worth_it) - shown
    own = set(explanation.notes) - set(explanation.replay.notes)
    said = [count(others, "avoidable cost")] if others > 0 else []
    said += [count(len(own), "note")] if own else []
    return f"more with -v: {', '.join([*said, 'work and waits off the critical path'])}"


def explain_json(explanation: Explanation) -> dict[str, Any]:
    """Return the object `explain --json` prints: the figures, and the sentences that tell them."""
    found = explanation.to_json()
    for entry, cost in zip(found["avoidable"], explanation.avoidable, strict=True):
        entry["sentence"] = sentence(cost)
    return {"verdict": verdict(explanation), **found, "beside": beside(explanation)}


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
    alone, share = _each_alone(explanation, without_device), percent(explanation.bound_share(Bound.CPU))
    return f"Bound by CPU and device alike: {alone}; the critical path runs {share} on the CPU."


def _each_alone(explanation: Explanation, without_device: str) -> str:
    return (
        f"with no CPU cost at all the step would take {_predicted(explanation.without_cpu)}, with an "
        f"infinitely fast device {without_device}, and now it takes {time_text(explanation.replayed_ns)}"
    )


def _by_communication(explanation: Explanation) -> str:
    share, none = percent(explanation.bound_share(Bound.COMMUNICATION)), explanation.without_communication
    said = f"Bound by communication, {share} of the critical path"
    return said if none is None else f"{said}: without it the step would take {_predicted(none)}"


def _bound_by_cpu(explanation: Explanation, without_device: str, floor: str) -> str:
    step = time_text(explanation.replayed_ns)
    infinite = f"with an infinitely fast device the step would still take {without_device} of {step}"
    if explanation.bound_share(Bound.CPU) < HALF:  # on the critical path the device has taken over in part
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
            f" with recorded work, and {percent(missing)} with work that was not recorded" if missing else ""
        )
        said.append(f"The device is busy {percent(explanation.device_busy_share)} of the step{more}.")
    if launching is not None:
        number_of = count(round(launching.calls_per_step), "launch call")
        calls = f"Launching takes {time_text(launching.total_ns)} in {number_of} per step"
        if launching.queue_wait_ns:
            depth = explanation.graph.facts.queue_depth
            calls += f", {time_text(launching.queue_wait_ns)} of it waiting for room in the launch queue"
            calls += f" ({count(depth, 'launch', 'launches')} deep)" if depth else ""
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
    return [f"{said} lets it measure which is fastest. What that gives cannot be told from a trace."]


def _reached(kernels: PeakShare) -> str:
    """Return what kernels reach of the device's peak: what is far below it may be done better."""
    rate = "bandwidth" if kernels.peak == "memory" else "arithmetic"
    name = shortened(printable(kernels.name), LABEL)
    takes, share = time_text(kernels.ns), percent(kernels.share_of_peak)
    return f"{name} takes {takes} at {share} of the device's peak {rate}."


def _headline(explanation: Explanation) -> str:
    replay, after = explanation.replay, explanation.after
    if after is None:
        without = f"without {'start-up' if replay.start_up_ns else 'profiler'}"
        measured = measured_text(replay.basis_measured_ns) or [without]  # none where it is estimated
        return "   ".join(["step time", *measured, replayed_text(replay)])
    times = f"replayed {time_text(after.replayed_ns)}   simulated {time_text(after.simulated_ns)}"
    name = shortened(printable(after.optimization), LABEL)
    return f"step time   {times} after {name} ({error_text(replay.basis_error, replay.error)})"


def _causes(explanation: Explanation, most: int | None = None) -> Table:
    """Return the causes with their parts; or `most` of them and all that are large, with what they are."""
    unit, size, _ = scale(explanation.step_ns)
    shown = [each for each in explanation.causes if abs(each.share) >= SMALLEST]
    if most is not None:
        shown = [each for place, each in enumerate(shown) if place < most or each.share >= 2 * WORTH_A_WORD]
    rest = [each for each in explanation.causes if each not in shown]
    steps = len(explanation.steps)
    head = "critical path of a step" if steps == 1 else f"critical path, mean of {steps}"
    rows = [[head if most is None else "what a step waits for (the critical path)", unit, "share"]]
    for each in shown:
        label = each.cause.label if most is None else each.cause.explained
        rows.append([label, number(each.ns / size), percent(each.share)])
    if rest:
        ns = sum(each.ns for each in rest)
        rows.append(["the rest", number(ns / size), percent(ns / max(explanation.step_ns, 1))])
    if most is not None:
        return Table(rows)
    parts = [partial(_parts, each, size) for each in shown]
    return Table(rows, rest=[lambda _: "mostly", *parts, *[lambda _: ""] * bool(rest)])


def _parts(share: Share, size: int, room: int) -> str:
    """Return the largest part of a cause and, if it fits, another that is nearly as large."""
    large = [part for part in share.largest[:PARTS] if part.ns >= HALF * share.largest[0].ns]
    told = []
    for part in large:
        figure = number(part.ns / size)
        width = max(min(LABEL, room - len(figure) - 1), LEAST_PART)
        told.append(f"{shortened(printable(part.name), width)} {figure}")
    return ", ".join(told) if len(", ".join(told)) <= room else told[0]


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
    return f", {time_text(explanation.synchronization_wait_ns)} of which CPU calls wait for the device"


def _predicted(asked: WhatIfResult) -> str:
    ns = asked.predicted_ns
    return "an unknown time" if ns is None else time_text(min(ns, asked.replayed_ns))
