"""Saved tensors: the patterns held against torch's derivative formulas and against torch itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daydream.model.saved_tensors import BEFORE, BEHIND, NONE, _count, _when


def torch() -> Any:
    return pytest.importorskip("torch", reason="torch saves the tensors")


CASES: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    "product": (lambda t, x: t.mm(x, x), (8, 8)),
    "added product": (lambda t, x: t.addmm(x, x, x), (8, 8)),
    "convolution": (lambda t, x: t.nn.functional.conv2d(x, x), (4, 4, 3, 3)),
    "layer norm": (lambda t, x: t.nn.LayerNorm(8)(x), (4, 8)),
    "batch norm": (lambda t, x: t.nn.BatchNorm2d(4)(x), (2, 4, 8, 8)),
    "group norm": (lambda t, x: t.nn.GroupNorm(2, 4)(x), (2, 4, 8, 8)),
    "gelu": (lambda t, x: t.nn.functional.gelu(x), (4, 8)),
    "relu": (lambda t, x: x.relu(), (4, 8)),
    "softmax": (lambda t, x: x.softmax(-1), (4, 8)),
    "pooling": (lambda t, x: t.nn.functional.max_pool2d(x, 2), (2, 4, 8, 8)),
    "attention": (lambda t, x: t.nn.functional.scaled_dot_product_attention(x, x, x), (1, 2, 8, 16)),
    "sum": (lambda t, x: x + x, (4, 8)),
    "transposed": (lambda t, x: x.t(), (4, 8)),
    "mean": (lambda t, x: x.mean(), (4, 8)),
    "both": (lambda t, x: x * x.detach().requires_grad_(), (4, 8)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_saves_as_many_tensors_as_hooks_see(case):
    t = torch()
    call, shape = CASES[case]
    x = t.randn(shape, requires_grad=True)
    saved = []
    with t.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one) or one, lambda one: one):
        node = call(t, x).grad_fn
    assert _count(node.name()) == len(saved)


LAST: dict[
    str, tuple[str, Callable[[Any, Any], Any]]
] = {  # what ends a checkpointed block: its operator, a call
    "linear": ("addmm", lambda t, x: t.nn.functional.linear(x, x, x[0])),
    "gelu": ("gelu", lambda t, x: t.nn.functional.gelu(x)),
    "softmax": ("_softmax", lambda t, x: x.softmax(-1)),
    "relu": ("relu", lambda t, x: x.relu()),
    "layer norm": ("native_layer_norm", lambda t, x: t.nn.functional.layer_norm(x, (8,))),
}


@pytest.mark.parametrize("last", LAST)
def test_torch_computes_the_last_operator_again_if_its_result_is_saved(last):
    t = torch()
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    ran: list[str] = []

    class Listed(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    operator, call = LAST[last]
    x = t.randn(8, 8, requires_grad=True)
    y = checkpoint(lambda z: call(t, z.sin()), x, use_reentrant=False)  # `sin` saves its input
    node = y.grad_fn.name()
    with Listed():
        y.backward(t.ones_like(y))
    again = _when(node) == BEHIND
    assert ran.count(operator) == again
    assert ran.count("sin") == 1


def test_nodes_save_when_torch_s_formulas_say():
    found = formulas()
    wrong = [node for node, (inputs, results) in found.items()
             if _when(node) < (BEHIND if results else BEFORE if inputs else NONE)]  # fmt: skip
    assert not wrong
    patterns = [node for node in found if _when(node) < BEHIND]
    assert len(patterns) > 100
    assert not [node for node in patterns if _when(node) == BEFORE and not found[node][0]]


def formulas() -> dict[str, tuple[set[str], set[str]]]:
    """Return the inputs and the results that each node of the installed torch saves."""
    torch()
    loader = pytest.importorskip("torchgen.packaged.autograd.load_derivatives")
    folder = Path(loader.__file__).parents[1]
    native = folder / "ATen" / "native"
    infos, _ = loader.load_derivatives(
        str(folder / "autograd" / "derivatives.yaml"), str(native / "native_functions.yaml"),
        str(native / "tags.yaml"),
    )  # fmt: skip
    found: dict[str, tuple[set[str], set[str]]] = {}
    for of_function in infos.values():
        for info in of_function.values():
            if info.op is not None and not re.search("^Test|NestedTensor|_copy$", info.op):
                inputs, results = found.setdefault(info.op, (set(), set()))
                inputs |= tensors(info.all_saved_inputs)
                results |= tensors(info.all_saved_outputs)
    return found


def tensors(attributes: Any) -> set[str]:
    types = {str(one.nctype.name): one.nctype.cpp_type() for one in attributes}
    return {name for name, kind in types.items() if "Tensor" in kind.replace("TensorOptions", "").replace(
        "TensorGeometry", "")}  # fmt: skip
