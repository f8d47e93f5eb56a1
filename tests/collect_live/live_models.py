"""Small models of every shape that layers must be told apart in, each with a function of its loss."""

import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from daydream.collect.live.recorder import Recorder

torch = pytest.importorskip("torch", reason="recording needs torch")

import torch.nn.functional as F  # noqa: E402, N812 - everyone's name for it
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.second(F.relu(self.first(x)))


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(y)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class GPT(nn.Module):
    def __init__(self, checkpointing=None, layers=2, width=32):
        super().__init__()
        self.checkpointing = checkpointing
        self.wte, self.wpe = nn.Embedding(64, width), nn.Embedding(16, width)
        self.h = nn.ModuleList(Block(width, 2) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, 64, bias=False)
        self.head.weight = self.wte.weight
        for parameter in self.parameters():  # saturated softmaxes make denormal gradients, and those are slow
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            if self.checkpointing:
                x = checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = block(x)
        return self.head(self.ln_f(x))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.lstm = nn.LSTM(16, 16, 2, batch_first=True)
        self.out = nn.Linear(16, 32)

    def forward(self, tokens):
        return self.out(self.lstm(self.embed(tokens))[0])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Odd(nn.Module):
    """A custom function, a module called twice, a bare parameter, a module in a list, an inner exception."""

    def __init__(self):
        super().__init__()
        self.twice = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))
        self.module = nn.Linear(16, 4)  # the name that wrappers use
        self.hidden = [nn.Tanh()]
        self.failing = Failing()

    def forward(self, x):
        x = self.twice(self.hidden[0](self.twice(x)))
        try:
            self.failing(x)
        except ValueError:
            x = x + 1
        return self.module(Square.apply(x) * self.scale)


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Raising()

    def forward(self, x):
        return self.inner(x.detach())


class Raising(nn.Module):
    def forward(self, x):
        raise ValueError(x.shape)


class CrossAttention(nn.Module):
    """Attention over keys of another width: four weights, two of one shape, `out_proj` never called."""

    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 2, kdim=8, vdim=12, batch_first=True)

    def forward(self, x):
        return self.attn(x, x[..., :8], x[..., :12])[0]


class Functional(nn.Module):
    """Uses the parameters of parts that it never calls, and of one that it does call as well."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"in": nn.Linear(16, 16), "out": nn.Linear(16, 16)})
        self.both = nn.Linear(16, 16, bias=False)

    def forward(self, x):
        x = F.linear(x, self.parts["in"].weight, self.parts["in"].bias)
        x = F.linear(self.both(x).tanh(), self.both.weight)
        return F.linear(x, self.parts["out"].weight, self.parts["out"].bias)


class Mixed(nn.Module):
    """Lists of modules, one module in two places, work without gradients, frozen and unused parts."""

    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList(
            [nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Identity()}) for _ in range(2)]
        )
        self.again = self.stages[0]["a"]
        self.frozen, self.unused = nn.Linear(16, 16), nn.Linear(16, 16)
        self.frozen.requires_grad_(requires_grad=False)
        self.temperature = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mean", torch.zeros(16))
        self.functional = Functional()

    def forward(self, x):
        with torch.no_grad():
            self.mean.mul_(0.9).add_(self.frozen(x).mean(0), alpha=0.1)
        for stage in self.stages:
            x = x + stage["b"](stage["a"](x)).relu()
        x = self.again(x - self.mean)
        return self.frozen(self.functional(x)) / self.temperature


class Threads(nn.Module):
    """Runs its parts on threads of its own."""

    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList([MLP(), MLP()])
        self.join = nn.Linear(8, 4)
        self.pool = ThreadPoolExecutor(2)

    def forward(self, x):
        return self.join(torch.cat([*self.pool.map(lambda tower: tower(x), self.towers)], -1))


def _classes(model, *shape):
    def loss():
        return F.cross_entropy(model(torch.randn(shape)), torch.randint(0, 4, (shape[0],)))

    return model, loss


def _tokens(model, vocabulary):
    def loss():
        tokens = torch.randint(0, vocabulary, (2, 9))
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return model, loss


def _squares(model, *shape):
    return model, lambda: (model(torch.randn(shape)) - 1.0).pow(2).mean()


def _penalty():
    """Return a loss that holds the gradient of an output with respect to the input."""
    model = MLP()

    def loss():
        x = torch.randn(8, 16, requires_grad=True)
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.pow(2).mean() + (gradient.norm(dim=1) - 1).pow(2).mean()

    return model, loss


MODELS = {
    "mlp": lambda: _classes(MLP(), 8, 16),
    "resnet": lambda: _classes(ResNet(), 2, 3, 8, 8),
    "gpt": lambda: _tokens(GPT(), 64),
    "gpt reentrant": lambda: _tokens(GPT("reentrant"), 64),
    "gpt non-reentrant": lambda: _tokens(GPT("non-reentrant"), 64),
    "lstm": lambda: _tokens(Recurrent(), 32),
    "odd": lambda: _squares(Odd(), 8, 16),
    "cross attention": lambda: _squares(CrossAttention(), 2, 5, 16),
    "mixed": lambda: _squares(Mixed(), 8, 16),
    "threads": lambda: _classes(Threads(), 8, 16),
    "penalty": _penalty,
}


# Record a few steps of a small model in this process


def record(loop, folder, *, iterations=40, **options):
    """Return the trace of a loop's body, called until the recording is over."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    recorder = Recorder(folder / "trace.parquet", **{"warmup": 2, "steps": 3, "unprofiled": 0, **options})
    recorder.install()
    try:
        for _ in range(iterations):
            loop()
            if recorder.done:
                break
        recorder.finish("the loop ended")
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    assert recorder.trace is not None
    return recorder.trace


def train(model, loss, **settings):
    """Return a plain iteration."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, **settings)

    def iteration():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return iteration


@cache
def recorded(name):
    """Return a model, its trace, and the parameters whose gradients per step accumulated, in order.

    The order comes from hooks that torch runs inside AccumulateGrad: the truth to hold owners against.
    """
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    order = []
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, path=path: order.append(path))
    iteration = train(model, loss)

    def loop():
        order.clear()
        iteration()

    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of modules that are not ours
        trace = record(loop, Path(folder))
    return model, trace, order
