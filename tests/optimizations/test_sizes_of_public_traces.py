"""Another batch size or length of public traces, where their layout decides the answer."""

from __future__ import annotations

import pytest
from daydream.optimizations.batch_size import batch_size
from daydream.optimizations.fused_adam import fused_adam
from recorded import kernel_ns
from shared import shared_replay

from daydream import NotApplicableError
from daydream.costs.device.input_sizes import recorded_batch, recorded_length
from daydream.costs.resize.growth import growth_of

COMPILED = "kineto/mi300x_torch_compile_triton.json.gz"
LOADER = "kineto/v100_resnet50_loader_workers_4.json.gz"


def test_every_product_of_a_compiled_model_grows_by_its_rows():
    graph = shared_replay(COMPILED).graph.copy()
    assert (recorded_batch(graph), recorded_length(graph)) == (8, 4096)
    products = graph.select(kind="kernel", op=r"^aten::mm$")
    for old, new, every in ((8, 16, False), (4096, 2048, True)):
        assert set(growth_of(graph, products, old, new, every=every).flop.tolist()) == {new / old}


@pytest.mark.parametrize("name", ["vllm_decode_graph_replay", "mi300x_sglang_decode_graph_replay"])
@pytest.mark.parametrize("factor", [0.5, 2])
def test_decoding_by_replayed_graphs_is_refused(name, factor):
    with pytest.raises(NotApplicableError, match="no shapes show how"):
        batch_size(shared_replay(f"kineto/{name}.json.gz").graph.copy(), factor=factor)


def test_a_fused_update_goes_at_one_bandwidth_with_and_without_a_larger_batch():
    alone, combined = (shared_replay(LOADER).graph.copy() for _ in range(2))
    batch_size(combined, factor=4)
    for graph in (alone, combined):
        fused_adam(graph)
    times = [kernel_ns(graph, name="^fused") for graph in (alone, combined)]
    assert times[0] == times[1]
    assert times[0]
