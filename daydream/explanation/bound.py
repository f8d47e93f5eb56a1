"""What bounds a step: told by what is left of it without CPU cost, without device or collectives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daydream.explanation.asking import WhatIfResult, WhatIfRunner
from daydream.explanation.beside import communication
from daydream.explanation.causes import Chain, Share, shares, trace_back
from daydream.graph.query.device import device_work
from daydream.predict.replay import Replay
from daydream.simulate.causes import Bound, PathCause
from daydream.simulate.path_causes import has_cpu

NEARLY = 0.9  # of the step: what alone would still take this long bounds it
MOST = 0.5  # of the step: a cause that bounds it by itself
LARGELY = (
    0.67  # of the step: what saves so much if it takes no time bounds it, whatever is left to the other side
)
NOT_RECORDED = (PathCause.UNTRACED_DEVICE, PathCause.RECORDING, PathCause.PAUSES)


@dataclass(frozen=True)
class Without:
    """What a step would take if one side of it took no time; None where the step has no such side."""

    cpu: WhatIfResult
    device: WhatIfResult | None
    communication: WhatIfResult | None
    has_cpu: bool = True  # whether any CPU work was recorded


def ask_without(asker: WhatIfRunner, chain: Chain) -> Without:
    """Ask what the step would take without each side."""
    on_device = bool(device_work(chain.graph)[chain.graph.alive].any())
    return Without(
        asker.without(on="cpu"),
        asker.without(on="gpu") if on_device else None,
        asker.without(kind="collective") if communication(chain) else None,
        has_cpu(chain.graph),
    )


def bound_now(replay: Replay) -> tuple[Bound, float]:
    """Return what bounds a step as it was recorded, and its share of the critical path.

    The share is 0 where it does not tell: two sides bound the step, or the path runs beside the bound.
    """
    settled = replay.settled
    chain = trace_back(settled.timeline, settled.copy, list(settled.step_times()))
    causes = shares(chain)
    found = bound(causes, ask_without(WhatIfRunner(replay, bare=True), chain))
    share = shares_of(causes).get(found, 0.0)
    return found, share if share >= MOST else 0.0


def shares_of(causes: Sequence[Share]) -> Mapping[Bound, float]:
    """Return what share of the critical path waits for GPU, CPU, copies, ...; and for data loading."""
    found: dict[Bound, float] = {}
    for each in causes:
        for what in [each.bound, *[Bound.LOADING] * (each.cause is PathCause.LOADING)]:
            found[what] = found.get(what, 0.0) + each.share
    return found


def bound(causes: Sequence[Share], without: Without) -> Bound:
    """Return what bounds the step: the side that alone takes nearly as long, and what most of it is.

    Where each side alone takes nearly as long, the critical path decides; where it lies on the side that
    is a little shorter, both bound the step: neither gains anything alone.
    """
    step_ns, waits = max(without.cpu.replayed_ns, 1), shares_of(causes)
    if without.device is None:
        return Bound.COMMUNICATION if _by_communication(without) else Bound.CPU
    missing = sum(each.share for each in causes if each.cause in NOT_RECORDED)
    if missing >= (MOST if without.has_cpu else 1 - NEARLY):  # without a CPU the device alone remains
        return Bound.UNRECORDED
    if not without.has_cpu:
        return _on_device(waits, without)
    device_ns = without.cpu.predicted_ns or 0  # what the device takes if the CPU costs nothing
    cpu_ns = without.device.predicted_ns or 0
    if waits.get(Bound.LOADING, 0.0) >= MOST and step_ns - device_ns >= MOST * step_ns:
        return Bound.LOADING
    return _of_sides(waits, without, device_ns / step_ns, cpu_ns / step_ns)


def _of_sides(waits: Mapping[Bound, float], without: Without, device: float, cpu: float) -> Bound:
    """Return the side that takes nearly the whole step alone; the shares are what each would take alone."""
    if 1 - device >= LARGELY:
        return Bound.CPU
    if max(device, cpu) < NEARLY and 1 - cpu < LARGELY:
        return Bound.TURNS
    if min(device, cpu) >= NEARLY and (waits.get(Bound.CPU, 0.0) >= MOST) != (cpu >= device):
        return Bound.BOTH
    return Bound.CPU if cpu > device else _on_device(waits, without)


def _on_device(waits: Mapping[Bound, float], without: Without) -> Bound:
    if _by_communication(without):
        return Bound.COMMUNICATION
    return Bound.COPIES if waits.get(Bound.COPIES, 0.0) >= MOST else Bound.GPU


def _by_communication(without: Without) -> bool:
    saved = 0 if without.communication is None else without.communication.saving_ns or 0
    return saved >= MOST * without.cpu.replayed_ns
