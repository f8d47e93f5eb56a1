"""Draft: what rules look up by lane is that of all tasks, however they were added."""

from pathlib import Path

from small_graphs import named
from small_traces import total, trace

from daydream.graph.build import RULES, build


def test_the_rule_of_the_contributors_guide_finds_a_cause(monkeypatch):
    #  stream 7   |a: 10 to 50|
    #  stream 23     |poll, launched at 20: 51 to 60|
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
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
