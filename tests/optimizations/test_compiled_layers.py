"""Layers of what runs as a whole, a compiled call or a replay of a graph: what is known of which, by hand."""

import pytest
from daydream.optimizations._substitution import replace
from recorded import Program, does_not_apply, ns_by_name


def whole_call(function="CompiledFunction", *, layers=True):
    """A norm and an MLP as one call of 10 and 30 ns, whose one node takes 20 and 60 ns."""
    program = Program()
    for name, phase, times in (
        (function, "forward", {"norm": 10, "mlp": 30}),
        (f"{function}Backward", "backward", {"mlp": 60, "norm": 20}),
    ):
        with program.range(name, "operator", phase=phase, sequence=5):
            for layer, time in times.items():
                of_layer = layer if layers or phase == "forward" else None
                program.op(f"aten::{layer}", phase, (f"{layer} {phase}", time), layer=of_layer)
    return program.graph()


def test_a_layer_of_a_compiled_call_takes_its_own_backward_work_along_and_no_other():
    graph = whole_call()
    replace(graph, layer="norm", factor=0.5)
    assert ns_by_name(graph) == {
        "norm forward": 5,
        "mlp forward": 30,
        "mlp backward": 60,
        "norm backward": 10,
    }


@pytest.mark.parametrize("function", ["CompiledFunction", "MyFunction"])
def test_which_part_of_the_node_of_a_whole_call_is_an_operators_is_not_known(function):
    does_not_apply(
        "which of it is theirs is not recorded", replace, whole_call(function), op="^aten::norm$", factor=0.5
    )
    does_not_apply(
        "which of it is theirs is not recorded",
        replace,
        whole_call(function, layers=False),
        layer="norm",
        factor=0.5,
    )
