"""Explanation: what a step's time is spent on, what bounds it, and what it could do without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from daydream.display import as_json, plain
from daydream.errors import GraphError, NotApplicableError
from daydream.explanation.asking import WhatIfResult, WhatIfRunner
from daydream.explanation.avoidable import LEAST, Avoidable, avoidable
from daydream.explanation.beside import (
    Communication,
    Launching,
    busy_share,
    communication,
    launching,
    waits,
)
from daydream.explanation.bound import ask_without, bound
from daydream.explanation.causes import Share, shares, trace_back
from daydream.explanation.peak_memory import PeakMemory, peak_memory
from daydream.explanation.reached import PeakShare, general_convolutions_ns, reached
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.model.graph_breaks import breaks_of, sentences, uncompiled_sentences
from daydream.predict.notes import typical_cost_note
from daydream.predict.prediction import Prediction
from daydream.predict.recording import replay_as_run
from daydream.predict.replay import Replay, as_replay
from daydream.simulate.causes import Bound

if TYPE_CHECKING:
    import os

    from daydream.trace.trace import Trace


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """Why a step takes its time. Times are ns per step, means over the covered steps.

    `causes` are the critical path and add up to `step_ns`. `bound` is a `Bound`: GPU, CPU, copies,
    communication, data loading, turns where CPU and device wait for each other,
    "CPU and GPU" where each takes as long without the other, or unrecorded where most of
    the step is device work that is not in the trace. It rests on three simulations: the
    step without any CPU cost, without any time on the device, and without collectives.

    `avoidable` is sorted by what its best what-if would save.

    Example::

        explanation = daydream.explain("examples/synthetic_gpt_gpu.json.gz")
        print(explanation.bound, explanation.step_ns)
        for cost in explanation.avoidable:
            print(cost.sort, cost.cost_ns, cost.saving_ns)

    """

    replay: Replay
    as_run: Replay  # the one that is explained: without a profiler, where that is known
    after: Prediction | None  # the change that is explained, if any
    steps: tuple[str, ...]
    step_ns: int
    replayed_ns: int  # the settled step, which savings are counted from
    causes: tuple[Share, ...]
    bound: Bound
    without_cpu: WhatIfResult
    without_device: WhatIfResult | None
    without_communication: WhatIfResult | None
    busy_share: float | None  # of the step, in which the device runs something
    launching: Launching | None
    communication: Communication | None
    sync_wait_ns: int
    avoidable: tuple[Avoidable, ...]
    reached: tuple[PeakShare, ...] = ()  # what kernels reach of the device's peak
    general_convolutions_ns: int = 0  # by algorithms of cuDNN that fit any convolution
    found_notes: tuple[str, ...] = field(default=())
    memory: PeakMemory | None = None  # None where the trace, or the change, does not tell it
    memory_unsaid: str | None = None  # why, in a clause, where the trace has memory or a capacity was given

    def __repr__(self) -> str:
        first = f", {self.causes[0].cause.label} {self.causes[0].share:.0%}" if self.causes else ""
        return f"<Explanation of a step of {self.step_ns / 1e6:,.3f} ms: {self.bound}-bound{first}>"

    @property
    def graph(self) -> Graph:
        """The graph that is explained."""
        return self.as_run.graph if self.after is None else self.after.graph

    @property
    def profiled(self) -> bool:
        """Whether the recorded step is explained: what recording cost is not known, or does not count."""
        return self.as_run is self.replay

    def share(self, cause: str) -> float:
        """Return a cause's share of the step."""
        return sum(each.share for each in self.causes if each.cause == cause)

    def bound_share(self, bound: str) -> float:
        """Return the share of the step that waits for GPU, CPU, copies or communication."""
        return sum(each.share for each in self.causes if each.bound == bound)

    @property
    def worth_it(self) -> tuple[Avoidable, ...]:
        """The avoidable costs whose removal would save half a percent of the step or more."""
        return tuple(each for each in self.avoidable if each.saving_ns >= LEAST * self.replayed_ns)

    def notes(self) -> list[str]:
        """Return what a reader should know before trusting the figures."""
        return list(self.found_notes)

    def to_json(self) -> dict[str, Any]:
        """Return the object `explain --json` prints, without the trace's name and the sentences."""
        return {
            "whatif": None if self.after is None else self.after.optimization,
            **as_json(self, "measured_ns=replay.measured_ns replayed_ns replay_error=replay.error"),
            **as_json(self, "profiled steps step_ns bound"),
            "causes": [_share_json(each) for each in self.causes],
            "device_busy_share": self.busy_share,
            "launch_calls": None if self.launching is None else {
                **as_json(self.launching, "calls_per_step=calls total_ns queue_wait_ns"),
                **_selected(self.launching),
            },
            "synchronization_wait_ns": self.sync_wait_ns,
            "communication": None if self.communication is None else {
                **as_json(self.communication, "total_ns exposed_ns hidden_ns"),
                "behind": [{"cause": cause.value, "ns": ns} for cause, ns in self.communication.behind],
                **_selected(self.communication),
            },
            **as_json(self, "kernels=reached general_convolutions_ns"),
            **as_json(self, "without_cpu without_device without_communication"),
            "avoidable": [
                {
                    "sort": each.sort,
                    **each.place.to_json(),
                    "count_per_step": each.count,
                    "cost_ns": each.cost_ns,
                    **_selected(each),
                    "saving_ns": None if (each.best or each.limit) is None else each.saving_ns,
                    "code": None if each.best is None else each.best.code,
                    "whatifs": plain(each.answers),
                    "without_ns": None if each.limit is None else each.limit.predicted_ns,
                }
                for each in self.avoidable
            ],
            "memory": None if self.memory is None else self.memory.to_json(),
            "notes": self.notes(),
        }  # fmt: skip


def explain(
    source: Replay | Graph | Trace | str | os.PathLike[str],
    whatif: str | Callable[..., None] | Sequence[Any] | None = None,
    *,
    capacity: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Explanation:
    """Return why a step takes its time: as it was recorded, or after a what-if with its options.

    It is the step as a run pays for it: without a profiler, where the trace tells what recording cost or the
    typical cost counts. Every saving is simulated, on top of the what-if if there is one. `capacity` is what
    each device has in bytes, by default what the trace says of it: whether the step fits.

    Returns:
        An `Explanation`: the critical path by cause, what bounds the step, and avoidable costs with
        what their removal would save, all in ns per step.

    Raises:
        GraphError: the trace covers no step.
        UnknownOptimizationError: there is no what-if of that name.

    """
    from daydream.predict.whatif import whatif as ask

    say = progress or (lambda _what, _share: None)
    before = as_replay(source)
    if whatif is None and options:
        raise GraphError(f"options {', '.join(options)} belong to a what-if, and none is named")
    as_run = replay_as_run(before)
    after = None if whatif is None else ask(as_run, whatif, **options)
    asker = WhatIfRunner(as_run, after, options)
    settled = as_run.settled if after is None else after.after
    typical = [typical_cost_note(before)] if as_run is not before and before.unprofiled is None else []
    known = [*before.notes, *typical, *(after or Prediction.unchanged(as_run)).notes]
    say("following the critical path", -1.0)
    chain = trace_back(settled.timeline, settled.copy, list(settled.step_times()))
    if not chain.steps:
        raise NotApplicableError("nothing is left of the step after this change, so nothing can be explained")
    say("asking what would save time", -1.0)
    without = ask_without(asker, chain)
    causes = tuple(shares(chain))
    memory, unsaid = peak_memory(asker, capacity)
    return Explanation(
        replay=before,
        as_run=as_run,
        after=after,
        steps=tuple(_name(chain.graph, step) for step in chain.steps),
        step_ns=round(chain.step_ns),
        replayed_ns=asker.step_ns,
        causes=causes,
        bound=bound(causes, without),
        without_cpu=without.cpu,
        without_device=without.device,
        without_communication=without.communication,
        busy_share=busy_share(chain),
        launching=launching(chain),
        communication=communication(chain),
        sync_wait_ns=waits(chain, Cause.SYNC).per_step(),
        avoidable=tuple(avoidable(chain, asker)),
        reached=reached(chain),
        general_convolutions_ns=general_convolutions_ns(chain),
        found_notes=tuple(
            dict.fromkeys(
                [
                    *known,
                    *sentences(breaks_of(chain.graph)),
                    *uncompiled_sentences(chain.graph.trace),
                    *(memory.told.recording_notes if memory else ()),
                ]
            )
        ),
        memory=memory,
        memory_unsaid=unsaid,
    )


def _share_json(share: Share) -> dict[str, Any]:
    return {
        "cause": share.cause.value,
        "bound": share.bound.value,
        "group": share.bound.value,
        "ns": share.ns,
        "share": share.share,
        "largest": [{"name": part.name, "ns": part.ns} for part in share.largest],
        **_selected(share),
    }


def _selected(figure: Share | Avoidable | Launching | Communication) -> dict[str, Any]:
    """Return the selection that a figure is read from."""
    return {"selection": figure.tasks.words, "tasks": len(figure.tasks)}


def _name(graph: Graph, step: int) -> str:
    return str(graph.steps[step]["name"])
