"""Operators and layers that others replace, of a cost measured, given or like that of others."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median, mode
from typing import Any, Literal

from daydream import FileError, Graph, GraphError, Groups, NotApplicableError, Selection
from daydream.costs import in_place, replace_cost
from daydream.memory import Allocations, KeptCalls, kept_calls
from daydream.model import backward_chains, remove_with_operators
from daydream.transforms import read_text, stages

STAGE = stages.WORK

# What autograd keeps of each (derivatives.yaml of torch 2.13): its result, its input or neither.
KEEPS_RESULT = ("relu", "tanh", "sigmoid")
KEEPS_INPUT = ("silu", "rms_norm")
By = Literal["identity", "relu", "silu", "tanh", "sigmoid", "rms_norm"]


def replace(
    graph: Graph,
    *,
    op: str | None = None,
    layer: str | None = None,
    factor: float | None = None,
    by: By | None = None,
) -> None:
    """Predict operators that are replaced by others, such as GELU by ReLU or a layer norm by an RMS norm.

    `op` is a regular expression on operators' names, which the operators around a task count for too;
    `layer` a shell pattern. In the forward pass these choose calls; the autograd nodes of those
    calls are replaced with them. What the new code takes no trace tells: with a table of `daydream
    calibrate --tool` it is what was measured in place, call by call; for calls that were not
    measured `factor` times the old, and without a factor there is no prediction. Without `op` and
    `layer` all calls that the table holds are replaced.

    `by` says what `daydream confirm` and `calibrate --tool` put there in a running model: a function of
    torch.nn.functional of the operator's first input (rms_norm also takes shape and weight of a
    layer norm), or identity. It changes nothing in the time that is predicted.

    Memory: `by` says what the new code keeps for its gradient: its result (relu, tanh, sigmoid), its input
    (silu, rms_norm) or nothing (identity). Without it that is not known: from its result alone to
    what the old one keeps and as much as its result besides.

    Not modelled: another course of training.

    Args:
        op (REGEX): Operators to replace.
        layer (GLOB): Modules, by path: blocks.*; by default all.
        factor: How many times as long they take.
        by: The operator that takes their place.
    """
    if factor is not None and factor < 0:
        raise GraphError(f"factor must be 0 or more, not {factor:g}")
    if op is None and layer is None:
        measured = in_place(graph).tasks
        if not len(measured):
            raise GraphError("name what is replaced: --op '^aten::gelu$', or --layer 'blocks.*.norm'")
        replace_cost(graph, measured, factor)
        return
    if factor == 1:
        graph.does_not_apply("a factor of 1 leaves every operator as it is")
    on = "gpu" if len(graph.select(on="gpu")) else "cpu"
    called = graph.select(on=on, phase=("forward", "loss"), layer=layer)
    called = called if op is None else called.where(within=op)
    called.need(f"work of operators {op or '*'!r} in layers {layer or '*'!r}")
    nodes = _nodes(graph, called, on, op, layer) if graph.trace is not None else called
    replace_cost(graph, called | nodes, factor)


def _nodes(graph: Graph, called: Selection, on: str, op: str | None, layer: str | None) -> Selection:
    """Return the backward work of calls; in compiled code, one node for all calls, that of the layers."""
    try:
        return backward_chains(called.group_by("step")).tasks
    except NotApplicableError:
        of_layers = graph.select(on=on, phase="backward", layer=layer)
        if op is not None or not len(of_layers):
            raise
        return of_layers


def _memory_replace(
    held: Allocations, *, op: str | None, layer: str | None, by: By | None, **options: Any
) -> None:
    """Keep for the backward pass what the new code keeps, and not what the old one did."""
    calls = kept_calls(held, op or "", layer)
    if (op is None and layer is None) or not len(calls):
        raise NotApplicableError("which memory is due to the calls that are replaced is not known")
    size = held["recorded_bytes"][calls.output] * (calls.output >= 0)
    if by is None:
        calls.add(held, held.among(0 * size, 0 * size, size))
        ends = held["end"].copy()
        calls.drop_inputs(held)
        held["end"][:] = held.among(held["end"], ends, ends)
    elif by in KEEPS_INPUT:
        calls.drop_outputs(held)
        calls.keep(held, calls.input)
        if by == "rms_norm":  # on a CPU it is made of others, and the product with the weight keeps its input
            calls.add(held, size * (held["device"][calls.output] < 0))
    elif by in KEEPS_RESULT:
        calls.drop_inputs(held)
        calls.keep(held, calls.output)
    else:
        _take_out(held, calls)


def _take_out(held: Allocations, calls: KeptCalls) -> None:
    """Take calls away: what reads their results reads their inputs, which live as long as those would."""
    there = (calls.input >= 0) & (calls.output >= 0)
    calls.drop_inputs(held)
    held.hold_until(calls.input[there], held["end"][calls.output[there]])
    goes = calls.besides >= 0
    goes[calls.output[there]] = True
    held.remove(goes)


def _tool_replace(*, op: str | None = None, layer: str | None = None, by: str | None = None) -> Any:
    """Return what replaces operators of a running model."""
    from daydream.instrument.tools import Replacing, chosen

    if op is None or by is None:
        raise GraphError("to replace operators for real, name them and what comes there: --op ... --by relu")
    return Replacing(chosen(op, layer), _function(by), (0, 1, 2) if by == "rms_norm" else (0,))


def _function(by: str) -> Callable[..., Any]:
    if by == "identity":
        return lambda value: value
    from torch.nn import functional

    return getattr(functional, by)


PHASES = ("forward", "loss", "backward")


def metaflow(
    graph: Graph,
    *,
    layers: str,
    like: str | None = None,
    factor: float | None = None,
    times: str | None = None,
) -> None:
    """Predict other layers in the place of some, `layers="blocks.*.conv?"` (Daydream, section 5.2).

    Layers that match `layers` and run one after the other are one place, and are substituted
    together, forward and backward. The time of what comes there is known from one of:

    - `like`: other layers of this trace, in one place of a step or in as many; their kernels'
      median times, with `factor` for other dimensions. Kernels that are too many go with their
      launches and the CPU time of their operators, missing ones bring launches.
    - `factor` alone: the layers' own kernels, each so many times as long.
    - `times`: a file of yours, CSV `name,us` or a JSON object; a name is a layer's path or
      pattern, an operator, or a kernel. A layer takes this long forward in each place, and its
      backward pass changes by the same ratio; an operator takes it a call, its kernels together; a
      time of 0 removes. What the file does not name stays.

    Without device work the layers' operators are substituted. Not modelled: whether the new
    graph computes the same, parameters that the optimizer no longer has, convergence.

    Args:
        layers (GLOB): Modules to change, by path: blocks.*.
        like (GLOB): Module whose time they take.
        factor: How many times as long they take.
        times (FILE): Measured times of the new operators.
    """
    if times is not None and (like is not None or factor is not None):
        raise GraphError("give times alone: they say all")
    if like is None and factor is None and times is None:
        raise GraphError(
            "say what the new layers take: --like other layers, a --factor, or a file of --times"
        )
    if factor is not None and factor < 0:
        raise GraphError(f"factor must be 0 or more, not {factor:g}")
    if factor == 1 and like is None:
        graph.does_not_apply("a factor of 1 leaves the layers as they are")
    sites = {phase: places_of(graph, layers, phase) for phase in PHASES}
    chosen = sites["forward"].tasks | sites["loss"].tasks | sites["backward"].tasks
    chosen.need(f"work of layers {layers!r}: `daydream collect` records layers, `*` is any text")

    if times is not None:
        set_times(graph, layers, chosen, read_times(times))
    elif like is None:
        chosen.scale(1.0 if factor is None else factor)
    else:
        if len(graph.select(layer=layers) & graph.select(layer=like)):
            raise GraphError(f"{layers!r} and {like!r} have layers in common; none can replace itself")
        places_of(graph, like, "forward").tasks.need(f"forward work of layers {like!r}")
        for phase in PHASES:
            old = sites[phase]
            new = by_place_in_step(places_of(graph, like, phase))
            each = [old] if len(new) < 2 else by_place_in_step(old)
            if len(new) not in (0, len(each)):
                raise GraphError(
                    f"{layers!r} occur in {len(each)} places of a {phase} pass, {like!r} in {len(new)}: "
                    "give patterns that occur in one place, or in as many"
                )
            for number, place in enumerate(each):
                durations, gaps = usual_times(new[number]) if new else ([], [])
                times_ = [ns * (1.0 if factor is None else factor) for ns in durations]
                substitute(place, times_, gaps)
    graph.note(f"Layers {layers!r} occur in {len(sites['forward']):,} places of the forward pass.")


def places_of(graph: Graph, layers: str, phase: str) -> Groups:
    """Return the work of layers that match a pattern, what no other layer parts being one group.

    Device work but for collectives, or on a trace without any the CPU's.
    """
    work = graph.select(on="gpu" if len(graph.select(on="gpu")) else "cpu", phase=phase)
    work = work - work.where(kind="collective")
    mine = work.where(layer=layers)
    others = work.where(lambda tasks: tasks.layer != None) - mine  # noqa: E711 - an array of texts
    return mine.stretches(others)


def usual_times(places: Groups) -> tuple[list[float], list[float]]:
    """Return durations and gaps of the tasks of a typical place: medians over those of the usual size."""
    if not len(places):
        return [], []
    size = mode(sorted(places.sizes.tolist()))
    usual = [place for place in places if len(place) == size]
    durations = [place.duration_ns for place in usual]
    gaps = [place.gap_ns for place in usual]
    return [median(each) for each in zip(*durations, strict=True)], [
        median(each) for each in zip(*gaps, strict=True)
    ]


def by_place_in_step(places: Groups) -> list[Groups]:
    """Return the first place of every step, the second of every step, ..., as many as most steps have."""
    if not len(places):
        return []
    of_step: dict[int, list[int]] = {}
    for place, step in enumerate(places.first().group_by("step", "rank").number.tolist()):
        of_step.setdefault(step, []).append(place)
    count = mode(sorted(map(len, of_step.values())))
    usual = [each for each in of_step.values() if len(each) == count]
    return [places.take(each) for each in zip(*usual, strict=True)]


def substitute(places: Groups, durations: list[float], gaps: list[float]) -> None:
    """Give each place as many tasks as there are durations, with these times.

    Tasks that are too many go with their launches and operators; missing ones come
    after the last, device work with a launch. Gaps are those of CPU tasks.
    """
    if not len(places):
        return
    graph = places.tasks.graph
    count = len(durations)
    on_cpu = bool((places.tasks.kind == "cpu").all())
    tasks = [place.ids.tolist() for place in places]
    at = [number for each in tasks for number in range(min(len(each), count))]
    kept, rest = (
        graph.tasks([task for each in tasks for task in each[part]])
        for part in (slice(count), slice(count, None))
    )
    short = [places.where(places.sizes == size) for size in sorted({*map(len, tasks)}) if size < count]
    if len(kept):
        how = {"gap_ns": [gaps[number] for number in at]} if on_cpu else {}
        kept.set(name="substitute", duration_ns=[durations[number] for number in at], **how)
    for group in short:
        last = group.last()
        size = int(group.sizes[0])
        for time, gap in zip(durations[size:], gaps[size:], strict=True):
            last = graph.insert_after(last, "substitute", duration_ns=time, gap_ns=gap if on_cpu else None)
    if len(rest):
        remove_with_operators(rest)


def set_times(graph: Graph, layers: str, chosen: Selection, times: dict[str, float]) -> None:
    """Give layers, operators and kernels among the chosen tasks the times (ns) of a table.

    A layer takes its time forward in each of its places, backward it changes by the same
    ratio; an operator takes it a call, its kernels together. A time of 0 removes.
    Raises `GraphError` for names that are neither.
    """
    named = {
        name: (chosen.where(layer=name), chosen[chosen.op == name], chosen[chosen.name == name])
        for name in times
    }
    if unknown := [name for name, each in named.items() if not any(map(len, each))]:
        raise GraphError(
            f"layers {layers!r} have no layer, operator or kernel {', '.join(map(repr, unknown))}"
        )
    gone = chosen[:0]
    ratio: Any
    for name, time in times.items():
        in_layer, of_operator, kernels = (each - gone for each in named[name])
        if len(in_layer):
            forward = places_of(graph, name, "forward").total("duration_ns")
            if not len(forward) or not median(forward):
                raise NotApplicableError(f"layer {name!r} does no work in the forward pass")
            edited = in_layer
            ratio = time / float(median(forward))
        elif len(calls := of_operator.group_by("call")):
            edited = of_operator[calls.number >= 0]
            ratio = (time / calls.total("duration_ns").clip(1))[calls.number[calls.number >= 0]]
        else:
            edited = kernels
            ratio = time / kernels.duration_ns.clip(1)
        if time:
            edited.scale(ratio)
        else:
            gone = gone | edited
            remove_with_operators(edited)


def read_times(path: str) -> dict[str, float]:
    """Return name -> ns from a CSV file with the columns `name,us`, or a JSON object of name: us.

    Raises `FileError` for a file that is missing, or holds anything else than names and times.
    """
    text = read_text(path, "a table of times")
    pairs = _of_json(path, text) if Path(path).suffix == ".json" else _of_csv(path, text)
    times = {str(name).strip(): _ns(path, str(name), value) for name, value in pairs}
    if not times:
        raise FileError(f"{path} holds no times; give lines of `name,us` or a JSON object of name: us")
    return times


def _of_json(path: str, text: str) -> Iterable[tuple[Any, Any]]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise FileError(f"{path} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise FileError(f"{path} should hold one JSON object of name: us, not a {type(found).__name__}")
    return found.items()


def _of_csv(path: str, text: str) -> Iterable[tuple[Any, Any]]:
    rows = list(csv.DictReader(text.splitlines()))
    if rows and not {"name", "us"} <= rows[0].keys():
        raise FileError(f"{path} has the columns {', '.join(map(str, rows[0]))}; it needs name and us")
    return [(row["name"], row["us"]) for row in rows]


def _ns(path: str, name: str, value: Any) -> float:
    try:
        time = float(value) * 1e3
    except (TypeError, ValueError):
        time = math.nan
    if not (math.isfinite(time) and time >= 0) or not name.strip():
        raise FileError(f"{path}: {name!r} has the time {value!r}; it needs microseconds, 0 or more")
    return time


COMMANDS = {
    "replace": {
        "memory": _memory_replace,
        "tool": _tool_replace,
    },
}
