"""The blocks of a model, from what ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from daydream.errors import NotApplicableError
from daydream.world.compose import Block, Exchange, Pass

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
        last = len(self.names) - 1
        found[: known[0]] = last if back else 0
        found[known[-1] + 1 :] = 0 if back else last
        return found

    def add_parameter(self, path: str, elements: float) -> None:
        """Count a parameter; what no block has is of the place after once a block had one."""
        place = self.number(path) + 1 or -int(self.elements[1:-1].any())
        self.elements[place, int(EXPERTS in path)] += elements

    def blocks(self, times: int = 1) -> tuple[Block, ...]:
        """Return the blocks; times and exchanges are of so many micro-batches."""

        def one_pass(place: int, back: int) -> Pass:
            seen = self.exchanges[place, back].items()
            exchanges = [replace(one, count=round(count / times)) for one, count in seen]
            gpu_ns, cpu_ns = (self.ns[place, back] / times).tolist()
            return Pass(gpu_ns, cpu_ns, tuple(exchanges))

        last = len(self.names) - 1
        columns = self.elements, self.inputs, self.saved, self.workspace
        sizes = np.column_stack(columns).tolist()
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
