"""Autograd's walks over its graph: which gaps they are in, and that fewer layers have shorter ones."""

from daydream.optimizations._layers import add_layers, remove_layers

from daydream import Graph, simulate
from daydream.model.gradients import autograd_node_count, graph_walks, scale_autograd_walks

NODE = "autograd::engine::evaluate_function: "

#  main  |a 5|b 5|loss 3|counts 8|loss' 1|b' 4|a' 4|a: grad 2|frees 12|update 7|     a step: 51
BEFORE, BEHIND, STEP = 8, 12, 51


def two_blocks(steps=1, passes=1, *, backward_lane="main"):
    graph = Graph()

    def add(name, phase, ns, layer=None, gap=0):
        lane = backward_lane if phase == "backward" else "main"
        where = {"phase": phase, "layer": layer, "step": number}
        graph.insert(name, kind="cpu", lane=lane, duration_ns=ns, gap_ns=gap, **where)

    for number in range(steps):  # noqa: B007 - `add` reads it
        for _ in range(passes):
            add("f", "forward", 5, "blocks.0")
            add("f", "forward", 5, "blocks.1")
            add("loss", "loss", 3, gap=BEFORE)
            add(f"{NODE}LossBackward", "backward", 1)
            add(f"{NODE}MmBackward", "backward", 4, "blocks.1")
            add(f"{NODE}MmBackward", "backward", 4, "blocks.0")
            add(f"{NODE}AccumulateGrad", "backward", 2, gap=BEHIND)
        add("update", "optimizer", 7)
    return graph


def test_a_pass_is_walked_before_its_first_node_and_behind_its_last():
    assert simulate(two_blocks()).makespan_ns == STEP
    for steps, passes in ((1, 1), (2, 1), (1, 2), (2, 3)):
        walks = graph_walks(two_blocks(steps, passes))
        assert walks.name.tolist() == ["loss", f"{NODE}AccumulateGrad"] * steps * passes
        assert walks.gap_ns.tolist() == [BEFORE, BEHIND] * steps * passes


def test_a_backward_pass_on_a_thread_of_its_own_has_no_walk_that_shows():
    assert not len(graph_walks(two_blocks(backward_lane="autograd")))
    assert not len(graph_walks(Graph()))


def test_walks_take_as_long_as_there_are_nodes():
    graph = two_blocks()
    assert autograd_node_count(graph.select()) == 4
    scale_autograd_walks(graph, 0.5)
    assert simulate(graph).makespan_ns == STEP - (BEFORE + BEHIND) // 2


def test_a_layer_less_has_shorter_walks_and_one_more_longer_ones():
    fewer, more = two_blocks(), two_blocks()
    remove_layers(fewer, layers="blocks.1")  # a forward task and one node of four
    assert simulate(fewer).makespan_ns == STEP - 5 - 4 - (BEFORE + BEHIND) // 4
    add_layers(more, layers="blocks.1")
    assert simulate(more).makespan_ns == STEP + 5 + 4 + (BEFORE + BEHIND) // 4
