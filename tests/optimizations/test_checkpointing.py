"""Checkpointing stops at the last tensor that a block saves, and takes time in Python: all by hand."""

import pytest
from daydream.optimizations.checkpointing import checkpointing
from recorded import Program, does_not_apply, makespan

BLOCK = 50_000 + 82_000  # what `torch.utils.checkpoint` costs in Python a block, and a saved tensor
TENSOR = 6_900 + 12_300

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


def test_tensors_are_counted_as_torch_saves_them():
    graph = block_of(UP, GELU, VIEW, DOWN, ADD, TWICE)
    whole = makespan(graph)
    checkpointing(graph, layers="b.*")
    assert makespan(graph) == whole + 33 + BLOCK + (2 + 1 + 2) * TENSOR


def test_every_block_of_every_pass_stops_by_itself():
    # Two batches are accumulated: forward, backward, forward, backward in one step.
    p = Program()
    one_pass(p, [UP, DOWN], [UP, SOFTMAX])
    one_pass(p, [UP, DOWN], [UP, SOFTMAX], first=5)
    graph = p.graph()
    whole = makespan(graph)
    checkpointing(graph, layers="b.*", python=False)
    assert makespan(graph) == whole + 2 * (10 + 10 + 160)


def test_a_block_that_saves_nothing_is_not_computed_again():
    does_not_apply(r"of b\.0 no tensor is saved", checkpointing, block_of(VIEW, ADD), layers="b.*")
    p = Program()
    one_pass(p, [VIEW, ADD], [UP, SOFTMAX])
    graph = p.graph()
    whole = makespan(graph)
    checkpointing(graph, layers="b.*", python=False)
    assert makespan(graph) == whole + 170


# Python takes longer behind data that a block moves through a CPU's caches


HOT = 50_000 + 82_000 + 6_900 + 12_300  # of a block that saves one tensor
KIB = 1024


def moving(rows, kernel=None):
    #  |gelu forward 4|GeluBackward0 4|   on `rows` KiB, which it reads and writes
    p = Program()
    launch = () if kernel is None else (("gelu", kernel),)
    for name, phase in (("aten::gelu", "forward"), ("GeluBackward0", "backward")):
        row = len(p.rows)
        p.op(name, phase, *launch, layer="a")
        p.rows[row].update(shapes=f"[[{rows},256]]", dtype="float32")
    return p.graph()


def python_ns(graph):
    checkpointing(graph, layers="a")
    found: list[int] = graph.select(name="checkpoint in Python").duration_ns.tolist()
    return found


def test_a_small_block_leaves_the_caches_as_they_are():
    assert sum(python_ns(moving(rows=100))) == HOT


def test_python_takes_longer_behind_more_data_up_to_caches_that_hold_nothing_of_it():
    moved = 2 * 2_000 * KIB
    forward, backward = python_ns(moving(rows=2_000))
    cold = round((moved - 250_000) * 0.009)
    assert (forward, backward) == (50_000 + 6_900 + cold, 82_000 + 12_300 + cold)
    assert python_ns(moving(rows=100_000)) == [50_000 + 6_900 + 170_000, 82_000 + 12_300 + 110_000]


def test_data_on_a_gpu_leaves_the_cpus_caches_as_they_are():
    assert sum(python_ns(moving(rows=2_000, kernel=500))) == HOT
