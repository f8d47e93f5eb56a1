"""A small model, its training, and tools of one callback, for the tests of instrumentation."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from daydream.instrument import Tool

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.fc1 = nn.Linear(8, 16)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.fc2(self.act(self.fc1(self.norm(x))))


def model():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(8, 3))


def with_activation(make):
    """Return the model with another activation: what a person would write by hand."""
    made = model()
    for block in made[:2]:
        block.act = make()
    return made


def kept(weight):
    """Return weights without the small ones."""
    return torch.where(weight.abs() > 0.15, weight, 0.0)


def straight_through(change):
    """Return a change of a tensor that the gradient does not see."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return change(x)

        @staticmethod
        def backward(ctx, grad):
            return grad

    return Function.apply


def with_weights(change, of_input=lambda x: x):
    """Return the model whose linear layers change weights and inputs, as a person would write it by hand."""

    class Linear(nn.Linear):
        def forward(self, x):
            return F.linear(of_input(x), change(self.weight), self.bias)

    made = model()
    for each in made.modules():
        if type(each) is nn.Linear:
            each.__class__ = Linear
    return made


def train(net, steps=4, each=lambda: None):
    """Return the losses of some steps."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(X), Y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        each()
    return losses


def tool(callback, **when):
    made = Tool()
    made.add_inst_for_op(callback, **when)
    return made


def on(type_, act, **when):
    """Return a tool that acts on each operator of a type."""
    return tool(lambda context: act(context) if context["type"] == type_ else None, **when)


def function(forward, backward):
    """Return a module whose backward pass is written by hand."""

    class ByHand(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad, ctx.saved_tensors[0])

    class Module(nn.Module):
        def forward(self, x):
            return ByHand.apply(x)

    return Module


def gelu_gradient(grad, x):
    """Return the gradient of the activation, by torch."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        return torch.autograd.grad(F.gelu(x), x, grad)[0]
