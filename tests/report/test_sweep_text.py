"""A sweep's screen: what stands for many refused scenarios, several traces, notes that all share."""

from __future__ import annotations

import re
from itertools import product

from view_text import view_text

from daydream.predict.sweep import Answered, Refused, Sweep, SweepTrace
from daydream.report.views.ranking import left_out


def recorded(name="a.parquet"):
    return SweepTrace(name, "recorded", 10_000_000, 10_000_000, 0.0, ("recorded by hand",))


def answered(options, trace="a.parquet", ns=5_000_000, notes=()):
    return Answered(
        "ddp", options, 10_000_000, ns, ns - 100_000, ns + 100_000, changed=1, notes=notes, trace=trace
    )


def of(answers, refused, varied, traces=("a.parquet",)):
    return Sweep("ddp", varied, {}, [recorded(trace) for trace in traces], answers, refused)


def test_scenarios_refused_for_one_value_are_told_by_it():
    varied = {"workers": [1, 2], "bucket_mb": [1.0, 25.0]}
    every = [dict(zip(varied, chosen, strict=True)) for chosen in product(*varied.values())]
    alone = [Refused("a.parquet", each, "one worker") for each in every if each["workers"] == 1]
    others = [answered(each) for each in every if each["workers"] == 2]

    assert left_out(of(others, alone, varied)) == [("workers=1", "one worker")]


def test_some_of_a_kind_are_counted_and_single_ones_named():
    varied = {"workers": [2, 4, 8], "bucket_mb": [1.0, 25.0]}
    every = [dict(zip(varied, chosen, strict=True)) for chosen in product(*varied.values())]
    some = [Refused("a.parquet", each, "too large") for each in every[:1] + every[2:3]]
    one = [Refused("a.parquet", each, "odd") for each in every[5:]]
    rest = [answered(each) for each in every if each not in [e.options for e in some + one]]

    rows = left_out(of(rest, some + one, varied))
    assert rows == [("bucket-mb=1 (2 of 3)", "too large"), ("workers=8 bucket-mb=25", "odd")]


def test_what_has_nothing_in_common_is_named_up_to_a_few():
    varied = {"workers": list(range(2, 10))}
    refused = [Refused("a.parquet", {"workers": n}, "no") for n in range(2, 8)]
    rest = [answered({"workers": n}) for n in (8, 9)]

    [(names, _)] = left_out(of(rest, refused, varied))
    assert names == "workers=2; workers=3; workers=4; workers=5; and 2 more"


def test_if_all_are_refused_it_says_so():
    refused = [Refused("a.parquet", {"workers": n}, "no GPU") for n in (2, 4)]
    screen = view_text(of([], refused, {"workers": [2, 4]}), top=5)

    assert "no scenario could be answered" in screen
    assert "left out: 2 scenarios\n  all: no GPU" in screen


def test_many_reasons_are_counted():
    refused = [Refused("a.parquet", {"workers": n}, f"reason {n}") for n in range(2, 12)]
    rows = left_out(of([answered({"workers": 12})], refused, {"workers": list(range(2, 13))}))

    assert len(rows) == 7
    assert rows[-1] == ("4 others", "--json says why")


def test_traces_have_a_column_and_a_line_each():
    traces = ("a.parquet", "a/very/long/folder/that/goes/on/and/on/b.parquet")
    answers = [answered({"workers": 2}, trace) for trace in traces]
    screen = view_text(of(answers, [], {"workers": [2]}, traces), top=5)

    assert f"  {traces[1]}   measured 10.00 ms" in screen
    table = screen[screen.index("  trace ") :].splitlines()[:3]
    assert [row.split()[0] for row in table] == ["trace", "a.parquet", "...r/that/goes/on/and/on/b.parquet"]
    assert screen.count("recorded by hand") == 1


def test_a_trace_that_was_not_replayed_is_told():
    sweep = of([], [Refused("b", {"workers": 2}, "no step")], {"workers": [2]}, ("a", "b"))
    sweep.traces[1] = SweepTrace("b", None, None, None, None, reason="no step")

    assert "  b   not replayed" in view_text(sweep, top=5)


def test_notes_that_all_share_are_shown_and_others_counted():
    answers = [answered({"workers": n}, notes=("gradients of 1 MB", f"{n} workers")) for n in (2, 4)]
    screen = view_text(of(answers, [], {"workers": [2, 4]}), top=1)

    assert "- gradients of 1 MB\n  - 2 other notes of some scenarios: --json, or -o FILE." in screen
    assert "1 more scenario: --top 2, or -o FILE" in screen


def test_values_and_short_steps_are_written_in_their_units():
    varied = {"on": ["cpu"], "view": [True, False], "factor": [0.25]}
    answers = [answered({"on": "cpu", "view": True, "factor": 0.25}, ns=500_000)]

    head, row = view_text(of(answers, [], varied)).splitlines()[-5:-3]
    assert re.split(" {2,}", head.strip()) == [
        "on",
        "view",
        "factor",
        "predicted, us",
        "90% interval",
        "speedup",
    ]
    assert row.split() == ["cpu", "yes", "0.25", "500.0", "400.0", "to", "600.0", "20.00x"]
