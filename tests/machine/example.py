"""A GPU-like training trace to ship as an example, labelled synthetic.

A small transformer (six layers, width 768, 4 x 128 tokens, float32, foreach Adam) runs on the
machine model. Durations come from round figures for a data-centre GPU, not from a measurement:
matrix kernels at 14 TFLOP/s, everything else at 1,200 GB/s, each plus 2 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

from .engine import Instruction, Machine, Program
from .instructions import annotation, backward, cpu, launch, memcpy, memset, op, python, stream_sync

STREAM = 7
LAYERS, WIDTH, HEADS, VOCABULARY = 6, 768, 12, 8192
BATCH, LENGTH = 4, 128
TOKENS = BATCH * LENGTH
FLOP_PER_NS, BYTES_PER_NS, START_NS = 14_000, 1_200, 2_000
FLOAT, LONG = "float", "long int"

GEMM = "ampere_sgemm_128x64_{}"
BATCHED = "ampere_sgemm_64x64_{}"
ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{}, std::array<char*, {}ul> >"
    "(int, at::native::{}, std::array<char*, {}ul>)"
)
LAYER_NORM = "void at::native::(anonymous namespace)::{}<float, float>(int, float, float const*, float*)"
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_{}<float, float, float, 7, false, false>"
    "(float*, float const*, int)"
)
LOG_SOFTMAX = (
    "void at::native::(anonymous namespace)::cunn_SoftMax{}<4, float, float, float>"
    "(float*, float const*, int)"
)
NLL_LOSS = (
    "void at::native::(anonymous namespace)::nll_loss_{}_reduce_cuda_kernel_2d<float, float, long>(float*)"
)
SUM = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)"
EMBEDDING = (
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>"
    "(float*, float const*, long const*)"
)
EMBEDDING_BACKWARD = (
    "void at::native::(anonymous namespace)::embedding_backward_feature_kernel<float, long>"
    "(long const*, float const*, float*)"
)
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
MULTI_TENSOR = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<{}>, at::native::(anonymous namespace)::{}<float, {}, 1, 0>, {}>"
)


def synthetic_gpu_trace(path: str | Path) -> Path:
    """Write four steps of the example as .json or .json.gz."""
    result = Machine(Program(_step), jitter=0.02, seed=1, steps=8).run()
    return result.write(path, 3, 6, label="synthetic: a transformer on daydream's machine model, no real GPU")


def _gemm(kind: str, m: int, n: int, k: int, batch: int = 1) -> Instruction:
    name = (BATCHED if batch > 1 else GEMM).format(kind)
    grid = [-(-m // 128), -(-n // 64), batch]
    return launch(STREAM, name, START_NS + 2 * batch * m * n * k // FLOP_PER_NS, grid=grid, block=[128, 1, 1])


def _pointwise(name: str, elements: int, tensors: int = 2) -> Instruction:
    ns = START_NS + 4 * elements * tensors // BYTES_PER_NS
    return launch(STREAM, name, ns, grid=[-(-elements // 512), 1, 1], block=[128, 1, 1])


def _functor(functor: str, elements: int, tensors: int = 2) -> Instruction:
    return _pointwise(ELEMENTWISE.format(functor, tensors, functor, tensors), elements, tensors)


def _shapes(*dims: Sequence[int], dtype: str = FLOAT) -> dict[str, Any]:
    return {"Input Dims": [list(shape) for shape in dims], "Input type": [dtype for _ in dims]}


class _Tape:
    """The backward program that follows from the forward operators; make those in their order."""

    def __init__(self, step: int) -> None:
        self.sequence = 1000 * step
        self.nodes: list[list[Instruction]] = []

    def op(
        self, outer: str, inner: str, kernel: Instruction, dims: dict[str, Any],
        node: str, gradients: Sequence[tuple[str, Instruction]], parameters: int = 0,
    ) -> Instruction:  # fmt: skip
        """A forward operator, two deep, with the autograd node it leaves behind."""
        self.sequence += 1
        sequence = {"Sequence number": self.sequence}
        own = [op(name, 3_400, [kernel], 1_000) for name, kernel in gradients]
        args = {**sequence, "Fwd thread id": 1}
        evaluate = "autograd::engine::evaluate_function: "
        add_up = op("torch::autograd::AccumulateGrad", 1_300, [cpu("aten::detach", 1_200)], 400)
        accumulate = op(evaluate + "torch::autograd::AccumulateGrad", 1_700, [add_up], 700)
        self.nodes.append([
            op(evaluate + node, 2_000, [op(node, 1_500, own, 900, args=args)], 900, args=args),
            *[accumulate] * parameters,
            python(900),
        ])  # fmt: skip
        inside = op(inner, 3_600, [kernel], 1_100, args=dims)
        return op(outer, 2_200, [inside], 900, args={**sequence, "Fwd thread id": 0, **dims})

    def backward(self) -> list[Instruction]:
        return [instruction for node in reversed(self.nodes) for instruction in node]


def _linear(tape: _Tape, inputs: int, outputs: int) -> Instruction:
    forward = _gemm("tn", outputs, TOKENS, inputs)
    gradients = [
        ("aten::mm", _gemm("nn", inputs, TOKENS, outputs)),
        ("aten::mm", _gemm("nt", inputs, outputs, TOKENS)),
        ("aten::sum", _pointwise(SUM, TOKENS * outputs, 1)),
    ]
    dims = _shapes([outputs], [TOKENS, inputs], [inputs, outputs])
    return tape.op("aten::linear", "aten::addmm", forward, dims, "AddmmBackward0", gradients, parameters=2)


def _layer_norm(tape: _Tape) -> Instruction:
    size = TOKENS * WIDTH
    forward = _pointwise(LAYER_NORM.format("vectorized_layer_norm_kernel"), size)
    backward_op = "aten::native_layer_norm_backward"
    gradients = [
        (backward_op, _pointwise(LAYER_NORM.format("layer_norm_grad_input_kernel"), size, 3)),
        (backward_op, _pointwise(LAYER_NORM.format("GammaBetaBackwardCUDAKernel"), size)),
    ]
    dims = _shapes([BATCH, LENGTH, WIDTH], [], [WIDTH], [WIDTH])
    node = "NativeLayerNormBackward0"
    return tape.op(
        "aten::layer_norm", "aten::native_layer_norm", forward, dims, node, gradients, parameters=2
    )


def _add(tape: _Tape) -> Instruction:
    add = _functor("CUDAFunctor_add<float>", TOKENS * WIDTH, 3)
    dims = _shapes(*[[BATCH, LENGTH, WIDTH]] * 2)
    return tape.op("aten::add", "aten::add", add, dims, "AddBackward0", [])


def _attention(tape: _Tape, path: str) -> Instruction:
    heads, head = BATCH * HEADS, WIDTH // HEADS
    scores = [BATCH, HEADS, LENGTH, LENGTH]
    product = ("aten::bmm", _gemm("nn", head, LENGTH, LENGTH, heads))
    transposed = ("aten::bmm", _gemm("nt", LENGTH, LENGTH, head, heads))
    query_key = tape.op(
        "aten::matmul", "aten::bmm", _gemm("tn", LENGTH, LENGTH, head, heads),
        _shapes([heads, LENGTH, head], [heads, head, LENGTH]), "BmmBackward0", [product, transposed],
    )  # fmt: skip
    softmax = tape.op(
        "aten::softmax", "aten::_softmax", _pointwise(SOFTMAX.format("forward"), prod(scores)),
        _shapes(scores), "SoftmaxBackward0",
        [("aten::_softmax_backward_data", _pointwise(SOFTMAX.format("backward"), prod(scores), 3))],
    )  # fmt: skip
    values = tape.op(
        "aten::matmul", "aten::bmm", _gemm("nn", head, LENGTH, LENGTH, heads),
        _shapes([heads, LENGTH, LENGTH], [heads, LENGTH, head]), "BmmBackward0", [product, transposed],
    )  # fmt: skip
    return annotation(
        f"nn.Module: {path}.core", [query_key, python(2_000), softmax, python(2_000), values], 2_500
    )


def _module(path: str, children: Sequence[Instruction]) -> Instruction:
    return annotation(f"nn.Module: {path}", children, 3_000)


def _block(tape: _Tape, path: str) -> Instruction:
    def norm(name: str) -> Instruction:
        return _module(f"{path}.{name}", [_layer_norm(tape)])

    def linear(name: str, inputs: int, outputs: int) -> Instruction:
        return _module(f"{path}.{name}", [_linear(tape, inputs, outputs)])

    hidden = 4 * WIDTH
    first = norm("norm1")
    attention = _module(f"{path}.attention", [
        linear("attention.qkv", WIDTH, 3 * WIDTH), _attention(tape, f"{path}.attention"),
        linear("attention.projection", WIDTH, WIDTH),
    ])  # fmt: skip
    residual, second = _add(tape), norm("norm2")
    fc1 = linear("mlp.fc1", WIDTH, hidden)
    gradient = _functor("GeluBackwardCUDAKernelImpl<float>", TOKENS * hidden, 3)
    gelu = tape.op(
        "aten::gelu", "aten::gelu", _functor("GeluCUDAKernelImpl<float>", TOKENS * hidden),
        _shapes([BATCH, LENGTH, hidden]), "GeluBackward0", [("aten::gelu_backward", gradient)],
    )  # fmt: skip
    mlp = _module(f"{path}.mlp", [fc1, _module(f"{path}.mlp.gelu", [gelu]), linear("mlp.fc2", hidden, WIDTH)])
    return _module(path, [first, attention, residual, second, mlp, _add(tape)])


def _adam() -> Instruction:
    """Foreach Adam: each operator goes over all parameters, 320 blocks of 64 Ki elements a kernel."""
    parameters = LAYERS * 12 * WIDTH * WIDTH + 2 * VOCABULARY * WIDTH
    per_launch = 320 * 65_536

    def foreach(name: str, functor: str, depth: int) -> Instruction:
        sizes = [min(per_launch, parameters - done) for done in range(0, parameters, per_launch)]
        kernel = MULTI_TENSOR.format(depth, functor, depth, "std::plus<float>")
        return op(name, 24_000, [
            launch(STREAM, kernel, START_NS + 4 * size * (depth + 1) // BYTES_PER_NS, grid=[320, 1, 1],
                   block=[512, 1, 1]) for size in sizes], 3_000)  # fmt: skip

    return annotation("Optimizer.step#Adam.step", [
        foreach("aten::_foreach_add_", "UnaryOpFunctor", 1),
        foreach("aten::_foreach_lerp_", "TernaryOpScalarFunctor", 2),
        foreach("aten::_foreach_mul_", "BinaryOpScalarFunctor", 1),
        foreach("aten::_foreach_addcmul_", "PointwiseOpScalarFunctor", 3),
        foreach("aten::_foreach_sqrt", "UnaryOpFunctor", 2),
        foreach("aten::_foreach_div_", "BinaryOpScalarListFunctor", 1),
        foreach("aten::_foreach_add_", "BinaryOpScalarFunctor", 1),
        foreach("aten::_foreach_addcdiv_", "PointwiseOpScalarListFunctor", 3),
    ], 60_000)  # fmt: skip


def _embedding(tape: _Tape) -> Instruction:
    size = TOKENS * WIDTH
    dims = _shapes([VOCABULARY, WIDTH], [BATCH, LENGTH])
    dims["Input type"][1] = LONG
    gradients = [("aten::embedding_dense_backward", _pointwise(EMBEDDING_BACKWARD, size, 3))]
    return tape.op("aten::embedding", "aten::index_select", _pointwise(EMBEDDING, size), dims,
                   "EmbeddingBackward0", gradients, parameters=1)  # fmt: skip


def _loss(tape: _Tape) -> list[Instruction]:
    size = TOKENS * VOCABULARY
    picked = _shapes([TOKENS, VOCABULARY], [TOKENS])
    picked["Input type"][1] = LONG
    return [
        tape.op("aten::log_softmax", "aten::_log_softmax", _pointwise(LOG_SOFTMAX.format("Forward"), size),
                _shapes([TOKENS, VOCABULARY]), "LogSoftmaxBackward0",
                [("aten::_log_softmax_backward_data", _pointwise(LOG_SOFTMAX.format("Backward"), size, 3))]),
        tape.op("aten::nll_loss_nd", "aten::nll_loss_forward", _pointwise(NLL_LOSS.format("forward"), TOKENS),
                picked, "NllLossBackward0",
                [("aten::nll_loss_backward", _pointwise(NLL_LOSS.format("backward"), TOKENS))]),
    ]  # fmt: skip


def _step(number: int) -> list[Instruction]:
    tape = _Tape(number)
    forward = [_module("embedding", [_embedding(tape)])]
    forward += [_block(tape, f"layers.{layer}") for layer in range(LAYERS)]
    forward += [_module("norm", [_layer_norm(tape)]), _module("head", [_linear(tape, WIDTH, VOCABULARY)])]
    copy = op("aten::copy_", 2_500, [memcpy(STREAM, "htod_pinned", 3_000, 8 * TOKENS)], 900)
    zero = op("aten::zero_", 1_500, [memset(STREAM, 2_400, 4 * VOCABULARY * WIDTH)], 600)
    read = [memcpy(STREAM, "dtoh_pageable", 1_300, 4), stream_sync(STREAM)]
    return [
        annotation(LOADER, [cpu("aten::stack", 180_000)], 60_000),
        op("aten::to", 3_000, [copy], 800),
        annotation("Optimizer.zero_grad#Adam.zero_grad", [zero], 4_000),
        _module("model", forward),
        *_loss(tape),
        backward(tape.backward()),
        _adam(),
        op("aten::item", 1_200, [op("aten::_local_scalar_dense", 2_100, read, 700)], 500),
    ]
