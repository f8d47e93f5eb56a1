"""The blocks of a model, from what ran: calls of an emulated GPU, or tasks of a recording."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from daydream.costs.network.nccl import bytes_of_message
from daydream.errors import NotApplicableError
from daydream.world.compose import Block, Exchange, Pass

if TYPE_CHECKING:
    from torch import nn

    from daydream.world.emulate import Emulation
    from daydream.world.process_group import Asked

TOGETHER = " + "  # between the modules of one block, as in `daydream.model.blocks`
EXPERTS = "experts"  # in the name of a parameter that ranks of experts do not share


class Parts:
    """What each block takes and holds, added up pass by pass, then `blocks`.

    Places are 0 for what runs before the blocks, 1 to n for them, n + 1 for what runs after them.

    Attributes:
        number: gives the number of the block that a module is in, from 0, -1 for none.
        ns: by place, pass (0 forward, 1 backward) and GPU or CPU.
        elements: of parameters by place, and of experts' ones.
        inputs: bytes of what each place gets, float64; likewise what it saves and its workspace.
        exchanges: by place and pass, how often each was seen.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = ["before", *names, "after"]
        paths = [(path, at) for at, name in enumerate(names) for path in name.split(TOGETHER)]

        @cache
        def number(path: str | None) -> int:
            inside = (at for outer, at in paths if f"{path}.".startswith(f"{outer}."))
            return next(inside, -1)

        self.number = number
        count = len(self.names)
        self.ns = np.zeros((count, 2, 2))
        self.elements = np.zeros((count, 2))
        self.inputs, self.saved, self.workspace = np.zeros((3, count))
        self._where = 0, 1
        self._start = self._most = self._now = 0  # held since it began to be there
        self.exchanges: dict[tuple[int, int], Counter[Exchange]] = defaultdict(Counter)

    def places(self, layers: Iterable[str | None], back: int) -> np.ndarray:
        """Return the places of what a pass ran, in order: what no block called goes with the block before.

        Args:
            layers: path of the module that called each, None for none.
            back: 0 for a forward pass, 1 for a backward pass.

        Returns:
            int64, shape (n,).

        Raises:
            NotApplicableError: no block is in it.
        """
        number = np.array([*map(self.number, layers)])
        known = np.flatnonzero(number >= 0)
        if not len(known):
            raise NotApplicableError(
                "a step has no forward and backward pass through its blocks; plans are for training"
            )
        before = np.searchsorted(known, np.arange(len(number)), side="right") - 1
        found = number[known[before.clip(0)]] + 1
        ends = 0, len(self.names) - 1
        found[: known[0]], found[known[-1] + 1 :] = ends[::-1] if back else ends
        return found

    def add_parameter(self, path: str, elements: float) -> None:
        """Count a parameter; what no block has is of the place after once a block had one."""
        place = self.number(path) + 1 or -int(self.elements[1:-1].any())
        self.elements[place, int(EXPERTS in path)] += elements

    def hold(self, where: tuple[int, int], nbytes: int) -> None:
        """Take in the next that a place and pass allocates, or with negative bytes frees; of one micro-batch."""
        if where != self._where:
            before, was_back = self._where
            base = self._start if was_back else max(self._start, self._now)
            self.workspace[before] = max(self.workspace[before], self._most - base)
            self.saved[before] += 0 if was_back else self._now - self._start
            self._where = where
            self._start = self._most = self._now
        self._now += nbytes
        self._most = max(self._most, self._now)

    def blocks(self, times: int = 1) -> tuple[Block, ...]:
        """Return the blocks; times and exchanges are of so many micro-batches."""

        def one_pass(place: int, back: int) -> Pass:
            seen = self.exchanges[place, back].items()
            exchanges = [replace(one, count=round(count / times)) for one, count in seen]
            gpu_ns, cpu_ns = (self.ns[place, back] / times).tolist()
            return Pass(gpu_ns, cpu_ns, tuple(exchanges))

        last = len(self.names) - 1
        sizes = np.column_stack([self.elements, self.inputs, self.saved, self.workspace]).tolist()
        return tuple(
            Block(  # type: ignore[misc] # is_layer is the last
                name,
                one_pass(place, 0),
                one_pass(place, 1),
                *sizes[place],
                is_layer=0 < place < last,
            )
            for place, name in enumerate(self.names)
        )


def recorded_blocks(
    gpu: Emulation,
    model: nn.Module,
    run: Callable[[], Any],
    layers: Sequence[str],
    launch_ns: float,
    groups: Mapping[str, tuple[str, int]],
) -> tuple[Block, ...]:
    """Return a block for each layer, one for what runs before them and one for what runs after them.

    Args:
        gpu: the emulated GPU.
        model: on it, with gradients.
        run: a forward and a backward pass over one micro-batch.
        layers: paths of the modules that are blocks, in their order.
        launch_ns: what the thread takes for an operator with a kernel.
        groups: dimension (`tp`, `cp`, `ep`) and size of each process group, by name; others are left out.
    """
    from daydream.world.emulate import observed
    from daydream.world.emulate_costs import kernels_of
    from daydream.world.process_group import ASKED, HEARD, WAITED

    heard: list[tuple[int, int, Asked]] = []  # call that follows, number of the collective
    waits: dict[int, int] = {}  # number of the collective: call that follows the wait
    parts = Parts(layers)

    @contextmanager
    def hear(asked: Asked) -> Iterator[None]:
        heard.append((len(gpu.calls), len(ASKED) - 1, asked))
        gpu.inside = True  # what moves values in this process moves none on a GPU
        try:
            yield
        finally:
            gpu.inside = False

    def wait(number: int) -> None:
        waits.setdefault(number, len(gpu.calls))

    def enter(place: int, _: nn.Module, given: Any) -> None:
        parts.inputs[place] = sum(getattr(one, "nbytes", 0) for one in given)

    hooks = [
        model.get_submodule(path).register_forward_pre_hook(partial(enter, place))
        for place, path in enumerate(layers, 1)
    ]
    HEARD.append(hear)
    WAITED.append(wait)
    try:
        calls = observed(gpu, run, model)
    finally:
        HEARD.remove(hear)
        WAITED.remove(wait)
        for hook in hooks:
            hook.remove()
    took = [sum(one.duration_ns for one in kernels_of(call, gpu.device)) for call in calls]
    backward = [int(call.phase == "backward") for call in calls]
    place = np.zeros(len(calls), int)
    for back in (0, 1):
        mine = np.flatnonzero(np.equal(backward, back))
        place[mine] = parts.places([calls[at].layer for at in mine.tolist()], back)
    ran = [*zip(place.tolist(), backward, strict=True)]
    for where, own_ns in zip(ran, took, strict=True):
        parts.ns[where] += own_ns, launch_ns * (own_ns > 0)
    for at, sent, asked in heard:
        if asked.group in groups:
            group, members = groups[asked.group]
            size = bytes_of_message(asked.operation, asked.bytes, members)
            beside = sum(took[at : waits.get(sent, at)])
            one = Exchange(group, asked.operation, size, 1, beside)
            parts.exchanges[ran[max(at - 1, 0)]][one] += 1
    for at, nbytes, _ in gpu.memory:  # what is freed before a call is freed by the one before
        which = min(max(at - (nbytes < 0), 0), len(calls) - 1)
        parts.hold(ran[which], nbytes)
    parts.hold((0, -1), 0)
    for name, parameter in model.named_parameters():
        parts.add_parameter(name, parameter.numel())
    return parts.blocks()
