"""Checkpointing stops at the last tensor that a block saves, and takes time in Python: all by hand."""

import pytest
from daydream.optimizations.checkpointing import checkpointing
from recorded import Program, does_not_apply, makespan

BLOCK = 50_000 + 82_000  # what `torch.utils.checkpoint` costs in Python a block, and a saved tensor

Call = tuple[str, int, str | None]  # a forward operator, its time, and its node


def one_pass(p, *blocks, first=1, numbered=True):
    """Run blocks `b.0`, `b.1`, ... forward and backward, 100 ns a node."""
    made = []
    for place, calls in enumerate(blocks):
        for name, ns, node in calls:
            number = first + len(made) if numbered else -1
            shapes = [[8, 8], []] if "scalar" in name else [[8, 8], [8, 8]]
            known = {"shapes": shapes, "sequence": number, "layer": f"b.{place}"}
            p.host(name.removesuffix(" scalar"), "forward", ns, **known)
            if node:
                made.append((node, number, f"b.{place}"))
    for node, number, layer in made[::-1]:
        p.host(node, "backward", 100, sequence=number, layer=layer)


def block_of(*calls):
    p = Program()
    one_pass(p, list(calls))
    return p.graph()


UP: Call = ("aten::addmm", 10, "AddmmBackward0")
GELU: Call = ("aten::gelu", 20, "GeluBackward0")
VIEW: Call = ("aten::view", 3, "ViewBackward0")
DOWN: Call = ("aten::addmm", 40, "AddmmBackward0")
ADD: Call = ("aten::add", 80, "AddBackward0")
SOFTMAX: Call = ("aten::softmax", 160, "SoftmaxBackward0")
TWICE: Call = ("aten::mul scalar", 320, "MulBackward0")  # by a number
OWN: Call = ("MyFunction", 640, None)  # an autograd.Function; its node has no number


@pytest.mark.parametrize(
    ("calls", "again"),
    [
        ([UP, GELU, VIEW, DOWN, ADD], 10 + 20 + 3),  # a product has its inputs before it begins
        ([UP, GELU, VIEW], 10),
        ([UP, GELU, ADD, SOFTMAX, VIEW], 10 + 20 + 80 + 160),  # a softmax saves its result
        ([UP, SOFTMAX, DOWN, TWICE], 10 + 160),  # a number is no tensor
        ([UP, DOWN, OWN], 10 + 40 + 640),
        ([UP, DOWN, OWN, VIEW, ADD], 10 + 40 + 640),
    ],
)
def test_what_comes_behind_the_last_saved_tensor_is_not_computed_again(calls, again):
    graph = block_of(*calls)
    whole = makespan(graph)
    assert whole == sum(ns + 100 * bool(node) for _, ns, node in calls)
    checkpointing(graph, layers="b.*", python=False)
    assert makespan(graph) == whole + again


def test_reentrant_checkpoints_compute_whole_blocks_again():
    graph = block_of(UP, GELU, VIEW, DOWN, ADD)
    whole = makespan(graph)
    checkpointing(graph, layers="b.*", reentrant=True)
    assert makespan(graph) == whole + 153 + BLOCK


def test_a_block_that_saves_nothing_is_not_computed_again():
    does_not_apply(r"of b\.0 no tensor is saved", checkpointing, block_of(VIEW, ADD), layers="b.*")
    p = Program()
    one_pass(p, [VIEW, ADD], [UP, SOFTMAX])
    graph = p.graph()
    whole = makespan(graph)
    checkpointing(graph, layers="b.*", python=False)
    assert makespan(graph) == whole + 170


# Python takes longer behind data that a block moves through a CPU's caches
