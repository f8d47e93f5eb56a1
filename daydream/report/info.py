"""What a trace holds, and whether that is enough for a replay and for what-ifs: what `daydream info` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.counters.quantities import counted_in
from daydream.errors import GraphError
from daydream.graph.calls import Coverage, has_device_work
from daydream.graph.tables import KERNEL, step_rank
from daydream.memory.lifetimes import recorded_memory
from daydream.predict.graph_diff import MUCH, known_as_a_whole
from daydream.results import Live, Record
from daydream.simulate.critical_path import has_cpu
from daydream.trace.recorded_steps import RecordedTime, recorded_time, typical_run
from daydream.trace.schema import DEVICE_KINDS, PHASES

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.tables import Lane
    from daydream.predict.replay import Replay
    from daydream.trace.trace import Trace

GOOD_REPLAY, FAIR_REPLAY = (
    0.01,
    0.03,
)  # largest error of a step of which a prediction can be trusted
# Share of the time of which a phase (layer, type) is known
ENOUGH_KNOWN = 0.9
SOME_KNOWN = 0.1
MUCH_UNEXPLAINED = 0.02  # of the recorded steps
RESTLESS = "the machine was busy during recording, see the note"
MISSING = {  # what to say where hardly anything is known
    "phase": "unknown (no ranges, autograd thread or kernel names): all is assumed forward",
    "layer": "no layers are known: profile with_stack=True and with_modules=True",
    "dtype": "no types are known: profile with record_shapes=True",
}
KINDS = ("operator", "annotation", "module", "runtime", *DEVICE_KINDS, "sync", "blocked")


class Verdict(Record):
    """Whether a trace is good enough for something, `yes`, `partly` or `no`, and why."""

    answer: str
    why: str


class Stream(Record):
    """A stream of a device; of gloo's lanes `on_host` is true."""

    name: str
    rank: int
    device: int
    on_host: bool
    tasks: int
    busy_ns: int


class RecordedStep(Record):
    """A step as the trace names it; one that is not covered says why not."""

    name: str
    rank: int | None
    measured_ns: int | None
    covered: bool | None
    why_not: str | None


class ReplayError(Record):
    """How the recorded steps replay; errors are simulated / measured - 1."""

    measured_ns: int
    replayed_ns: int
    error: float
    max_error: float


class Info(Record):
    """What a trace holds, and what it is good enough for.

    Attributes:
        devices: of the machine, as the profiler names them.
        device_busy: the share of the covered steps in which the device worked.
        known: the share of the work's time with a known phase, layer, op and type.
        phases: the share of each phase in the work's time.
        orphans: device tasks without the call that launched them.
        memory: what was recorded of each device's memory.
        replay: None where no step is covered.
        verdicts: by what is asked: replay, what-if, selections by phase, layer and type.
    """

    source: str | None
    vendor: str | None
    devices: list[Any]
    versions: dict[str, Any]
    ranks: list[int]
    world_size: int | None
    rows: int
    rows_by_kind: dict[str, int]
    span_ns: int
    threads: int
    streams: list[Stream]
    device_busy: float | None
    step_source: str | None
    steps: list[RecordedStep]
    covered: int
    recorded_time: RecordedTime | None
    phases_assumed: float
    known: dict[str, float]
    phases: dict[str, float]
    device_rows: int
    orphans: int
    memory: list[dict[str, Any]] | None
    counters: Any
    event_waits: dict[str, int]
    unresolved_syncs: int
    sync_rows: int
    queue_depth: int | None
    replay: ReplayError | None
    verdicts: dict[str, Verdict]
    notes: list[str]

    trace = Live["Trace"]()
    graph = Live["Graph"]()

    @property
    def on_device(self) -> bool:
        """Whether any device work was recorded; collectives on CPU threads (gloo) are none."""
        return has_device_work(self.graph)

    @property
    def work(self) -> str:
        """What shares are taken of, in words."""
        return "kernel time" if _has_kernels(self.graph) else "CPU time"


def overview(trace: Trace) -> Info:
    """Return what a trace holds, by its replay, or by its graph alone if no step is covered."""
    from daydream.graph.build import build
    from daydream.predict.replay import replay

    try:
        found = replay(trace)
    except GraphError as error:
        return info_of(trace, build(trace), None, str(error))
    return info_of(trace, found.graph, found)


def info_of(trace: Trace, graph: Graph, replay: Replay | None, why_not: str = "") -> Info:
    """Return what a trace, its graph and its replay hold; `why_not` there is none."""
    metadata = trace.metadata
    facts = graph.facts
    steps = metadata.get("steps", [])
    covered = [step for step in steps if step.get("covered")]
    rows = rows_by_kind(trace)
    streams = _streams(trace, graph)
    known, phases, whole = _known(trace, graph)
    verdicts = {"replay": Verdict("no", why_not), "what-if": Verdict("no", why_not)}
    if replay is not None:
        verdicts = _of_replay(graph, replay)
    memory = trace.memory
    found = Info(
        source=metadata.get("source"),
        vendor=metadata.get("vendor"),
        devices=metadata.get("devices", []),
        versions=metadata.get("versions", {}),
        ranks=sorted(set(map(step_rank, steps))),
        world_size=metadata.get("world_size"),
        rows=len(trace),
        rows_by_kind=rows,
        span_ns=span_ns(trace),
        threads=sum(not lane.on_device for lane in graph.lanes),
        streams=streams,
        device_busy=_busy(trace, graph, covered),
        step_source=metadata.get("step_source"),
        steps=[
            RecordedStep(*(step.get(name) for name in RecordedStep.__struct_fields__))
            for step in steps
        ],
        covered=len(covered),
        recorded_time=recorded_time(trace),
        phases_assumed=float(metadata.get("phases_assumed", 0.0)),
        known=known,
        phases=phases,
        device_rows=sum(stream.tasks for stream in streams if not stream.on_host),
        orphans=facts.orphans,
        memory=None if memory is None else [each.to_json() for each in recorded_memory(memory)],
        counters=counted_in(trace),
        event_waits=dict(facts.event_waits),
        unresolved_syncs=facts.unresolved_syncs,
        sync_rows=rows.get("sync", 0),
        queue_depth=facts.queue_depth,
        replay=None
        if replay is None
        else ReplayError(*(getattr(replay, name) for name in ReplayError.__struct_fields__)),
        verdicts=verdicts,
        notes=_notes(trace, graph, replay),
    ).having(trace=trace, graph=graph)
    for name, advice in MISSING.items():
        verdicts[f"by {name}"] = _of_column(found, name, advice, whole)
    return found


def _has_kernels(graph: Graph) -> bool:
    return bool((graph.columns["kind"] == KERNEL).any())


def _known(
    trace: Trace, graph: Graph
) -> tuple[dict[str, float], dict[str, float], tuple[float, str]]:
    """Return of what share of the work's time phase, layer, op and type are known, and that of each phase.

    Work is the kernels of covered steps, or CPU tasks where there are none. A phase is known by evidence
    only: a range, the thread that launches, a kernel's name. A layer is not where a replay or a compiled call
    runs many, and only the call's is recorded: of what share that holds, and in which calls, comes last.
    """
    columns = graph.columns
    tasks = columns["kind"] == (KERNEL if _has_kernels(graph) else 0)
    covered = [number for number, step in enumerate(graph.steps) if step.get("covered")]
    inside = tasks & np.isin(columns["step"], covered)
    work = np.flatnonzero(inside if inside.any() else tasks)
    time = columns["duration_ns"][work].astype(np.float64)

    def share(mask: np.ndarray) -> float:
        return float(time[mask].sum()) / (float(time.sum()) or 1.0)

    shares = {name: share(columns[name][work] >= 0) for name in ("phase", "layer", "op")}
    mask, where = known_as_a_whole(graph)
    whole = share(mask[work] & (columns["layer"][work] >= 0))
    shares["layer"] -= whole
    shares["phase"] *= 1 - float(trace.metadata.get("phases_assumed", 0.0))
    types = trace["dtype"] if len(trace) else np.array([-1])
    shares["dtype"] = share(types[np.maximum(columns["row"][work], 0)] >= 0)
    phases = {name: share(columns["phase"][work] == code) for code, name in enumerate(PHASES)}
    return shares, {name: part for name, part in phases.items() if part}, (whole, where)


def _streams(trace: Trace, graph: Graph) -> list[Stream]:
    """Return every stream with its tasks and how long they took; gloo's lanes on the host too."""
    found = []
    for number, lane in enumerate(graph.lanes):
        if lane.on_device:
            tasks = graph.columns["lane"] == number
            stream = Stream(
                name=lane.name,
                rank=_rank(trace, lane),
                device=lane.device,
                on_host=lane.host,
                tasks=int(tasks.sum()),
                busy_ns=int(graph.columns["duration_ns"][tasks].sum()),
            )
            found.append(stream)
    return found


def _rank(trace: Trace, lane: Lane) -> int:
    """Return a lane's rank; the rows of a trace of one rank do not carry it."""
    return lane.rank if lane.rank >= 0 else int(trace.metadata.get("rank", 0))


def _busy(trace: Trace, graph: Graph, covered: list[dict[str, Any]]) -> float | None:
    """Return the share of the covered steps in which the device worked, the mean over ranks."""
    columns = graph.columns
    shares = []
    for rank in sorted(set(map(step_rank, covered))):
        own = [step for step in covered if step_rank(step) == rank]
        ends = [int(step.get("completion_ns", step["end_ns"])) for step in own]
        begin = min(e - int(step["measured_ns"]) for e, step in zip(ends, own, strict=True))
        here = [
            number
            for number, lane in enumerate(graph.lanes)
            if lane.on_device and not lane.host and _rank(trace, lane) == rank
        ]
        tasks = np.isin(columns["lane"], here) & (columns["measured_start_ns"] >= 0)
        start = columns["measured_start_ns"][tasks]
        last = start + columns["duration_ns"][tasks]
        if len(start) and max(ends) > begin:
            worked = Coverage(*(np.clip(times, begin, max(ends)) for times in (start, last)))
            shares.append(worked.before_ns[-1] / (max(ends) - begin))
    return float(np.mean(shares)) if shares else None


def _of_column(found: Info, name: str, advice: str, whole: tuple[float, str]) -> Verdict:
    share = found.known[name]
    answer = "yes" if share >= ENOUGH_KNOWN else "partly" if share >= SOME_KNOWN else "no"
    said = f"known for {share:.0%} of the {found.work}"
    if share < SOME_KNOWN:  # the advice is about torch's profiler
        said = advice.partition(":")[0] if found.trace.metadata.get("profiler") else advice
    part, where = whole
    if name == "layer" and part > MUCH:
        answer = "partly"
        said = f"known for {share:.0%} of the {found.work}; {part:.0%} only as part of {where}"
    return Verdict(answer, said)


def _of_replay(graph: Graph, replay: Replay) -> dict[str, Verdict]:
    facts = graph.facts
    limits = {"yes": GOOD_REPLAY, "partly": FAIR_REPLAY}
    answer = next((each for each in limits if replay.max_error <= limits[each]), "no")
    why = f"a step replays {replay.max_error:.1%} off"
    if answer in limits:
        why = f"every step replays within {limits[answer]:.0%}"
    limit = MUCH_UNEXPLAINED * sum(step.measured_ns for step in replay.steps)
    unresolved = facts.event_waits["unresolved"]
    waits = sum(facts.event_waits.values())
    unexplained = (
        f"{facts.unexplained_ns / 1e6:,.1f} ms of delays on the device have no known cause"
    )
    untraced = f"{facts.untraced_ns / 1e6:,.1f} ms of device work was not recorded"
    doubts = {
        "the replay is off": answer != "yes",
        RESTLESS: replay.unrest is not None,
        unexplained: facts.unexplained_ns > limit,
        untraced: facts.untraced_ns > limit,
        f"{unresolved:,} of {waits:,} stream waits are unresolved": unresolved
        > (1 - ENOUGH_KNOWN) * waits,
        "only one step is complete, so how steps vary is not known": len(replay.steps) == 1,
        "no CPU work was recorded, so pauses of the device stay as they were": not has_cpu(graph),
    }
    said = "; ".join(doubt for doubt, holds in doubts.items() if holds)
    then = "partly" if said and answer == "yes" else answer
    return {
        "replay": Verdict(answer, why),
        "what-if": Verdict(then, said or "the causes of waits are known"),
    }


def _notes(trace: Trace, graph: Graph, replay: Replay | None) -> list[str]:
    """Return what was odd about the recording and its graph, and which of its steps others look at."""
    metadata = trace.metadata
    chosen = trace.memory is not None or "steps_read" in metadata
    run = None if chosen else typical_run(metadata, len(trace))
    own = [*metadata.get("notes", []), *graph.facts.notes] if replay is None else replay.notes
    return [*([] if run is None else [run.note]), *own]


def rows_by_kind(trace: Trace) -> dict[str, int]:
    """Return the number of rows of each kind that occurs, host kinds first."""
    kinds = trace.text("kind")
    counts = np.bincount(np.asarray(trace["kind"], np.int64), minlength=len(kinds)).tolist()
    found = dict(zip(kinds, counts, strict=True))
    return {kind: found[kind] for kind in KINDS if found.get(kind)}


def span_ns(trace: Trace) -> int:
    """Return the time from the first row's start to the last row's end."""
    if not len(trace):
        return 0
    start = trace["start_ns"]
    return int((start + trace["duration_ns"]).max() - start.min())
