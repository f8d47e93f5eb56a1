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

    def more_in(self, state: int, than: int, *, once_a_step: int) -> int:
        """Return how much longer the hooks of a step took in one state than in another, 0 at least, in ns.

        The marker `once_a_step` tells how many steps there were.
        """
        total = 0.0
        for (when, _), times in self._times.items():
            per_step = len(times) / max(len(self._times.get((when, once_a_step), times)), 1)
            sign = {state: 1, than: -1}.get(when, 0)
            total += sign * per_step * median(times)
        return max(round(total), 0)
