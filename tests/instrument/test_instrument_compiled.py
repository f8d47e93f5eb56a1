"""Tools over compiled models: actions, losses, ids of the model as it is; then what was compiled before."""

import shutil

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812
from small_training import Block, X, Y, kept, model, on  # noqa: E402
from torch import nn  # noqa: E402

from daydream.instrument import apply  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(net, run, steps=4):
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(run(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def compiled(make, backend):
    net = make()
    return net, torch.compile(net, backend=backend)


def under(made, net, run):
    """Return losses, the ids with actions, and notes."""
    with apply(*made) as session:
        losses = train(net, run)
    acted = [key for key, one in session.contexts.items() if one.actions.on_operator or one.actions.on_node]
    return losses, acted, session


def same(make, make_tools, backend, equal=lambda one, other: one == other):
    """Train eager and compiled with tools; both have the same actions, and nothing is left."""
    net = make()
    plain = train(net, net)
    net = make()
    eager, actions, _ = under(make_tools(), net, net)
    net, run = compiled(make, backend)
    train(net, run, 1)
    net.load_state_dict(make().state_dict())
    got, of_compiled, session = under(make_tools(), net, run)
    assert equal(got, eager)
    assert eager != plain
    assert of_compiled == actions
    assert not session.compiled.eager
    net, again = compiled(make, backend)
    assert equal(train(net, again), plain)
    return session


def half(grad):
    return None if grad is None else grad * 0.5


def five_actions():
    """A tool for each of five actions; the sixth, `replace_op`, is for itself."""
    return [
        on("linear", lambda op: op.insert_before_op(kept, inputs=[1])),
        on("gelu", lambda op: op.insert_after_op(lambda y: y.clamp(max=0.4))),
        on("gelu", lambda op: op.insert_before_backward_op(lambda grad: grad * 0.5)),
        on("native_layer_norm", lambda op: op.insert_after_backward_op(half)),
        on("add", lambda op: op.replace_backward_op(lambda grad: (grad, grad * 0.25))),
    ]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_five_actions_have_the_losses_of_eager_mode_bit_for_bit(backend):
    session = same(model, five_actions, backend)
    assert session.compiled.notes == []


@pytest.mark.parametrize("grad", [False, True])
def test_a_replaced_operator(grad):
    session = same(
        model, lambda: [on("gelu", lambda op: op.replace_op(torch.relu, inputs=[0], grad=grad))], "aot_eager"
    )
    assert session.compiled.notes == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="inductor needs a C++ compiler")
def test_inductor_fuses_around_the_actions():
    def close(one, other):
        return one == pytest.approx(other, rel=1e-4)

    session = same(model, five_actions, "inductor", close)
    assert session.compiled.notes == []


def test_what_cannot_be_traced_runs_uncompiled_and_is_told():
    def make():
        return [on("gelu", lambda op: op.insert_after_op(lambda y: y * min(float(y.max()), 0.5), grad=True))]

    session = same(model, make, "aot_eager")
    assert len(session.compiled.notes) == 1
    assert "runs operator by operator" in session.compiled.notes[0]


class Broken(nn.Module):
    """A shared activation, and a part that the compiler breaks its graph at."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = Block(), nn.Linear(8, 3)

    def forward(self, x):
        x = self.first.act(self.first(x) + 1)
        torch._dynamo.graph_break()
        return self.last(self.first.act(x))


def test_calls_of_a_shared_module_and_both_sides_of_a_graph_break():
    relu = lambda: [on("gelu", lambda op: op.replace_op(torch.relu, inputs=[0], grad=True))]  # noqa: E731
    session = same(Broken, relu, "aot_eager")
    assert session.compiled.notes == []
