"""Causes of a step's time with what they are: `launch-bound CPU (the device waits for launches)`."""

from __future__ import annotations

from daydream.explanation import causes

PLAIN = {causes.KERNELS: "kernels (bound unknown: no shapes or counters)"}
GLOSSES = {
    causes.COMPUTE: "limited by arithmetic",
    causes.MEMORY: "limited by bandwidth",
    causes.SMALL: "too short to fill the device",
    causes.BETWEEN: "the pause before the next",
    causes.COMMUNICATION: "nothing hides it",
    causes.CPU: "the device waits for launches",
    causes.UNTRACED: "Python between operators",
    causes.UNTRACED_DEVICE: "it ran, unrecorded",
    causes.SYNC: "returning from a wait",
    causes.QUEUE: "the launch queue is full",
    causes.LATENCY: "one wakes another",
    causes.INSERTED: "waits that the change adds",
    causes.RECORDING: "work launched earlier",
}


def explained(cause: str) -> str:
    """Return a cause with a word on what it is, where its name does not tell."""
    name = PLAIN.get(cause, cause)
    return f"{name} ({GLOSSES[cause]})" if cause in GLOSSES else name
