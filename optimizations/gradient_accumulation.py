"""Gradient accumulation: several batches go forward and backward before one optimizer step."""

from __future__ import annotations

from typing import Any

from daydream.optimizations._gradient_collectives import REDUCTIONS

from daydream import Graph, GraphError, Selection
from daydream.memory import STEP, Allocations, Moved, Parts, next_call, parts_of, repeat
from daydream.transforms import need_room, stages

STAGE = stages.WORK
CODE = "if step % batches == 0: optimizer.step(); optimizer.zero_grad()"

COMPUTING = ("forward", "loss", "backward")
PASSES = ("data", *COMPUTING)


def gradient_accumulation(graph: Graph, *, batches: int = 2) -> None:
    """Predict `batches` batches of the recorded size for each optimizer step.

    The forward pass, loss and backward pass of a step run `batches` times, and so does what the
    trace shows of loading a batch; the optimizer runs once. Gradients are reduced with the
    last batch only, as under `no_sync` of DistributedDataParallel; other collectives run with
    each batch. The passes of a batch run on the threads they were recorded on, and the next batch
    begins when all of them are done, as `backward()` returns then.

    Memory: gradients are held from the first batch's backward pass on; those of later batches go as soon as
    they are added. What the program holds from one step into the next (the loss) it holds from one batch
    into the next.

    Not modelled: the time of adding a gradient to the one that is there already (the trace has
    the first of a step, which is stored); convergence with the larger batch.

    Args:
        batches: Batches that one update is made from.
    """
    if batches < 2:
        raise GraphError(
            f"batches must be 2 or more, not {batches}: the trace has one batch per step already"
        )
    passes = graph.select(phase=PASSES)
    reductions = passes.where(kind="collective", phase="backward", collective=REDUCTIONS)
    passes = passes - reductions - reductions.launches()
    backward = passes.where(phase="backward").need("work in the backward pass")
    optimizer = graph.select(phase="optimizer").need("optimizer step; gradients may be accumulated already")
    trained = set(backward.group_by("rank", "step").keys) & set(optimizer.group_by("rank", "step").keys)
    groups = passes.group_by("rank", "step")
    groups = groups.match(key for key in groups.keys if key in trained)
    if not len(groups):
        graph.does_not_apply("no step has both a backward pass and an optimizer step")
    need_room(len(groups.tasks) * (batches - 1), "batches", batches)
    computing = groups.tasks.where(phase=COMPUTING).group_by("rank", "step")
    begin = computing.match(groups.keys)

    start = dict(zip(groups.keys, begin.first().ids.tolist(), strict=True))
    passed = groups.repeat(batches - 1, before=begin.first(), stay=True)
    _one_after_another(graph, passed, start)
    graph.covers(batches)
    if len(set(passes.rank.tolist())) > 1:
        graph.note("Repeated collectives do not wait for other ranks.")
    if not len(passes.where(phase="data")):
        graph.note(
            "The trace shows no loading of data; if it holds up the steps, it does so for every batch."
        )


def memory(held: Allocations, *, batches: int = 2) -> None:
    """Let the passes of a step run `batches` times, into the gradients of the first."""
    passes = parts_of(held, held.where(phase=PASSES), held["step"])
    turns = batches - 1  # right before the recorded one
    moved = Moved(passes, passes.first, turns)
    mine = (passes.of >= 0).nonzero()[0]
    part = passes.of[mine]
    begin = held["begin"][mine]
    end = held["end"][mine]
    gradient = held.where(kind="gradient", phase="backward")[mine]
    added = next_call(held, mine)  # where a gradient is added to that of the batch before
    left = end >= passes.until[part]
    goes_on = _goes_on(held, passes)[mine]
    first = moved(begin, part)
    number = int(held["repeat"].max(initial=0)) + 1

    for turn in range(turns):
        then = moved(goes_on, part, turn + 1) if turn + 1 < turns else goes_on
        ends = end.copy()
        ends[left] = then[left]
        ends[gradient] = moved(added, part, turn)[gradient]
        some = (~gradient | (turn > 0)).nonzero()[0]
        repeats = held["repeat"][mine[some]] + number * (turn + 1)
        copies = repeat(held, mine[some], moved, turn=turn, end=ends[some], repeat=repeats)
        held.become(copies[gradient[some]], "temporary")
    held.add(mine[gradient], end=added[gradient], kind="temporary")
    held["begin"][mine[gradient]] = first[gradient]
    _end_with_first(held, passes, moved)


def _goes_on(held: Allocations, passes: Parts) -> Any:
    """Return where, in the next turn of its own part, what outlives a pass would end; shape (rows,)."""
    part = passes.of
    end = held["end"]
    own = (part >= 0) & (part + 1 < len(passes))
    following = (part + 1) * own
    events = (passes.until - passes.first) // STEP
    behind = end - passes.first[following]
    in_next = own & (behind >= 0) & (end < passes.until[following])
    at = passes.first[part] + behind // STEP * events[part] // events[following] * STEP
    found = end.copy()
    found[part >= 0] = held["begin"][part >= 0]
    found[in_next] = at[in_next]
    return found


def _end_with_first(held: Allocations, passes: Parts, moved: Moved) -> None:
    """Let what the step before left, and the recorded pass frees, end in the first pass of the step."""
    end = held["end"]
    begin = held["begin"]
    for place, (first, until) in enumerate(zip(passes.first, passes.until, strict=True)):
        own = held["rank"] == passes.keys[place, 0]
        ends = own & (begin < moved(first, place)) & (end >= first) & (end < until)
        end[ends] = moved(end[ends], place)


def _one_after_another(graph: Graph, passed: Selection, begin: dict[tuple[int, int], int]) -> None:
    """Let each pass begin when all threads are done with the one before; `begin` is the recorded one's."""
    cpu = passed.where(kind="cpu")
    if not len(cpu):
        return
    computing = passed.where(phase=COMPUTING).group_by("rank", "step", "repeat")
    first = dict(zip(computing.keys, computing.first().ids.tolist(), strict=True))
    done = cpu.group_by("rank", "step", "repeat", "lane").last()
    which = zip(
        done.rank.tolist(), done.step.tolist(), graph.columns["repeat"][done.ids].tolist(), strict=True
    )
    behind = [first.get((rank, step, number + 1), begin[rank, step]) for rank, step, number in which]
    graph.link(done, graph.tasks(behind))
