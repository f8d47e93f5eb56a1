"""A transformer as Megatron-LM trains it: tensor, sequence, context, expert and data parallel, in 16 bits.

    torchrun --nproc-per-node 8 examples/megatron_gpt.py --tensor-parallel 4
    daydream collect --world 8 --emulate a100 examples/megatron_gpt.py --tensor-parallel 4 --micro-batch 2

`--model gpt` is Megatron-LM of 2021 to 2023: attention of three kernels with a fused softmax where its kernel
can be used, with `--flash` of one; vocabulary-parallel loss in 32 bits. `t5` has an encoder and a decoder of
that kind. `llama3-70b` and `deepseek-v2` are Megatron Core with Transformer Engine: flash attention, sequence
parallelism, and for the latter compressed attention (MLA) and experts. Stages of a pipeline are composed from
the layers of one (`daydream plan`).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional

MODELS: dict[str, dict[str, Any]] = {  # Llama 3 (Meta, 2024), table 3; DeepSeek-V2 (2024), section 3.1.2
    "gpt": {},
    "t5": {"hidden": 768, "heads": 12, "vocabulary": 29_184, "sequence": 512, "dense_layers": 1},
    "llama3-70b": {
        "hidden": 8192, "heads": 64, "groups": 8, "ffn": 28_672, "vocabulary": 128_256, "sequence": 4096,
    },
    "deepseek-v2": {
        "hidden": 5120, "heads": 128, "ffn": 12_288, "vocabulary": 102_400, "sequence": 4096, "experts": 160,
        "expert_ffn": 1536, "dense_layers": 1,
    },
}  # fmt: skip
TOP, SHARED_FFN, QUERY_RANK, KEY_RANK, HEAD, ROTATED = 6, 3072, 1536, 512, 128, 64  # of DeepSeek-V2
DECODED = 128  # tokens of T5's decoder
KERNELS = torch.library.Library("fused", "DEF")


def kernel(schema: str, function: Callable[..., Any]) -> Any:
    """Return an operator that is one kernel in Megatron-LM, and this function where it must count."""
    KERNELS.define(schema)
    KERNELS.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")
    return getattr(torch.ops.fused, schema.partition("(")[0])


def fused(schema: str, way: Any, back_schema: str, back: Any, keep: Callable[..., Any]) -> Any:
    """Return a differentiable function of two kernels; `keep` chooses what of (result, *inputs) is saved."""
    forward, backward = kernel(schema, way), kernel(back_schema, back)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            result = forward(*inputs)
            ctx.save_for_backward(*keep(result, *inputs))
            return result[0] if isinstance(result, tuple) else result

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return tuple(backward(gradient, *ctx.saved_tensors))

    return Function.apply


def _softmax(scores: Tensor) -> Tensor:
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.float().masked_fill(ahead, -10_000.0).softmax(-1).to(scores.dtype)


def _softmax_back(g: Tensor, y: Tensor) -> list[Tensor]:
    return [y * (g - (g * y).sum(-1, keepdim=True))]


def _gelu(x: Tensor, bias: Tensor) -> Tensor:
    return functional.gelu(x + bias, approximate="tanh")


def _gelu_back(g: Tensor, x: Tensor, bias: Tensor) -> list[Tensor]:
    own = torch.ops.aten.gelu_backward(g, x + bias, approximate="tanh")
    return [own, own.flatten(0, -2).sum(0)]


def _add(x: Tensor, bias: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    mask = torch.rand_like(x) > 0.1
    return residual + (x + bias) * mask / 0.9, mask


def _add_back(g: Tensor, mask: Tensor) -> list[Tensor]:
    dropped = g * mask / 0.9
    return [dropped, dropped.flatten(0, -2).sum(0), g.clone()]


def _swiglu(x: Tensor) -> Tensor:
    gate, up = x.chunk(2, -1)
    return functional.silu(gate) * up


def _swiglu_back(g: Tensor, x: Tensor) -> list[Tensor]:
    gate, up = x.chunk(2, -1)
    open_ = gate.sigmoid()
    return [torch.cat((g * up * open_ * (1 + gate * (1 - open_)), g * gate * open_), -1)]


def _turn(x: Tensor) -> Tensor:
    return torch.cat((-x[..., 1::2], x[..., ::2]), -1) + x


def _norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().square().mean(-1, keepdim=True).rsqrt()
    return (x * scale).to(x.dtype) * weight, scale


def _norm_back(g: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> list[Tensor]:
    straight, wide = (x * scale).to(x.dtype), g * weight
    own = (wide * straight).mean(-1, keepdim=True)
    return [((wide - straight * own) * scale).to(x.dtype), (g * straight).flatten(0, -2).sum(0)]


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each token; its gradient takes the place of the logits, as in Transformer Engine."""
    scores = logits.float().log_softmax(-1)
    logits.copy_(scores.exp())
    logits.scatter_add_(-1, labels[..., None], logits.new_full((*labels.shape, 1), -1.0))
    return -scores.gather(-1, labels[..., None]).squeeze(-1)


softmax = fused(
    "softmax(Tensor x) -> Tensor", _softmax,
    "softmax_back(Tensor g, Tensor y) -> Tensor[]", _softmax_back, lambda y, _: (y,),
)  # fmt: skip
bias_gelu = fused(
    "bias_gelu(Tensor x, Tensor bias) -> Tensor", _gelu,
    "bias_gelu_back(Tensor g, Tensor x, Tensor bias) -> Tensor[]", _gelu_back, lambda _, x, bias: (x, bias),
)  # fmt: skip
dropout_add = fused(
    "dropout_add(Tensor x, Tensor bias, Tensor residual) -> (Tensor, Tensor)", _add,
    "dropout_add_back(Tensor g, Tensor mask) -> Tensor[]", _add_back, lambda y, *_: (y[1],),
)  # fmt: skip
swiglu = fused(
    "swiglu(Tensor x) -> Tensor", _swiglu,
    "swiglu_back(Tensor g, Tensor x) -> Tensor[]", _swiglu_back, lambda _, x: (x,),
)  # fmt: skip
rotary = fused(
    "rotary(Tensor x) -> Tensor", _turn,
    "rotary_back(Tensor g) -> Tensor[]", lambda g: [_turn(g)], lambda *_: (),
)  # fmt: skip
norm = fused(
    "norm(Tensor x, Tensor weight) -> (Tensor, Tensor)", _norm,
    "norm_back(Tensor g, Tensor x, Tensor weight, Tensor scale) -> Tensor[]", _norm_back,
    lambda y, x, weight: (x, weight, y[1]),
)  # fmt: skip
loss_kernel = kernel("loss(Tensor(a!) logits, Tensor labels) -> Tensor", _loss)
scale_kernel = kernel("scale(Tensor(a!) x, Tensor by) -> Tensor", lambda x, by: x.mul_(by).clone())


class Share:
    """The collectives of one dimension of the job; without one where it has one rank."""

    def __init__(self, size: int, apart: int = 1) -> None:
        """Make groups of ranks that are so far apart; all ranks make all of them."""
        self.size, self.place, self.group = size, dist.get_rank() // apart % size, None
        for first in range(dist.get_world_size()) if size > 1 else ():
            if first // apart % size == 0:
                ranks = list(range(first, first + size * apart, apart))
                made = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    self.group = made

    def sum(self, x: Tensor, operation: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(x, operation, group=self.group)
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Return all ranks' parts, along the first dimension."""
        if self.size == 1:
            return x
        whole = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous(), group=self.group)
        return whole

    def scatter(self, x: Tensor) -> Tensor:
        """Return this rank's part of the sum over the ranks."""
        if self.size == 1:
            return x
        part = x.new_empty(x.shape[0] // self.size, *x.shape[1:])
        dist.reduce_scatter_tensor(part, x.contiguous(), group=self.group)
        return part

    def swap(self, x: Tensor) -> Tensor:
        """Return what the ranks have for this one, along the first dimension."""
        if self.size == 1:
            return x
        got = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(got, x.contiguous(), group=self.group)
        return got


def opposite(way: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Any:
    """Return a differentiable function that runs `way` forward and `back` on the gradient."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return way(x)

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            return back(gradient)

    return Function.apply


def same(x: Tensor) -> Tensor:
    """Return it."""
    return x


class SharedLinear(torch.autograd.Function):
    """x W^T + b; the gradient of x is summed over the ranks while that of W is computed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, share: Share) -> Tensor:
        """Return this rank's outputs."""
        ctx.save_for_backward(x, weight)
        ctx.share, ctx.bias = share, bias is not None
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients (megatron/mpu/layers.py, `async_tensor_model_parallel_allreduce`)."""
        x, weight = ctx.saved_tensors
        whole, flat = gradient @ weight, gradient.flatten(0, -2)
        work = ctx.share.size > 1 and dist.all_reduce(whole, group=ctx.share.group, async_op=True)
        own = flat.t() @ x.flatten(0, -2)
        bias = flat.sum(0) if ctx.bias else None
        if work:
            work.wait()
        return whole, own, bias, None


class ModernLinear(torch.autograd.Function):
    """x W^T, of all experts at once for weights of three dimensions.

    The gradient of the weight is added to one in 32 bits, and a gathered input is gathered anew.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, share: Share) -> Tensor:
        """Return the product with the whole of x."""
        ctx.save_for_backward(x, weight)
        ctx.share = share
        return share.gather(x) @ weight.mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of this rank's part of x."""
        x, weight = ctx.saved_tensors
        whole, flat = ctx.share.gather(x), gradient
        if weight.dim() == 2:
            whole, flat = whole.flatten(0, -2), gradient.flatten(0, -2)
        weight.main_grad.add_(flat.mT @ whole)
        return ctx.share.scatter(gradient @ weight), None, None


class Linear(nn.Module):
    """A linear layer of which each rank has some of the outputs (`split="out"`), of the inputs, or all."""

    def __init__(self, of: Any, into: int, out: int, split: str = "", bias: str = "") -> None:
        """Make one; a bias is `own`, or `apart`: added by who asks."""
        super().__init__()
        self.modern, self.split, self.tp, self.one = of.modern, split, of.tp, of.one
        into, out = into // of.split(split == "in"), out // of.split(split == "out")
        self.weight = of.parameter(out, into)
        self.bias = of.parameter(out) if bias else None
        self.own = bias == "own"
        self.leave = opposite(of.tp.scatter, of.tp.gather) if of.modern else opposite(of.tp.sum, same)

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs, or what all ranks sum to."""
        share = self.tp if self.split == "out" else self.one
        if self.modern:
            found = ModernLinear.apply(x, self.weight, share)
        else:
            found = SharedLinear.apply(x, self.weight, self.bias if self.own else None, share)
        return self.leave(found) if self.split == "in" else found


class ScoresAttention(nn.Module):
    """Attention whose scores are in memory; the softmax is fused where its kernel allows.

    With `--flash` one kernel; ranks that share a sequence gather keys and values. `cross`: of another one.
    """

    def __init__(self, of: Any, *, cross: bool = False) -> None:
        super().__init__()
        self.heads, self.size = of.heads // of.tp.size, of.hidden // of.heads
        self.flash, self.dropout = of.flash, of.attention_dropout
        self.all = opposite(of.cp.gather, of.cp.scatter)
        self.query = Linear(of, of.hidden, of.hidden, "out", "own") if cross else None
        self.qkv = Linear(of, of.hidden, (3 - cross) * of.hidden, "out", "own")
        self.out = Linear(of, of.hidden, of.hidden, "in", "apart")

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return what the heads of all ranks give, without a bias."""
        length, batch, _ = x.shape
        many = batch * self.heads
        parts = self.qkv(x if other is None else other).unflatten(-1, (self.heads, -1))
        parts = parts.flatten(1, 2).split(self.size, -1)
        if self.query is not None:
            parts = self.query(x).view(length, many, self.size), *parts
        query, key, value = (one.transpose(0, 1) for one in (parts[0], *map(self.all, parts[1:])))
        if self.flash:
            three = (one.unflatten(0, (batch, -1)) for one in (query, key, value))
            found = functional.scaled_dot_product_attention(*three, dropout_p=self.dropout, is_causal=True)
            return self.out(found.flatten(0, 1).transpose(0, 1).contiguous().view(length, batch, -1))
        room = query.new_empty(many, length, key.shape[1])
        scale = self.size**-0.5
        scores = torch.baddbmm(room, query, key.transpose(1, 2), beta=0.0, alpha=scale)
        # Its kernel takes four rows at once, of at most 2,048 (megatron/model/fused_softmax.py,
        # `is_kernel_available`); else the softmax is one of torch, in 32 bits.
        if scores.element_size() == 2 and length <= 2048 and length % 4 == 0 and many % 4 == 0:
            shares = softmax(scores)
        else:
            ahead = torch.ones(scores.shape[1:], dtype=torch.bool, device=x.device).triu(1)
            shares = scores.float().masked_fill(ahead, -10_000.0).softmax(-1).to(x.dtype)
        shares = functional.dropout(shares, self.dropout)
        found = torch.bmm(shares, value).transpose(0, 1).contiguous()
        return self.out(found.view(length, batch, -1))


class GptLayer(nn.Module):
    """A layer of Megatron-LM's GPT; of T5's decoder where it attends to another sequence, too."""

    def __init__(self, of: Any, *, cross: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(of.layer_norm() for _ in range(2 + cross))
        self.attention = ScoresAttention(of)
        self.other = ScoresAttention(of, cross=True) if cross else None
        self.wide = Linear(of, of.hidden, of.ffn, "out", "apart")
        self.narrow = Linear(of, of.ffn, of.hidden, "in", "apart")

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the next hidden state."""
        x = dropout_add(self.attention(self.norms[0](x)), self.attention.out.bias, x)
        if self.other is not None:
            x = dropout_add(self.other(self.norms[2](x), other), self.other.out.bias, x)
        found = self.narrow(bias_gelu(self.wide(self.norms[1](x)), self.wide.bias))
        return dropout_add(found, self.narrow.bias, x)


class Norm(nn.Module):
    """Root mean square normalization, one kernel."""

    def __init__(self, of: Any, size: int) -> None:
        super().__init__()
        self.weight = of.parameter(size)

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalized."""
        return norm(x, self.weight)


class FlashAttention(nn.Module):
    """Attention in one kernel; context parallelism swaps parts of the sequence for heads."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.cp, self.heads, self.latent = of.cp.size, of.heads // of.tp.size, bool(of.experts)
        self.swap = opposite(of.cp.swap, of.cp.swap)
        size = of.hidden // of.heads
        self.groups = of.groups // of.tp.size
        if self.latent:
            self.query_down = Linear(of, of.hidden, QUERY_RANK)
            self.key_down = Linear(of, of.hidden, KEY_RANK + ROTATED)
            self.norms = nn.ModuleList((Norm(of, QUERY_RANK), Norm(of, KEY_RANK)))
            self.query_up = Linear(of, QUERY_RANK, of.heads * (HEAD + ROTATED), "out")
            self.key_up = Linear(of, KEY_RANK, of.heads * 2 * HEAD, "out")
            size = HEAD
        else:
            self.qkv = Linear(of, of.hidden, (of.heads + 2 * of.groups) * size, "out")
        self.size = size
        self.out = Linear(of, of.heads * size, of.hidden, "in")

    def forward(self, x: Tensor) -> Tensor:
        """Return what the heads of all ranks give."""
        parts = self._latent(x) if self.latent else self._plain(x)
        query, key, value = (self._heads(one) for one in parts)
        found = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=key.shape[1] != query.shape[1]
        )
        return self.out(self._back(found))

    def _plain(self, x: Tensor) -> tuple[Tensor, ...]:
        found = self.qkv(x).unflatten(-1, (-1, self.size))
        query, key, value = found.split((self.heads, self.groups, self.groups), -2)
        return rotary(query), rotary(key), value

    def _latent(self, x: Tensor) -> tuple[Tensor, ...]:
        query = self.query_up(self.norms[0](self.query_down(x))).unflatten(-1, (self.heads, -1))
        low, turned = self.key_down(x).split((KEY_RANK, ROTATED), -1)
        found = self.key_up(self.norms[1](low.contiguous())).unflatten(-1, (self.heads, -1))
        key, value = found.split((self.size, self.size), -1)
        query = torch.cat((query[..., : self.size], rotary(query[..., self.size :])), -1)
        turned = rotary(turned)[..., None, :].expand(*key.shape[:-1], -1)
        return query, torch.cat((key, turned), -1), value

    def _heads(self, x: Tensor) -> Tensor:
        """Return (batch, heads, sequence, size) of (sequence, batch, heads, size): all of few heads."""
        if self.cp > 1:
            x = self.swap(x.unflatten(2, (self.cp, -1)).movedim(2, 0)).flatten(0, 1)
        return x.permute(1, 2, 0, 3)

    def _back(self, x: Tensor) -> Tensor:
        x = x.permute(2, 0, 1, 3)
        if self.cp > 1:
            x = self.swap(x.unflatten(0, (self.cp, -1))).movedim(0, 2).flatten(2, 3)
        return x.flatten(2)


class Gated(nn.Module):
    """The feed-forward part of a layer."""

    def __init__(self, of: Any, ffn: int) -> None:
        super().__init__()
        self.wide = Linear(of, of.hidden, 2 * ffn, "out")
        self.narrow = Linear(of, ffn, of.hidden, "in")

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over all ranks."""
        return self.narrow(swiglu(self.wide(x)))


class Experts(nn.Module):
    """Experts that get equally many tokens each, divided among ranks, and one that all tokens go through."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.ep, self.number, self.one = of.ep, of.experts, of.one
        self.router = Linear(of, of.hidden, of.experts)
        own = of.experts // of.ep.size
        self.experts = nn.ParameterList(
            (of.parameter(own, 2 * of.expert_ffn, of.hidden), of.parameter(own, of.hidden, of.expert_ffn))
        )
        self.shared = Gated(of, SHARED_FFN)
        self.swap = opposite(of.ep.swap, of.ep.swap)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the experts of each token give, weighted, and the shared one."""
        flat = x.flatten(0, 1)
        weight, chosen = self.router(flat).float().softmax(-1).topk(TOP, -1)
        slots = -(-chosen.numel() // self.number) * self.number  # capacity factor 1, padded
        order = functional.pad(chosen.flatten().argsort(), (0, slots - chosen.numel()))
        sent = flat.index_select(0, order // TOP)
        wide, narrow = self.experts
        rows = self.swap(sent).unflatten(0, (self.ep.size, len(wide), -1)).transpose(0, 1).flatten(1, 2)
        found = ModernLinear.apply(swiglu(ModernLinear.apply(rows, wide, self.one)), narrow, self.one)
        got = self.swap(found.unflatten(1, (self.ep.size, -1)).transpose(0, 1).flatten(0, 2))
        got = got * weight.flatten().index_select(0, order)[:, None].to(x.dtype)
        return flat.new_zeros(flat.shape).index_add(0, order // TOP, got).view_as(x) + self.shared(x)


class ModernLayer(nn.Module):
    """A layer of Megatron Core with Transformer Engine."""

    def __init__(self, of: Any, *, dense: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm(of, of.hidden) for _ in range(2))
        self.attention = FlashAttention(of)
        self.feed = Gated(of, of.ffn) if dense else Experts(of)

    def forward(self, x: Tensor) -> Tensor:
        """Return the next hidden state."""
        x = x + self.attention(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class VocabularyLoss(torch.autograd.Function):
    """Cross entropy over a vocabulary that the ranks share, in 32 bits (megatron/mpu/cross_entropy.py)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, tp: Share) -> Tensor:
        """Return the loss of each token."""
        logits = logits.float()
        logits.sub_(tp.sum(logits.max(-1)[0], dist.ReduceOp.MAX)[..., None])
        first = logits.shape[-1] * tp.place
        absent = (labels < first) | (labels >= first + logits.shape[-1])
        own = (labels - first).masked_fill(absent, 0)[..., None]
        chosen = tp.sum(logits.gather(-1, own).squeeze(-1).masked_fill(absent, 0.0))
        shares = torch.exp(logits, out=logits)
        total = tp.sum(shares.sum(-1))
        shares.div_(total[..., None])
        ctx.save_for_backward(shares, absent, own)
        return total.log() - chosen

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of the logits."""
        shares, absent, own = ctx.saved_tensors
        shares.scatter_add_(-1, own, (absent.float() - 1.0)[..., None])
        return shares.mul_(gradient[..., None]), None, None


class ModernLoss(torch.autograd.Function):
    """Cross entropy in one kernel, which leaves the gradient where the logits were."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, tp: Share) -> Tensor:
        """Return the loss of each token."""
        losses = loss_kernel(logits, labels % logits.shape[-1])
        tp.gather(losses)
        ctx.save_for_backward(logits)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of the logits."""
        (logits,) = ctx.saved_tensors
        scale_kernel(logits, gradient[..., None].to(logits.dtype))
        return logits, None, None


class Head(nn.Module):
    """The last norm, the logits and the loss."""

    def __init__(self, of: Any, tied: nn.Parameter) -> None:
        super().__init__()
        self.modern, self.tp = of.modern, of.tp
        if of.modern:
            self.norm = Norm(of, of.hidden)
            self.logits = Linear(of, of.hidden, of.vocabulary, "out")
        else:
            self.norm, self.weight = of.layer_norm(), tied

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        x = self.norm(x)
        if self.modern:
            return ModernLoss.apply(self.logits(x), labels.t(), self.tp).mean()
        logits = SharedLinear.apply(x, self.weight, None, self.tp)
        return VocabularyLoss.apply(logits, labels.t().contiguous(), self.tp).mean()


class Embedding(nn.Module):
    """The embedding of a vocabulary that the ranks share."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.weight = of.parameter(of.vocabulary // of.tp.size, of.hidden)
        self.position = None if of.modern else of.parameter(of.sequence, of.hidden)
        self.tp = of.tp
        self.leave = opposite(of.tp.scatter, of.tp.gather) if of.modern else opposite(of.tp.sum, same)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the first hidden state: (sequence, batch, hidden)."""
        if self.tp.size > 1:
            first = self.weight.shape[0] * self.tp.place
            absent = (tokens < first) | (tokens >= first + self.weight.shape[0])
            found = functional.embedding((tokens - first).masked_fill(absent, 0), self.weight)
            found = found.masked_fill(absent[..., None], 0.0)
        else:
            found = functional.embedding(tokens, self.weight)
        if self.position is None:
            return self.leave(found.transpose(0, 1).contiguous())
        found = (self.leave(found) + self.position[: tokens.shape[1]]).transpose(0, 1).contiguous()
        return functional.dropout(found, 0.1)


class Transformer(nn.Module):
    """Embedding, layers and head."""

    def __init__(self, of: Any) -> None:
        super().__init__()
        self.embedding = Embedding(of)
        self.layers = nn.ModuleList(
            ModernLayer(of, dense=not of.experts or number < of.dense_layers)
            if of.modern
            else GptLayer(of, cross=of.model == "t5" and number >= of.dense_layers)
            for number in range(of.layers)
        )
        self.encoder = of.dense_layers if of.model == "t5" else 0
        self.head = Head(of, self.embedding.weight)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss."""
        labels = labels[:, :DECODED] if self.encoder else labels
        decoded = self.embedding(labels) if self.encoder else None
        x, other = self.embedding(tokens), None
        for number, layer in enumerate(self.layers):
            if decoded is not None and number == self.encoder:
                x, other = decoded, x
            x = layer(x) if other is None else layer(x, other)
        return self.head(x, labels)


def to_main(parameter: Any) -> None:
    """Add a gradient to the one in 32 bits."""
    if parameter.grad is not None:  # ours are added already
        parameter.main_grad.add_(parameter.grad)
        parameter.grad = None


class Config(argparse.Namespace):
    """What was asked for, and the dimensions of the job: `tp`, `cp`, `ep` and `dp`."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(**{**asked, **{k: v for k, v in MODELS[asked["model"]].items() if not asked[k]}})
        self.modern = self.model not in ("gpt", "t5")
        self.hidden, self.heads = self.hidden or 1024, self.heads or 16
        self.ffn, self.groups = self.ffn or 4 * self.hidden, self.groups or self.heads
        self.sequence = self.sequence or 1024
        self.dtype = getattr(torch, self.dtype or ("bfloat16" if self.modern else "float16"))
        if not self.vocabulary:  # 50,257 of GPT-2, which ranks share in equal parts of a multiple of 128
            self.vocabulary = 50_257 if self.tensor_parallel == 1 else -(-50_257 // 1024) * 1024
        if not dist.is_initialized():
            dist.init_process_group("nccl" if self.device == "cuda" else "gloo")
        self.one, self.tp = Share(1), Share(self.tensor_parallel)
        self.cp = Share(self.context_parallel, self.tp.size)
        self.ep = Share(self.expert_parallel, self.tp.size)
        apart = self.tp.size * self.cp.size
        self.dp = Share(dist.get_world_size() // apart, apart)

    def split(self, whether: bool) -> int:  # noqa: FBT001
        """Return among how many ranks a dimension is divided."""
        return self.tp.size if whether else 1

    def parameter(self, *sizes: int) -> nn.Parameter:
        """Return a parameter, with a gradient in 32 bits where Megatron Core keeps one."""
        made = nn.Parameter(torch.randn(*sizes, device=self.device).mul_(0.02).to(self.dtype))
        if self.modern:
            made.main_grad = torch.zeros(*sizes, device=self.device)
            made.register_post_accumulate_grad_hook(to_main)
        return made

    def layer_norm(self) -> nn.LayerNorm:
        """Return a norm of the hidden state."""
        return nn.LayerNorm(self.hidden, dtype=self.dtype, device=self.device)


def arguments(given: list[str] | None = None) -> Config:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="gpt")
    for name in ("hidden", "heads", "groups", "ffn", "vocabulary", "sequence", "experts", "expert-ffn"):
        parser.add_argument(f"--{name}", type=int, default=0)
    for name in ("layers", "dense-layers", "steps", "micro-batch", "micro-batches"):
        parser.add_argument(f"--{name}", type=int, default=0 if name == "dense-layers" else 1)
    for name in ("tensor", "context", "expert"):
        parser.add_argument(f"--{name}-parallel", type=int, default=1)
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--dtype", default="")
    parser.add_argument("--attention-dropout", type=float, default=0.1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return Config(vars(parser.parse_args(given)))


def main() -> None:
    """Train for a few steps on made-up tokens."""
    of = arguments()
    if of.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    model = Transformer(of)
    parameters = list(model.parameters())
    masters = [nn.Parameter(one.detach().float()) for one in parameters]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, foreach=True)
    size = of.micro_batch, of.sequence // of.cp.size

    def after_update(*_: Any) -> None:
        for parameter, master in zip(parameters, masters, strict=True):
            parameter.data.copy_(master)
            (parameter.main_grad if of.modern else parameter.grad).zero_()

    optimizer.register_step_post_hook(after_update)  # a part of the update, as in Megatron-LM
    for _ in range(of.steps):
        for _ in range(of.micro_batches):
            tokens = torch.randint(of.vocabulary // of.tp.size, size, device=of.device)
            model(tokens, tokens).backward()
        for parameter, master in zip(parameters, masters, strict=True):
            gradient = of.dp.sum(parameter.main_grad if of.modern else parameter.grad)
            master.grad = gradient.float() / of.dp.size
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
