"""A sweep's screen: what stands for many refused scenarios, several traces, notes that all share."""

from __future__ import annotations

from itertools import product

from view_text import view_text

from daydream.predict.sweep import Answered, Refused, Sweep, SweepTrace
from daydream.report.views.ranking import left_out


def recorded(name="a.parquet"):
    return SweepTrace(name, "recorded", 10_000_000, 10_000_000, 0.0, ("recorded by hand",))


def answered(options, trace="a.parquet", ns=5_000_000):
    return Answered("ddp", options, 10_000_000, ns, ns - 100_000, ns + 100_000, changed=1, trace=trace)


def of(answers, refused, varied, traces=("a.parquet",)):
    return Sweep("ddp", varied, {}, [recorded(trace) for trace in traces], answers, refused)


def test_scenarios_refused_for_one_value_are_told_by_it():
    varied = {"workers": [1, 2], "bucket_mb": [1.0, 25.0]}
    every = [dict(zip(varied, chosen, strict=True)) for chosen in product(*varied.values())]
    alone = [Refused("a.parquet", each, "one worker") for each in every if each["workers"] == 1]
    others = [answered(each) for each in every if each["workers"] == 2]

    assert left_out(of(others, alone, varied)) == [("workers=1", "one worker")]


def test_a_trace_that_was_not_replayed_is_told():
    sweep = of([], [Refused("b", {"workers": 2}, "no step")], {"workers": [2]}, ("a", "b"))
    sweep.traces[1] = SweepTrace("b", None, None, None, None, reason="no step")

    assert "  b   not replayed" in view_text(sweep, top=5)
