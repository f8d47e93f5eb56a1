"""What a larger batch or longer sequences leave for the optimizations behind them, worked out by hand."""

from daydream.optimizations.batch_size import batch_size, sequence_length
from daydream.optimizations.pipeline import input_bytes
from daydream.optimizations.tensor_parallel import Divided
from graph.small_graphs import kernels
from recorded import of_calls
from test_model_parallel import transformer

from daydream.costs import work

MIB = 2**20


def streaming():
    """An addition of 8 x 262,144 floats, 8 MiB each: 24 MiB moved in 12 x 2**20 ns, 2 B/ns."""
    return of_calls(
        "linear 8x16 32x16 32",
        "add 8x262144 8x262144 -",
        "mm 32x8 8x16 backward",
        "add_ 32x16 32x16 - optimizer",
        ns=12 * MIB,
    )


def test_work_after_a_larger_batch_is_that_of_the_larger_batch():
    graph = streaming()
    batch_size(graph, factor=4)
    after = work(graph, kernels(graph))
    # 32 x 16 weights; the update's work is that of the parameters.
    assert after.flop.tolist() == [2 * 32 * 16 * 32, 32 * 262144, 2 * 32 * 16 * 32, 32 * 16]
    moved = [32 * 16 + 32 * 16 + 32 * 32 + 32, 3 * 32 * 262144, 32 * 32 + 32 * 16 + 32 * 16, 3 * 32 * 16]
    assert after.nbytes.tolist() == [4 * elements for elements in moved]
    shapes = kernels(graph).shapes.tolist()
    assert shapes[0] == "[[32,16],[32,16],[32]]"
    assert shapes[2] == "[[32,32],[32,16]]"


def test_work_of_unknown_batch_grows_by_the_factor():
    phases = ("forward", "backward", "optimizer")
    graph = of_calls(*[("add", "1000 1000", phase) for phase in phases])
    batch_size(graph, factor=3)
    assert work(graph, kernels(graph)).flop.tolist() == [3000, 3000, 1000]


def test_sums_of_divided_layers_are_those_of_the_larger_batch():
    # 4 tokens of 8 floats become 8, those of the batch of 4.
    recorded, grown = transformer(), transformer()
    batch_size(grown, factor=2)
    assert {nbytes for _, nbytes, _ in Divided(recorded, 2).sums} == {4 * 8 * 4}
    assert {nbytes for _, nbytes, _ in Divided(grown, 2).sums} == {8 * 8 * 4}
    assert (input_bytes(recorded, "blocks.1"), input_bytes(grown, "blocks.1")) == (4 * 8 * 4, 8 * 8 * 4)


def test_longer_sequences_in_a_larger_batch_are_both_there():
    graph = of_calls("linear 2x10x16 32x16 32", "_softmax 2x2x10x10 - -")
    sequence_length(graph, length=30)
    batch_size(graph, factor=2, recorded=2)
    chosen = kernels(graph)
    assert chosen.shapes.tolist() == ["[[4,30,16],[32,16],[32]]", "[[4,2,30,30],[],[]]"]
    after = work(graph, chosen)
    assert after.flop.tolist() == [2 * 4 * 30 * 16 * 32, 5 * 4 * 2 * 30 * 30]
