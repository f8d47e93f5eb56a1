"""What a trace holds, and whether that is enough for a replay and for what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.counters.listing import counted_in
from daydream.errors import GraphError
from daydream.graph.calls import Coverage, has_device_work
from daydream.graph.tables import KERNEL, step_rank
from daydream.memory.pairing import recorded_memory
from daydream.predict.graph_diff import MUCH, known_as_a_whole
from daydream.simulate.critical_path import has_cpu
from daydream.trace.recorded_time import recorded_time
from daydream.trace.schema import DEVICE_KINDS, PHASES
from daydream.trace.step_range import typical_run

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.graph.tables import Lane
    from daydream.predict.replay import Replay
    from daydream.trace.trace import Trace

GOOD_REPLAY, FAIR_REPLAY = (
    0.01,
    0.03,
)  # largest error of a step of which a prediction can be trusted
ENOUGH_KNOWN, SOME_KNOWN = 0.9, 0.1  # share of the time of which a phase (layer, type) is known
MUCH_UNEXPLAINED = 0.02  # of the recorded steps
RESTLESS = "the machine was busy during recording, see the note"
MISSING = {  # what to say where hardly anything is known
    "phase": "unknown (no ranges, autograd thread or kernel names): all is assumed forward",
    "layer": "no layers are known: profile with_stack=True and with_modules=True",
    "dtype": "no types are known: profile with record_shapes=True",
}


@dataclass
class Overview:
    """A trace, its graph, and its replay or the reason why there is none."""

    trace: Trace
    graph: Graph
    replay: Replay | None
    why_no_replay: str = ""

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The steps as the trace names them."""
        return list(self.trace.metadata.get("steps", []))

    @property
    def covered(self) -> list[dict[str, Any]]:
        """The steps that can be judged."""
        return [step for step in self.steps if step.get("covered")]

    @property
    def on_device(self) -> bool:
        """Whether any device work was recorded; collectives on CPU threads (gloo) are none."""
        return has_device_work(self.graph)

    @property
    def has_kernels(self) -> bool:
        """Whether the trace holds kernels."""
        return bool((self.graph.columns["kind"] == KERNEL).any())

    @property
    def time_of(self) -> str:
        """What shares are taken of, in words."""
        return "kernel time" if self.has_kernels else "CPU time"

    @cached_property
    def work(self) -> np.ndarray:
        """The tasks that shares are taken of: kernels of covered steps, or CPU tasks where there are none."""
        columns = self.graph.columns
        tasks = columns["kind"] == (1 if self.has_kernels else 0)
        covered = [number for number, step in enumerate(self.graph.steps) if step.get("covered")]
        inside = tasks & np.isin(columns["step"], covered)
        return np.flatnonzero(inside if inside.any() else tasks)

    def _share(self, mask: np.ndarray) -> float:
        """Return the part of the work's time of which something is so: a mask, shape of `work`."""
        time = self.graph.columns["duration_ns"][self.work].astype(np.float64)
        return float(time[mask].sum()) / (float(time.sum()) or 1.0)

    def known(self) -> dict[str, float]:
        """Return the share of the work's time with a known phase, layer, op and type.

        A phase is known by evidence only: a range, the thread that launches, a kernel's name. A layer is
        not where a replay or a compiled call runs many, and only the call's is recorded.
        """
        columns = self.graph.columns
        tasks = self.work
        names = ("phase", "layer", "op")
        shares = {name: self._share(columns[name][tasks] >= 0) for name in names}
        shares["layer"] -= self.as_a_whole[0]
        shares["phase"] *= 1 - float(self.trace.metadata.get("phases_assumed", 0.0))
        types = np.asarray(self.trace["dtype"]) if len(self.trace) else np.array([-1])
        shares["dtype"] = self._share(types[np.maximum(columns["row"][tasks], 0)] >= 0)
        return shares

    @cached_property
    def as_a_whole(self) -> tuple[float, str]:
        """The share of the work's time that is known only as part of calls of many layers, and of which."""
        mask, where = known_as_a_whole(self.graph)
        return self._share(mask[self.work] & (self.graph.columns["layer"][self.work] >= 0)), where

    def phase_shares(self) -> dict[str, float]:
        """Return the share of each phase in the work's time."""
        phase = self.graph.columns["phase"][self.work]
        shares = {name: self._share(phase == code) for code, name in enumerate(PHASES)}
        return {name: share for name, share in shares.items() if share}

    def streams(self) -> list[dict[str, Any]]:
        """Return every stream with its tasks and how long they took; gloo's lanes on the host too."""
        columns = self.graph.columns
        rows = []
        for number, lane in enumerate(self.graph.lanes):
            tasks = columns["lane"] == number
            row = {"name": lane.name, "rank": self._rank(lane), "device": lane.device}
            row |= {"on_host": lane.host, "tasks": int(tasks.sum())}
            if lane.on_device:
                rows.append({**row, "busy_ns": int(columns["duration_ns"][tasks].sum())})
        return rows

    def busy(self) -> float | None:
        """Return the share of the covered steps in which the device worked, the mean over ranks."""
        columns = self.graph.columns
        shares = []
        for rank in sorted(set(map(step_rank, self.covered))):
            mine = [step for step in self.covered if step_rank(step) == rank]
            end = max(int(step.get("completion_ns", step["end_ns"])) for step in mine)
            begin = min(
                int(step.get("completion_ns", step["end_ns"])) - int(step["measured_ns"])
                for step in mine
            )
            here = [
                number
                for number, lane in enumerate(self.graph.lanes)
                if lane.on_device and not lane.host and self._rank(lane) == rank
            ]
            tasks = np.isin(columns["lane"], here) & (columns["measured_start_ns"] >= 0)
            start = columns["measured_start_ns"][tasks]
            ends = np.clip(start + columns["duration_ns"][tasks], begin, end)
            if len(start) and end > begin:
                worked = Coverage(np.clip(start, begin, end), ends).before_ns[-1]
                shares.append(worked / (end - begin))
        return float(np.mean(shares)) if shares else None

    def _rank(self, lane: Lane) -> int:
        """Return a lane's rank; the rows of a trace of one rank do not carry it."""
        return lane.rank if lane.rank >= 0 else int(self.trace.metadata.get("rank", 0))

    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Return for replay, what-ifs and selections by phase, layer and type: yes, partly or no, and why."""
        known = self.known()
        verdicts = self._of_replay()
        torch = not self.trace.metadata.get("profiler")  # the advice is about torch's
        for name, advice in MISSING.items():
            share = known[name]
            answer = "yes" if share >= ENOUGH_KNOWN else "partly" if share >= SOME_KNOWN else "no"
            said = f"known for {share:.0%} of the {self.time_of}"
            if share < SOME_KNOWN:
                said = advice if torch else advice.partition(":")[0]
            whole, where = self.as_a_whole
            if name == "layer" and whole > MUCH:
                answer = "partly"
                said = f"known for {share:.0%} of the {self.time_of}; {whole:.0%} only as part of {where}"
            verdicts[f"by {name}"] = (answer, said)
        return verdicts

    def _of_replay(self) -> dict[str, tuple[str, str]]:
        replay = self.replay
        facts = self.graph.facts
        if replay is None:
            return dict.fromkeys(("replay", "what-if"), ("no", self.why_no_replay))
        limits = {"yes": GOOD_REPLAY, "partly": FAIR_REPLAY}
        answer = next((each for each in limits if replay.max_error <= limits[each]), "no")
        why = f"a step replays {replay.max_error:.1%} off"
        why = f"every step replays within {limits[answer]:.0%}" if answer in limits else why
        limit = MUCH_UNEXPLAINED * sum(step.measured_ns for step in replay.steps)
        unresolved = facts.event_waits["unresolved"]
        waits = sum(facts.event_waits.values())
        doubts = {
            "the replay is off": answer != "yes",
            RESTLESS: replay.unrest is not None,
            f"{facts.unexplained_ns / 1e6:,.1f} ms of delays on the device have no known cause": (
                facts.unexplained_ns > limit
            ),
            f"{facts.untraced_ns / 1e6:,.1f} ms of device work was not recorded": facts.untraced_ns
            > limit,
            f"{unresolved:,} of {waits:,} stream waits are unresolved": unresolved
            > (1 - ENOUGH_KNOWN) * waits,
            "only one step is covered, so how steps vary is not known": len(replay.steps) == 1,
            "no CPU work was recorded, so pauses of the device stay as they were": not has_cpu(
                self.graph
            ),
        }
        said = "; ".join(doubt for doubt, holds in doubts.items() if holds)
        then = "partly" if said and answer == "yes" else answer
        return {"replay": (answer, why), "what-if": (then, said or "the causes of waits are known")}

    def to_json(self) -> dict[str, Any]:
        """Return the object `info --json` prints, without the trace's name."""
        trace = self.trace
        metadata = self.trace.metadata
        facts = self.graph.facts
        time = recorded_time(trace)
        replay = self.replay
        kinds = rows_by_kind(trace)
        streams = self.streams()
        of_step = ("name", "rank", "measured_ns", "covered", "why_not")
        of_replay = ("measured_ns", "replayed_ns", "error", "max_error")
        verdicts = self.verdicts().items()
        return {
            "source": metadata.get("source"),
            "vendor": metadata.get("vendor"),
            "devices": metadata.get("devices", []),
            "versions": metadata.get("versions", {}),
            "ranks": sorted(set(map(step_rank, self.steps))),
            "world_size": metadata.get("world_size"),
            "rows": len(trace),
            "rows_by_kind": kinds,
            "span_ns": span_ns(trace),
            "threads": sum(not lane.on_device for lane in self.graph.lanes),
            "streams": streams,
            "device_busy": self.busy(),
            "step_source": metadata.get("step_source"),
            "steps": [{key: step.get(key) for key in of_step} for step in self.steps],
            "covered": len(self.covered),
            "recorded_time": None if time is None else time.to_json(),
            "phases_assumed": float(metadata.get("phases_assumed", 0.0)),
            "known": self.known(),
            "phases": self.phase_shares(),
            "device_rows": sum(stream["tasks"] for stream in streams if not stream["on_host"]),
            "orphans": facts.orphans,
            "memory": None
            if trace.memory is None
            else [each.to_json() for each in recorded_memory(trace.memory)],
            "counters": counted_in(trace),
            "event_waits": dict(facts.event_waits),
            "unresolved_syncs": facts.unresolved_syncs,
            "sync_rows": kinds.get("sync", 0),
            "queue_depth": facts.queue_depth,
            "replay": replay and {key: getattr(replay, key) for key in of_replay},
            "verdicts": {name: {"answer": answer, "why": why} for name, (answer, why) in verdicts},
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """Return what was odd about the recording and its graph, and which of its steps others look at."""
        trace = self.trace
        metadata = self.trace.metadata
        chosen = trace.memory is not None or "steps_read" in metadata
        run = None if chosen else typical_run(metadata, len(trace))
        notes = [*metadata.get("notes", []), *self.graph.facts.notes]
        notes = notes if self.replay is None else self.replay.notes
        return [*([] if run is None else [run.note]), *notes]


def overview(trace: Trace) -> Overview:
    """Return the overview of a trace: its replay, or its graph alone if no step is covered."""
    from daydream.graph.build import build
    from daydream.predict.replay import replay

    try:
        found = replay(trace)
    except GraphError as error:
        return Overview(trace, build(trace), None, str(error))
    return Overview(trace, found.graph, found)


def rows_by_kind(trace: Trace) -> dict[str, int]:
    """Return the number of rows of each kind that occurs, host kinds first."""
    kinds = trace.text("kind")
    counts = np.bincount(np.asarray(trace["kind"], np.int64), minlength=len(kinds)).tolist()
    found = {kind: number for kind, number in zip(kinds, counts, strict=True) if number}
    order: Sequence[str] = (
        "operator",
        "annotation",
        "module",
        "runtime",
        *DEVICE_KINDS,
        "sync",
        "blocked",
    )
    return {kind: found[kind] for kind in order if kind in found}


def span_ns(trace: Trace) -> int:
    """Return the time from the first row's start to the last row's end."""
    if not len(trace):
        return 0
    start = np.asarray(trace["start_ns"], np.int64)
    return int((start + trace["duration_ns"]).max() - start.min())
