"""The interval of a prediction: how far the step may be from the predicted one, and from which causes.

Seven causes, each a half-width at 90%, in ns of the predicted step; they are taken to be
independent, so the interval is the root of the sum of their squares:

- *variation*: steps that do the same work differ, and their mean is known only so well. A standard
  error: more steps make it smaller. What a change takes away (a loader that is hidden) varies no more, and
  work that it moves from a step into the next is none: of the steps before and after those count that
  vary less.
- *replay*: the simulation of the baseline misses the recorded steps by so much. That further steps would take
  longer than those (a queue that fills) is no miss.
- *model*: the change is simulated once more with all that it affects longer by the error that
  predictions of this sort of time were found to have (`MODEL_ERROR`): what stays hidden behind other
  work does not count. A model that says itself how far its times may be off (`Selection.doubt`) widens
  this where that is more.
- *rerun*: the change is seen in another run than the recorded one, and the same work takes another time in
  each (`ANOTHER_RUN`), the most where the CPU was hidden and shows after the change (`HIDDEN_CPU`). In a
  CPU's recordings it is part of the model's errors, which were measured so.
- *recording*: a trace that does not say what recording cost is corrected with a typical cost, of which so
  much may be wrong (`RECORDING_ERROR`). Recorded steps that are faster than those timed without a profiler
  may be off by all of the difference.
- *unknown*: delays without a known cause, and device work that was not recorded or that a change may not
  reach (inside replays of CUDA graphs, of no known layer, held to a recorded start). What they do after the
  change is not known; at most they eat up what it moves. Where the change makes unrecorded device work
  longer, what it adds is as unknown; so is what it takes off calls that start up the driver, in the only
  step.
- *waiting*: what transfers took may have been waiting for ranks that were not recorded, which no network
  changes. The step may be longer by that than with a better one, shorter than with a worse one, below 0.

A change that affects nothing has the first two and the rerun only.

Where it is doubtful whether pauses of threads, late device work and calls of stream waits wait for recorded
work, the step is simulated as if all did, too (`Graph.released`). Both readings replay alike, and may
predict differently: then the interval covers both.

What a step waits for outside the trace takes as long after the change: a timer, a disk. A process that makes
batches works on meanwhile, at its own pace: the interval covers that, too (`paced_ns`). So may long pauses in
which nothing was recorded of a thread: they may be no CPU work, which a faster CPU does not shorten.

No step is shorter than the busiest stream's work in it, so no interval reaches below that.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, inf, isfinite
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from daydream.costs.contention import between
from daydream.graph.calls import has_device_work
from daydream.graph.plan import Cause
from daydream.graph.profiler_overhead import cost_of_recording
from daydream.graph.rules import WAKE_NS
from daydream.graph.tables import COLLECTIVE, CPU, LONGEST_NS, Facts
from daydream.model.loading import WORKER_LOADER
from daydream.predict.basis import ESTIMATED, variation
from daydream.predict.graph_diff import MODEL_ERROR, Affected, GraphDiff
from daydream.simulate.critical_path import ON_CPU, PathCause, codes_of
from daydream.simulate.steady_state import SteadyState, settle
from daydream.trace.recorded_steps import whole_recording
from daydream.trace.schema import OFF_CPU

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction

# Half-widths at 90% of how far the same work is from itself in another run, by what the step waits for;
# rounded up. From public recordings with and without a change, by what the change leaves alone: kernels
# of a ViT and of a 3D U-Net on A100s, 0.0 to 1.7% apart over four pairs of runs; launches of a GPT on an
# A10, 3% over one pair. Some of these judge: docs/accuracy.md tells how many intervals hold without it.
# Runs of a few cold passes are further apart (a MoE's forward pass, repeated: 11 to 32%) and not covered.
ANOTHER_RUN: Mapping[str, float] = {"device": 0.02, "CPU": 0.05}
# The same for CPU time that was hidden behind a device when it was recorded, and that the step waits for
# after the change. One program's CPU took 8.6, 8.7, 11.0, 11.2 and 12.3 ms a step in five recordings on the
# same shared host of an H200 (validation/h200, without the cost of recording): its pairs are 0 to 43% apart,
# 27% in the median. Where a step waits for the CPU on both sides, that cancels. Traces of Nsight Systems
# record little of the CPU: three GPTs on an A10 are 0.5 to 3.6% from what the longest one's launches tell.
HIDDEN_CPU = 0.3
# Of what the typical cost of recording changes of an answer, this much may be wrong: half-width at 90%,
# rounded up from what it misses in recordings that know better (validation/typical_cost.py of b281a3aa).
RECORDING_ERROR = 0.5
LEAST_SAID = 0.0005  # of a step
NOTHING_LEFT = 0.001  # of a step of which a change takes work away: no step is that short
NOTHING, AS_NOW = 0.1, 0.95  # of the step: a range that reaches from one to the other tells nothing
WORDS = {  # of the causes
    "variation": "step-to-step variation",
    "replay": "replay error",
    "model": "model error",
    "unknown": "unknown causes",
    "rerun": "run-to-run",
    "recording": "profiler overhead",
    "waiting": "waiting for peers",
}
APART = 0.01  # of a step: readings that are less apart are one answer
REPLAYS_ALIKE = 0.05  # of the step: pauses whose absence changes it by more are no waits
# What it is doubtful whether threads and streams do, and what records it.
OF_THREADS = (
    "works or waits in pauses that the step waits for",
    "`daydream collect` or `nsys profile --cpuctxsw=process-tree`",
)
OF_STREAMS = "waits for other streams where that would decide the step", "`daydream collect`"
UNTOLD = (
    0.1  # of the step: a pause in one piece that may be a wait, where it was not recorded who ran
)
OTHER_WORK = 0.1  # of the tasks of a step: steps with more or fewer are of another kind


class Uncertainty(Struct, frozen=True):
    """Half-widths of a prediction's 90% interval, in ns, by cause.

    `waiting` is of one end: the upper one, or below 0 the lower one.
    """

    variation: float = 0.0
    replay: float = 0.0
    model: float = 0.0
    unknown: float = 0.0
    rerun: float = 0.0
    recording: float = 0.0
    waiting: float = 0.0

    def ends(self, step_ns: float) -> list[float]:
        """Return the ends of the interval around a step, in ns."""
        *both, waiting = astuple(self)
        above = hypot(*both, max(waiting, 0.0))
        return [step_ns - hypot(*both, max(-waiting, 0.0)), step_ns + above]

    def whole_ns(self) -> dict[str, int | None]:
        """Return each cause's half-width in whole ns, None where it has no bound."""
        return {name: round(ns) if isfinite(ns) else None for name, ns in asdict(self).items()}

    def words(self, step_ns: int, most: int = 3) -> str:
        """Return the largest causes as shares of a step, the largest first; empty if none matters."""
        shares = {WORDS[name]: abs(ns) / step_ns for name, ns in asdict(self).items() if step_ns}
        largest = sorted(shares.items(), key=lambda each: -each[1])[:most]
        return ", ".join(f"{words} {share:.1%}" for words, share in largest if share >= LEAST_SAID)

    def reason(self, comparison: Prediction) -> str:
        """Return in words what keeps the step from being predicted: the largest of the causes."""
        step_ns = max(comparison.replayed_ns, 1)
        facts = comparison.replay.graph.facts
        unknown = "delays without a known cause"
        if facts.untraced_ns > facts.unexplained_ns:
            unknown = "device work that was not recorded"
        changed = f"the change affects {comparison.affected.together / step_ns:.0%} of the step"
        most, words = max(
            (self.replay, "the replay of the unchanged trace misses the recording by {}"),
            (self.model, changed + ", and what that takes then is known to within {} only"),
            (self.unknown, unknown + " may carry it by {}"),
            (abs(self.waiting), "not all ranks were recorded, and {} may be waiting for them"),
            key=itemgetter(0),
        )
        return words.format(f"{most / step_ns:.0%} of the step")


def judge(comparison: Prediction, diff: GraphDiff, *, interval: bool = True) -> None:
    """Set the interval of a prediction and why there is none: a simulation or two.

    None is made where `interval` is not asked for and a bound that needs none tells that the step can be
    predicted. It cannot where the range reaches from next to nothing to the step as it is, or beyond. How
    steps vary does not count: it is common to both sides. Nor can it where layers were chosen, and much
    work may be theirs or not.
    """
    replay = comparison.replay
    step_ns = comparison.simulated_ns
    affected = comparison.affected
    recorded_ns = replay.measured_ns * len(replay.steps)
    unknown = unknown_ns(replay.graph.facts, recorded_ns, comparison.replayed_ns, affected)
    beyond = [
        part.unknown_ns for part in (comparison.left_out, comparison.unplaced) if part is not None
    ]
    if comparison.held is not None:
        beyond.append(min(replay.held_ns, affected.together))
    found = Uncertainty(
        variation=_variation(comparison) * step_ns,
        replay=max(abs(replay.error), replay.residual) * step_ns,
        model=hypot(*affected.errors_ns, affected.waiting),
        unknown=unknown + diff.unknown_longer_ns + min(sum(beyond), comparison.replayed_ns),
    )
    tells = _tells(comparison, found)
    if interval or not tells:
        waits = MODEL_ERROR["moved"] * affected.waits
        model = waits
        if affected.together != affected.waits:
            longer_ns = _step_ns(comparison, diff.longer(affected)) - step_ns
            model = hypot(max(longer_ns, 0), waits)
        waiting_ns = 0
        if affected.waiting:
            waiting_ns = _step_ns(comparison, diff.longer_by(diff.waiting_ns)) - step_ns
        found = replace(
            found,
            model=model,
            rerun=_another_run_ns(comparison),
            recording=_recording_ns(comparison),
            waiting=waiting_ns,
        )
        tells = tells or _tells(comparison, found)
    comparison.uncertainty = found
    comparison.released = released(comparison) if interval else None
    if comparison.removed and step_ns < NOTHING_LEFT * comparison.replayed_ns:
        comparison.reason = (
            "nothing would be left of the step: all its work is what the change takes away"
        )
    elif comparison.unplaced is not None and comparison.unplaced.is_much:
        comparison.reason = str(comparison.unplaced)
    elif not tells:
        comparison.reason = found.reason(comparison)
    elif interval:
        _set_ranges(comparison, diff)


def _set_ranges(comparison: Prediction, diff: GraphDiff) -> None:
    """Set the intervals of the step and of the speed-up.

    An emulated step may have another CPU, but the same before and after. Its kernels are off alike, too: in the
    speed-up that counts for what the change saves, at most.
    """
    replay = comparison.replay
    found = comparison.uncertainty
    now_ns = comparison.replayed_ns
    step_ns = comparison.simulated_ns
    ends = found.ends(step_ns)
    least_ns = _least_ns(comparison, diff)
    of_the_change = replace(found, rerun=0.0, recording=0.0)
    of_gain = found
    others = [(now_ns, read(comparison), 0) for read in (paced_ns, _lasting_ns, _first_come_ns)]
    for times in replay.graph.recorded.metadata.get("emulated", {}).get("other_cpus", ()):
        pair = replay.graph.copy(), comparison.graph.copy()
        for graph in pair:
            graph.select(kind="cpu").scale(times, gaps=True)
        before_ns, after_ns = (_step_ns(comparison, graph) for graph in pair)
        others.append((before_ns, after_ns, 0))
        of_the_change = replace(of_the_change, variation=0.0)
        saved_ns = replay.spread * abs(now_ns - step_ns)
        of_gain = replace(found, variation=min(found.variation, saved_ns))
    gains = [(now_ns, end) for end in of_gain.ends(step_ns)]
    if comparison.released is not None:
        others.append((now_ns, *comparison.released[:2]))
    for before_ns, after_ns, late_ns in others:
        both = replace(of_the_change, unknown=hypot(found.unknown, late_ns)).ends(after_ns)
        gains += [(before_ns, end) for end in both]
        ends += both
        least_ns = min(least_ns, after_ns)
    if whole_recording(replay.graph.trace):
        ends.append(now_ns)  # nothing tells how such steps vary
        gains.append((now_ns, now_ns))
    least_ns = max(min(least_ns, step_ns), 0)
    comparison.predicted_low_ns = round(max(min(ends), least_ns))
    comparison.predicted_high_ns = round(max(ends))
    ratios = [before / max(end, least_ns) if max(end, least_ns) else inf for before, end in gains]
    comparison.speedup_low = min(ratios)
    comparison.speedup_high = max(ratios)


def _tells(comparison: Prediction, found: Uncertainty) -> bool:
    low, high = replace(found, variation=0.0, rerun=0.0, recording=0.0).ends(
        comparison.simulated_ns
    )
    return low > NOTHING * comparison.replayed_ns or high < AS_NOW * comparison.replayed_ns


def _step_ns(comparison: Prediction, graph: Graph) -> int:
    """Return the step of another changed graph, in ns."""
    return comparison.replay.settled.mean_after(_settled(comparison, graph))


def _settled(comparison: Prediction, graph: Graph) -> SteadyState:
    """Return the steady state of another changed graph."""
    slowed = between(comparison.contention, comparison.replay.graph, graph)
    return settle(graph, contention=slowed)


def _recording_ns(comparison: Prediction) -> float:
    """Return how far the cost of recording may carry the step, where that was not measured."""
    replay = comparison.replay
    recorded_ns = comparison.recorded_after_ns
    cost_ns = abs(replay.recording_cost) * comparison.simulated_ns
    if replay.basis != ESTIMATED:
        return cost_ns
    if replay.start_up_ns or recorded_ns is None:  # then the recorded step changes by another ratio
        return RECORDING_ERROR * cost_ns
    before_ns = replay.recording.settled.step_ns
    recorded = recorded_ns / before_ns if before_ns else 0.0
    ratio = comparison.simulated_ns / comparison.replayed_ns if comparison.replayed_ns else 0.0
    return RECORDING_ERROR * abs(ratio - recorded) * comparison.replayed_ns


def _another_run_ns(comparison: Prediction) -> float:
    """Return how far another run of the changed program may be from this one, by what its step waits for."""
    if not has_device_work(comparison.graph):
        return 0.0
    waits = dict(comparison.waited_for_ns)
    cpu = sum(waits.pop(bound, 0) for bound in ON_CPU)
    other = sum(waits.values())
    scale = comparison.simulated_ns / max(cpu + other, 1)
    shown = 0.0
    # Where little is recorded of the CPU, its time is about that of other runs.
    if cost_of_recording(comparison.replay.graph.recorded) is not None:
        shown = max(scale * cpu - comparison.replay.cpu_share * comparison.replayed_ns, 0.0)
    on_cpu = ANOTHER_RUN["CPU"] * (scale * cpu - shown)
    return hypot(on_cpu, ANOTHER_RUN["device"] * scale * other, HIDDEN_CPU * shown)


def _variation(comparison: Prediction) -> float:
    """Return the relative half-width of the mean of the recorded steps, or of those after the change."""
    replay = comparison.replay
    measured = {
        number: step["measured_ns"]
        for number, step in enumerate(replay.graph.steps)
        if step.get("covered")
    }
    step = replay.graph.step[replay.graph.alive]
    counts = np.bincount(step[step >= 0], minlength=len(replay.graph.steps)).tolist()

    def of(times: Mapping[int, int]) -> float:
        """Judge those together that do the same work: about as many tasks."""
        kinds = list[list[int]]()
        least = -1.0
        for step in sorted(times, key=counts.__getitem__):
            if not kinds or counts[step] > (1 + OTHER_WORK) * least:
                kinds.append([])
                least = counts[step]
            kinds[-1].append(times[step])
        return variation(kinds)

    return max(min(of(measured), of(comparison.after.step_times())), replay.spread)


def unknown_ns(facts: Facts, recorded_ns: int, step_ns: int, affected: Affected) -> float:
    """Return how far what has no known cause may carry the step, at most what the change affects.

    `recorded_ns` are all steps that the facts are about.
    """
    delays = facts.unexplained_ns + facts.untraced_ns
    share = min(delays / recorded_ns, 1.0) if recorded_ns else 0.0
    return min(share * step_ns, affected.together)


def _least_ns(comparison: Prediction, diff: GraphDiff) -> float:
    """Return how long the busiest stream works in a changed step at least, in ns.

    Collectives do not count: their time may be waiting.
    """
    after = comparison.after
    graph = comparison.graph
    steps = [*after.step_times()]
    timeline = after.timeline
    errors_ns = np.zeros(graph.size)
    errors_ns[diff.ids] = diff.errors_ns
    task = timeline.task
    works = (timeline.copy == after.copy) & np.isin(graph.step[task], steps)
    ns = np.maximum(timeline.end_ns - timeline.start_ns - errors_ns[task], 0) * works
    ns[np.isin(graph.kind[task], [CPU, COLLECTIVE])] = 0
    busiest = np.bincount(graph.lane[task], ns, 1).max() / max(len(steps), 1)
    emulated = "emulated" in graph.recorded.metadata
    off = comparison.replay.spread if emulated else ANOTHER_RUN["device"]
    return float((1 - off) * busiest - comparison.uncertainty.unknown)


def paced_ns(comparison: Prediction) -> int:
    """Return the predicted step in ns if what it waits for outside the trace works on meanwhile.

    Then no step is shorter than it was, and one that takes longer waits the less. What no recorded step waits
    for sets no pace. Where no thread's switches were recorded, a long pause of a thread may be such a wait.
    """
    least_ns = APART * comparison.simulated_ns
    waits_ns = _outside_ns(comparison, comparison.after)
    if waits_ns < least_ns or _outside_ns(comparison, comparison.replay.settled) < least_ns:
        return comparison.simulated_ns
    return max(comparison.replayed_ns, comparison.simulated_ns - waits_ns)


def _outside_ns(comparison: Prediction, settled: SteadyState) -> int:
    """Return for how long a step waits for what is outside the trace, or may wait for it, in ns."""
    graph = settled.timeline.graph
    path = settled.path()
    cause = codes_of(graph, path.task, path.edge)
    by_workers = graph.named(lambda name: WORKER_LOADER in name, path.task)
    waits = (cause == PathCause.LOADING.code) & by_workers | (cause == PathCause.OUTSIDE.code)
    if _untold(graph):
        as_recorded = graph.name[path.task] == graph.recorded["name"][graph.row[path.task]]
        long = (path.ns >= UNTOLD * comparison.replayed_ns) & as_recorded
        waits |= long & (cause == PathCause.UNTRACED.code)
    return path.ns[waits].sum() // max(len(settled.step_times()), 1)


def _lasting_ns(comparison: Prediction) -> int:
    """Return the predicted step in ns if long pauses that the change shortens are no CPU work, and stay."""
    before = comparison.replay.graph
    graph = comparison.graph
    kept = graph.duration_ns.copy(), graph.gap_ns.copy()
    ranges = before.of_rows("annotation")  # their own time
    doubts = np.maximum(before.doubt, ranges), 1
    changed = False
    for was, now, doubt in zip((before.duration_ns, before.gap_ns), kept, doubts, strict=True):
        long = doubt * was >= UNTOLD * comparison.replayed_ns
        pause = np.flatnonzero(long & graph.alive[: before.size] & (now[: before.size] < was))
        now[pause] = was[pause]
        changed |= len(pause) > 0
    if changed and _untold(graph):
        return _step_ns(comparison, graph.retimed(*kept))
    return comparison.simulated_ns


def _first_come_ns(comparison: Prediction) -> int:
    """Return the predicted step in ns if no call waits that comes to the driver just behind another one.

    Which of the two comes first is chance.
    """
    timeline = comparison.after.timeline
    plan = timeline.plan
    before = plan.before_on_lane()
    lock = np.flatnonzero(plan.edge_cause == Cause.LOCK)
    came = before[plan.edge_dst[lock]]
    done = timeline.end_ns[came] + plan.gap_ns[came]
    first = lock[done - timeline.start_ns[before[plan.edge_src[lock]]] < WAKE_NS]
    if not len(first):
        return comparison.simulated_ns
    changed = comparison.graph.copy()
    links = changed.links
    waits = np.isin(links["dst"], timeline.task[plan.edge_dst[first]])
    links.keep(~waits | (links["cause"] != Cause.LOCK))
    return _step_ns(comparison, changed)


def _untold(graph: Graph) -> bool:
    """Tell whether threads launch work and nothing was recorded of when they ran."""
    trace = graph.recorded
    told = (trace["name"] == trace.code("name", OFF_CPU)).any() or (trace["cpu_ns"] >= 0).any()
    return has_device_work(graph) and not (told or "emulated" in trace.metadata)


def released(comparison: Prediction) -> tuple[int, int, str] | None:
    """Return the predicted step in ns if all that may be a wait is one, and why; None if alike.

    Second is for how long threads then stay behind what they wait for: one that looks now and again whether
    it has come may be as late, or not late at all.

    The unchanged step has to replay as it was recorded with these waits: else they are none. What is not on
    the critical path makes no step shorter, and an order that the streams keep anyway makes none longer.
    """
    graph = comparison.graph
    after = comparison.after
    path = after.path()
    timeline = after.timeline
    steps = max(len(after.step_times()), 1)
    links = graph.links
    src = graph.doubtful["src"]
    dst = graph.doubtful["dst"]
    doubt = graph.doubt + graph.gap_doubt
    part = np.where(path.edge < 0, graph.doubt[path.task], graph.gap_doubt[path.task])
    part[(path.edge == Cause.LAUNCH) & np.isin(path.task, dst)] = 1
    outside = links["dst"][(links["cause"] == Cause.OUTSIDE) & (doubt[links["src"]] > 0)]
    part[(path.edge == Cause.OUTSIDE) & np.isin(path.task, outside)] = 1
    mine = timeline.copy == after.copy
    start = np.full(graph.size, LONGEST_NS)
    end = np.zeros(graph.size)
    task = timeline.task[mine]
    start[task] = timeline.start_ns[mine]
    end[task] = timeline.end_ns[mine]
    ns = np.append(path.ns * part, np.maximum(end[src] - start[dst], 0))
    of_lane = np.bincount(graph.lane[np.append(path.task, dst)], ns, 1) / steps
    if of_lane.sum() <= APART * comparison.simulated_ns or "emulated" in graph.recorded.metadata:
        return None
    before = comparison.replay.released
    replayed_ns = comparison.replayed_ns
    if abs(before.step_ns - replayed_ns) > REPLAYS_ALIKE * replayed_ns:
        return None
    settled = _settled(comparison, graph.released())
    found = round(replayed_ns * before.mean_after(settled) / max(before.step_ns, 1))
    if abs(found - comparison.simulated_ns) <= APART * comparison.simulated_ns:
        return None
    path = settled.path()
    late = path.ns[(path.edge == Cause.EVENT) & (graph.kind[path.task] == CPU)].sum()
    most = graph.lanes[of_lane.argmax()]
    doubt, how = OF_STREAMS if most.on_device else OF_THREADS
    words = (
        f"Nothing recorded tells whether {most.name} {doubt}; with all such waits the step takes "
        f"{found / 1e6:,.4g} ms."
        + (f" A recording by {how} tells." if most.on_device or _untold(graph) else "")
    )
    return found, late // steps, words
