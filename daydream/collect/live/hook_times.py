"""How long our own hooks take in a step, by what the recording was doing."""

from __future__ import annotations

from statistics import median


class HookTimes:
    """Durations of hooks in ns, by a state of the recording and the marker they were called at."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, int], list[int]] = {}

    def add(self, state: int, marker: int, duration_ns: int) -> None:
        """Keep the duration of one call."""
        self._times.setdefault((state, marker), []).append(duration_ns)

    def in_step(self, state: int, *, once_a_step: int) -> int:
        """Return how long the hooks of a step took in a state, in ns; 0 where none was called.

        The marker `once_a_step` tells how many steps there were.
        """
        mine = {marker: times for (when, marker), times in self._times.items() if when == state}
        steps = len(mine.get(once_a_step, ()))
        return round(sum(len(times) / (steps or len(times)) * median(times) for times in mine.values()))
