"""Each action changes numbers exactly as a model written by hand does, and leaves no trace."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from small_training import (  # noqa: E402
    X,
    function,
    gelu_gradient,
    kept,
    model,
    on,
    straight_through,
    tool,
    train,
    with_activation,
    with_weights,
)
from torch import nn  # noqa: E402

from daydream.instrument import InstrumentError, apply  # noqa: E402

PLAIN = train(model())


def trained_with(*tools):
    """Return the losses under tools, having seen that they leave no trace."""
    with apply(*tools):
        losses = train(model())
    assert train(model()) == PLAIN
    return losses


@pytest.mark.parametrize(("type_", "place"), [("linear", 1), ("addmm", 2)])
def test_insert_before_masks_weights_straight_through(type_, place):
    wanted = train(with_weights(straight_through(kept)))

    assert trained_with(on(type_, lambda op: op.insert_before_op(kept, inputs=[place]))) == wanted != PLAIN


@pytest.mark.parametrize("require_outputs", [False, True])
def test_insert_after_is_a_constant_to_the_gradient(require_outputs):
    wanted = train(with_activation(function(lambda x: F.gelu(x).clamp(max=0.4), gelu_gradient)))

    got = trained_with(
        on("gelu", lambda op: op.insert_after_op(lambda y: y.clamp(max=0.4)), require_outputs=require_outputs)
    )
    assert got == wanted != PLAIN


def test_replace_with_its_own_gradient():
    got = trained_with(on("gelu", lambda op: op.replace_op(torch.relu, inputs=[0], grad=True)))

    assert got == train(with_activation(nn.ReLU)) != PLAIN


def test_insert_before_backward():
    wanted = train(with_activation(function(F.gelu, lambda grad, x: gelu_gradient(grad * 0.3, x))))

    forward = on("gelu", lambda op: op.insert_before_backward_op(lambda grad: grad * 0.3))
    backward = on(
        "GeluBackward0", lambda op: op.insert_before_backward_op(lambda grad: grad * 0.3), backward=True
    )
    assert trained_with(forward) == trained_with(backward) == wanted != PLAIN


def test_insert_after_backward():
    wanted = train(with_activation(function(F.gelu, lambda grad, x: gelu_gradient(grad, x) * 0.3)))

    def halve(op):
        op.insert_after_backward_op(lambda grad: grad * 0.3, grad_inputs=[0])

    late = on("GeluBackward0", halve, backward=True, require_outputs=True)
    assert trained_with(on("gelu", halve)) == trained_with(late) == wanted != PLAIN


def test_replace_backward():
    wanted = train(with_activation(function(F.gelu, lambda grad, x: grad * 0.3)))

    def replace(op):
        op.replace_backward_op(lambda grad: grad * 0.3)

    assert (
        trained_with(on("gelu", replace))
        == trained_with(on("GeluBackward0", replace, backward=True))
        == wanted
    )


def test_what_returns_none_only_looks():
    seen = []
    got = trained_with(on("gelu", lambda op: op.insert_after_op(lambda y: seen.append(float(y.abs().max())))))

    assert got == PLAIN
    assert len(seen) == 2 * 4  # two blocks, four steps


def test_an_exception_restores_everything():
    def fail(_):
        raise ZeroDivisionError

    for broken in (
        tool(fail),
        on("gelu", lambda op: op.insert_before_op(fail)),
        on("GeluBackward0", fail, backward=True),
    ):
        with pytest.raises(ZeroDivisionError), apply(broken):
            train(model())
        assert train(model()) == PLAIN
    assert trained_with(tool(lambda _: None)) == PLAIN


def test_in_place_operators_are_changed_in_place():
    def run(x):
        y = x.clone()
        z = y.add_(1.0)
        assert z is y
        return y

    with apply(on("add_", lambda op: op.insert_before_op(lambda x: x * 2, inputs=[0]))):
        assert run(X).equal(X * 2 + 1.0)
    with apply(on("add_", lambda op: op.insert_after_op(lambda x: x * 2))):
        assert run(X).equal((X + 1.0) * 2)
    with apply(on("add_", lambda op: op.replace_op(lambda x, *_: x * 3))):
        assert run(X).equal(X * 3)
    assert run(X).equal(X + 1.0)


def test_a_view_can_be_looked_at_but_not_exchanged():
    shapes = []
    with apply(on("transpose", lambda op: op.insert_after_op(lambda y: shapes.append(tuple(y.shape))))):
        X.transpose(0, 1)
    assert shapes == [(8, 4)]
    with (
        apply(on("transpose", lambda op: op.insert_after_op(lambda y: y * 2))),
        pytest.raises(InstrumentError, match="returns a view"),
    ):
        X.transpose(0, 1)
