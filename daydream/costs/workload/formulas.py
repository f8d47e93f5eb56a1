"""Formulas of the operator table: FLOP and elements of a call, from the shapes of its arguments.

A multiply-add is two FLOP. Products of m x k by k x n: 2 m n k. Convolution: each
output element takes a weight's worth of multiply-adds, in either gradient as well.
Attention: two products forward, five backward (the scores are computed again), as
`torch.utils.flop_counter` counts; a causal mask is not recorded, so its saving is not
counted. Recurrent layers: every weight matrix once a step.

FLOP and elements of grouped products, of experts, and of the products of servers' own libraries.

Grouped products multiply every row with the matrix of one group, so the groups' sizes, which are not
recorded, do not count. A layer of experts multiplies each token with those it is routed to. Libraries beside
torch's (aiter, vLLM, SGLang) give the result first or not, the weight as it is or transposed; which it is
follows from the sizes. Attention over pages stays unknown: how long the contexts are is no shape.

Recorded input shapes are the JSON text of a trace's `shapes` column. Of it an argument is `()` for what is no
tensor (and for a tensor of no dimensions: the profiler writes both the same way), a tuple of sizes for a
tensor, and a list of tuples for a list of tensors.

FLOP per element are counted from the defining formulas, any elementary function as
one: such kernels are bound by memory, so what counts is their traffic.
"""

from __future__ import annotations

import json
from functools import cache, lru_cache
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from daydream.costs.operators import Operator

Shape: TypeAlias = tuple[int, ...]
Argument: TypeAlias = Shape | list[Shape]


def parse_shapes(text: str | None) -> list[Argument] | None:
    """Return the arguments of a recorded call, None if nothing readable was recorded.

    Args:
        text: the column `shapes` of a task: `[[32, 64], []]`.

    Returns:
        for each argument `()` for what is no tensor, a tuple of sizes, or a list of tuples.
    """
    arguments = _parsed(text) if text else None
    return None if arguments is None else [*arguments]


@lru_cache(maxsize=1 << 14)  # a few thousand texts make a trace, and every optimization reads them
def _parsed(text: str) -> list[Argument] | None:
    try:
        recorded = json.loads(text)
    except ValueError:
        return None
    if not isinstance(recorded, list):
        return None
    return [_argument(part) for part in recorded]


def _argument(part: Any) -> Argument:
    if not isinstance(part, list):
        return ()
    if part and all(isinstance(one, list) for one in part):
        return [tuple(one) if _are_sizes(one) else () for one in part]
    return tuple(part) if _are_sizes(part) else ()


def _are_sizes(part: list[Any]) -> bool:
    return all(isinstance(size, int) and size >= 0 for size in part)


def elements(shape: Argument) -> int:
    """Return the elements of a tensor or of a list of tensors; 0 for what is no tensor."""
    if isinstance(shape, list):
        return sum(elements(one) for one in shape)
    return prod(shape) if shape else 0


def all_tensors(arguments: list[Argument]) -> list[Shape]:
    """Return the shapes of a call's tensors, those in lists too."""
    return [
        shape
        for part in arguments
        for shape in (part if isinstance(part, list) else [part])
        if shape
    ]


def broadcast(shapes: list[Shape]) -> Shape | None:
    """Return the shape that these broadcast to, None if they do not."""
    width = max((len(shape) for shape in shapes), default=0)
    sizes = [1] * width
    for shape in shapes:
        for place, size in enumerate(shape, width - len(shape)):
            if size != 1 and sizes[place] not in (1, size):
                return None
            sizes[place] = size if sizes[place] == 1 else sizes[place]
    return tuple(sizes)


class Amount(NamedTuple):
    """FLOP and memory traffic of a call.

    `elements` are those of the call's element type, read and written, each tensor
    once (compulsory traffic: what a cache saves or a poor kernel reads twice is part
    of a kernel's efficiency, not of its work); `extra_bytes` are those of other types
    (indices, masks). None is unknown. `tensors` counts what a list operator updates.
    `sizes` are those by which it was measured on GPUs (`device/measured_tables.py`), if it may have been.
    """

    family: str
    flop: int | None
    elements: int | None
    extra_bytes: int = 0
    tensors: int = 1
    sizes: Shape = ()

    def nbytes(self, itemsize: int | None) -> int | None:
        """Return the bytes moved, None where the elements or their size are unknown."""
        if self.elements is None or (itemsize is None and self.elements):
            return None
        return self.elements * (itemsize or 0) + self.extra_bytes


INDEX_BYTES = 8  # torch indexes with int64
MASK_BYTES = 1


class Call(NamedTuple):
    """A call: what its operator is, its arguments, and the output (or the weight) that the calls around show.

    A formula that finds no such argument or dimension raises IndexError or ValueError.
    """

    op: Operator
    arguments: list[Argument]
    hint: Shape | None = None

    @property
    def tensors(self) -> list[Shape]:
        """The tensor arguments, without lists and what is no tensor."""
        return [shape for shape in self.arguments if isinstance(shape, tuple) and shape]

    @property
    def lists(self) -> list[list[Shape]]:
        """The arguments that are lists of tensors."""
        return [part for part in self.arguments if isinstance(part, list)]

    def amount(
        self, flop: int | None, moved: int | None, extra_bytes: int = 0, tensors: int = 1
    ) -> Amount:
        """Return an amount of the operator's family."""
        return Amount(self.op.family, flop, moved, extra_bytes, tensors)


def product(batch: int, m: int, k: int, n: int, *, added: int = 0) -> Amount:
    """Return the work of `batch` products of m x k by k x n, plus elements read and added."""
    moved = batch * (m * k + k * n + m * n) + added
    return Amount("matmul", 2 * batch * m * k * n, moved, sizes=(m, n, k) if batch == 1 else ())


def mm(call: Call) -> Amount | None:
    """A product of two matrices."""
    (m, k), (inner, n) = [shape for shape in call.tensors if len(shape) == 2][:2]
    return product(1, m, k, n) if k == inner else None


def bmm(call: Call) -> Amount | None:
    """As many products as the first dimension is long."""
    (batch, m, k), (other, inner, n) = [shape for shape in call.tensors if len(shape) == 3][:2]
    return product(batch, m, k, n) if batch == other and k == inner else None


def addmm(call: Call) -> Amount | None:
    """A product of two matrices, and a third argument that is added."""
    return _added(call, mm(call._replace(arguments=call.arguments[1:3])))


def baddbmm(call: Call) -> Amount | None:
    """Products of a batch, and what is added to them."""
    return _added(call, bmm(call._replace(arguments=call.arguments[1:3])))


def _added(call: Call, inner: Amount | None) -> Amount | None:
    """Return the work of a product of the second and third argument that is added to the first."""
    if inner is None or inner.elements is None:
        return None
    return inner._replace(elements=inner.elements + elements(call.arguments[0]))


def linear(call: Call) -> Amount | None:
    """A product of rows with a transposed weight, and a bias."""
    left, weight, *bias = call.tensors
    if len(weight) > 2 or left[-1] != weight[-1]:
        return None
    features = weight[0] if len(weight) == 2 else 1
    return product(1, prod(left[:-1]), left[-1], features, added=elements(bias[:1]))


def matmul(call: Call) -> Amount | None:
    """A product of tensors of any dimensions."""
    one, other = call.tensors[:2]
    left = one if len(one) > 1 else (1, *one)
    right = other if len(other) > 1 else (*other, 1)
    batch = broadcast([left[:-2], right[:-2]])
    if batch is None or left[-1] != right[-2]:
        return None
    out = prod(batch) * left[-2] * right[-1]
    return call.amount(2 * out * left[-1], elements([one, other]) + out)


def convolved(images: Shape, weight: Shape, out: Shape) -> Amount:
    """Return the work of a convolution; of a transposed one with its input and output exchanged."""
    positions = out[0] * prod(out[2:])
    return Amount("convolution", 2 * positions * prod(weight), elements([images, weight, out]))


def transposed(images: Shape, weight: Shape, out: Shape | None = None) -> bool:
    """Say whether shapes are those of a transposed convolution.

    Channels tell; where they fit both ways it is one if the output is larger than the input.
    """
    width = max(weight[1], 1)
    plain = images[1] % width == 0 and (out is None or out[1] == weight[0])
    turned = images[1] == weight[0] and (out is None or out[1] % width == 0)
    if plain and turned and out is not None:
        return any(size > before for size, before in zip(out[2:], images[2:], strict=True))
    return turned and not plain


def convolution(call: Call) -> Amount | None:
    """A convolution, transposed or not; of one that is not the output is needed."""
    images, weight = call.tensors[:2]
    if not len(images) == len(weight) >= 3:
        return None
    fits = call.hint if call.hint is not None and len(call.hint) == len(images) else None
    if transposed(images, weight, fits):
        return conv_transpose(call._replace(hint=fits))
    return None if fits is None else convolved(images, weight, fits)


def conv_transpose(call: Call) -> Amount | None:
    """A transposed convolution."""
    images, weight = call.tensors[:2]
    if not len(images) == len(weight) >= 3:
        return None
    flop = 2 * images[0] * prod(images[2:]) * prod(weight)
    moved = None if call.hint is None else elements([images, weight, call.hint])
    return call.amount(flop, moved)


def convolution_backward(call: Call) -> Amount | None:
    """Both gradients; a layer whose input needs none does half, which shapes do not tell."""
    gradient, images, weight = call.tensors[:3]
    if not len(gradient) == len(images) == len(weight) >= 3:
        return None
    if transposed(images, weight, gradient):
        gradient, images = images, gradient
    one = convolved(images, weight, gradient)
    return call.amount(2 * (one.flop or 0), 2 * (one.elements or 0))


def convolution_backward_old(call: Call) -> Amount | None:
    """Both gradients, with the arguments as they came until torch 1.10."""
    images, gradient, weight = call.tensors[:3]  # until torch 1.10
    return convolution_backward(call._replace(arguments=[gradient, images, weight]))


def gradient_of_images(call: Call) -> Amount | None:
    """The gradient of a convolution's input."""
    gradient, weight = call.tensors[:2]  # behind the input's size, which is no tensor
    if len(gradient) != len(weight) or gradient[1] != weight[0]:
        return None
    flop = 2 * gradient[0] * prod(gradient[2:]) * prod(weight)
    return call.amount(flop, 2 * elements(gradient) + elements(weight))


def gradient_of_weight(call: Call) -> Amount | None:
    """The gradient of a convolution's weight."""
    gradient, images = call.tensors[
        :2
    ]  # behind the weight's size, which is no tensor: it comes as the hint
    return None if call.hint is None else convolved(images, call.hint, gradient)


def attention(q: Shape, k: Shape, v: Shape, *, backward: bool) -> Amount | None:
    """Return the work of attention on (batch, heads, length, width) queries, keys and values."""
    if not len(q) == len(k) == len(v) == 4 or k[2] != v[2]:
        return None
    scores = q[0] * q[1] * q[2] * k[2]
    width = 3 * q[3] + 2 * v[3] if backward else q[3] + v[3]
    out = q[0] * q[1] * q[2] * v[3]
    moved = elements([q, k, v]) + out
    sizes = (q[0], q[2], q[1], k[1], q[3]) if q[2] == k[2] else ()
    return Amount("attention", 2 * scores * width, 2 * moved if backward else moved, sizes=sizes)


def attend(call: Call) -> Amount | None:
    """Attention in one call, forward or backward."""
    backward = call.op.name.endswith("_backward")
    found = call.tensors[1:4] if backward else call.tensors[:3]
    if any(len(shape) != 4 for shape in found):
        return None  # packed sequences of unequal length: their lengths are not recorded
    if call.op.name.startswith(
        ("_flash_attention", "_efficient_attention")
    ):  # lengths come before heads
        found = [(b, h, s, d) for b, s, h, d in found]
    q, k, v = found
    return attention(q, k, v, backward=backward)


def recurrent(call: Call) -> Amount | None:
    """Every weight matrix once a step, backward twice."""
    first = call.tensors[0]
    passes = call.op.flop
    if len(first) != 3:
        return None
    steps = first[0] * first[1]  # time steps x batch, in either order
    listed = [shape for part in call.lists for shape in part]
    weights = [shape for shape in listed or call.tensors[1:3] if len(shape) == 2]
    parameters = sum(map(prod, weights))
    moved = passes * (steps * (first[2] + weights[0][0]) + parameters)
    return call.amount(passes * 2 * steps * parameters, moved)


def grouped(call: Call) -> Amount | None:
    """Rows that belong to groups by 3-d weights, or both operands in groups along what is summed."""
    left, right, *others = call.tensors
    if left[-1] != right[-2]:
        return None
    m = left[-2]
    k = left[-1]
    n = right[-1]
    if len(left) == len(right) == 3:
        return product(left[0], m, k, n)._replace(sizes=(left[0] * m, k, n, 1, left[0]))
    groups = 1
    sizes = (m, k, n, 1, right[0]) if len(right) == 3 else ()
    if len(left) == len(right) == 2:  # the sum is cut into groups, each with a result of its own
        ends = [shape for shape in others if len(shape) == 1]
        groups = ends[-1][0] if ends else 1
        sizes = (k, m, n, 1, groups)
    moved = prod(left) + prod(right) + groups * m * n
    return Amount("matmul", 2 * m * k * n, moved, sizes=sizes)


def experts(call: Call) -> Amount | None:
    """Two products for each token and expert that it is routed to; only weights that are used are read."""
    weights = [shape for shape in call.tensors if len(shape) == 3]
    rows = [shape for shape in call.tensors if len(shape) == 2]
    (tokens, hidden), (number, wide, into), (_, out, inner) = rows[0], *weights[:2]
    chosen = [shape[1] for shape in rows[1:] if shape[0] == tokens and shape[1] <= number]
    if into != hidden or out != hidden or not chosen:
        return None
    routed = tokens * min(chosen)
    used = min(number, routed) * (wide * hidden + out * inner)
    moved = used + 2 * tokens * hidden + routed * wide
    sizes = tokens, hidden, inner, min(chosen), number
    return Amount("matmul", 2 * routed * hidden * (wide + inner), moved, sizes=sizes)


def library_product(call: Call) -> Amount | None:
    """A product of a library's own."""
    found = [shape for shape in call.tensors if len(shape) == 2]
    for first in range(min(len(found) - 1, 2)):  # the result may stand before the operands
        (m, k), (one, other) = found[first], found[first + 1]
        result = found[0] if first else None
        for inner, n in ((one, other), (other, one)):
            if k == inner and (result is None or result == (m, n)):
                return product(1, m, k, n)
    return None


def embedding(call: Call) -> Amount:
    """A row of the weight is read and written for each index."""
    weight, index = call.tensors[:2]
    rows = elements(index)
    width = elements(weight) // max(weight[0], 1)
    return call.amount(0, 2 * rows * width, rows * INDEX_BYTES)


def embedding_bag(call: Call) -> Amount:
    """Rows are read and added up; a row a bag is written."""
    weight, index, ends = call.tensors[:3]
    rows = elements(index)
    bags = elements(ends)
    width = elements(weight) // max(weight[0], 1)
    return call.amount(rows * width, (rows + bags) * width, (rows + bags) * INDEX_BYTES)


@cache
def _sizes() -> dict[str, list[list[float]]]:
    """Return the rows of `sizes.tsv`: place of a tensor; FLOP, elements and bytes of others for each element."""
    found: dict[str, list[list[float]]] = {}
    lines = Path(__file__).parents[1].joinpath("sizes.tsv").read_text("utf-8").splitlines()
    for name, *numbers in (line.split("\t") for line in lines[1:]):
        found.setdefault(name, []).append([*map(float, numbers)])
    return found


def sized(call: Call) -> Amount:
    """What goes with the sizes of some tensors."""
    total = [0, 0, 0]
    for place, *each in _sizes()[call.op.formula]:
        size = elements(call.tensors[int(place)])
        total = [round(old + one * size) for old, one in zip(total, each, strict=True)]
    return call.amount(*total)


def pooling(call: Call) -> Amount:
    """Windows of the input, as many as the output is large."""
    read = call.tensors[0]
    written = elements(call.hint) if call.hint is not None and len(call.hint) == len(read) else 0
    return call.amount(elements(read), elements(read) + written)


def max_pooling(call: Call) -> Amount:
    """Writes where each maximum was, too."""
    pooled = pooling(call)
    written = (pooled.elements or 0) - elements(call.tensors[0])
    return pooled._replace(extra_bytes=written * INDEX_BYTES)


def pooling_backward(call: Call) -> Amount:
    """The gradient of each window's elements."""
    gradient, images, *index = call.tensors
    return call.amount(
        elements(images), elements([gradient, images]), elements(index[:1]) * INDEX_BYTES
    )


def element_wise(call: Call) -> Amount:
    """Reads so many tensors; a further shape is an output handed in."""
    read, written = _read(call, call.op.reads)
    return call.amount(call.op.flop * written, read + written)


def where(call: Call) -> Amount:
    """One of two tensors by a mask, which stands first."""
    return _masked(call, 3, 0)


def masked_fill(call: Call) -> Amount:
    """A tensor where a mask leaves it as it is."""
    return _masked(call, 2, 1)


def _masked(call: Call, reads: int, mask: int) -> Amount:
    """Reads so many arguments, one of them a mask."""
    read, written = _read(call, reads)
    masks = elements(call.arguments[mask])
    return call.amount(written, read - masks + written, masks * MASK_BYTES)


def comparison(call: Call) -> Amount:
    """A mask of one byte an element."""
    read, written = _read(call, 2)
    return call.amount(written, read, written * MASK_BYTES)


def _read(call: Call, reads: int) -> tuple[int, int]:
    """Return the elements of the tensors among the first arguments, and of what they broadcast to."""
    read = call._replace(arguments=call.arguments[:reads]).tensors
    out = broadcast(read)
    if not read or out is None:
        raise ValueError("no shapes that fit each other")
    return elements(read), elements(out)


def elu_backward(call: Call) -> Amount:
    """A gradient and the result; three numbers stand between the tensors."""
    read, written = _read(call._replace(arguments=[*call.tensors]), 2)
    return call.amount(written, read + written)


def glu(call: Call) -> Amount:
    """One half times the sigmoid of the other."""
    half = elements(call.tensors[0]) // 2
    return call.amount(2 * half, 3 * half)


def normalization(call: Call) -> Amount:
    """Tensors of the input's size are read and written, and the parameters once.

    Mean 1 FLOP, variance 3, normalize 2, scale and shift 2; backward two sums of products (4), the gradient
    of the input (6) and those of the parameters (4).
    """
    first, *others = call.tensors
    size = elements(first)
    small = sum(elements(shape) for shape in others if elements(shape) < size)
    return call.amount(call.op.flop * size, (call.op.reads + call.op.writes) * size + small)


def softmax(call: Call) -> Amount:
    """Maximum, difference, exponential, sum, quotient; backward product, sum, difference, product."""
    size = elements(call.tensors[0])
    return call.amount(call.op.flop * size, (call.op.reads + call.op.writes) * size)


def nll_backward(call: Call) -> Amount:
    """A gradient as large as the scores."""
    found = call.tensors
    scores, target = found if len(found) == 2 else sorted(found, key=elements)[-1:-3:-1]
    return call.amount(elements(target), elements(scores), elements(target) * INDEX_BYTES)


def copy(call: Call) -> Amount:
    """Both sides at the call's element type: a cast's other type is not recorded."""
    to, *source = call.tensors
    return call.amount(0, elements((source or [to])[0]) + elements(to))


def concatenate(call: Call) -> Amount:
    """Each tensor of the first list is read and written."""
    parts = call.lists[0]
    return call.amount(0, 2 * elements(parts), tensors=len(parts))


def list_update(call: Call) -> Amount:
    """An operator on lists of tensors reads every list and writes some of the first one's size."""
    first = call.lists[0]
    size = elements(first)
    read = sum(map(elements, call.lists))
    return call.amount(call.op.flop * size, read + call.op.writes * size, tensors=len(first))


def fused_optimizer(call: Call) -> Amount:
    """The first lists (parameters, gradients, state) are read, all but the gradients written.

    Adam: two moments (3 + 4 FLOP), denominator (3), update (2); parameters, gradients and both moments, with
    `amsgrad` the largest second moments, too.
    """
    first, _, *_ = call.lists
    used = [part for part in call.lists[: call.op.reads] if elements(part)]
    size = elements(first)
    moved = sum(map(elements, used)) + (len(used) - 1) * size
    return call.amount(call.op.flop * size, moved, tensors=len(first))


def compiled(call: Call) -> Amount:
    """A fused kernel reads or writes each buffer it is given; its arithmetic is not recorded."""
    _, *_ = call.tensors
    return call.amount(None, elements(call.tensors))
