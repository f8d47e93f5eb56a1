"""One pass through equal layers: what repeats in it is a layer, and the pass is the step.

A loop comes back to where it began: the recording holds its iterations and what was
before the loop. A single pass holds an embedding before its layers, and the CPU goes from layer
to layer as it goes on inside one.
"""

from __future__ import annotations

import numpy as np

from daydream.collect.derive.launches import Launches, linked_calls
from daydream.collect.derive.phase_evidence import BACKWARD_KERNEL, OPTIMIZER_KERNEL
from daydream.collect.derive.recording import Recording
from daydream.trace.schema import DEVICE_KINDS

CLEARLY_LONGER = 2
"""Times as long as inside iterations the CPU pauses between those of a loop."""


def is_one_pass(
    recording: Recording, launches: Launches, pause_ns: np.ndarray, firsts: np.ndarray, lasts: np.ndarray
) -> bool:
    """Return whether iterations that were found are the layers of one pass.

    They are if other kernels come before them, the CPU pauses no longer between them than inside, one
    thread launches all, and all device work was launched in the recording. Operators must have been
    recorded, too: without them nobody can tell that nothing is trained.
    """
    if not recording.is_kind("operator").any():
        return False
    begin, end = int(firsts[0]), int(lasts[-1])
    repeating = np.unique(launches.symbols[begin:end])
    if np.isin(launches.symbols[:begin], repeating).all():
        return False
    inside = [pause_ns[first + 1 : last].max(initial=0) for first, last in zip(firsts, lasts, strict=True)]
    if np.median(pause_ns[firsts[1:]]) > CLEARLY_LONGER * np.median(inside):
        return False
    device = recording.is_kind(*DEVICE_KINDS)
    linked, _ = linked_calls(recording, *DEVICE_KINDS)
    if len(linked) < device.sum() or len(np.unique(launches.thread)) > 1:
        return False
    trained = recording.named(BACKWARD_KERNEL) | recording.named(OPTIMIZER_KERNEL)
    return not bool((trained & (device | recording.is_kind("operator", "annotation"))).any())


def range_of_pass(recording: Recording, launches: Launches) -> tuple[int, int]:
    """Return when the pass begins, with its first launch, and when its thread's last call ends."""
    calls = recording.is_kind("runtime") & (recording.threads == launches.thread[0])
    end_ns = recording["start_ns"][calls] + recording["duration_ns"][calls]
    return int(launches.start_ns[0]), int(end_ns.max())
