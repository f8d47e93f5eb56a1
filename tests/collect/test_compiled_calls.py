"""Recorded kernel calls of compiled graphs meet what the compiler kept of them, with made-up provenance."""

from types import SimpleNamespace

import pytest
from graph.small_traces import note, op, trace

from daydream.collect.derive.compiled_calls import CompiledGraph, attach_compiled, in_order
from daydream.collect.live import torch_compiler
from daydream.collect.live.torch_compiler import describe, graph_of
from daydream.model.captured import uncompiled_sentences
from daydream.trace.handle_map import Handle

CALL = "## Call CompiledFxGraph fkey ##"
FUSED = "graph_0_cpp_fused_add_relu_0"


def trace_of(*names, layer=None):
    """Return a trace of operators of 5 us, all within a call of a graph where that comes first."""
    whole, known = 10 * len(names), [{"name": "blocks.1.fc.weight", "layer": "blocks.1.fc"}]
    rows = [
        (note(name, 0, whole, layer=layer) if name == CALL else op(name, at, at + 5, layer=layer))
        for at, name in zip(range(0, whole, 10), names, strict=True)
    ]
    return trace(rows, notes=[], parameters=known)


def graph(*pieces, key="fkey"):
    names, handles = zip(*pieces, strict=True)
    return CompiledGraph(key, names, handles)


def test_one_kernel_called_twice_is_two_pieces_in_order():
    pieces = ["cpp_fused_gelu_1:1", "extern_kernels.mm:2", "cpp_fused_gelu_1:3"]
    recorded = ["as_strided", "cpp_fused_gelu_1", "mm", "copy_", "cpp_fused_gelu_1"]
    assert in_order(pieces, recorded) == [(0, 1), (1, 2), (2, 4)]


def test_rows_get_the_handles_of_their_calls():
    one, two = Handle("aten::relu", "blocks.1.fc", weight=3), Handle("aten::add", "blocks.1", weight=1)
    found = trace_of(CALL, "aten::addmm", FUSED)
    attach_compiled(
        found, [graph(("extern_kernels.addmm:1", (one,)), ("cpp_fused_add_relu_0:2", (one, two)))]
    )
    assert found["handle"].tolist() == [-1, 0, 1]
    assert found.handles.identifiers == ["fkey/extern_kernels.addmm:1", "fkey/cpp_fused_add_relu_0:2"]
    assert found.handles.shares("fkey/cpp_fused_add_relu_0:2").tolist() == [0.75, 0.25]
    assert found.text("layer")[found["layer"][2]] == "blocks.1.fc"


def test_a_graph_compiled_below_the_model_begins_at_the_layer_around_its_call():
    found = trace_of(CALL, FUSED, layer="blocks.1")
    attach_compiled(found, [graph(("cpp_fused_add_relu_0:1", (Handle("aten::relu", "fc"),)))])
    assert found.text("layer")[found["layer"][1]] == "blocks.1.fc"


def test_a_module_without_a_range_or_parameter_is_believed_where_it_is_named():
    for modules, layer in (((), "Model"), (("Model", "act"), "act")):
        found = trace_of(CALL, FUSED, layer="Model")
        pieces = graph(("cpp_fused_add_relu_0:1", (Handle("aten::relu", "act"),)))
        attach_compiled(found, [pieces], modules)
        assert found.text("layer")[found["layer"][1]] == layer


def test_what_is_not_matched_is_counted():
    found = trace_of(CALL, "cpp_fused_other_5", FUSED)
    pieces = (
        ("cpp_fused_add_relu_0:1", (Handle("aten::relu"),)),
        ("extern_kernels.mm:2", (Handle("aten::mm"),)),
    )
    attach_compiled(found, [graph(*pieces)])
    assert found["handle"].tolist() == [-1, -1, 0]
    assert "1 kernel call of the compiler" in found.metadata["notes"][-1]
    assert "1 fused kernel row could" in found.metadata["notes"][-1]


def test_what_was_kept_of_a_graph_becomes_its_handles_in_order():
    document = {
        "backward": True, "order": ["cpp_fused_add_0:1", "extern_kernels.mm:2"],
        "nodes": {"cpp_fused_add_0:1": ["add", "gone"]},
        "described": {"add": ["aten::add", "fc", "m.py(3): forward", 64]},
    }  # fmt: skip
    made = graph_of("fkey", document)
    assert made.handles[0] == (Handle("aten::add", "fc", "m.py(3): forward", "backward", 64),)
    assert made.handles[1] == (Handle("aten::mm", phase="backward"),)


def test_a_call_of_a_library_does_its_own_operator_and_nothing_else_does():
    described = {
        "conv": ["aten::convolution_backward", "conv", "", 8], "mul": ["aten::mul", "norm", "", 8],
        "view": ["aten::view", "other", "", -1],
    }  # fmt: skip
    names = ["torch.ops.aten.convolution_backward.default:1", "cpp_fused_mul_convolution_backward_0:2"]
    made = graph_of("fkey", {"order": names, "nodes": {name: [*described] for name in names},
                             "described": described})  # fmt: skip
    assert made.handles[0] == (Handle("aten::convolution_backward", "conv", weight=8),)
    assert made.handles[1] == (Handle("aten::mul", "norm", weight=8),)


def test_views_are_no_work_and_a_copy_back_belongs_to_what_it_copies():
    def node(target, layer, *inputs, shape=(2,)):
        stack = {"key": (f"L['self'].{layer}", "type")} if layer else {}
        meta = {"nn_module_stack": stack, "val": SimpleNamespace(shape=shape, element_size=lambda: 4)}
        return SimpleNamespace(target=target, meta=meta, all_input_nodes=list(inputs))

    view = SimpleNamespace(is_view=True, __str__=lambda _: "aten.view.default")
    assert describe(node(view, "fc"))[3] == -1
    assert describe(node("aten._unsafe_view.default", "fc"))[3] == -1
    assert describe(node("aten.full.default", "first", shape=()))[3] == -1  # one for all layers
    assert describe(node("aten.full.default", "fc"))[3] == 8
    assert describe(node("aten.sum.default", "fc", node("primals_1", ""), shape=()))[3] == 12
    running, made = node("primals_1", ""), node("aten.add.Tensor", "norm")
    assert describe(node("aten.copy_.default", "", running, made)) == ["aten::copy_", "norm", "", 24]
    assert describe(node("aten.copy_.default", "", running)) == ["aten::copy_", "", "", 16]


CODE = SimpleNamespace(co_filename="/somewhere/train.py", co_firstlineno=9, co_name="forward")
FRAME = SimpleNamespace(
    filename="/somewhere/train.py", lineno=12, name="torch_dynamo_resume_in_forward_at_11"
)


@pytest.fixture
def kept(monkeypatch):
    found = {}
    monkeypatch.setattr(torch_compiler, "_uncompiled", found)
    return found


def said(**metadata):
    return uncompiled_sentences(SimpleNamespace(metadata=metadata))


def test_a_function_is_kept_once_with_its_reason_and_the_line_of_it(kept):
    error = SimpleNamespace(msg="Failed to trace\nmore", gb_type="graph break in loop", real_stack=[FRAME])
    for _ in range(2):
        torch_compiler._keep_uncompiled(error, CODE)
    assert torch_compiler.uncompiled_frames() == [
        {
            "source": "train.py(9): forward",
            "reason": "graph break in loop (Failed to trace)",
            "at": "train.py(12): forward",
        }
    ]
    (sentence,) = said(uncompiled_frames=torch_compiler.uncompiled_frames())
    assert sentence == (
        "train.py(9): forward was left uncompiled: graph break in loop (Failed to trace) at "
        "train.py(12): forward. What it calls is compiled by itself."
    )
