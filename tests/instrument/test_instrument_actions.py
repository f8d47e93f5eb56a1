"""Each action changes numbers exactly as a model written by hand does, and leaves no trace."""

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from small_training import (  # noqa: E402  # noqa: E402
    Block,
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
from torch.utils.checkpoint import checkpoint  # noqa: E402

from daydream.instrument import (  # noqa: E402
    InstrumentError,
    Tool,
    apply,
)

PLAIN = train(model())


def trained_with(*tools):
    """Return the losses under tools, having seen that they leave no trace."""
    with apply(*tools):
        losses = train(model())
    assert train(model()) == PLAIN
    return losses


def third(grad):
    return grad * 0.3


def clamped(y):
    return y.clamp(max=0.4)


MASKED = lambda: with_weights(straight_through(kept))  # noqa: E731
CLAMPED = lambda: with_activation(function(lambda x: clamped(F.gelu(x)), gelu_gradient))  # noqa: E731
BEFORE = lambda: with_activation(function(F.gelu, lambda grad, x: gelu_gradient(third(grad), x)))  # noqa: E731
BEHIND = lambda: with_activation(function(F.gelu, lambda grad, x: third(gelu_gradient(grad, x))))  # noqa: E731
INSTEAD = lambda: with_activation(function(F.gelu, lambda grad, x: third(grad)))  # noqa: E731
NODE = {"backward": True}
ACTIONS = {  # the model by hand, the operator, what is done there, and how it is looked at
    "weights are masked before": (MASKED, "linear", lambda op: op.insert_before_op(kept, inputs=[1])),
    "and of an inner operator": (MASKED, "addmm", lambda op: op.insert_before_op(kept, inputs=[2])),
    "what is inserted after is a constant to the gradient": (
        CLAMPED, "gelu", lambda op: op.insert_after_op(clamped)),
    "where outputs are required, too": (
        CLAMPED, "gelu", lambda op: op.insert_after_op(clamped), {"require_outputs": True}),
    "replaced with its own gradient": (
        lambda: with_activation(nn.ReLU), "gelu",
        lambda op: op.replace_op(torch.relu, inputs=[0], grad=True)),
    "before backward": (BEFORE, "gelu", lambda op: op.insert_before_backward_op(third)),
    "before the node": (BEFORE, "GeluBackward0", lambda op: op.insert_before_backward_op(third), NODE),
    "after backward": (BEHIND, "gelu", lambda op: op.insert_after_backward_op(third, grad_inputs=[0])),
    "after the node": (
        BEHIND, "GeluBackward0", lambda op: op.insert_after_backward_op(third, grad_inputs=[0]),
        {**NODE, "require_outputs": True}),
    "instead of backward": (INSTEAD, "gelu", lambda op: op.replace_backward_op(third)),
    "instead of the node": (INSTEAD, "GeluBackward0", lambda op: op.replace_backward_op(third), NODE),
}  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_trains_as_a_model_by_hand(action):
    by_hand, type_, act, *how = ACTIONS[action]

    assert trained_with(on(type_, act, **(how or [{}])[0])) == train(by_hand()) != PLAIN


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


# What a tool may be, in which order tools run, and what is said of a mistake


def test_what_is_depended_on_runs_first_and_adds_to_the_context():
    order = []
    low = on("gelu", lambda op: (order.append("low"), op.update(mask=7)))
    middle = on(
        "gelu", lambda op: (order.append("middle"), op.insert_after_op(lambda y: order.append("middle's")))
    )
    high = on(
        "gelu", lambda op: (order.append(op["mask"]), op.insert_after_op(lambda y: order.append("high's")))
    )
    high.depends_on(middle, low)
    middle.depends_on(low)

    with apply(high, low):
        torch.nn.functional.gelu(X)
    assert order == ["low", "middle", 7, "middle's", "high's"]


def test_a_circle_of_tools_is_an_error_before_anything_is_installed():
    class First(Tool):
        pass

    class Second(Tool):
        pass

    first, second = First(), Second()
    called = []
    first.add_inst_for_op(called.append)
    first.depends_on(second)
    second.depends_on(first)

    with pytest.raises(InstrumentError, match="First -> Second -> First"), apply(first):
        pass
    torch.relu(X)
    assert called == []
    assert not torch.nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda op: op.insert_before_op(torch.relu, inputs=[9]), "place 9"),
        (lambda op: op.get_outputs(), "require_outputs=True"),
        (lambda op: op.get_backward_op(), "require_outputs=True"),
        (lambda op: [op.replace_op(torch.relu) for _ in range(2)], "replaced already"),
        (lambda op: op.insert_before_op(lambda x: x[:1]), "grad=True"),
        (lambda op: op.insert_before_op(lambda *_: (1, 2, 3), inputs=[0, 1]), "2 values"),
    ],
)
def test_mistakes_are_said_in_a_line(wrong, said):
    with pytest.raises(InstrumentError, match=said) as error, apply(on("gelu", wrong)):
        torch.nn.functional.gelu(X.clone().requires_grad_())
    assert len(str(error.value).splitlines()) == 1


def test_a_tool_keeps_no_tensor_alive():
    contexts = []
    with apply(tool(contexts.append), tool(contexts.append, backward=True)):
        train(model(), 2)
    assert contexts
    with pytest.raises(InstrumentError):
        contexts[0].get_inputs()
    assert not any(each._held for each in contexts)


# Ids are the same in every iteration, whatever is skipped, shared or computed again


def ids_per_iteration(step, iterations=5):
    """Return the ids of each iteration, with nothing remembered from one to the next."""
    seen = []
    look = tool(lambda op: seen.append(op["op_id"]))
    look.add_inst_for_op(lambda op: seen.append(op["op_id"]), backward=True)
    found = []
    with apply(look, cache=False):
        for number in range(iterations):
            seen.clear()
            step(number)
            found.append(list(seen))
    return found


def stepper(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(number):
        optimizer.zero_grad()
        net(X).sum().backward()
        optimizer.step()

    return step


def test_ids_are_equal_over_five_iterations():
    first, *others = ids_per_iteration(stepper(model()))

    assert len(first) == len(set(first)) > 100
    assert others == [first] * 4


def test_a_skipped_branch_shifts_no_id():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([Block(), Block(), Block()])
            self.skip = False

        def forward(self, x):
            for number, part in enumerate(self.parts):
                if not (self.skip and number == 1):
                    x = part(x)
            return x

    net = Branches()
    step = stepper(net)

    def skipping(number):
        net.skip = number == 2
        step(number)

    found = ids_per_iteration(skipping)
    rest = {each for each in found[0] if "parts.1" not in each and "optimizer" not in each}
    assert {each for each in found[2] if "optimizer" not in each} == rest
    assert found[3] == found[4] == found[0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_operators_computed_again_keep_their_ids_and_actions(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self, again):
            super().__init__()
            torch.manual_seed(0)
            self.parts = nn.ModuleList([Block(), Block()])
            self.again = again

        def forward(self, x):
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=reentrant) if self.again else part(x)
            return x

    calls = []
    relu = on(
        "gelu", lambda op: (calls.append(op["op_id"]), op.replace_op(torch.relu, inputs=[0], grad=True))
    )
    gradients = []
    for again in (False, True):
        net = Checkpointed(again)
        calls.clear()
        with apply(relu):
            for _ in range(3):
                net.zero_grad()
                net(X.clone().requires_grad_()).sum().backward()
        assert calls == ["forward/parts.0.act/aten::gelu/0", "forward/parts.1.act/aten::gelu/0"]
        gradients.append([each.grad for each in net.parameters()])
    assert all(one.equal(other) for one, other in zip(*gradients, strict=True))


def test_every_backward_operator_has_its_forward_operator_and_layer():
    found = []
    with apply(tool(found.append, backward=True)):
        train(model(), 1)
    inner = [op for op in found if op["namespace"] != "autograd"]
    unknown = {op["backward_type"] for op in inner if op["forward_id"] is None}
    assert unknown <= {"AccumulateGrad"}
    gelu = next(op for op in inner if op["type"] == "gelu_backward")
    assert (gelu["layer"], gelu["forward_id"]) == ("1.act", "forward/1.act/aten::gelu/0")
    assert {op["layer"] for op in inner if op["backward_type"] == "AccumulateGrad"} == {
        name for name, _ in model().named_parameters()
    }


def test_a_custom_operator_is_seen_forward_and_backward():
    @torch.library.custom_op("daydream_test::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.library.custom_op("daydream_test::twice_backward", mutates_args=())
    def twice_backward(grad: torch.Tensor) -> torch.Tensor:
        return grad * 2

    twice.register_autograd(lambda ctx, grad: twice_backward(grad))

    class Net(nn.Module):
        def forward(self, x):
            return twice(x).sum()

    forward, backward = [], []
    look = tool(lambda op: forward.append(op["type"]))
    look.add_inst_for_op(lambda op: backward.append((op["type"], op["forward_id"])), backward=True)
    x = X.clone().requires_grad_()
    with apply(look):
        Net()(x).backward()
    assert forward[:2] == ["twice", "sum"]
    assert ("twice_backward", "forward/Net/daydream_test::twice/0") in backward
    assert x.grad.equal(torch.full_like(X, 2.0))
    with apply(on("twice", lambda op: op.replace_op(lambda x: x * 5, grad=True))):
        x.grad = None
        Net()(x).backward()
    assert x.grad.equal(torch.full_like(X, 5.0))
