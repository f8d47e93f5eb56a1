"""Copies that optimizations were made in: pairs go on from them, and two of the same copy are one change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from daydream.graph.alike import same
from daydream.predict.notes import preference

if TYPE_CHECKING:
    from daydream.graph.graph import Graph
    from daydream.predict.prediction import Prediction
    from daydream.predict.ranking import Ranked
    from daydream.transforms.registry import Optimization


@dataclass(frozen=True, eq=False)
class Edited:
    """An optimization, what it gives, and each graph with the copy that it was made in."""

    optimization: Optimization
    ranked: Ranked
    made: list[tuple[Graph, Graph]]

    def copy_of(self, asked: Graph) -> Graph | None:
        """Return the changed copy of a graph, None if there is none."""
        return next((graph for old, graph in self.made if old is asked), None)


@dataclass
class Copies:
    """The copies of the best so far, by the name of their optimization.

    `stand_ins` are the names of answers that are another one's: of the same change, see `twin_of`.
    """

    by_name: dict[str, Edited] = field(default_factory=dict)
    stand_ins: set[str] = field(default_factory=set)

    def add(self, optimization: Optimization, ranked: Ranked, comparison: Prediction) -> None:
        """Keep the copies of the recorded step and of the one as run."""
        made = [(each.replay.graph, each.graph) for each in (comparison, comparison.as_run)]
        for _, graph in made:
            graph.touch()  # what was derived from it takes more room than the graph
        self.by_name[optimization.name] = Edited(optimization, ranked, made)

    def keep(self, names: Collection[str]) -> None:
        """Forget all copies but these."""
        self.by_name = {name: edited for name, edited in self.by_name.items() if name in names}

    def twin_of(self, optimization: Optimization, before: Graph, after: Graph) -> Ranked | None:
        """Return the answer of one that excludes this optimization, changed the graph alike and is preferred.

        It has the same step, edits and notes, so a ranking leaves this one out: it need not be simulated.
        Where memory is recorded what they do to that may differ.
        """
        if before.trace is not None and before.trace.memory is not None:
            return None
        for name, edited in self.by_name.items():
            other, copy = edited.optimization, edited.copy_of(before)
            if name not in optimization.excludes and optimization.name not in other.excludes:
                continue
            notes = edited.ranked.notes
            preferred = preference(notes, name) < preference(notes, optimization.name)
            if preferred and copy is not None and same(copy, after):
                self.stand_ins.add(optimization.name)
                return replace(edited.ranked, name=optimization.name)
        return None
