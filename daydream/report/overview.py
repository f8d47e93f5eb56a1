"""Overview: what a trace holds, and whether that is enough for a replay and for what-ifs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.counters.listing import counted_in
from daydream.errors import GraphError
from daydream.graph.calls import Coverage, has_device_work
from daydream.graph.tables import KERNEL
from daydream.memory.recorded import recorded_memory
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

GOOD_REPLAY = 0.01  # largest error of a step that leaves a prediction to be trusted
FAIR_REPLAY = 0.03
ENOUGH_KNOWN = (
    0.9  # share of the time whose phase (or layer, or type) must be known to select by it
)
SOME_KNOWN = 0.1
MUCH_UNEXPLAINED = 0.02  # of the recorded steps
RESTLESS = "steps were held up while they were recorded, see the note"
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
    def device_tasks(self) -> int:
        """How many tasks a device runs."""
        return sum(stream["tasks"] for stream in self.streams() if not stream["on_host"])

    @cached_property
    def work(self) -> np.ndarray:
        """The tasks that shares are taken of: kernels of covered steps, or CPU tasks where there are none."""
        columns = self.graph.columns
        tasks = columns["kind"] == (1 if self.has_kernels else 0)
        covered = [number for number, step in enumerate(self.graph.steps) if step.get("covered")]
        inside = tasks & np.isin(columns["step"], covered)
        return np.flatnonzero(inside if inside.any() else tasks)

    @property
    def has_kernels(self) -> bool:
        """Whether the trace holds kernels."""
        return bool((self.graph.columns["kind"] == KERNEL).any())

    @property
    def time_of(self) -> str:
        """What shares are taken of, in words."""
        return "kernel time" if self.has_kernels else "CPU time"

    def known(self) -> dict[str, float]:
        """Return the share of the work's time with a known phase, layer, op and type.

        A phase is known by evidence only: a range, the thread that launches, a kernel's name. A layer is
        not where a replay or a compiled call runs many, and only the call's is recorded.
        """
        columns, tasks = self.graph.columns, self.work
        time = columns["duration_ns"][tasks].astype(np.float64)
        whole = float(time.sum()) or 1.0
        shares = {}
        for name in ("phase", "layer", "op"):
            shares[name] = float(time[columns[name][tasks] >= 0].sum()) / whole
        shares["layer"] -= self.as_a_whole[0]
        shares["phase"] *= 1 - float(self.trace.metadata.get("phases_assumed", 0.0))
        rows = np.maximum(columns["row"][tasks], 0)
        typed = (
            np.asarray(self.trace["dtype"])[rows] >= 0
            if len(self.trace)
            else np.zeros(len(tasks), bool)
        )
        shares["dtype"] = float(time[typed].sum()) / whole
        return shares

    @cached_property
    def as_a_whole(self) -> tuple[float, str]:
        """The share of the work's time that is known only as part of calls of many layers, and of which."""
        mask, where = known_as_a_whole(self.graph)
        time = self.graph.columns["duration_ns"][self.work].astype(np.float64)
        named = mask[self.work] & (self.graph.columns["layer"][self.work] >= 0)
        return float(time[named].sum()) / (float(time.sum()) or 1.0), where

    def phase_shares(self) -> dict[str, float]:
        """Return the share of each phase in the work's time."""
        columns, tasks = self.graph.columns, self.work
        time = np.bincount(
            columns["phase"][tasks].astype(np.int64) + 1,
            columns["duration_ns"][tasks],
            len(PHASES) + 1,
        )
        whole = float(time.sum()) or 1.0
        return {name: float(ns) / whole for name, ns in zip(PHASES, time[1:], strict=True) if ns}

    def streams(self) -> list[dict[str, Any]]:
        """Return every stream with its tasks and how long they took; gloo's lanes on the host too."""
        columns = self.graph.columns
        rows = []
        for number, lane in enumerate(self.graph.lanes):
            if lane.on_device:
                tasks = columns["lane"] == number
                rows.append({
                    "name": lane.name, "rank": self._rank(lane), "device": lane.device,
                    "on_host": lane.host, "tasks": int(tasks.sum()),
                    "busy_ns": int(columns["duration_ns"][tasks].sum()),
                })  # fmt: skip
        return rows

    def busy(self) -> float | None:
        """Return the share of the covered steps in which the device worked, the mean over ranks."""
        columns, lanes = self.graph.columns, self.graph.lanes

        def on_gpu(lane: Lane) -> bool:
            return lane.on_device and not lane.host

        shares = []
        for rank in sorted({step.get("rank", 0) for step in self.covered}):
            mine = [step for step in self.covered if step.get("rank", 0) == rank]
            end = max(int(step["completion_ns"]) for step in mine)
            begin = min(int(step["completion_ns"]) - int(step["measured_ns"]) for step in mine)
            here = [n for n, lane in enumerate(lanes) if on_gpu(lane) and self._rank(lane) == rank]
            tasks = np.isin(columns["lane"], here) & (columns["measured_start_ns"] >= 0)
            start = columns["measured_start_ns"][tasks]
            if len(start) and end > begin:
                ends = np.clip(start + columns["duration_ns"][tasks], begin, end)
                shares.append(
                    Coverage(np.clip(start, begin, end), ends).before_ns[-1] / (end - begin)
                )
        return float(np.mean(shares)) if shares else None

    def _rank(self, lane: Lane) -> int:
        """Return a lane's rank; the rows of a trace of one rank do not carry it."""
        return lane.rank if lane.rank >= 0 else int(self.trace.metadata.get("rank", 0))

    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Return for replay, what-ifs and selections by phase, layer and type: yes, partly or no, and why."""
        known = self.known()
        verdicts = {"replay": self._replay_verdict(), "what-if": self._whatif_verdict()}
        torch = not self.trace.metadata.get("profiler")  # the advice is about torch's
        for name, advice in MISSING.items():
            why = advice if torch else advice.partition(":")[0]
            share = known[name]
            answer = "yes" if share >= ENOUGH_KNOWN else "partly" if share >= SOME_KNOWN else "no"
            said = (
                f"known for {100 * share:.0f} % of the {self.time_of}"
                if share >= SOME_KNOWN
                else why
            )
            whole, where = self.as_a_whole if name == "layer" else (0.0, "")
            if whole > MUCH:
                answer = "partly"
                said = (
                    f"known for {100 * share:.0f} % of the {self.time_of}; "
                    f"{100 * whole:.0f} % only as part of {where}"
                )
            verdicts[f"by {name}"] = (answer, said)
        return verdicts

    def _replay_verdict(self) -> tuple[str, str]:
        if self.replay is None:
            return "no", self.why_no_replay
        worst = self.replay.max_error
        for answer, limit in (("yes", GOOD_REPLAY), ("partly", FAIR_REPLAY)):
            if worst <= limit:
                return answer, f"every step replays within {100 * limit:.0f} %"
        return "no", f"a step replays {100 * worst:.1f} % off"

    def _whatif_verdict(self) -> tuple[str, str]:
        if self.replay is None:
            return "no", self.why_no_replay
        answer, _ = self._replay_verdict()
        doubts = [] if answer == "yes" else ["the replay is off"]
        if self.replay.unrest is not None:
            doubts.append(RESTLESS)
        facts = self.graph.facts
        recorded = sum(step.measured_ns for step in self.replay.steps)
        if facts.unexplained_ns > MUCH_UNEXPLAINED * recorded:
            doubts.append(
                f"{facts.unexplained_ns / 1e6:,.1f} ms of delays on the device have no known cause"
            )
        if facts.untraced_ns > MUCH_UNEXPLAINED * recorded:
            doubts.append(f"{facts.untraced_ns / 1e6:,.1f} ms of device work was not recorded")
        unresolved, waits = facts.event_waits["unresolved"], sum(facts.event_waits.values())
        if unresolved > (1 - ENOUGH_KNOWN) * waits:
            doubts.append(f"{unresolved:,} of {waits:,} stream waits are unresolved")
        if len(self.replay.steps) == 1:
            doubts.append("only one step is covered, so how steps vary is not known")
        if not has_cpu(self.graph):
            doubts.append("no CPU work was recorded, so pauses of the device stay as they were")
        if not doubts:
            return answer, "the causes of waits are known"
        return ("partly" if answer == "yes" else answer), "; ".join(doubts)

    def to_json(self) -> dict[str, Any]:
        """Return the object `info --json` prints, without the trace's name."""
        trace, metadata, facts = self.trace, self.trace.metadata, self.graph.facts
        replay = self.replay
        busy, time = self.busy(), recorded_time(trace)
        return {
            "source": metadata.get("source"),
            "vendor": metadata.get("vendor"),
            "devices": metadata.get("devices", []),
            "versions": metadata.get("versions", {}),
            "ranks": sorted({step.get("rank", 0) for step in self.steps}),
            "world_size": metadata.get("world_size"),
            "rows": len(trace),
            "rows_by_kind": rows_by_kind(trace),
            "span_ns": span_ns(trace),
            "threads": sum(not lane.on_device for lane in self.graph.lanes),
            "streams": self.streams(),
            "device_busy": busy,
            "step_source": metadata.get("step_source"),
            "steps": [
                {key: step.get(key) for key in ("name", "rank", "measured_ns", "covered", "why_not")}
                for step in self.steps
            ],
            "covered": len(self.covered),
            "recorded_time": None if time is None else time.to_json(),
            "phases_assumed": float(metadata.get("phases_assumed", 0.0)),
            "known": self.known(),
            "phases": self.phase_shares(),
            "device_rows": self.device_tasks,
            "orphans": facts.orphans,
            "memory": self.memory(),
            "counters": counted_in(trace),
            "event_waits": dict(facts.event_waits),
            "unresolved_syncs": facts.unresolved_syncs,
            "sync_rows": rows_by_kind(trace).get("sync", 0),
            "queue_depth": facts.queue_depth,
            "replay": replay and {
                key: getattr(replay, key) for key in ("measured_ns", "replayed_ns", "error", "max_error")
            },
            "verdicts": {
                name: {"answer": answer, "why": why} for name, (answer, why) in self.verdicts().items()
            },
            "notes": self.notes(),
        }  # fmt: skip

    def memory(self) -> list[dict[str, Any]] | None:
        """Return what was recorded of each device's memory, None if nothing was."""
        events = self.trace.memory
        return None if events is None else [each.to_json() for each in recorded_memory(events)]

    def notes(self) -> list[str]:
        """Return what was odd about the recording and its graph, and which of its steps others look at."""
        metadata, chosen = (
            self.trace.metadata,
            self.trace.memory is not None or "steps_read" in self.trace.metadata,
        )
        run = None if chosen else typical_run(metadata, len(self.trace))
        looked_at = [] if run is None else [run.note]
        if self.replay is not None:
            return [*looked_at, *self.replay.notes]
        return [*looked_at, *self.trace.metadata.get("notes", []), *self.graph.facts.notes]


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
    order = ("operator", "annotation", "module", "runtime", *DEVICE_KINDS, "sync", "blocked")
    return {kind: found[kind] for kind in order if kind in found}


def span_ns(trace: Trace) -> int:
    """Return the time from the first row's start to the last row's end."""
    if not len(trace):
        return 0
    start = np.asarray(trace["start_ns"], np.int64)
    return int((start + trace["duration_ns"]).max() - start.min())


def step_spread(steps: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    """Return the least, median and greatest measured time of some steps, in ns."""
    times = [int(step["measured_ns"]) for step in steps]
    return min(times), round(median(times)), max(times)
