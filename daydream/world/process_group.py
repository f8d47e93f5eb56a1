"""A process group that answers at once, with what this rank has, and notes what it was asked for.

Values: an all-reduce and a broadcast leave a tensor as it is; an all-gather gives copies of this rank's part; a
reduce-scatter, a scatter and an all-to-all give parts of what this rank put in; what is received is zero.
Each call and each wait is a range of the profiler, with the number of its collective in the name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partialmethod
from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch import distributed as dist
from torch.autograd import _enable_record_function
from torch.futures import Future
from torch.utils._pytree import tree_leaves

from daydream.world import Refused

CALL, WAIT = "fake:{} {}", "fake:wait {}"  # with the number of the collective
NO_TENSOR = torch.empty(0, dtype=torch.uint8)


class Asked(Struct):
    """One collective that the script asked for.

    Attributes:
        collective: `all_reduce`, `all_gather`, `send`, ...
        bytes: that this rank puts in; of a `recv` and a `scatter` that it gets.
        elements: likewise.
        dtype: of the elements: `float32`.
        group: name of the group.
        peer: the other rank of a message, or the root, in the whole world; -1 for none.
        asynchronous: whether the script goes on without a wait.
    """

    collective: str
    bytes: int
    elements: int
    dtype: str
    group: str
    peer: int = -1
    asynchronous: bool = False


ASKED: list[Asked] = []  # by their numbers, since the script began
GROUPS: dict[str, tuple[list[int], str]] = {}  # name: ranks in the whole world, description


def move(asked: Asked, pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Move the values of a collective: copy second tensors of the pairs into first ones."""
    del asked  # for who puts another function here
    _enable_record_function(False)
    try:
        for to, of in pairs:
            to.copy_(of)
    finally:
        _enable_record_function(True)


class Done(dist.Work):
    """A collective that is over; a wait for it is noted."""

    def __init__(self, number: int, result: Any, source: int) -> None:
        super().__init__()
        self._number = number
        self._result = result
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Note the wait."""
        del timeout
        with torch.profiler.record_function(WAIT.format(self._number)):
            return True

    synchronize = wait

    def get_future(self) -> Future[Any]:
        """Return a future that is done. Who takes it in a backward pass (DDP) waits at the pass's end."""
        future: Future[Any] = Future()
        future.set_result(self._result)
        if torch._C._current_graph_task_id() >= 0:
            torch.autograd.Variable._execution_engine.queue_callback(self.wait)
        return future

    def is_completed(self) -> bool:
        """Return that it is over."""
        return True

    is_success = is_completed

    def result(self) -> Any:
        """Return the tensors."""
        return self._result

    def _source_rank(self) -> int:
        return self._source


def _copies(group: FakeGroup, to: Any, of: Tensor) -> list[Any]:
    """Return pairs that give copies of this rank's tensor."""
    if isinstance(to, list):
        return [(one, of) for one in to]
    parts = group._parts(to)
    return [(parts, of.reshape(1, -1).expand_as(parts))]  # of which it may be a part


def _part(group: FakeGroup, to: Tensor, of: Any) -> list[Any]:
    """Return a pair that gives this rank's part of what it put in; a root alone has put in some."""
    parts = group._parts(of) if isinstance(of, Tensor) else of
    return [(to.view(-1), parts[group._rank].reshape(-1))] if len(parts) else []


def _back(_: FakeGroup, to: Tensor, of: Tensor) -> list[Any]:
    """Return pairs that give back what this rank put in, as much of it as is expected; zeros behind it."""
    kept = min(to.numel(), of.numel())
    rest = to.view(-1)[kept:]
    return [(to.view(-1)[:kept], of.reshape(-1)[:kept]), (rest, rest.new_zeros(()))]


class FakeGroup(dist.ProcessGroup):
    """One rank's end of a process group whose other ranks do not exist."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._name = self._description = ""
        self._sent = 1  # the last single number

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return what torch calls this backend."""
        return "fake_world"

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return the name that torch gave the group."""
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return what torch says of the group: `mesh_tp`."""
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    group_name = pg_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def _get_backend(self, _: torch.device) -> FakeGroup:
        return self

    def _divides(self, count: int) -> None:
        if count % self._size:
            raise Refused(
                f"{count:,} elements do not divide among the {self._size:,} ranks of group "
                f"{self._description or self._name}: pad them, or record a world of another size"
            )

    def _parts(self, tensor: Tensor) -> Tensor:
        """Return a tensor with a row for each rank; end the script where its elements do not divide."""
        self._divides(tensor.numel())
        return tensor.reshape(self._size, -1)

    def _answer(
        self,
        operation: str,
        put_in: Sequence[Tensor],
        options: Any = None,
        pairs: Sequence[tuple[Tensor, Tensor]] = (),
        *,
        peer: int = -1,
        result: Any = None,
    ) -> Done:
        """Note a collective, copy second tensors of the pairs into first ones, and return that it is over."""
        if torch.version.cuda and any(tensor.is_cuda for tensor in put_in):
            raise Refused(
                "a fake world is recorded on the CPU; hide the GPU (CUDA_VISIBLE_DEVICES=)"
            )
        peer = getattr(options, "rootRank", peer)
        ranks = dist.get_process_group_ranks(self)
        GROUPS[self._name] = ranks, self._description
        asked = Asked(
            operation,
            sum(tensor.nbytes for tensor in put_in),
            sum(tensor.numel() for tensor in put_in),
            str(put_in[0].dtype).removeprefix("torch.") if put_in else "",
            self._name,
            ranks[peer] if peer >= 0 else -1,
            bool(getattr(options, "asyncOp", peer >= 0)),
        )
        number = len(ASKED)
        ASKED.append(asked)
        with torch.profiler.record_function(CALL.format(operation, number)), torch.no_grad():
            move(asked, pairs)
        return Done(number, result if result is not None else list(put_in), peer)

    def _moved(
        self,
        operation: str,
        pairs_of: Callable[..., Any],
        outputs: Any,
        put_in: Any,
        options: Any = None,
    ) -> Done:
        """Answer a collective of outputs and inputs, one or a list.

        `pairs_of` gives, of the group, an output and its input, which tensors become a copy of which.
        """
        if isinstance(outputs, Tensor):
            outputs, put_in = [outputs], [put_in]
        both = zip(outputs, put_in, strict=False)  # who is not the root has an end alone
        pairs = [pair for to, of in both for pair in pairs_of(self, to, of)]
        noted = tree_leaves(outputs if operation == "scatter" else put_in)
        return self._answer(operation, noted, options, pairs, result=outputs)

    allreduce = allreduce_coalesced = partialmethod(_answer, "all_reduce")
    broadcast = partialmethod(_answer, "broadcast")
    reduce = partialmethod(_answer, "reduce")
    allgather = all_gather_single_coalesced = partialmethod(_moved, "all_gather", _copies)
    all_gather_single = _allgather_base = allgather_into_tensor_coalesced = allgather
    reduce_scatter = reduce_scatter_single_coalesced = partialmethod(
        _moved, "reduce_scatter", _part
    )
    reduce_scatter_single = _reduce_scatter_base = reduce_scatter_tensor_coalesced = reduce_scatter
    alltoall = partialmethod(_moved, "all_to_all", _back)
    gather = partialmethod(_moved, "gather", _copies)
    scatter = partialmethod(_moved, "scatter", _part)

    def barrier(self, opts: Any = None) -> Done:
        """Go on."""
        return self._answer("barrier", [], opts)

    def all_to_all_single(
        self, output: Tensor, put_in: Tensor, _: Any, sizes: list[int], options: Any = None
    ) -> Done:
        """Give back what this rank put in."""
        if not sizes:
            self._divides(len(put_in))
        return self.alltoall(output, put_in, options)

    alltoall_base = all_to_all_single

    def send(self, tensors: list[Tensor], to: int, _: int) -> Done:
        """Send nothing."""
        if tensors[0].numel() == 1:
            self._sent = int(tensors[0])
        return self._answer("send", tensors, peer=to)

    def recv(self, tensors: list[Tensor], source: int, _: int) -> Done:
        """Receive zeros; of one whole number what this rank sent last, or one: stages of a pipeline vote so."""
        pairs = []
        for to in tensors:
            vote = to.numel() == 1 and not to.is_floating_point()
            pairs.append((to, to.new_full((), self._sent if vote else 0)))
        return self._answer("recv", tensors, None, pairs, peer=source)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> Done:
        """Receive from the next rank."""
        return self.recv(tensors, (self._rank + 1) % self._size, tag)
