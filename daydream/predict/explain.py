"""Explain: why a step takes its time, what bounds it, what it could do without, and what holds its memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict

from daydream.costs.devices import device_of
from daydream.costs.kernels import number_formats, peaks, work
from daydream.errors import GraphError, NotApplicableError
from daydream.graph.calls import has_device_work
from daydream.graph.graph import Graph
from daydream.graph.plan import Cause
from daydream.graph.profiler_overhead import LARGEST_SCALE
from daydream.graph.selection import Selection
from daydream.graph.tables import KERNEL, covered_steps
from daydream.memory.prediction import MemoryPrediction, changed, worst_device
from daydream.memory.report import at_peak
from daydream.memory.result import DeviceMemory
from daydream.model.captured import breaks_of, sentences, uncompiled_sentences
from daydream.predict.basis import ESTIMATED, Basis
from daydream.predict.breakdown import (
    Chain,
    Communication,
    Launching,
    Share,
    labels,
    trace_back,
)
from daydream.predict.memory import answer_of, held_now
from daydream.predict.prediction import Prediction
from daydream.predict.prediction import whatif as ask
from daydream.predict.replay import Replay, Source, as_replay
from daydream.predict.suggest import LEAST, Avoidable, WhatIfResult, WhatIfs
from daydream.results import Live, Record
from daydream.simulate.critical_path import Bound, PathCause, has_cpu
from daydream.transforms.compose import parse

NEARLY = 0.9  # of the step: what alone would still take this long bounds it
MOST = 0.5  # of the step: a cause that bounds it by itself
LARGELY = (
    0.67  # of the step: what saves so much if it takes no time bounds it, whatever else is left
)
NOT_RECORDED = (PathCause.UNTRACED_DEVICE, PathCause.RECORDING, PathCause.PAUSES)
# cuDNN's algorithms that fit any convolution. Without `benchmark` it chooses by rules of thumb, and takes
# them at times where Winograd's or a product with precomputed offsets would be faster.
GENERAL = r"implicit_convolve_sgemm|dgrad_engine|wgrad_alg0_engine|convolve_common_engine"
LEAST_OF_KERNELS = 0.03  # of their time: smaller families are left out
MOST_FAMILIES = 3
MOST_SMALLER = 4  # what-ifs, of the largest holders first: each is simulated
ANY = ("batch-size", "vdnn")  # asked behind those: they need no layers
OPTIONS: dict[str, dict[str, Any]] = {"batch-size": {"factor": 0.5}}  # of what has no default


class Explanation(Record, eq=False):
    """Why a step takes its time. Times are ns per step, means over the covered steps.

    `causes` are the critical path and add up to `step_ns`. `bound` is a `Bound`: GPU, CPU, copies,
    communication, data loading, turns where CPU and device wait for each other,
    "CPU and GPU" where each takes as long without the other, or unrecorded where most of
    the step is device work that is not in the trace. It rests on three simulations: the
    step without any CPU cost, without any time on the device, and without collectives.

    `avoidable` is sorted by what its best what-if would save.

    Attributes:
        whatif: the change that is explained, None without one.
        basis: which step is explained: `unprofiled`, `estimated` or `recorded`.
        measured_ns: the mean measured step of that basis; None where it is estimated.
        replayed_ns: the settled step, which savings are counted from.
        replay_error: simulated / measured - 1 of that step.
        steps: the names of the covered steps.
        step_ns: their mean.
        bound: what bounds the step.
        causes: the critical path by cause; they add up to `step_ns`.
        device_busy_share: the part of the step in which the device runs something, 0 to 1.
        launch_calls: time in calls that launch work on a device; None without a device.
        synchronization_wait_ns: how long CPU calls wait for the device, per step.
        communication: collectives; None if the step has none.
        kernels: what the families of kernels that take longest reach of the device's peak.
        general_convolutions_ns: time per step in algorithms of cuDNN that fit any convolution.
        without_cpu: the step without any CPU cost.
        without_device: the step without any time on the device.
        without_communication: the step without collectives.
        avoidable: what the step could do without.
        memory: the peak; None where the trace, or the change, does not tell it.
        memory_unsaid: why, in a clause, where the trace has memory or a capacity was given.
        notes: what a reader should know before trusting the figures.

    Example::

        explanation = daydream.explain("examples/synthetic_gpt_gpu.json.gz")
        print(explanation.bound, explanation.step_ns)
        for cost in explanation.avoidable:
            print(cost.sort, cost.cost_ns, cost.saving_ns)

    """

    whatif: str | None
    basis: Basis
    measured_ns: int | None
    replayed_ns: int
    replay_error: float | None
    steps: tuple[str, ...]
    step_ns: int
    bound: Bound
    causes: tuple[Share, ...]
    device_busy_share: float | None
    launch_calls: Launching | None
    synchronization_wait_ns: int
    communication: Communication | None
    kernels: tuple[PeakShare, ...]
    general_convolutions_ns: int
    without_cpu: WhatIfResult
    without_device: WhatIfResult | None
    without_communication: WhatIfResult | None
    avoidable: tuple[Avoidable, ...]
    memory: PeakMemory | None
    memory_unsaid: str | None
    notes: tuple[str, ...]

    replay = Live[Replay]()
    after = Live["Prediction | None"]()  # the change that is explained, if any

    def __repr__(self) -> str:
        first = f", {self.causes[0].cause.label} {self.causes[0].share:.0%}" if self.causes else ""
        return f"<Explanation of a step of {self.step_ns / 1e6:,.3f} ms: {self.bound}-bound{first}>"

    @property
    def graph(self) -> Graph:
        """The graph that is explained."""
        return self.replay.graph if self.after is None else self.after.graph

    @property
    def if_recording_cost_more(self) -> str:
        """At what cost of recording the device bounds the step, a sentence; empty where none is that high."""
        measured_ns = self.replay.measured_ns
        busy = self.device_busy_share
        if self.basis != ESTIMATED or not busy or not measured_ns:
            return ""
        assumed, turn = (1 - share * self.replayed_ns / measured_ns for share in (1.0, busy))
        if turn > LARGEST_SCALE * assumed:
            return ""
        return (
            f" This depends on the profiler's overhead: {assumed:.0%} of the recorded step is assumed; from "
            f"{turn:.0%} on the step is bound by the device."
        )

    def share(self, cause: str) -> float:
        """Return a cause's share of the step."""
        return sum(each.share for each in self.causes if each.cause == cause)

    def bound_share(self, bound: Bound) -> float:
        """Return the share of the step that waits for GPU, CPU, copies or communication."""
        return shares_of(self.causes)[bound]

    @property
    def worth_it(self) -> tuple[Avoidable, ...]:
        """The avoidable costs whose removal would save half a percent of the step or more."""
        return tuple(
            each for each in self.avoidable if (each.saving_ns or 0) >= LEAST * self.replayed_ns
        )


def explain(
    source: Replay | Graph | Source,
    whatif: str | Callable[..., None] | Sequence[Any] | None = None,
    *,
    capacity: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    **options: Any,
) -> Explanation:
    """Return why a step takes its time: as it was recorded, or after a what-if with its options.

    It is the step that `replay` chose, its `basis`. Every saving is simulated, on top of the what-if if
    there is one. `capacity` is what each device has in bytes, by default what the trace says of it: whether
    the step fits.

    Returns:
        An `Explanation`: the critical path by cause, what bounds the step, and avoidable costs with
        what their removal would save, all in ns per step.

    Raises:
        GraphError: the trace covers no step.
        UnknownOptimizationError: there is no what-if of that name.

    """
    say = progress or (lambda _what, _share: None)
    before = as_replay(source)
    if whatif is None and options:
        raise GraphError(f"options {', '.join(options)} belong to a what-if, and none is named")
    now = Prediction.unchanged(before) if whatif is None else ask(before, whatif, **options)
    asker = WhatIfs(now, [] if whatif is None else parse(whatif), options)
    say("following the critical path", -1.0)
    chain = trace_back(now.after)
    if not chain.steps:
        raise NotApplicableError(
            "nothing is left of the step after this change, so nothing can be explained"
        )
    say("asking what would save time", -1.0)
    without = ask_without(asker, chain)
    causes = tuple(chain.shares())
    busy = chain.busy_ns()
    memory, unsaid = peak_memory(asker, capacity)
    graph = chain.graph
    steps = len(chain.steps)
    chosen = (graph.kind == KERNEL) & graph.alive & covered_steps(graph)[graph.step]
    kernels = Selection(graph, np.flatnonzero(chosen))
    general_ns = kernels.where(name=GENERAL).duration_ns.sum()
    if general_ns <= LEAST_OF_KERNELS * kernels.duration_ns.sum():
        general_ns = 0
    return Explanation(
        whatif=now.optimization or None,
        **before.basis_figures | {"replayed_ns": now.simulated_ns},
        steps=tuple(str(graph.steps[step]["name"]) for step in chain.steps),
        step_ns=round(chain.step_ns),
        causes=causes,
        bound=bound(causes, **without, with_cpu=has_cpu(graph)),
        **without,
        device_busy_share=None if busy is None else busy / max(chain.step_ns, 1),
        launch_calls=chain.launching(),
        communication=chain.communication(),
        synchronization_wait_ns=chain.waits_ns(Cause.SYNC),
        avoidable=tuple(asker.avoidable(chain)),
        kernels=reached(kernels, steps),
        general_convolutions_ns=round(general_ns / steps),
        notes=tuple(
            dict.fromkeys(
                [
                    *before.notes,
                    *now.notes,
                    *sentences(breaks_of(graph)),
                    *uncompiled_sentences(graph.recorded),
                    *(memory.recording_notes if memory else ()),
                ]
            )
        ),
        memory=memory,
        memory_unsaid=unsaid,
    ).having(replay=before, after=None if whatif is None else now)


def ask_without(asker: WhatIfs, chain: Chain) -> dict[str, Any]:
    """Return what the step would take without each side, None if it has none: fields of `Explanation`."""
    return {
        "without_cpu": asker.without(on="cpu"),
        "without_device": asker.without(on="gpu") if has_device_work(chain.graph) else None,
        "without_communication": asker.without(kind="collective")
        if chain.communication()
        else None,
    }


def bound_now(replay: Replay) -> tuple[Bound, float]:
    """Return what bounds a step as it was recorded, and its share of the critical path.

    The share is 0 where it does not tell: two sides bound the step, or the path runs beside the bound.
    """
    chain = trace_back(replay.settled)
    causes = chain.shares()
    without = ask_without(WhatIfs(Prediction.unchanged(replay), bare=True), chain)
    found = bound(causes, **without, with_cpu=has_cpu(chain.graph))
    loads = {Bound.LOADING, Bound.OUTSIDE} if found is Bound.LOADING else {found}
    share = sum(each.share for each in causes if each.bound in loads)
    return found, share if share >= MOST else 0.0


def shares_of(causes: Sequence[Share]) -> defaultdict[Bound, float]:
    """Return what share of the critical path waits for GPU, CPU, copies, ...; and for data loading."""
    found = defaultdict[Bound, float](float)
    for each in causes:
        beside = each.bound in {Bound.LOADING, Bound.OUTSIDE}
        for bound in (Bound.CPU, Bound.LOADING) if beside else (each.bound,):
            found[bound] += each.share
    return found


def bound(
    causes: Sequence[Share],
    without_cpu: WhatIfResult,
    without_device: WhatIfResult | None,
    without_communication: WhatIfResult | None = None,
    *,
    with_cpu: bool = True,
) -> Bound:
    """Return what bounds the step: the side that alone takes nearly as long, and what most of it is.

    Where each side alone takes nearly as long, the critical path decides; where it lies on the side that
    is a little shorter, both bound the step: neither gains anything alone.
    """
    step_ns = max(without_cpu.replayed_ns, 1)
    waits = shares_of(causes)
    on_device = Bound.COPIES if waits[Bound.COPIES] >= MOST else Bound.GPU
    if (
        without_communication is not None
        and (without_communication.saving_ns or 0) >= MOST * step_ns
    ):
        on_device = Bound.COMMUNICATION
    if without_device is None:
        return Bound.COMMUNICATION if on_device is Bound.COMMUNICATION else Bound.CPU
    missing = sum(each.share for each in causes if each.cause in NOT_RECORDED)
    if missing >= (MOST if with_cpu else 1 - NEARLY):  # without a CPU the device alone remains
        return Bound.UNRECORDED
    if not with_cpu:
        return on_device
    # What each side would take alone, as a part of the step.
    device, cpu = ((each.predicted_ns or 0) / step_ns for each in (without_cpu, without_device))
    # Waits for what is outside the trace last whatever the CPU costs: the device does not take them.
    device -= sum(each.share for each in causes if each.cause is PathCause.OUTSIDE)
    found = Bound.CPU if cpu > device else on_device
    if waits[Bound.LOADING] >= MOST and 1 - device >= MOST:
        found = Bound.LOADING
    elif 1 - device >= LARGELY:
        found = Bound.CPU
    elif max(device, cpu) < NEARLY and 1 - cpu < LARGELY:
        found = Bound.TURNS
    elif min(device, cpu) >= NEARLY and (waits[Bound.CPU] >= MOST) != (cpu >= device):
        found = Bound.BOTH
    return found


class PeakShare(Record):
    """Kernels of one family: their time per step and the share of the peak that bounds them, 0 to 1.

    `peak` is arithmetic or memory, whichever the family's work would take longer on at the peak rate.
    """

    name: str
    ns: int
    share_of_peak: float
    peak: str


def reached(kernels: Selection, steps: int) -> tuple[PeakShare, ...]:
    """Return what the families of kernels that take longest reach; none without shapes or a known device.

    Kernels whose work is unknown do not count, nor do those that a cache serves: more than the memory's peak.
    """
    graph = kernels.graph
    try:
        device = device_of(graph)
    except NotApplicableError:
        return ()
    if not len(kernels):
        return ()
    amounts = work(graph, kernels)
    rate = peaks(number_formats(kernels, device), device)
    arithmetic = np.nan_to_num(np.where(amounts.flop > 0, amounts.flop / rate, 0))
    memory = np.nan_to_num(np.where(amounts.nbytes > 0, amounts.nbytes / device.bandwidth, 0))
    took = kernels.duration_ns
    known = (arithmetic > 0) | (memory > 0)
    family, largest = labels(graph, kernels.ids, took * known)
    bounds = (np.bincount(family, times * known).tolist() for times in (arithmetic, memory))
    found = []
    for (name, ns), flop_ns, byte_ns in [*zip(largest, *bounds, strict=True)][:MOST_FAMILIES]:
        bound_ns = max(flop_ns, byte_ns)
        if LEAST_OF_KERNELS * took.sum() <= ns and 0 < bound_ns <= ns:
            of = "arithmetic" if flop_ns >= byte_ns else "memory"
            found.append(PeakShare(name, round(ns / steps), bound_ns / ns, of))
    return tuple(found)


class SmallerPeak(WhatIfResult, kw_only=True):
    """A what-if that makes the peak smaller, the peak then in bytes, and whether it fits."""

    after_bytes: int
    fits: bool | None


class PeakMemory(MemoryPrediction, kw_only=True):
    """The peak of a step, as it was recorded and after the change that is explained.

    Attributes:
        peak_step: the step of the peak.
        peak_phase: its phase.
        peak_layer: the layer that ran then.
        by_kind: bytes held at the peak by kind.
        whatifs: what would make it smaller, the best first; asked only where it may not fit.
    """

    peak_step: str | None
    peak_phase: str | None
    peak_layer: str | None
    by_kind: Mapping[str, int]
    whatifs: tuple[SmallerPeak, ...] = ()

    holders = Live[DeviceMemory]()  # who holds it


def peak_memory(runner: WhatIfs, capacity: int | None) -> tuple[PeakMemory | None, str | None]:
    """Return the peak of the step that is explained; None without it, and in a clause why it is not known.

    Args:
        runner: asks what would make it smaller, on top of the change that is explained.
        capacity: what the device has, in bytes; by default what the trace says of it.
    """
    now = runner.now
    graph = now.replay.graph
    changes = now.memory_changes()
    answer = answer_of(graph, changes, capacity)
    if answer.memory is None:
        return None, answer.unsaid
    held = changed(held_now(graph.recorded, graph), changes)
    found = at_peak(held, *worst_device(held))
    limited = answer.memory.capacity_bytes is not None and not answer.memory.fits
    names = (
        [*(each.whatif for each in found.holders if each.whatif is not None), *ANY]
        if limited
        else []
    )
    return PeakMemory(
        **asdict(answer.memory),
        peak_step=found.peak_step,
        peak_phase=found.peak_phase,
        peak_layer=found.peak_layer,
        by_kind=found.by_kind,
        whatifs=_smaller(runner, names, answer.memory),
    ).having(holders=found), None


def _smaller(
    runner: WhatIfs, names: Sequence[str], now: MemoryPrediction
) -> tuple[SmallerPeak, ...]:
    """Return which of some what-ifs make the peak smaller: what fits first."""
    found = []
    for name in list(dict.fromkeys(names))[:MOST_SMALLER]:
        result, prediction = runner.tried(name, OPTIONS.get(name, {}))
        if prediction is None:
            continue  # it does not apply
        memory = answer_of(
            runner.now.replay.graph,
            prediction.memory_changes(),
            now.capacity_bytes,
        ).memory
        if memory is not None and memory.after_bytes < now.after_bytes:
            found.append(
                SmallerPeak(**asdict(result), after_bytes=memory.after_bytes, fits=memory.fits)
            )

    def place(each: SmallerPeak) -> tuple[int, ...]:
        return (
            (0, each.needs is not None, each.predicted_ns or 0)
            if each.fits
            else (1, each.after_bytes)
        )

    return tuple(sorted(found, key=place))
