"""What a change may not reach: work in replays, or of layers nobody knows; held starts. Times in us."""

import pytest
from graph.small_graphs import kernels
from graph.small_traces import call, kernel, launched, op, trace

import daydream
from daydream.graph.calls import in_replays
from daydream.report.views.step import likely_text


def one_step(*rows, end):
    recorded = trace(*rows, steps=(0.0, end))
    recorded.metadata["steps"][0]["covered"] = True
    return daydream.replay(daydream.build(recorded))


def decoding():
    #  thread 1  |kernel|graph|     stream 7  |own 10 to 40|a 41 to 101|b 102 to 162|
    nodes = [kernel(name, at, at + 60, 2, phase="forward") for name, at in (("a", 41), ("b", 102))]
    rows = [launched("own", 0, 10, 40, phase="forward"), call("cudaGraphLaunch", 6, 12, 2), nodes]
    return one_step(rows, op("end", 160, 165), end=165.0)


def own_kernels_faster(graph):
    work = kernels(graph)
    (work - in_replays(work)).scale(0.5)


def test_what_runs_in_replays_is_said_where_a_change_leaves_it_out():
    answer = daydream.whatif(decoding(), own_kernels_faster)
    assert answer.left_out is not None
    assert (answer.left_out.left_ns, answer.left_out.device_ns) == (120_000, 150_000)
    assert "0.12 of 0.15 ms of device work per step run inside replays" in " ".join(answer.notes)
    assert answer.to_json()["left_in_replays_ns"] == 120_000
    # Twice as fast inside too, the step would be 60 us shorter: the range holds that.
    assert answer.uncertainty.unknown >= 60_000


def waiting(begin):
    #  another thread was at work before the recording: what it launches at `begin` ends the step
    rows = [launched("a", 0, 10, 20), launched("b", begin, begin + 10, begin + 20, tid=2)]
    return one_step(rows, end=begin + 20)


def test_a_step_that_waits_for_recorded_starts_says_how_much_of_it_cannot_move():
    answer = daydream.whatif(waiting(80), "scale", on="gpu", factor=0.5)
    assert answer.to_json()["held_ns"] == 80_000
    assert answer.held is not None
    assert answer.held.startswith("80% of the step cannot move")
    assert answer.held in likely_text(answer)
    assert answer.uncertainty.unknown == pytest.approx(min(80_000, answer.affected.together))


def model(call_of, *, unplaced):
    #  stream 7  |a 10 to 110, blocks.0|b, GPT|c 100, head|: a call runs a and b, and c is another's
    end = 110 + unplaced
    inside = {"op": op("CompiledFunction", 0, 20, layer="GPT", phase="forward")}.get(call_of, [])
    launches = [launched("a", 1, 10, 110, phase="forward", layer="blocks.0"),
                launched("b", 7, 110, end, phase="forward", layer="GPT")]  # fmt: skip
    if call_of == "graph":
        inside = call("cudaGraphLaunch", 1, 12, 1, layer="GPT", phase="forward")
        nodes = [("a", 10, 110, "blocks.0"), ("b", 110, end, "GPT")]
        launches = [kernel(*rest, 1, phase="forward", layer=layer) for *rest, layer in nodes]
    own = [op("aten::relu", 21, 30, layer="head", phase="forward")]
    own += launched("c", 22, end, end + 100, phase="forward", layer="head")
    return one_step(inside, launches, own, op("end", end + 98, end + 105), end=end + 105)


def without_blocks(graph):
    graph.select().group_by(block="blocks.*").tasks.remove()


@pytest.mark.parametrize(("call_of", "what"), [("op", "compiled calls"), ("graph", "CUDA graphs")])
def test_layers_of_which_much_may_be_in_work_of_the_whole_model_are_no_answer(call_of, what):
    recorded = model(call_of, unplaced=60)
    for answer in (
        daydream.whatif(recorded, "scale", layer="blocks.*", factor=0.5),
        daydream.whatif(recorded, "add-layers", count=1, layers="blocks.*"),
        daydream.whatif(recorded, without_blocks),
    ):
        assert answer.predicted_ns is None
        assert f"0.06 of 0.26 ms of device work per step are known only as part of {what}" in answer.reason


def test_little_of_that_counts_as_unknown_by_how_much_the_layers_change():
    answer = daydream.whatif(model("op", unplaced=10), "scale", layer="blocks.*", factor=0.25)
    assert answer.reason is None
    assert answer.unplaced.unknown_ns == 0.75 * 10_000
    assert answer.uncertainty.unknown >= 7_500
