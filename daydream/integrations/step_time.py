"""A step time that a test is held to: measured in a trace, or predicted from it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daydream.trace.trace import Trace

TRUSTED = 0.02  # replay error of a trace that is no reason to fail a build, but one to record again


class StepTime:
    """The step of a trace, or the step that a what-if predicts from it, to be held to a limit.

    Example::

        StepTime("t.parquet").below(9.5)
        StepTime("t.parquet", whatif="amp").below(6).not_slower_than("main.parquet", percent=3)

    Args:
        trace: a trace, or a file that `daydream import` accepts.
        whatif: a change that is predicted from it; without one the step is the measured one.
        options: of the change.

    """

    def __init__(
        self, trace: Trace | str | os.PathLike[str], whatif: str | None = None, **options: Any
    ) -> None:
        import daydream
        from daydream.report.blocks import printable

        self._replay = daydream.replay(trace)
        self.name = printable(str(trace) if isinstance(trace, str | os.PathLike) else "the trace")
        self.step_ns: int | None = self._replay.basis_measured_ns or self._replay.basis_ns
        self._range = self._why = ""
        if whatif is not None:
            found = daydream.whatif(self._replay, whatif, **options)
            self.step_ns = found.predicted_ns
            self._why = found.reason or ""
            self.name = f"{printable(whatif)} on {self.name}"
            low = found.predicted_low_ns
            high = found.predicted_high_ns
            if low is not None and high is not None:
                self._range = f" (90% interval {_ms(low)} to {_ms(high)})"

    def below(self, ms: float) -> StepTime:
        """Hold the step to be at most so many ms.

        Raises:
            AssertionError: it is longer, is not known, or the trace does not replay.
        """
        __tracebackhide__ = True
        return self._hold(f"at most {ms:g} ms are allowed", holds=self._known() / 1e6 <= ms)

    def not_slower_than(
        self, baseline: Trace | str | os.PathLike[str], percent: float = 0.0
    ) -> StepTime:
        """Hold the step to be at most so many percent longer than the measured one of another trace.

        Raises:
            AssertionError: it is longer, is not known, or one of the traces does not replay.
        """
        __tracebackhide__ = True
        step_ns = self._known()
        before = StepTime(baseline)
        before_ns = before._known()
        longer = f"{step_ns / before_ns - 1:.1%} longer" if before_ns else "longer"
        than = f"{longer} than {_ms(before_ns)} of {before.name}; at most {percent:g}% are allowed"
        return self._hold(than, holds=step_ns <= before_ns * (1 + percent / 100))

    def _hold(self, what: str, *, holds: bool) -> StepTime:
        __tracebackhide__ = True
        if not holds:
            taken = f"{self.name}: a step takes {_ms(self._known())}{self._range}"
            raise AssertionError(f"{taken}, {what}")
        return self

    def _known(self) -> int:
        __tracebackhide__ = True
        if self.step_ns is None:
            raise AssertionError(f"{self.name}: the step cannot be predicted, because {self._why}")
        if abs(self._replay.error) > TRUSTED:
            raise AssertionError(
                f"{self.name}: the replay is {self._replay.error:+.1%} off, and {TRUSTED:.0%} are trusted: "
                "record again"
            )
        return self.step_ns


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.2f} ms"
