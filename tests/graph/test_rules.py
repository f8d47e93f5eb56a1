"""What each rule is worth: without it, predictions get worse."""

import pytest
from machine.blocked import LOADERS
from machine.programs import PROGRAMS
from shared import ROOT
from small_graphs import named
from small_traces import (
    backward_trace,
    blocked,
    full_queue_trace,
    graph_trace,
    long_launch_trace,
    ranks_trace,
    total,
    trace,
    unlaunched_trace,
    waiting_trace,
)

import daydream
from daydream import build
from daydream.graph.build import RULES

WORTH = {  # rule: trace, what becomes twice as fast, the true end after that (see the tests above)
    "handoff": (backward_trace, {"lane": "thread 2"}, 40 + 10 - 12),
    "graphs": (lambda: graph_trace(("a", 10, 20, 7), ("b", 50, 60, 7)), {"on": "gpu"}, 35),
    "queue": (full_queue_trace, {"on": "gpu"}, 55 + 4 * 51),
    "synchronization": (lambda: blocked("cudaDeviceSynchronize"), {"on": "gpu"}, 70 + 5),
    "launches": (long_launch_trace, {"name": "cudaLaunchKernel"}, 411 - 5 * 2.5 - 150),
    "events": (waiting_trace, {"name": "^a$"}, 3_600 + 112 + 20),
    "communication": (ranks_trace, {"name": "^a$"}, 10 + 30 + 1 + 20),
    "pauses": (unlaunched_trace, {"name": "^a$"}, 50 + 2 + 38 + 2 + 100 + 2 + 38),
}

ALSO = {"events": ["late_starts"]}  # rules that find the same from other evidence


@pytest.mark.parametrize("rule", WORTH)
def test_without_a_rule_the_prediction_is_worse(rule):
    make, what, truth = WORTH[rule]
    predicted = []
    for without in ([], [rule, *ALSO.get(rule, [])]):
        graph = build(make(), without=without)
        graph.select(**what).scale(0.5)
        predicted.append(total(graph))

    assert predicted[0] == pytest.approx(truth, abs=5)
    assert abs(predicted[1] - truth) > 10 + abs(predicted[0] - truth)


PROGRAMS_OF = {  # rules: a program of the machine model that lives by them, and a change
    ("handoff", "wakes"): ("multi_stream", "gpu", 0.5),  # either finds a thread that is called every step
    ("queue",): ("queue_full_16", "gpu", 0.5),
    ("synchronization",): ("gpu_bound", "gpu", 0.5),
    ("wakes",): ("loader_of_three_threads", "gpu", 0.5),
    ("lock",): ("two_threads_and_a_lock", "gpu", 0.5),
    ("events", "late_starts"): ("multi_stream_collective_bound", "gpu", 0.5),
}


@pytest.mark.parametrize("rules", PROGRAMS_OF, ids="+".join)
def test_without_a_rule_the_machine_is_predicted_worse(rules, tmp_path):
    program, on, factor = PROGRAMS_OF[rules]
    machine = {**PROGRAMS, **LOADERS}[program]()
    trace = daydream.load(machine.run(steps=10).write(tmp_path / "trace.json", 6, 8))
    truth = machine.run(**{on: factor}).steady_step_ns()

    def error(*without):
        graph = build(trace, without=without)
        found = daydream.whatif(graph, "scale", on=on, factor=factor)
        return abs((found.recorded or found).predicted_ns / truth - 1)  # recording costs a machine nothing

    assert error() <= 0.01
    assert error(*rules) >= 0.05


# -- draft -----------------------------------------------------------------------------------------------


def test_the_rule_of_the_contributors_guide_finds_a_cause(monkeypatch):
    #  stream 7   |a: 10 to 50|
    #  stream 23     |poll, launched at 20: 51 to 60|
    page = (ROOT / "CONTRIBUTING.md").read_text()
    code = next(code for code in page.split("```")[1::2] if "def follow_polled" in code).removeprefix(
        "python"
    )
    names = {}
    exec(code, names)
    at = [name for name, _ in RULES].index("latencies") - 1
    rules = (*RULES[:at], ("polls", names["follow_polled"]), *RULES[at:])
    monkeypatch.setattr("daydream.graph.build.RULES", rules)
    recorded = trace("""
        launch a 0 10 50
        launch poll 20 51 60 stream=23
    """)
    ends = []
    for without in ([], ["polls"]):
        graph = build(recorded, without=without)
        assert total(graph) == 60
        named(graph, "a").scale(0.5)
        ends.append(total(graph))
    assert ends == [40, 60]
