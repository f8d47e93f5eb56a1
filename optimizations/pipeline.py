"""Pipeline parallelism: several GPUs hold some of the blocks each, and pass micro-batches along."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

from daydream.optimizations._gradient_collectives import FAKE_WORLD, families_of_blocks, refuse_ranks

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
from daydream.model import in_order, joint_update, passes_of_stages, trained_parameters
from daydream.transforms import counted, listed, need_room
from daydream.transforms import stages as order

STAGE = order.PARALLEL
EXCLUDES = {"ddp", "fsdp", "gradient-accumulation", "p3", "tensor-parallel", "tictac"}
CODE = "torch.distributed.pipelining.pipeline(model, mb_args=(batch,))"

PASSES = ("forward", "loss", "backward")
CHUNKS = 2  # of blocks a GPU, where stages are interleaved


def equal_parts(times: Sequence[int], parts: int) -> list[int]:
    """Return where each of `parts` consecutive parts of the times begins, so that the longest is shortest.

    Of several such divisions the one whose last parts are shortest.
    """
    sums = [0, *accumulate(times)]
    # Of the first 0, 1, 2, ... times: their longest part, what decides between equals, where parts begin.
    best: list[tuple[int, int, tuple[int, ...]]] = [(total, 0, (0,)) for total in sums]
    for part in range(1, parts):
        best = [
            min(
                ((max(best[at][0], total - sums[at]), -at, (*best[at][2], at)) for at in range(part, end)),
                default=best[0],
            )
            for end, total in enumerate(sums)
        ]
    return list(best[-1][2])


@dataclass(frozen=True)
class Passes:
    """The tasks of all passes, the number of the block each runs with, and whether it runs backward."""

    tasks: Selection
    blocks: list[str]
    block: list[int]
    backward: list[bool]

    def work(self) -> Selection:
        """Return the tasks that do the work: the device's where there are any."""
        device = self.tasks.where(on="gpu")
        return device if len(device) else self.tasks

    def time_of_blocks(self) -> list[int]:
        """Return the time of each block's work, of what runs with it too, over all steps."""
        does = self.tasks.is_in(self.work())
        time: list[int] = self.tasks.group_by(self.block).total(self.tasks.duration_ns * does).tolist()
        return time

    def chunks(self, count: int) -> list[int]:
        """Return the chunk of each block where there are so many, of times as equal as can be."""
        begins = equal_parts(self.time_of_blocks(), count)
        return [bisect(begins, block) - 1 for block in range(len(self.blocks))]

    def layers(self) -> list[tuple[str, int]]:
        """Return each layer that runs forward, with the block it runs with."""
        runs = zip(self.tasks.layer, self.block, self.backward, strict=True)
        return [(layer, block) for layer, block, back in runs if layer and not back]


def passes_by_block(graph: Graph) -> Passes:
    """Return the work of the forward and backward passes by the repeated block it runs with.

    What runs before the first block goes with it, what lies between two with the one before, and what
    follows the last one, the loss too, with that. Of several families of blocks the one with most time
    counts. Steps that do not run all of its blocks forward and backward are left out.
    """
    families = families_of_blocks(graph)
    tasks = graph.select(phase=PASSES)
    tasks = tasks - tasks.where(lane=[lane.name for lane in graph.lanes if lane.background])
    if not len(tasks.where(phase="backward")):
        raise NotApplicableError("the trace has no backward pass: a pipeline of training is predicted")
    names = max(families, key=lambda family: tasks.group_by(block=family).tasks.total("duration_ns"))
    blocks: list[str] = []
    found: list[tuple[int, int, bool]] = []
    for step, members in tasks.group_by("step").items():
        forward: dict[str, int] = {}
        backward: dict[str, int] = {}
        turn = int([*members.where(phase="backward").order, members.order[-1] + 1][0])
        for (name, phase, repeat), runs in members.group_by("phase", "repeat", block=names).items():
            first, last = runs.order[[0, -1]].tolist()
            if (phase, repeat) == ("forward", 0):
                forward[name] = first
                if last > turn:
                    raise NotApplicableError(
                        "a step runs forward again after a backward pass: it accumulates gradients"
                    )
            if first >= turn:  # a block that is computed again runs forward before its backward pass
                backward[name] = min(first, backward.get(name, first))
        if len(forward) < len(names) or len(backward) < len(names):
            continue
        of_step = sorted(names, key=forward.__getitem__)
        if blocks not in ([], of_step):
            raise NotApplicableError(f"step {step} runs its blocks in another order than those before it")
        blocks = of_step
        there, back = [forward[name] for name in blocks], [backward[name] for name in blocks[::-1]]
        for task, at in zip(members.ids.tolist(), members.order.tolist(), strict=True):
            block = len(names) - bisect(back, at, 1) if at >= turn else bisect(there, at, 1) - 1
            found.append((task, block, at >= turn))
    if not found:
        raise NotApplicableError(f"no step runs all of {names[0]} to {names[-1]} forward and backward")
    ids, block_of, is_backward = map(list, zip(*found, strict=True))
    of_blocks = tasks.group_by(block=names).tasks
    return Passes(
        of_blocks.of(graph.tasks(ids).ids, "passes by block", ordered=True), blocks, block_of, is_backward
    )


def input_bytes(graph: Graph, block: str) -> int | None:
    """Return the bytes of what a block takes in, by its first recorded shapes; None where there are none."""
    tasks = graph.select(phase="forward").group_by(block=[block]).tasks
    for text, dtype in zip(tasks.shapes.tolist(), tasks.dtype.tolist(), strict=True):
        first, *_ = parse_shapes(text) or [()]
        size = itemsize(dtype)
        if isinstance(first, tuple) and len(first) > 1 and size:
            return elements(first) * size
    return None


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
    refuse_ranks(graph)
    passes = passes_by_block(graph)
    need_room(len(passes.tasks) * (micro_batches - 1), "micro_batches", micro_batches)
    chunks = stages * (CHUNKS if schedule == "interleaved" else 1)
    if chunks > len(passes.blocks):
        graph.does_not_apply(
            f"{counted(len(passes.blocks), 'block')} cannot be shared out to {chunks} "
            f"{'chunks' if chunks > stages else 'stages'}"
        )
    if chunks > stages and micro_batches % stages:
        raise GraphError(
            f"interleaved stages take micro-batches by the {stages}; {micro_batches} is not a multiple of it"
        )
    of_stages = passes_of_stages(stages, micro_batches, chunks // stages, gpipe=schedule == "gpipe")
    network = network_of(graph, stages, cluster=cluster, bandwidth=bandwidth, latency_us=latency_us)
    if micro_batch == "divided":
        if micro_batches > 1:
            _divide(graph, passes.work(), micro_batches)
        parts, said = micro_batches, counted(micro_batches, "micro-batch", "micro-batches")
        said = f"The recorded batch is divided into {said}."
    else:
        parts, said = 1, f"Each of {micro_batches} micro-batches is as large as the recorded batch."
        graph.covers(micro_batches)

    time, chunk_of_block = passes.time_of_blocks(), passes.chunks(chunks)
    stage_of_block = [chunk % stages for chunk in chunk_of_block]
    messages = [  # bytes into the first block of each chunk but the first
        input_bytes(graph, passes.blocks[chunk_of_block.index(chunk)])
        if activation_mb is None
        else round(activation_mb * 2**20)
        for chunk in range(1, chunks)
    ]
    nbytes = [-(-each // parts) for each in messages if each is not None]
    if len(nbytes) < len(messages):
        graph.does_not_apply("which activations blocks pass on is not known; give --activation-mb")
    spent = [0] * stages
    for stage, ns in zip(stage_of_block, time, strict=True):
        spent[stage] += ns
    graph.note(
        f"Blocks of the stages: {listed([str(stage_of_block.count(one)) for one in range(stages)])}, with "
        f"{listed([f'{ns / max(sum(time), 1):.0%}' for ns in spent])} of the passes' time."
    )
    graph.note(said)
    _drop_idle_time(passes.tasks)
    chunk_of_task = [chunk_of_block[block] for block in passes.block]
    every = passes.tasks.group_by("step", chunk_of_task, passes.backward).with_copies(micro_batches - 1)
    sequence = [
        (step, stage, one)
        for step in sorted(set(passes.tasks.step.tolist()))
        for stage, one in in_order(of_stages, chunks)
    ]
    arranged = every.match(((step, one.chunk, one.backward), one.batch) for step, _, one in sequence)
    arranged.arrange([stage for _, stage, _ in sequence])
    layers: list[set[str]] = [set() for _ in range(stages)]
    for layer, block in passes.layers():
        layers[stage_of_block[block]].add(layer)
    _update(graph, layers)
    times = [network.send_ns(each, one % stages, (one + 1) % stages) for one, each in enumerate(nbytes)]
    _send(graph, arranged, nbytes, times)
    graph.note(
        f"A message between stages has up to {max(nbytes) / 1e6:,.3f} MB and takes up to "
        f"{max(times) / 1e6:,.3f} ms."
    )
    if network.cluster is not None:
        graph.note(network.describe())
    graph.note(FAKE_WORLD.format(stages))


def _divide(graph: Graph, tasks: Selection, parts: int) -> None:
    """Let the work be that of one of several equal parts of the recorded batch."""
    size = need_size(recorded_batch(graph), "batch size")
    if size % parts:
        graph.does_not_apply(
            f"a batch of {size} cannot be divided into {parts} micro-batches; choose another number, or "
            "--micro-batch recorded for micro-batches of that size"
        )
    tasks.set(duration_ns=resized_time(graph, tasks, size, size // parts).duration_ns)


def _drop_idle_time(tasks: Selection) -> None:
    """Let threads whose work goes to one thread no longer idle behind their part of a step."""
    cpu = tasks.where(kind="cpu")
    backward = cpu.where(phase="backward").group_by("step", "lane")
    lanes, forward = cpu.group_by("step", "lane"), cpu.where(phase=PASSES[:2]).group_by("step")
    if len(lanes) > len(cpu.group_by("step")):
        lanes.last().set(gap_ns=0)
    if len(backward) > len(forward):
        forward.last().set(gap_ns=0)


def _send(graph: Graph, groups: Groups, nbytes: list[int], times: list[int]) -> None:
    """Send what each pass gives to the GPU that needs it, whose work waits for it."""
    device = groups.tasks.where(kind="kernel")
    work = groups.span(device if len(device) else groups.tasks)
    for back, name, to in ((False, "activations", 1), (True, "gradients", -1)):
        sent = [key for key in work.keys if key[0][2] == back and 0 <= key[0][1] + to <= len(times)]
        taken = work.match(((step, chunk + to, back), batch) for (step, chunk, _), batch in sent)
        between = [chunk + min(to, 0) for (_, chunk, _), _ in sent]
        graph.insert_after(
            work.match(sent).last(),
            f"send {name}",
            kind="collective",
            lane=name,
            duration_ns=[times[one] for one in between],
            gap_ns=0,
            before=taken.first(),
            collective="send_recv",
            bytes=[nbytes[one] for one in between],
            launched=len(device) > 0,
        )


def _update(graph: Graph, layers_of_stages: list[set[str]]) -> None:
    """Let every GPU update the parameters of its own layers."""
    optimizer = graph.select(phase="optimizer")
    if not len(optimizer):
        return
    trained, count = trained_parameters(graph), len(layers_of_stages)
    columns = [getattr(optimizer, name).tolist() for name in ("ids", "layer", "duration_ns", "gap_ns")]
    spent = []  # of each stage: the time of each task, and that after it
    for layers in layers_of_stages:
        share = trained.part(layers) if trained.elements else (1 / count,) * 2
        joint, time = joint_update(graph, *share)
        of_joint = dict(zip(joint.ids.tolist(), time.tolist(), strict=True))
        own = {None, *layers}
        spent.append(
            {
                task: (of_joint.get(task, ns * (layer in own)), gap * (layer in own))
                for task, layer, ns, gap in zip(*columns, strict=True)
            }
        )
    every = optimizer.group_by("step").with_copies(count - 1)
    for (step, stage), members in every.items():
        times = [spent[stage][task] for task in every[step, 0].ids.tolist()]
        members.set(duration_ns=[ns for ns, _ in times], gap_ns=[gap for _, gap in times])
    every.arrange([stage for _, stage in every.keys])
    if not trained.elements:
        graph.note("The trace does not list the parameters of layers: each GPU updates an equal part.")


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
    chunks = CHUNKS if schedule == "interleaved" else 1
    stage = _stage_of_rows(held, passes, [chunk % stages for chunk in passes.chunks(stages * chunks)])
    size = 1 / micro_batches if micro_batch == "divided" else 1.0
    activation = held.where(kind="activation")
    of_stages = passes_of_stages(stages, micro_batches, chunks, gpipe=schedule == "gpipe")
    for one, mine in enumerate(of_stages):
        under_way = [each.backward for each in mine].index(True) / chunks  # before the first backward pass
        held.scale(activation & (stage == one), under_way * size)
    held.scale(held.where(kind="temporary", phase=PASSES), size)

    lasting = held.where(kind=("parameter", "optimizer_state", "gradient", "unknown"))
    shared = (stage < 0).nonzero()[0]  # nothing tells whose they are: of what lasts each has an equal part
    nbytes = (held["bytes"] // (1 + lasting * (stages - 1)))[shared]
    held["rank"][:] = stage.clip(0)
    for one in range(1, stages):
        held.add(shared, rank=one, bytes=nbytes)
    held["bytes"][shared] = nbytes


def _stage_of_rows(held: Allocations, passes: Passes, stage_of_block: list[int]) -> Any:
    """Return the GPU that holds each allocation, -1 where nothing tells; int64, shape (rows,)."""
    stage_of = {layer: stage_of_block[block] for layer, block in passes.layers()}
    found = held["rank"].copy()
    found[:] = [stage_of.get(path or "", -1) for path in held.texts("layer")]
    block, _ = block_of_rows(held, passes.blocks)
    for phase in PASSES:
        mine = in_phase(held, phase)
        known = parts_of(held, mine & (block >= 0), held["step"], block)
        begun: dict[tuple[int, int], list[tuple[float, int]]] = {}
        for (rank, _, step, number), first in zip(known.keys.tolist(), known.first.tolist(), strict=True):
            begun.setdefault((rank, step), []).append((first, number))
        for row in (mine & (found < 0)).nonzero()[0].tolist():
            blocks = begun.get((held["rank"][row], held["step"][row]), [])
            before = [each for each in blocks if each[0] <= held["begin"][row]]
            # What lies between goes with the block before, what nothing tells with the last one.
            at = max(before)[1] if before else 0 if phase == "forward" and blocks else -1
            found[row] = stage_of_block[-1 if phase == "loss" else at]
    return found
