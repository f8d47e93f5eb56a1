"""A sweep's screen: what stands for many refused scenarios, several traces, notes that all share."""

from __future__ import annotations

from view_text import view_text

from daydream.predict.sweep import Refused, Sweep, SweepTrace


def recorded(name="a.parquet"):
    return SweepTrace(name, "recorded", 10_000_000, 10_000_000, 0.0, ("recorded by hand",))


def of(answers, refused, varied, traces=("a.parquet",)):
    return Sweep("ddp", varied, {}, [recorded(trace) for trace in traces], answers, refused)


def test_a_trace_that_was_not_replayed_is_told():
    sweep = of([], [Refused("b", {"workers": 2}, "no step")], {"workers": [2]}, ("a", "b"))
    sweep.traces[1] = SweepTrace("b", None, None, None, None, reason="no step")

    assert "  b   not replayed" in view_text(sweep, top=5)
