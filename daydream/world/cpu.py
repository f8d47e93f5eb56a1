"""What launches an emulated GPU's kernels: a CPU of some speed, or that of a machine that recorded a trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.errors import NotApplicableError
from daydream.simulate.steady_state import settle
from daydream.trace.schema import DEVICE_KINDS

if TYPE_CHECKING:
    from daydream.graph.graph import Graph

# ns of an operator, of the Python of a layer, of a launch, between those of two hosts, one of them twice as fast;
# nine of ten programs take up to so many times that, or that part of it, on any machine, or on one that is known.
# `validation/emulation.py` learns these from recordings.
CPU_NS = {"operator": 2_200, "module": 4_500, "launch": 15_700}
CPU_RANGE = 2.2
OWN_RANGE = 1.27
KINDS = {"slow": 1, "typical": 0, "fast": -1}
DECIDES = 0.9  # of a step: what the CPU takes at least where the step waits for it
NO_CPU = (
    "--cpu takes what `daydream collect` recorded on a GPU, of steps that wait for the CPU: others do not tell how "
    "fast it is. Record a smaller model or batch."
)


def find_cpu(words: Sequence[str], replay_of: Callable[[str], Any]) -> dict[str, Any]:
    """Return what `--cpu` names: a kind, or traces, whose replays `replay_of` gives."""
    kind, *others = words or ["typical"]
    if kind in KINDS and not others:
        return some_cpu(kind)
    replays = [replay_of(word) for word in words]
    return own_cpu([recorded_times(each.graph, each.basis_ns) for each in replays])


def some_cpu(kind: str, several: float = CPU_RANGE) -> dict[str, Any]:
    """Return a CPU: its name, how many times `CPU_NS` it takes, and of that others that it may be."""
    others = [several**away for away in (1, -1) if KINDS[kind] + away in KINDS.values()]
    return {"cpu": kind, "times": several ** KINDS[kind], "other_cpus": others}


def own_cpu(times: Sequence[float], several: float = OWN_RANGE) -> dict[str, Any]:
    """Return likewise the CPU of a machine of which some programs are known: how many times `CPU_NS` they take."""
    apart = several ** (1 + 1 / len(times)) ** 0.5
    return {"cpu": "recorded", "times": median(times), "other_cpus": [apart, 1 / apart]}


def recorded_times(graph: Graph, step_ns: float) -> float:
    """Return how many times `CPU_NS` the CPU of a recording takes, whose step takes so long.

    Raises `NotApplicableError` where it has no layers or kernels, or waits for the GPU.
    """
    counts = counted(graph.recorded)
    alone = graph.copy()
    alone.select(kind=DEVICE_KINDS).scale(0)
    took_ns = settle(alone).step_ns
    emulated = "emulated" in graph.recorded.metadata
    if emulated or not all(counts.values()) or took_ns < DECIDES * step_ns:
        raise NotApplicableError(NO_CPU)
    return took_ns / sum(CPU_NS[kind] * count for kind, count in counts.items())


def counted(trace: Any) -> dict[str, float]:
    """Return how many operators, layers and launches a covered step has."""
    covered = [number for number, step in enumerate(trace.metadata["steps"]) if step["covered"]]
    within = np.isin(trace["step"], covered)
    kinds = {"operator": ["operator"], "module": ["module"], "launch": DEVICE_KINDS}
    counts = {name: int((within & trace.is_kind(*of)).sum()) for name, of in kinds.items()}
    return {name: count / len(covered) for name, count in counts.items()}
