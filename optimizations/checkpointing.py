"""Checkpointing: activations of some layers or operators are computed again in the backward pass."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from daydream import Graph, GraphError, Groups, NotApplicableError, Selection
from daydream.costs import take_measured, work
from daydream.memory import (
    AFTER,
    BEFORE,
    Allocations,
    Moved,
    Parts,
    block_of_rows,
    calls_that_made,
    in_phase,
    input_of_parts,
    parts_of,
    place_before,
    put_away,
    read_behind,
    repeat,
    until_next_call,
    used_until,
)
from daydream.model import backward_chains, behind_last_saved, repeated_blocks, saved_tensor_counts
from daydream.transforms import listed, stages

STAGE = stages.WORK

# Cheap for the bytes they leave: a pass or two over their input, against products (Dynamic Tensor
# Rematerialization, Kirisame and others, arXiv 2006.09616, evicts by cost over size and staleness).
CHEAP = (
    r"^aten::(gelu|silu|relu|leaky_relu|elu|mish|tanh|sigmoid|softmax|_softmax|layer_norm|native_layer_norm|"
    r"rms_norm|group_norm|dropout|native_dropout)_?$"
)

SUM = r"^aten::add_?$"
OF_FORWARD = r"^aten::(conv[123]d|linear|batch_norm|layer_norm|embedding|gelu|scaled_dot_product_attention)$"

# A block, a saved tensor, and at most for caches that the block's data went through: how this grows is
# measured by benchmarks/checkpoint_calls.py of b281a3aa.
FORWARD_NS = (50_000, 6_900, 170_000)
BACKWARD_NS = (82_000, 12_300, 110_000)
RANDOM_STATE = 5056  # bytes: `torch.get_rng_state()` of the CPU's generator, a Mersenne twister
COLD_NS = 9e-3  # for each byte that a block moves
WARM_BYTES = 250_000  # so many leave the caches as they are


def checkpointing(
    graph: Graph, *, layers: str | None = None, python: bool = True, reentrant: bool = False
) -> None:
    """Predict activation checkpointing of the blocks whose path matches, for example `layers="blocks.*"`.

    A block is an outermost module that matches `layers`, with all modules inside it. By default blocks are
    those that the model repeats (of modules that take turns, such as Linear and ReLU, each turn is
    one), else all outermost modules. The forward work of each runs once more, on the thread of the
    backward pass, right before the block's first backward task. Blocks without backward work are not
    computed again, nor are collectives.

    As torch does with `use_reentrant=False`, computing again stops with the last tensor that the block
    saves: the product of a linear layer at its end has saved its inputs before it begins, and is left out.
    With `reentrant` whole blocks are computed again, as they are where the trace does not show
    which node belongs to which forward call (sequence numbers).

    `python` adds what `torch.utils.checkpoint` costs on the CPU, by the autograd nodes of the block
    that the trace shows: 50 us a block and 6.9 us a saved tensor in the forward pass, 82 us and
    12.3 us in the backward pass (measured in training steps of perceptrons of 8 to 41 saved tensors
    a block, torch 2.13.0, `use_reentrant=False`, x86, one thread; in a loop of nothing else it is half
    of that). On a CPU a block's data takes the place of Python's in the caches: 9 us more a MB that its
    forward pass moves after the first 0.25, 170 us at most in the forward pass and 110 us in the
    backward pass (perceptrons of 0.06 to 23 MB a block). The tensors that a node saves are those of torch's
    derivative formulas. With `reentrant` it is what a block costs alone: no tensor passes through Python
    (not measured).

    Memory: of what a block's forward pass leaves only its output stays; all else is made again right before
    its backward pass, for which its input stays. Inside the forward pass a tensor goes when the call that
    would save it is done, a sum (of a residual stream) with the block; the range is from all as early to all
    as late. A step whose backward pass the recording lacks saves as little.

    Args:
        layers (GLOB): Modules, by path: blocks.*, or blocks.0,blocks.2; by default those that repeat.
        python: Count the CPU time of torch.utils.checkpoint.
        reentrant: Recompute whole blocks (use_reentrant=True).
    """
    graph.select(layer="*").need("layers; they are recorded by `daydream collect`")
    pattern = _blocks(graph, layers)
    tasks = graph.select().group_by(block=pattern).tasks
    tasks.need(
        f"work of layers {layers or '*'!r}; layers are recorded by `daydream collect`, and `*` is any text"
    )
    if len(tasks.where(phase="backward", within=OF_FORWARD)):
        graph.does_not_apply("some of these layers are computed again in the backward pass already")
    tasks = tasks - tasks.where(kind="collective") - tasks.where(kind="collective").launches()
    forward = tasks.where(phase="forward").group_by("rank", "step", block=pattern)
    backward = tasks.where(phase="backward").group_by("rank", "step", block=pattern)
    again, begin = _with_backward(forward, backward)
    if not len(again):
        graph.does_not_apply(f"no layer of {layers or '*'!r} has both forward and backward work")
    names = listed(list(dict.fromkeys(key[0] for key in again.keys)))
    computed = again
    before = begin
    if not reentrant:
        behind, known = behind_last_saved(again)
        computed, before = _with_backward(
            (again.tasks - behind).group_by("rank", "step", block=pattern), backward
        )
        if not len(computed):
            graph.does_not_apply(f"of {names} no tensor is saved that would have to be computed again")
        _say(graph, again.tasks, behind, known)

    tensors = saved_tensor_counts(begin)
    if (
        python
        and tensors.any()
        and (again.first().kind == "cpu").all()
        and (begin.first().kind == "cpu").all()
    ):
        cold = 0 * again.sizes
        tasks = again.selection
        if not len(tasks.where(on="gpu")):  # each block's data went through the CPU's caches
            moved = again.total(work(graph, tasks).nbytes.clip(0))
            cold = ((moved - WARM_BYTES).clip(0) * COLD_NS).round()
        for groups, (block_ns, tensor_ns, most) in ((again, FORWARD_NS), (begin, BACKWARD_NS)):
            graph.insert_before(
                groups.first(),
                "checkpoint in Python",
                duration_ns=block_ns + cold.clip(max=most) + (0 if reentrant else tensor_ns) * tensors,
            )
    computed.repeat(before=before.first())
    graph.note(f"Computed again: {names}.")


def rematerialize(graph: Graph, *, op: str = CHEAP, layer: str | None = None) -> None:
    """Predict chosen operators that run again in the backward pass instead of keeping what they made.

    `op` is a regular expression on operators' names; of nested calls the outermost that matches. By
    default activations, softmax, norms and dropout, which cost little for the bytes they leave. `layer`
    limits it to layers that match. The work of each call runs once more, with its launches, on
    the thread of the backward pass, before the work of its autograd node; calls without one stay. For whole
    blocks see checkpointing.

    With a table of `daydream calibrate --tool` the calls take what was measured in place, what Python does
    around them included; without it that is not modelled.

    Memory: what a call made is gone from the next call of the forward pass until the node that
    uses it last; what the call reads is held until then.

    Args:
        op (REGEX): Operators to compute again.
        layer (GLOB): Modules, by path: blocks.*; by default all.
    """
    forward = graph.select(phase=("forward", "loss"), layer=layer).where(within=op)
    forward = forward - forward.where(kind="collective")
    forward.need(f"forward work of operators {op!r}{f' in layers {layer!r}' if layer else ''}")
    if len(take_measured(graph, forward)):
        return
    calls = forward.group_by("rank", "step", within=op)
    nodes = backward_chains(calls)
    if not len(nodes):
        raise NotApplicableError(
            "no autograd node of these operators is known: there is no backward pass, or no sequence numbers"
        )
    first = nodes.first()
    ids = first.launch if len(graph.select(on="gpu")) else first.ids
    _, again = _with_backward(nodes.where(ids >= 0), calls)
    time = again.total("duration_ns").sum()
    again.repeat(before=graph.tasks(ids[ids >= 0]))
    graph.note(f"Run again: {len(again):,} calls of {time / 1e6:,.3f} ms (CPU and device time together).")


def _tool(*, op: str = CHEAP, layer: str | None = None) -> Any:
    """Return what runs a running model's operators again in its backward pass."""
    from daydream.instrument.tools import Rematerialization, chosen

    return Rematerialization(where=chosen(op, layer))


def _free_saved(held: Allocations, *, layers: str | None, reentrant: bool, **options: Any) -> None:
    """Let what a block saves end with its forward pass, and come again before its backward pass."""
    block, end_block = block_of_rows(held, _blocks(held.graph, layers))
    forward = parts_of(held, (block >= 0) & in_phase(held, "forward"), held["step"], block)
    backward = parts_of(held, (block >= 0) & in_phase(held, "backward"), held["step"], block)
    again = backward.find(forward.keys)
    runs_again = again >= 0
    if not runs_again.any():
        raise NotApplicableError(f"no layer of {layers or '*'!r} holds anything for its backward pass")
    places = backward.begins(forward.keys, AFTER)  # before them parts run once more
    mine = ((forward.of >= 0) & runs_again[forward.of]).nonzero()[0]
    part = forward.of[mine]
    end = held["end"][mine]
    comes = places[part]
    done = backward.until[again[part]]
    behind = end > forward.until[part]
    saved = end >= comes
    own = saved & (end_block[mine] == block[mine])  # the block's own backward pass needs it last

    call = calls_that_made(held, "", mine)
    output = _outputs(held, mine, part, call, behind)
    goes = saved & ~output
    following = forward.next(runs_again)[part]
    # As recorded, before any place goes: the next block runs once more behind what the one before frees.
    moved = Moved(forward, places)
    gone = place_before(backward.until)
    leads = following >= 0
    next_part = again[following]
    input_until = place_before(comes)
    kept = end.copy()
    input_until[leads] = gone[next_part][leads]
    kept[leads] = end.clip(backward.first[next_part])[leads]
    held["end"][mine[goes]] = _forward_ends(held, mine[goes], forward)

    # What makes the output is run once more if it keeps anything else: computing again stops after it.
    calls_again = set(call[goes].tolist())
    made_again = goes | ~behind | output & (own | reentrant)
    made_again |= output & [each in calls_again for each in call.tolist()]
    ends = end.copy()
    elsewhere = output & ~own
    ends[elsewhere] = (done if reentrant else moved(forward.until[part], part))[elsewhere]
    copies = repeat(held, mine[made_again], moved, end=ends[made_again], phase="backward")
    late = behind & made_again
    held["end"][copies[behind[made_again]]] = ends[late]
    held["end"][mine[output & own]] = input_until[output & own]
    held["end"][mine[elsewhere]] = kept[elsewhere]
    inputs = [(row, one) for one, row in enumerate(_inputs(held, forward)) if row >= 0 and runs_again[one]]
    held.hold_until([row for row, _ in inputs], gone[again[[one for _, one in inputs]]])
    _keep_random_state(held, again, gone, moved)


def _keep_random_state(held: Allocations, again: Any, gone: Any, moved: Moved) -> None:
    """Keep the state of the CPU's random numbers with each part, and the current one while that runs again.

    `until` is of shape (parts,), `BEFORE` for parts that run once only. torch.utils.checkpoint does so
    (`preserve_rng_state`); for parts on a GPU these states are in host memory, too.
    """
    parts = moved.parts
    of_part: dict[int, int] = {}
    for row, one in enumerate(parts.of.tolist()):
        if one >= 0 and again[one] >= 0 and held["device"][row] < 0:
            of_part.setdefault(one, row)
    part = [*of_part]
    like = [*of_part.values()]
    state = {"bytes": RANDOM_STATE, "recorded_bytes": RANDOM_STATE, "begin_row": -1, "end_row": -1}
    first = parts.first[part]
    behind = parts.until[part]
    held.add(like, **state, begin=first, end=gone[again[part]], kind="activation")
    begin = moved(first, part)
    end = moved(behind, part)
    held.add(like, **state, begin=begin, end=end, kind="temporary", phase="backward")


def _forward_ends(held: Allocations, rows: Any, forward: Parts) -> Any:
    """Return where tensors end in the forward pass that nothing saves: behind the call that reads them.

    A sum begins a residual stream, which is read once more at the end. Whether anything else is, no
    recording tells.
    """
    used = used_until(held, rows, forward)
    until = place_before(forward.until[forward.of[rows]])
    sums = held.where(op=SUM)[rows]
    expected = used.copy()
    expected[sums] = until[sums]
    return held.among(used, expected, until)


def _outputs(held: Allocations, rows: Any, part: Any, call: Any, stays: Any) -> Any:
    """Return which are their part's output: of what the last call leaves that leaves something, the largest.

    What is as large as what the next call reads goes before: a call may leave its library's workspace, or
    indices, which are larger than its output.
    """
    last: dict[int, int] = {}
    for place in held["begin"][rows].argsort(kind="stable").tolist():
        if stays[place]:
            last[int(part[place])] = int(call[place])
    of_last = [last.get(one, -1) for one in part.tolist()]
    ranked = zip(read_behind(held, rows, of_last).tolist(), held["bytes"][rows].tolist(), strict=True)
    best: dict[int, tuple[bool, int, int]] = {}
    for place, (fits, nbytes) in enumerate(ranked):
        if stays[place] and call[place] == of_last[place]:
            one = int(part[place])
            best[one] = max(best.get(one, (False, -1, -1)), (fits, nbytes, place))
    found = stays & False
    found[[place for *_, place in best.values()]] = True
    return found


def _inputs(held: Allocations, parts: Parts) -> list[int]:
    """Return what was made last before each part, in forward, and is held when that begins; -1 for none."""
    rows = held.where(phase="forward").nonzero()[0]
    rows = rows[held["begin"][rows].argsort(kind="stable")]
    begins = held["begin"][rows].tolist()
    found = []
    for key, first in zip(parts.keys.tolist(), parts.first.tolist(), strict=True):
        before = rows[: bisect_left(begins, first)]
        before = before[(held["rank"][before] == key[0]) & (held["end"][before] >= first)]
        found.append(int(before[-1]) if len(before) else -1)
    return found


def _free_outputs(held: Allocations, *, op: str, layer: str | None) -> None:
    """Let what the calls made be gone between the two passes, and hold their inputs as long as needed."""
    call = calls_that_made(held, op)
    made = (call >= 0) & in_phase(held, "forward") & held.where(kind="activation", layer=layer)
    node = parts_of(held, in_phase(held, "backward"), held["step"], calls_that_made(held, ""))
    rows = (made & in_phase(held, "backward", at="end")).nonzero()[0]
    if not len(rows):
        raise NotApplicableError(f"no operator {op!r} leaves anything for the backward pass")
    begins = [BEFORE, *sorted(node.first.tolist())]
    ends = held["end"][rows]
    node_begins = [begins[bisect_left(begins, end) - 1] for end in ends.tolist()]  # of the node it ends in
    back = place_before(0 * ends + node_begins)
    calls = parts_of(held, made, held["step"], call)
    inputs = input_of_parts(held, calls)[calls.of[rows]]
    held.hold_until(inputs[inputs >= 0], back[inputs >= 0])
    put_away(held, rows, until_next_call(held, rows), back)


@contextmanager
def _apply(
    model: Any = None,
    optimizer: Any = None,
    *,
    layers: str | None = None,
    reentrant: bool = False,
    **options: Any,
) -> Iterator[None]:
    """Make the change for real: the outermost modules that match run under `torch.utils.checkpoint`."""
    from torch.utils.checkpoint import checkpoint

    if layers is None:
        raise GraphError("checkpointing is confirmed for the blocks that --layers names")
    chosen: dict[str, Any] = {}
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in chosen)
        name = path.removeprefix("module.")
        if path and not inside and any(fnmatchcase(name, each) for each in layers.split(",")):
            chosen[path] = module
    if not chosen:
        raise GraphError(f"the model has no module {layers!r}")
    before = {path: module.forward for path, module in chosen.items()}
    for path, module in chosen.items():
        module.forward = partial(checkpoint, before[path], use_reentrant=reentrant)
    try:
        yield
    finally:
        for module in chosen.values():
            del module.forward


def _blocks(graph: Graph, layers: str | None) -> str | list[str]:
    repeated = [block for family in repeated_blocks(graph) for block in family]
    return layers.split(",") if layers is not None else repeated or "*"


def _with_backward(forward: Groups, backward: Groups) -> tuple[Groups, Groups]:
    """Return the groups of forward work that have backward work, and that work in the same order."""
    backward = backward.match(forward.keys)
    return forward.match(backward.keys), backward


def _say(graph: Graph, work: Selection, behind: Selection, known: Any) -> None:
    """Note which part of the work is left out, and where that cannot be told."""
    if not known.all():
        graph.note(
            "The trace has no sequence numbers of autograd for some of these layers: they are computed again "
            "as a whole; torch stops at the last tensor that they save."
        )
    on = "gpu" if len(work.where(on="gpu")) else "cpu"
    left_out, whole = (some.where(on=on).total("duration_ns") for some in (behind, work))
    if left_out:
        graph.note(f"Left out: the {left_out / whole:.0%} of that work after the last tensor that is saved.")


COMMANDS = {
    "checkpointing": {
        "CODE": "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        "memory": _free_saved,
        "apply": _apply,
    },
    "rematerialize": {
        "EXCLUDES": {"checkpointing"},  # it computes the same work again, and more
        "memory": _free_outputs,
        "tool": _tool,
    },
}
