"""Notes: what a reader should know before trusting a replay or a prediction, a sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from daydream.predict.bottleneck import why_unmoved
from daydream.simulate.steady import SETTLED, Settled
from daydream.text import counted

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.replay import Replay
    from daydream.trace.trace import Trace

DOUBTFUL = 0.005  # of the measured steps: less CPU time that may be a wait is not worth a word


def preference(notes: Sequence[str], name: str) -> tuple[int, str]:
    """Return what to sort by where two names are the same change: fewer notes, then the first by name."""
    return len(notes), name


def replay_notes(graph: Graph, settled: Settled) -> list[str]:
    """Return what a reader should know before trusting the figures, a sentence each."""
    from daydream.predict.recorded_time import recorded_time

    facts = graph.facts
    said = [*(graph.trace.metadata.get("notes", []) if graph.trace else []), *facts.notes]
    time = recorded_time(graph.trace) if graph.trace is not None else None
    said += filter(None, [time.note() if time is not None else None])
    if graph.trace is not None and _whole_microseconds(graph.trace):
        said.append("Times were recorded in whole microseconds: short kernels and pauses are up to 1 us off.")
    unresolved = facts.event_waits["unresolved"]
    if unresolved:
        total = sum(facts.event_waits.values())
        said.append(
            f"{unresolved:,} of {counted(total, 'stream wait')} could not be resolved; "
            "their order is not kept."
        )
    if facts.unresolved_syncs:
        calls = counted(facts.unresolved_syncs, "synchronizing call")
        said.append(f"What {calls} waited for could not be found; they are kept as plain calls.")
    if facts.unexplained:
        tasks = counted(facts.unexplained, "device task")
        said.append(
            f"{tasks} started later than known causes allow, by {facts.unexplained_ns / 1e6:,.1f} ms in "
            "total; the delay is kept as it was."
        )
    measured = sum(step.get("measured_ns") or 0 for step in graph.steps)
    if facts.doubtful_ns > DOUBTFUL * measured:
        pauses = counted(facts.doubtful_waits, "stretch of CPU time", "stretches of CPU time")
        said.append(
            f"{pauses}, {facts.doubtful_ns / 1e6:,.1f} ms in total, may be waits for what ended just before: "
            "the recording does not show which. They are kept as they are, and intervals cover both cases."
        )
    ranks = {step.get("rank", 0) for step in graph.steps}
    if settled.passes == 1 and 1 < len(ranks) < len(graph.steps):
        said.append(
            "The steps of these ranks are simulated as recorded, not repeated until they are steady: which "
            "of them belong together is not known, or not all ranks have a step that can be judged."
        )
    if not settled.settled:
        said.append(
            "Step times had not reached a steady state after repeating the window; the last pass is shown."
        )
    return said


def prediction_notes(prediction: Prediction, *, as_recorded: bool = False) -> list[str]:
    """Return the replay's notes and those about this prediction.

    `as_recorded`: only of the step as recorded, which is not predicted once more without the profiler.
    """
    said = list(prediction.replay.notes)
    said += [note for note in prediction.graph.facts.notes if note not in said]
    if prediction.left_out is not None:
        said.append(str(prediction.left_out))
    if prediction.contention is not None:
        said.append(prediction.contention.note())
    said += filter(None, [None if as_recorded else recording_note(prediction)])
    if not prediction.after.timeline.overlaps_settled:
        said.append(
            "Which kernels run during transfers changed with every simulation; "
            "the last of these simulations is shown."
        )
    if not prediction.after.settled:
        said.append(
            "The predicted step had not reached a steady state after repeating the window; its last "
            "pass is shown."
        )
    mean_ns, steady_ns = prediction.replay.replayed_ns, prediction.replayed_ns
    recorded, steady = (f"{ns / 1e6:,.5g} ms" for ns in (mean_ns, steady_ns))
    apart = abs(mean_ns - steady_ns) > SETTLED * steady_ns and recorded != steady
    if apart and prediction.replay.recorded is None:
        said.append(
            f"The recorded steps are not steady: their mean replays in {recorded}, a steady step {steady}."
        )
    if prediction.changed or prediction.inserted or prediction.removed:
        said += filter(None, [why_unmoved(prediction)])
    answer = prediction.memory_answer
    if answer.memory is not None:
        said += [*answer.memory.recording_notes, *answer.memory.notes]
    elif answer.unsaid is not None:
        said.append(f"{answer.unsaid}.")
    if len(prediction.replay.steps) == 1:
        said.append("Only one step is covered: the interval leaves out how steps vary.")
    return said


def recording_note(prediction: Prediction) -> str | None:
    """Return that the trace does not say what recording cost, and what it is taken for; None if it does."""
    if prediction.unprofiled is None or prediction.unprofiled.beside is None:
        return None
    return typical_cost_note(prediction.replay)


def typical_cost_note(replay: Replay) -> str:
    """Return what the cost of recording is taken for, where the trace does not say it."""
    return (
        "What recording cost is not in this trace: for the step without the profiler, the typical "
        f"{replay.recorded_share:.0%} of the CPU's time was taken out. `daydream collect` "
        "times steps without the profiler, too."
    )


def _whole_microseconds(trace: Trace) -> bool:
    starts = trace["start_ns"][:1000]
    return bool(len(starts) and not (starts % 1000).any() and not (trace["duration_ns"][:1000] % 1000).any())
