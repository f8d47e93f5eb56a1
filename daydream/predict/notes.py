"""Notes: what a reader should know before trusting a replay or a prediction, a sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.graph.tables import step_rank
from daydream.simulate.critical_path import ON_CPU, Bound, by_bound, ns_by_cause
from daydream.simulate.steady_state import SETTLED, SteadyState
from daydream.text import counted
from daydream.trace.recorded_time import recorded_time, silent_ranks, whole_recording

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction

UNMOVED = 0.002  # of the step: less is shown as 1.00x


def preference(notes: Sequence[str], name: str) -> tuple[int, str]:
    """Return what to sort by where two names are the same change: fewer notes, then the first by name."""
    return len(notes), name


def replay_notes(graph: Graph, settled: SteadyState) -> list[str]:
    """Return what a reader should know before trusting the figures, a sentence each."""
    facts = graph.facts
    trace = graph.recorded
    time = recorded_time(trace)
    first = np.append(trace["start_ns"][:1000], trace["duration_ns"][:1000])
    unresolved = facts.event_waits["unresolved"]
    waits = sum(facts.event_waits.values())
    ranks = {step_rank(step) for step in graph.steps}
    said: list[Any] = [
        *whole_recording(trace),
        *trace.metadata.get("notes", []),
        *facts.notes,
        time and time.note(),
        (silent := silent_ranks(trace))
        and f"The trace is of one of {silent:,} ranks and holds none of their collectives: every answer leaves "
        "communication out.",
        trace.metadata.get("backend") == "fake"
        and "torch's fake backend does not tell which group an operator used: `daydream collect --world N` records "
        "it.",
        len(first)
        and not (first % 1000).any()
        and "Times were recorded in whole microseconds: short kernels and pauses are up to 1 us off.",
        unresolved
        and f"{unresolved:,} of {counted(waits, 'stream wait')} could not be resolved; their order is not "
        "kept.",
        facts.unresolved_syncs
        and f"What {counted(facts.unresolved_syncs, 'synchronizing call')} waited for could not be found; "
        "they are kept as plain calls.",
        facts.unexplained
        and f"{counted(facts.unexplained, 'device task')} started later than known causes allow, by "
        f"{facts.unexplained_ns / 1e6:,.1f} ms in total; the delay is kept as it was.",
        settled.passes == 1
        and 1 < len(ranks) < len(graph.steps)
        and "The steps of these ranks are simulated as recorded, not repeated until they are steady: which "
        "of them belong together is not known, or not all ranks have a step that can be judged.",
        not settled.settled
        and "Step times had not reached a steady state after repeating the window; the last pass is shown.",
    ]
    return [*filter(None, said)]


def prediction_notes(prediction: Prediction) -> list[str]:
    """Return the replay's notes and those about this prediction."""
    replay = prediction.replay
    after = prediction.after
    answer = prediction.memory_answer
    mean_ns = replay.replayed_ns
    steady_ns = prediction.replayed_ns
    recorded, steady = (f"{ns / 1e6:,.5g} ms" for ns in (mean_ns, steady_ns))
    apart = abs(mean_ns - steady_ns) > SETTLED * steady_ns and recorded != steady
    of_memory = (
        () if answer.memory is None else (*answer.memory.recording_notes, *answer.memory.notes)
    )
    said: list[Any] = [
        *replay.notes,
        *(note for note in prediction.graph.facts.notes if note not in replay.notes),
        prediction.released and prediction.released[-1],
        prediction.left_out and str(prediction.left_out),
        prediction.contention and prediction.contention.note(),
        not after.timeline.overlaps_settled
        and "Which kernels run during transfers changed with every simulation; "
        "the last of these simulations is shown.",
        not after.settled
        and "The predicted step had not reached a steady state after repeating the window; its last "
        "pass is shown.",
        apart
        and prediction.recorded is None
        and f"The recorded steps are not steady: their mean replays in {recorded}, a steady step {steady}.",
        (prediction.changed or prediction.inserted or prediction.removed)
        and why_unmoved(prediction),
        *of_memory,
        answer.unsaid and f"{answer.unsaid}.",
        len(replay.steps) == 1
        and (
            "How steps vary is not known: the interval reaches to the step as it is."
            if whole_recording(replay.graph.trace)
            else "Only one step is covered: the interval leaves out how steps vary."
        ),
    ]
    return [*filter(None, said)]


def cpu_share(waits: Mapping[Bound, int]) -> float:
    """Return the part of a step's waits that is for the CPU, 0 to 1."""
    return sum(waits.get(bound, 0) for bound in ON_CPU) / max(sum(waits.values()), 1)


def waited_for_ns(settled: SteadyState) -> dict[Bound, int]:
    """Return what a settled step waits for, in ns, by the chain of causes behind it; mean over the steps."""
    return by_bound(ns_by_cause(settled))


def most_of(shares: Mapping[Bound, float]) -> tuple[Bound, float]:
    """Return what most of a step waits for, and its share of the step."""
    total = sum(shares.values())
    if total <= 0:
        return Bound.NOTHING, 0.0
    most = max(shares, key=shares.__getitem__)
    return most, shares[most] / total


def why_unmoved(comparison: Prediction) -> str | None:
    """Return what the step waits for instead, in a sentence, where the change leaves its time as it was."""
    if abs(comparison.simulated_ns - comparison.replayed_ns) > UNMOVED * comparison.replayed_ns:
        return None
    what, share = comparison.bound
    return f"The step's time does not move with this change: it waits for {what.awaited} ({share:.0%})."
