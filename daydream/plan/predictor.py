"""A job: the blocks of its model, from which time and memory of any strategy are composed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from daydream.costs.network.clusters import Cluster
from daydream.errors import NotApplicableError
from daydream.plan.strategies import Limits, Sizes, Strategy
from daydream.results import Record
from daydream.world.compose import Model, compose, peaks

# A billion parameters take Adam 0.22 s on the CPUs of one machine (Ren et al., "ZeRO-Offload", USENIX ATC 2021,
# table 4), which all its GPUs share.
CPU_UPDATE_NS = 0.22
ALONE = ("compute", "launch", "optimizer")
# Of all-reduces on A100s, by the machine's name alone, from 8 MB on, the worst: docs/accuracy.md.
NETWORK_ERROR = 0.285


class Candidate(Record):
    """A strategy that was predicted; times are ns per step.

    Attributes:
        strategy: which, axis by axis.
        gpus: how many it takes.
        step_ns: the step.
        step_low_ns: the lower end of its 90% interval.
        step_high_ns: the upper end.
        memory_bytes: peak of the GPU that needs most.
        parts_ns: what the step waits for, by name; they add up to it.
        bound: what limits it: the largest part, or `memory`: without checkpointing or offload it does not fit.
        lost_to: the largest part but for computing.
        best_of: whether none is better in time, memory and GPUs.
        hours: of all tokens.
        dollars: of these hours.
    """

    strategy: Strategy
    gpus: int
    step_ns: int
    step_low_ns: int
    step_high_ns: int
    memory_bytes: int
    parts_ns: dict[str, int]
    bound: str = ""
    lost_to: str = ""
    best_of: bool = False
    hours: float | None = None
    dollars: float | None = None


@dataclass
class Job:
    """What is known of a job before the search.

    Attributes:
        models: by the shape of a strategy; or why there is none.
        cluster: the machines.
        pcie: from a GPU to its host and back, GB/s.
        error: by which part what the GPUs do alone may be off.
        sizes: what the model can be divided by.
        capacity: memory of a GPU, bytes.
        limits: the values of axes that are known.
        own: the script's own settings.
        notes: what a reader should know.
    """

    models: dict[tuple[int, ...], Model | str]
    cluster: Cluster
    pcie: float
    error: float
    sizes: Sizes
    capacity: int
    limits: Limits
    own: Strategy | None = None
    notes: list[str] = field(default_factory=list)

    def prepare(self, strategies: Sequence[Strategy], capacity: int, engine: Any, say: Any) -> None:
        """Get ready to be asked about these; what is known of a trace is known."""

    def memory_bytes(self, strategy: Strategy) -> int:
        """Return the peak of the GPU that needs most. Raises `DaydreamError` where that cannot be."""
        if why := self.sizes.why_not(strategy):
            raise NotApplicableError(why)
        return round(max(peaks(self._model(strategy), strategy)))

    def predict(self, strategy: Strategy) -> Candidate:
        """Return the step and its parts. Raises `DaydreamError` where they are not known."""
        found = compose(self._model(strategy), strategy, self.cluster)
        alone = sum(found.parts[part] for part in ALONE)
        doubt = found.step_ns * self.error + (found.step_ns - alone) * NETWORK_ERROR
        return Candidate(
            strategy,
            strategy.world_size,
            round(found.step_ns),
            round(found.step_ns - doubt),
            round(found.step_ns + doubt),
            round(found.peak_bytes),
            {part: round(ns) for part, ns in found.parts.items()},
        )

    def _model(self, strategy: Strategy) -> Model:
        model = self.models.get(strategy.shape, "this tp, ep, cp or micro-batch was not looked at")
        if isinstance(model, str):
            raise NotApplicableError(model)
        if not strategy.offload:
            return model
        crossing = (model.gradient_bytes + model.parameter_bytes) / self.pcie
        update = crossing + CPU_UPDATE_NS * self.cluster.gpus_per_node
        return replace(model, optimizer_bytes=0, optimizer_ns=max(update, model.optimizer_ns))
