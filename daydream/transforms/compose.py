"""Several optimizations at once: `amp+fused-adam`.

They are applied by stage (`daydream.transforms.stages`) and within a stage by name, so
the order of naming does not matter; those without a stage come last, in the order given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from daydream.costs.device.measured import KernelTable, give_table
from daydream.errors import GraphError, NoMatchError, NotApplicableError
from daydream.graph.graph import Graph
from daydream.memory.prediction import MemoryChange
from daydream.trace.recorded_steps import shared_already
from daydream.transforms.registry import Optimization, Option, Options, describe, find
from daydream.transforms.stages import OWN, PARALLEL

MOST_TASKS = 5_000_000  # more than fifty times a long trace; about 3 GB while it is simulated


@dataclass(frozen=True)
class Edit:
    """A change of a graph, with its name: `make` is called with a copy of the graph, and changes that copy.

    The call returns the options that were used, if the change has any. `memory` gives what it does to
    memory; an edit without it does not say. `optimizations` are what it applies, if that is what it does.
    `after` is an edit that made the first of these; this one goes on from its copies. `copies` are the
    changed copies of graphs by the graph's version.
    """

    name: str
    make: Callable[..., Options | None]
    memory: Callable[[], Sequence[MemoryChange]] | None = None
    optimizations: Sequence[Optimization] = ()
    after: Edit | None = None
    copies: dict[int, Graph] = field(default_factory=dict)

    def in_copy(self, graph: Graph) -> tuple[Graph, Options]:
        """Return a copy of this graph that was changed, and the options used."""
        after = self.after if graph.times is None else None  # of a table, a note counts all
        if after is None or graph.version not in after.copies:
            copy = graph.copy()
            options = self.make(copy)
        else:
            copy = after.copies[graph.version].copy()
            options = self.make(copy, begun=len(after.optimizations))
        self.copies[graph.version] = copy.copy()
        return copy, options or {}


def edit_of(
    optimizations: Sequence[Optimization],
    options: Options | None = None,
    table: KernelTable | None = None,
    *,
    after: Edit | None = None,
) -> Edit:
    """Return the edit that applies optimizations with these options; `table` holds measured times.

    `after` is an edit with the same options: this one goes on from its copies where the optimizations of
    that one are the first that it applies.
    """
    chosen = options or {}

    def make(graph: Graph, begun: int = 0) -> Options:
        give_table(graph, table)
        return apply(optimizations, graph, chosen, begun=begun)

    made = [] if after is None else in_order(after.optimizations)
    if in_order(optimizations)[: len(made)] != made:
        after = None
    memory = partial(memory_changes, optimizations, chosen)
    return Edit(spelled(optimizations), make, memory, optimizations, after)


def parse(spec: str | Optimization | Callable[..., None] | Sequence[Any]) -> list[Optimization]:
    """Return the optimizations of `"a+b"`, of a function, or of a sequence of either, as named.

    Raises `GraphError` for an empty part, a name given twice, and two that exclude each other.
    """
    found = _parsed(spec)
    check(found)
    return found


def _parsed(spec: Any) -> list[Optimization]:
    if isinstance(spec, Optimization):
        return [spec]
    if isinstance(spec, str):
        return [find(part) for part in parts(spec)]
    if callable(spec):
        return [describe(spec)]
    if not isinstance(spec, Sequence) or not spec:
        raise GraphError(f"an optimization is a name, a function, or a list of them, not {spec!r}")
    return [optimization for part in spec for optimization in _parsed(part)]


def parts(spec: str) -> list[str]:
    """Return the names in `"a+b"`. Raises `GraphError` if one is empty."""
    if Path(spec).is_file():  # a path may contain a plus sign
        return [spec]
    names = [part.strip() for part in spec.split("+")]
    if not all(names):
        what = f"{spec!r} has an empty part" if any(names) else f"{spec!r} names nothing"
        raise GraphError(f"{what}; name optimizations joined by +, such as amp or amp+fused-adam")
    return names


def check(optimizations: Sequence[Optimization]) -> None:
    """Raise `GraphError` if one is there twice, or two exclude each other."""
    for place, one in enumerate(optimizations):
        for other in optimizations[:place]:
            if one.name == other.name:
                raise GraphError(f"{spelled(optimizations)!r} names {one.name} twice")
            if one.rules_out(other):
                raise GraphError(
                    f"{other.name} and {one.name} exclude each other; ask for one of them"
                )


def in_order(optimizations: Sequence[Optimization]) -> list[Optimization]:
    """Return the optimizations in the order they are applied."""
    return sorted(
        optimizations, key=lambda each: (each.stage, "" if each.stage == OWN else each.name)
    )


def option_names(optimizations: Sequence[Optimization]) -> dict[str, tuple[Optimization, Option]]:
    """Return every option by the name it goes by: its own, or `<optimization>.<option>` where two clash."""
    count = Counter(option.name for each in optimizations for option in each.options)
    return {
        option.name if count[option.name] == 1 else qualified(each, option.name): (each, option)
        for each in optimizations
        for option in each.options
    }


def goes_by(named: Mapping[str, tuple[Optimization, Option]], name: str) -> str:
    """Return the name among these (`option_names`) of an option that may be given by its qualified one."""
    known = {qualified(owner, option.name): short for short, (owner, option) in named.items()}
    return known.get(name, name)


def qualified(optimization: Optimization, option: str) -> str:
    """Return the name of an option that no other optimization has: `fused_adam.memory_speedup`."""
    return f"{optimization.name.replace('-', '_')}.{option}"


def apply(
    optimizations: Sequence[Optimization], graph: Graph, options: Options, *, begun: int = 0
) -> dict[str, Any]:
    """Apply each optimization to the graph; return the options used, defaults included.

    The first `begun` were applied before. An option may always be given by its qualified name. Raises
    `GraphError` for an option that none of them has, one that is missing, and one of the wrong type.
    """
    used, chosen = arguments(optimizations, options)
    answers = getattr(graph.times, "answers", 0)
    for optimization in in_order(optimizations)[begun:]:
        before = graph.version
        if optimization.stage == PARALLEL and (reason := shared_already(graph.recorded)):
            raise NotApplicableError(reason)
        try:
            with _running(optimization):
                optimization.function(graph, **chosen[optimization.name])
        except NoMatchError as error:
            if len(optimizations) > 1:  # name the one that does not apply
                error.args = (f"{optimization.name}: {error}",)
            raise
        if graph.version == before:
            raise NotApplicableError(f"{optimization.name} found nothing to change in this trace")
    if graph.times is not None and graph.times.answers == answers:
        graph.note(
            "The table of measured times holds none that this prediction asks for; it was not used."
        )
    return used


def memory_changes(optimizations: Sequence[Optimization], options: Options) -> list[MemoryChange]:
    """Return what optimizations do to memory with these options, in the order they are applied.

    Raises `GraphError` as `apply` does.
    """
    _, chosen = arguments(optimizations, options)
    return [
        MemoryChange(each.name, each.memory, chosen[each.name], partial(_running, each))
        for each in in_order(optimizations)
    ]


def _running(optimization: Optimization) -> AbstractContextManager[None]:
    """Return what a user's own file runs in; nothing for a function of this package or of a notebook."""
    file = optimization.own_file
    if file is None:
        return nullcontext()
    from daydream.transforms.user_file import own_code

    return own_code(file)


def arguments(
    optimizations: Sequence[Optimization], options: Options
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the options used by the names they go by, and by optimization its own, defaults included.

    Raises `GraphError` as `apply` does.
    """
    check(optimizations)
    named = option_names(optimizations)
    given = {}
    for name, value in options.items():
        known = goes_by(named, name)
        if known not in named:
            there = ", ".join(named) or "none"
            raise GraphError(f"{spelled(optimizations)} has no option {name!r}; it has {there}")
        if known in given:
            raise GraphError(f"option {known!r} is given twice")
        given[known] = value
    used = {}
    own: dict[str, dict[str, Any]] = {each.name: {} for each in optimizations}
    for name, (owner, option) in named.items():
        if option.required and name not in given:
            raise GraphError(f"{owner.name} needs {option.flag}")
        value = option.checked(given[name]) if name in given else option.default
        own[owner.name][option.name] = used[name] = value
    return used, own


def spelled(optimizations: Sequence[Optimization]) -> str:
    """Return the names as they were given, joined by +."""
    return "+".join(each.name for each in optimizations)


def need_room(tasks: int, option: str, value: int) -> None:
    """Refuse a value of an option that would add more tasks than can be simulated.

    Args:
        tasks: how many it would add.
        option: the option: `repeats`.
        value: what was asked.

    Raises:
        GraphError: they are too many; the message names the option.
    """
    if tasks > MOST_TASKS:
        raise GraphError(
            f"{option} {value:,} would add {tasks:,} tasks to this trace; up to {MOST_TASKS:,} can be "
            f"simulated: give a smaller {option}"
        )
