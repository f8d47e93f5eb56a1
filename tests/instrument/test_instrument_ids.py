"""Ids are the same in every iteration, whatever is skipped, shared or computed again."""

import pytest

torch = pytest.importorskip("torch")

from small_training import Block, X, model, on, tool, train  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from daydream.instrument import apply  # noqa: E402


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
