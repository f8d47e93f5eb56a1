"""What is read of an exported program: its calls of operators, where they came from, and their bytes."""

from __future__ import annotations

import math

import msgspec

from daydream.trace.valid import LARGEST_AMOUNT

ITEM_BYTES = (None, 1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 2, 2, 1, 1)
"""Of an element, by the number that torch.export gives its type: unknown, byte, char, short, int, ..."""


class _Named(msgspec.Struct):
    name: str = ""


class _Argument(msgspec.Struct):
    """What a node reads or writes, as far as it is tensors."""

    as_tensor: _Named | None = None
    as_tensors: list[_Named] | None = None

    @property
    def names(self) -> list[str]:
        return [one.name for one in [*(self.as_tensors or []), *([self.as_tensor] if self.as_tensor else [])]]


class _Input(msgspec.Struct):
    arg: _Argument


class Node(msgspec.Struct):
    """A call of an operator, and what was noted of it."""

    target: str
    noted: dict[str, str] = msgspec.field(name="metadata", default_factory=dict)
    inputs: list[_Input] = []
    outputs: list[_Argument] = []


class _Size(msgspec.Struct):
    as_int: int | None = None


class _Tensor(msgspec.Struct):
    dtype: int
    sizes: list[_Size]

    @property
    def bytes(self) -> int | None:
        """How many bytes it has, None where a size or the type is not known."""
        sizes = [one.as_int for one in self.sizes]
        known = [size for size in sizes if size is not None and size >= 0]
        item = ITEM_BYTES[self.dtype] if 0 <= self.dtype < len(ITEM_BYTES) else None
        if item is None or len(known) < len(sizes):
            return None
        nbytes = math.prod(known) * item
        return nbytes if nbytes <= LARGEST_AMOUNT else None


class Graph(msgspec.Struct):
    """The calls in their order, and the sizes of the tensors between them."""

    nodes: list[Node]
    tensor_values: dict[str, _Tensor] = {}

    def moved_bytes(self, node: Node) -> int:
        """Return the bytes of what a node reads and writes, 0 where those of one tensor are not known."""
        arguments = [*(each.arg for each in node.inputs), *node.outputs]
        names = dict.fromkeys(name for each in arguments for name in each.names)
        tensors = [self.tensor_values.get(name) for name in names]
        found = [None if each is None else each.bytes for each in tensors]
        return 0 if None in found else sum(each for each in found if each is not None)


class _Module(msgspec.Struct):
    graph: Graph


class Program(msgspec.Struct):
    """A program as torch.export writes it; fields that are not named here are passed over."""

    graph_module: _Module
