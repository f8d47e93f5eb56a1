"""Pipeline parallelism: several GPUs hold some of the blocks each, and pass micro-batches along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from daydream import Graph, GraphError, Groups, NotApplicableError, Selection
from daydream.costs import (
    elements,
    itemsize,
    need_size,
    network_of,
    parse_shapes,
    recorded_batch,
    resized_time,
)
from daydream.memory import Allocations, block_of_rows, in_phase, parts_of
from daydream.model import joint_update, repeated_blocks, trained_parameters
from daydream.transforms import counted, listed, need_room
from daydream.transforms import stages as order


class Pass(NamedTuple):
    """One pass of a micro-batch through a chunk of blocks."""

    backward: bool
    chunk: int
    batch: int


def passes_of_stages(schedule: str, stages: int, batches: int, chunks: int = 1) -> list[list[Pass]]:
    """Return for each GPU its passes in the order in which it runs them; `chunks` is those of one GPU."""
    if chunks > 1 and batches % stages:
        raise GraphError(
            f"interleaved stages take micro-batches by the {stages}; {batches} is not a multiple of it"
        )
    total = batches * chunks
    found = []
    for stage in range(stages):
        turns = [divmod(turn, stages * chunks) for turn in range(total)]
        forward, backward = [], []
        for turn, (round_, place) in enumerate(turns):
            chunk, batch = (place // stages, round_ * stages + place % stages) if chunks > 1 else (0, turn)
            forward.append(Pass(False, chunk * stages + stage, batch))
            backward.append(Pass(True, (chunks - 1 - chunk) * stages + stage, batch))
        ahead = total
        if schedule != "gpipe":
            ahead = stages - stage - 1 if chunks == 1 else 2 * (stages - stage - 1) + (chunks - 1) * stages
        ahead = min(ahead, total)
        mixed = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        found.append([*forward[:ahead], *mixed, *backward[total - ahead :]])
    return found


def in_order(of_stages: Sequence[Sequence[Pass]], chunks: int) -> list[tuple[int, Pass]]:
    """Return (GPU, pass) of all of them in an order in which they can be done; `chunks` of all GPUs."""
    done: set[Pass] = set()
    left = [list(passes) for passes in of_stages]
    order: list[tuple[int, Pass]] = []
    while any(left):
        ready = [
            (stage, passes[0])
            for stage, passes in enumerate(left)
            if passes and all(need in done for need in _needs(passes[0], chunks))
        ]
        if not ready:
            raise GraphError("no order of passes satisfies this schedule")
        for stage, _ in ready:
            left[stage].pop(0)
        done.update(one for _, one in ready)
        order += ready
    return order


def _needs(one: Pass, chunks: int) -> list[Pass]:
    if not one.backward:
        return [one._replace(chunk=one.chunk - 1)] if one.chunk else []
    if one.chunk == chunks - 1:
        return [one._replace(backward=False)]
    return [one._replace(chunk=one.chunk + 1)]


def equal_parts(times: Sequence[int], parts: int) -> list[int]:
    """Return where each of `parts` consecutive parts of the times begins, so that the longest is shortest.

    Of several such divisions the one with the fewest in the last parts.
    """
    count = len(times)
    sums = [0]
    for time in times:
        sums.append(sums[-1] + time)
    best = [[0] * (count + 1) for _ in range(parts + 1)]  # longest part of the first `i` times in `k` parts
    cut = [[0] * (count + 1) for _ in range(parts + 1)]
    best[1] = list(sums)
    for k in range(2, parts + 1):
        for i in range(k, count + 1):
            choices = [(max(best[k - 1][j], sums[i] - sums[j]), -j) for j in range(k - 1, i)]
            longest, at = min(choices)
            best[k][i], cut[k][i] = longest, -at
    begins, end = [], count
    for k in range(parts, 0, -1):
        begin = cut[k][end] if k > 1 else 0
        begins.append(begin)
        end = begin
    return begins[::-1]


PASSES = ("forward", "loss", "backward")


@dataclass(frozen=True)
class Passes:
    """The tasks of all passes, the number of the block each runs with, and whether it runs backward."""

    tasks: Selection
    blocks: list[str]
    block: np.ndarray
    backward: np.ndarray

    def groups(self, chunk_of_block: np.ndarray) -> Groups:
        """Return the tasks by (step, chunk, backward), in program order."""
        return self.tasks.group_by("step", chunk_of_block[self.block], self.backward.astype(np.int64))

    def work(self) -> np.ndarray:
        """Return a mask of the tasks that do the work: the device's where there are any."""
        on_device = self.tasks.kind != "cpu"
        return on_device if on_device.any() else ~on_device

    def time_of_blocks(self) -> list[int]:
        """Return the time of each block's work, of what runs with it too, over all steps."""
        mine = self.work()
        time = np.bincount(self.block[mine], self.tasks.duration_ns[mine], len(self.blocks))
        return [int(one) for one in time]

    def layers(self, blocks: set[int]) -> set[str]:
        """Return the layers that run forward with some of the blocks."""
        mine = ~self.backward & np.isin(self.block, list(blocks))
        return {layer for layer in self.tasks.layer[mine].tolist() if layer is not None}


def passes_by_block(graph: Graph) -> Passes:
    """Return the work of the forward and backward passes by the repeated block it runs with.

    Steps that lack a block, such as the first of a recording, are left out. Raises
    `NotApplicableError` where no step has one forward and one backward pass through repeated blocks.
    """
    graph.select(layer="*").need("layers, by which blocks are found; they are recorded by `daydream collect`")
    families = repeated_blocks(graph)
    if not families:
        raise NotApplicableError("the model repeats no numbered block (`blocks.0`, `blocks.1`)")
    background = np.array([lane.background for lane in graph.lanes] + [False])
    tasks = graph.select(phase=PASSES).where(lambda each: ~background[graph.columns["lane"][each.ids]])
    if not len(tasks.where(phase="backward")):
        raise NotApplicableError("the trace has no backward pass: a pipeline of training is predicted")
    time = [tasks.group_by(block=family).tasks.total("duration_ns") for family in families]
    names = families[int(np.argmax(time))]
    order = graph.columns["order"]
    parts = []
    blocks: list[str] | None = None
    for step, members in tasks.group_by("step").items():
        found = _first_of_blocks(graph, members, names)
        if found is None:
            continue
        forward, turn, backward = found
        of_step = sorted(forward, key=lambda block: forward[block])
        if blocks not in (None, of_step):
            raise NotApplicableError(f"step {step} runs its blocks in another order than those before it")
        blocks = of_step
        back = order[members.ids] >= turn
        place = np.searchsorted(np.sort(list(forward.values()))[1:], order[members.ids], side="right")
        cuts = np.array([backward[block] for block in of_step[::-1]])
        place[back] = len(of_step) - 1 - np.searchsorted(cuts[1:], order[members.ids][back], side="right")
        parts.append((members.ids, place, back))
    if blocks is None:
        raise NotApplicableError(f"no step runs all of {names[0]} to {names[-1]} forward and backward")
    ids, block, back = (np.concatenate(each) for each in zip(*parts, strict=True))
    of_blocks = tasks.group_by(block=names).tasks
    return Passes(of_blocks.of(ids, "passes by block", ordered=True), blocks, block, back)


def _first_of_blocks(
    graph: Graph, members: Selection, names: list[str]
) -> tuple[dict[str, int], int, dict[str, int]] | None:
    """Return where in program order each block begins forward, the backward pass begins, each block in it."""
    order = graph.columns["order"]
    of_blocks = members.group_by("phase", "repeat", block=names)
    first = dict(zip(of_blocks.keys, order[of_blocks.first().ids].tolist(), strict=True))
    last = dict(zip(of_blocks.keys, order[of_blocks.last().ids].tolist(), strict=True))
    begin = members.where(phase="backward")
    if not len(begin):
        return None
    turn = int(order[begin.first().ids[0]])
    forward = {name: first[name, "forward", 0] for name in names if (name, "forward", 0) in first}
    if any(last[name, "forward", 0] > turn for name in forward):
        raise NotApplicableError("a step runs forward again after a backward pass: it accumulates gradients")
    backward: dict[str, int] = {}
    for (name, _, _), at in first.items():  # a block that is computed again runs forward before that
        if at >= turn:
            backward[name] = min(at, backward.get(name, at))
    if len(forward) < len(names) or len(backward) < len(names):
        return None
    return forward, turn, backward


def input_bytes(graph: Graph, block: str) -> int | None:
    """Return the bytes of what a block takes in, by its first recorded shapes; None where there are none."""
    tasks = graph.select(phase="forward").group_by(block=[block]).tasks
    for text, dtype in zip(tasks.shapes.tolist(), tasks.dtype.tolist(), strict=True):
        arguments = parse_shapes(text) or []
        size = itemsize(dtype)
        if arguments and isinstance(arguments[0], tuple) and len(arguments[0]) > 1 and size:
            return elements(arguments[0]) * size
    return None


STAGE = order.PARALLEL
EXCLUDES = frozenset({"ddp", "fsdp", "gradient-accumulation", "p3", "tensor-parallel", "tictac"})
CODE = "torch.distributed.pipelining.pipeline(model, mb_args=(batch,))"

CHUNKS = 2  # of blocks a GPU, where stages are interleaved


def pipeline(
    graph: Graph,
    *,
    stages: int = 2,
    micro_batches: int = 8,
    schedule: Literal["1f1b", "gpipe", "interleaved"] = "1f1b",
    micro_batch: Literal["divided", "recorded"] = "divided",
    cluster: str | None = None,
    bandwidth: float | None = None,
    latency_us: float = 0.0,
    activation_mb: float | None = None,
) -> None:
    """Predict training on `stages` GPUs, each with some of the blocks that the model repeats.

    Blocks are shared out in order, so that the longest stage is as short as it can be; what runs before,
    between and after them goes with its neighbour: embeddings with the first, the loss with the last.
    Each GPU runs its passes in the order of the `schedule`: all forward passes first (`gpipe`), one
    forward and one backward in turn (`1f1b`), or that with two chunks of blocks a GPU
    (`interleaved`). Between stages activations, and backward their gradients, are sent. Every GPU updates
    its own parameters. How long GPUs stand idle comes out of the simulation.

    `micro_batch` says how large one is. `divided`: the recorded batch is divided into the micro-batches,
    work by the recorded shapes: the step does what it did before. With `recorded` each micro-batch is as
    large as the recorded batch, and the step does `micro_batches` times the work. Each pass brings its CPU
    work; a GPU's is on one thread. `activation_mb` is the size (MiB) of what one recorded batch passes
    between blocks, for a trace without shapes. The network is `cluster` (machines of the trace's GPU if not
    given), or `bandwidth` in GB/s and `latency_us` a message.

    Memory: a GPU holds what its blocks do, with their parameters, and activations of as many
    micro-batches as its schedule has begun and not finished (Narayanan et al., "Efficient large-scale
    language model training", section 2.2); the answer is that of the GPU which holds most, as another
    rank.

    Loading of data stays as it was. Not modelled: labels that the last stage loads, sums of gradients
    of tied weights or of norms over stages, the addition of a micro-batch's gradients to the others',
    kernels that a concurrent message slows.

    Args:
        stages: Number of stages, each on a GPU of its own.
        micro_batches: Parts that a batch is split into.
        schedule: Order of the micro-batches.
        micro_batch: Whether the recorded batch is divided, or is one part.
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
        bandwidth (GB/s): Link bandwidth per GPU.
        latency_us (us): Latency of a transfer between two neighbors.
        activation_mb (MiB): Size of what a stage sends, if unknown.
    """
    if stages < 1 or micro_batches < 1:
        raise GraphError(f"stages and micro_batches must be 1 or more, not {stages} and {micro_batches}")
    if activation_mb is not None and activation_mb < 0:
        raise GraphError(f"activation_mb must be 0 or more, not {activation_mb:g}")
    if stages == 1:
        graph.does_not_apply("one stage is not a pipeline")
    if len(graph.select(kind="collective")):
        graph.does_not_apply("the trace has collectives: it was recorded with several ranks already")
    passes = passes_by_block(graph)
    need_room(len(passes.tasks) * (micro_batches - 1), "micro_batches", micro_batches)
    chunks = stages * (CHUNKS if schedule == "interleaved" else 1)
    if chunks > len(passes.blocks):
        graph.does_not_apply(
            f"{counted(len(passes.blocks), 'block')} cannot be shared out to {chunks} "
            f"{'chunks' if chunks > stages else 'stages'}"
        )
    of_stages = passes_of_stages(schedule, stages, micro_batches, chunks // stages)
    network = network_of(graph, stages, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    if micro_batch == "divided" and micro_batches > 1:
        _divide(graph, passes, micro_batches)

    time = passes.time_of_blocks()
    begins = equal_parts(time, chunks)
    chunk_of_block = np.searchsorted(begins, np.arange(len(time)), side="right") - 1
    stage_of_block = chunk_of_block % stages
    messages = _messages(graph, [passes.blocks[begin] for begin in begins[1:]], activation_mb)
    if micro_batch == "divided":
        messages = [-(-nbytes // micro_batches) for nbytes in messages]
    _say(graph, passes, time, stage_of_block, micro_batches, micro_batch)
    _drop_idle_time(passes.tasks)
    every = passes.groups(chunk_of_block).with_copies(micro_batches - 1)
    sequence = [
        (step, stage, one)
        for step in sorted(set(passes.tasks.step.tolist()))
        for stage, one in in_order(of_stages, chunks)
    ]
    arranged = every.match(((step, one.chunk, one.backward), one.batch) for step, _, one in sequence)
    arranged.arrange([stage for _, stage, _ in sequence])
    layers = [passes.layers(set(np.flatnonzero(stage_of_block == one).tolist())) for one in range(stages)]
    _update(graph, layers)
    times = [network.send_ns(nbytes, one % stages, (one + 1) % stages) for one, nbytes in enumerate(messages)]
    _send(graph, arranged, messages, times)
    graph.note(
        f"A message between stages has up to {max(messages) / 1e6:,.3f} MB and takes up to "
        f"{max(times) / 1e6:,.3f} ms."
    )
    if network.cluster is not None:
        graph.note(network.describe())


def _messages(graph: Graph, blocks: list[str], activation_mb: float | None) -> list[int]:
    """Return the bytes that go into each of these blocks."""
    if activation_mb is not None:
        return [round(activation_mb * 2**20)] * len(blocks)
    known = [input_bytes(graph, block) for block in blocks]
    found = [nbytes for nbytes in known if nbytes is not None]
    if len(found) < len(known):
        graph.does_not_apply("which activations blocks pass on is not known; give --activation-mb")
    return found


def _divide(graph: Graph, passes: Passes, parts: int) -> None:
    """Let the passes be those of one of several equal parts of the recorded batch."""
    size = need_size(recorded_batch(graph), "batch size")
    if size % parts:
        graph.does_not_apply(
            f"a batch of {size} cannot be divided into {parts} micro-batches; choose another number, or "
            "--micro-batch recorded for micro-batches of that size"
        )
    tasks = passes.tasks[passes.work()]
    tasks.set(duration_ns=resized_time(graph, tasks, size, size // parts).duration_ns)


def _drop_idle_time(tasks: Selection) -> None:
    """Let threads whose work goes to one thread no longer idle behind their part of a step."""
    cpu = tasks.where(kind="cpu")
    lanes = cpu.group_by("step", "lane")
    if len(lanes) > len(set(cpu.step.tolist())):
        lanes.last().set(gap_ns=0)
    turning = cpu.where(phase=("forward", "loss")).group_by("step").last()
    backward = cpu.where(phase="backward").group_by("step", "lane")
    if len(backward) > len(turning):
        turning.set(gap_ns=0)


def _send(graph: Graph, groups: Groups, nbytes: list[int], times: list[int]) -> None:
    """Send what each pass gives to the GPU that needs it, whose work waits for it."""
    tasks = groups.tasks
    device = tasks.where(kind="kernel")
    work = groups.span(device if len(device) else tasks)
    first = dict(zip(work.keys, work.first().ids.tolist(), strict=True))
    last = dict(zip(work.keys, work.last().ids.tolist(), strict=True))
    for back, name, to in ((False, "activations", 1), (True, "gradients", -1)):
        pairs = [
            (key, ((key[0][0], key[0][1] + to, back), key[1]))
            for key in work.keys
            if key[0][2] == back and 0 <= key[0][1] + to <= len(times)
        ]
        between = [min(sender[0][1], receiver[0][1]) for sender, receiver in pairs]
        graph.insert_after(
            graph.tasks([last[sender] for sender, _ in pairs]),
            f"send {name}",
            kind="collective",
            lane=name,
            duration_ns=[times[one] for one in between],
            gap_ns=0,
            before=[first[to] for _, to in pairs],
            collective="send_recv",
            bytes=[nbytes[one] for one in between],
            launched=len(device) > 0,
        )


def _update(graph: Graph, layers_of_stages: list[set[str]]) -> None:
    """Let every GPU update the parameters of its own layers."""
    optimizer = graph.select(phase="optimizer")
    if not len(optimizer):
        return
    trained = trained_parameters(graph)
    count = len(layers_of_stages)
    parts = [trained.part(layers) if trained.elements else (1 / count,) * 2 for layers in layers_of_stages]
    times = []
    for layers, share in zip(layers_of_stages, parts, strict=True):
        time = graph.columns["duration_ns"].astype(np.float64)
        joint, of_joint = joint_update(graph, *share)
        time[joint.ids] = of_joint
        gap = graph.columns["gap_ns"].copy()
        others = np.array([one not in {None, *layers} for one in optimizer.layer.tolist()], bool)
        time[optimizer.ids[others]] = gap[optimizer.ids[others]] = 0
        times.append((time, gap))
    steps = optimizer.group_by("step")
    recorded = dict(zip(steps.keys, [group.ids for group in steps], strict=True))
    every = steps.with_copies(count - 1)
    for (step, stage), members in every.items():
        duration, gap = (values[recorded[step]] for values in times[stage])
        members.set(duration_ns=duration, gap_ns=gap)
    every.arrange([stage for _, stage in every.keys])
    if not trained.elements:
        graph.note("The trace does not list the parameters of layers: each GPU updates an equal part.")


def _say(
    graph: Graph, passes: Passes, time: list[int], stage: np.ndarray, batches: int, micro_batch: str
) -> None:
    count = int(stage.max()) + 1
    total = np.bincount(stage, time, count) / max(sum(time), 1)
    graph.note(
        f"Blocks of the stages: {listed([str(int((stage == one).sum())) for one in range(count)])}, with "
        f"{listed([f'{part:.0%}' for part in total])} of the passes' time."
    )
    if micro_batch == "divided":
        graph.note(f"The recorded batch is divided into {counted(batches, 'micro-batch', 'micro-batches')}.")
    else:
        graph.note(f"Each of {batches} micro-batches is as large as the recorded batch.")
        graph.covers(batches)


def memory(
    held: Allocations,
    *,
    stages: int,
    micro_batches: int,
    schedule: Literal["1f1b", "gpipe", "interleaved"],
    micro_batch: Literal["divided", "recorded"],
    **options: Any,
) -> None:
    """Hold on each GPU what its blocks do, of the micro-batches that are on their way."""
    passes = passes_by_block(held.graph)
    time = passes.time_of_blocks()
    chunks = stages * (CHUNKS if schedule == "interleaved" else 1)
    chunk = np.searchsorted(equal_parts(time, chunks), np.arange(len(time)), side="right") - 1
    stage = _stage_of_rows(held, passes, chunk % stages)
    divided = micro_batch == "divided"
    size = 1 / micro_batches if divided else 1.0
    activation = held.where(kind="activation")
    for one in range(stages):
        under_way = _under_way(schedule, stages, micro_batches, one) * size
        held.scale(activation & (stage == one), under_way)
    held.scale(held.where(kind="temporary", phase=("forward", "loss", "backward")), size)
    shared = np.flatnonzero(stage < 0)
    for one in range(stages):
        own = np.flatnonzero(stage == one)
        held["rank"][own] = one
    lasting = np.isin(
        shared, np.flatnonzero(held.where(kind=("parameter", "optimizer_state", "gradient", "unknown")))
    )
    alike = shared[lasting]  # nothing tells whose they are: each has an equal part
    for one in range(1, stages):
        held.add(
            shared, rank=one, bytes=np.where(lasting, held["bytes"][shared] // stages, held["bytes"][shared])
        )
    held["rank"][shared] = 0
    held["bytes"][alike] //= stages


def _stage_of_rows(held: Allocations, passes: Passes, stage_of_block: np.ndarray) -> np.ndarray:
    """Return the GPU that holds each allocation, -1 where nothing tells; int64, shape (rows,)."""
    found = np.full(len(held), -1)
    layers = [passes.layers({block}) for block in range(len(passes.blocks))]
    of_layer: dict[str | None, int] = {
        layer: int(stage_of_block[block]) for block, own in enumerate(layers) for layer in own
    }
    found[:] = [of_layer.get(path, -1) for path in held.texts("layer")]
    block, _ = block_of_rows(held, passes.blocks)
    for phase, turn in (("forward", 1), ("loss", 1), ("backward", -1)):
        mine = in_phase(held, phase)
        known = parts_of(held, mine & (block >= 0), held["step"], block)
        for row in np.flatnonzero(
            mine & (found < 0)
        ).tolist():  # what lies between goes with the block before
            same = (known.keys[:, 0] == held["rank"][row]) & (known.keys[:, 2] == held["step"][row])
            before = same & (known.first <= held["begin"][row])
            if phase == "loss" or not same.any():
                found[row] = stage_of_block[-1]
            elif before.any():
                at = np.flatnonzero(before)[np.argmax(known.first[before])]
                found[row] = stage_of_block[known.keys[at, -1]]
            else:
                found[row] = stage_of_block[0 if turn > 0 else -1]
    return found


def _under_way(schedule: str, stages: int, micro_batches: int, stage: int) -> float:
    """Return how many micro-batches' activations of all its blocks a GPU holds at most."""
    if schedule == "gpipe":
        return float(micro_batches)
    if schedule == "1f1b":
        return float(min(stages - stage, micro_batches))
    begun = min(2 * (stages - stage - 1) + (CHUNKS - 1) * stages + 1, CHUNKS * micro_batches)
    return begun / CHUNKS
