"""A training step composed of its blocks: what it takes, and how much memory, for any way to divide it over GPUs.

A block (an embedding, a layer, a loss) was measured or emulated for one micro-batch on one GPU, already divided
as `tp`, `cp` and `ep` ask for. Its passes become those of chunks, chunks are put on stages, and the schedule of
the pipeline (1F1B; interleaved where a stage has several chunks) runs as the causes have it: a pass starts when
its stage is free and its input is there. Of each stage two clocks are kept, the thread that launches and the GPU:
a block's kernels end no earlier than the thread has launched them.

    GPU after a chunk = max(GPU before + kernels, thread before + launches up to a block + kernels after it)

Of a block's collectives that counts which no kernel of it hides. Gradients are exchanged after the last backward
pass, or during it. Units are ns and bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

from daydream.errors import DaydreamError

if TYPE_CHECKING:
    from daydream.costs.network.clusters import Cluster

GROUPS = ("tp", "cp", "ep")  # that the collectives of a block are of
PARTS = ("compute", "launch", *GROUPS, "fsdp")  # of a pass
# What the thread takes besides for a block's forward and backward pass with `fsdp`: hooks, copies and
# collectives, as `optimizations/fsdp.py` has measured them for torch's `fully_shard`.
SHARDING_NS = (370_000, 475_000)
SETTLED = 4  # rounds of a pipeline after which another round of micro-batches takes what the last one took


@dataclass(frozen=True)
class Exchange:
    """Equal collectives of a block's pass.

    Attributes:
        group: `tp`, `cp` or `ep`.
        operation: `all_reduce`, `all_gather`, ... (`Cluster.time_ns`).
        nbytes: of one: the larger of what a member gives and what it gets.
        count: how many.
        beside_ns: kernels of the block that run beside one, before the program waits for it.
    """

    group: str
    operation: str
    nbytes: float
    count: int = 1
    beside_ns: float = 0.0


@dataclass(frozen=True)
class Pass:
    """The forward or the backward pass of a block over one micro-batch on one GPU.

    Attributes:
        gpu_ns: its kernels without collectives.
        cpu_ns: what the thread takes to launch all of it.
        exchanges: its collectives.
    """

    gpu_ns: float
    cpu_ns: float = 0.0
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True)
class Block:
    """A part of a model that is on one GPU as a whole.

    Attributes:
        name: `embedding`, `layer`, ...
        forward: over a micro-batch.
        backward: likewise.
        parameters: on this GPU, without experts; elements.
        expert_parameters: of the experts on this GPU.
        input_bytes: of what it gets from the block before.
        saved_bytes: kept for its backward pass, with its input.
        workspace_bytes: of what one pass holds besides, at most.
        is_layer: one of those that stages share evenly; others go with the layer next to them.
    """

    name: str
    forward: Pass
    backward: Pass
    parameters: float = 0
    expert_parameters: float = 0
    input_bytes: float = 0
    saved_bytes: float = 0
    workspace_bytes: float = 0
    is_layer: bool = True


@dataclass(frozen=True)
class Model:
    """Blocks in their order, and what training keeps of each parameter.

    Attributes:
        blocks: from the input to the loss.
        parameter_bytes: of a parameter as kernels read it.
        gradient_bytes: of a gradient as it is kept and exchanged.
        optimizer_bytes: of master weights and moments, for each parameter.
        optimizer_ns: that the update of one parameter takes.
        update_bytes: that it holds besides, for each parameter.
        synchronous: the thread waits for the GPU after each pass, as Megatron's timers and messages have it.
    """

    blocks: tuple[Block, ...]
    parameter_bytes: float = 2
    gradient_bytes: float = 4
    optimizer_bytes: float = 12
    optimizer_ns: float = 0.0
    update_bytes: float = 0
    synchronous: bool = False


@dataclass(frozen=True)
class Strategy:
    """How a training step is divided.

    Attributes:
        dp: replicas, whose gradients are reduced.
        fsdp: GPUs of a replica among which parameters, gradients and optimizer are sharded.
        tp: GPUs that share each layer.
        pp: stages.
        ep: GPUs among which experts are divided, of those of `dp` and `fsdp`.
        cp: GPUs among which a sequence is divided.
        micro_batch: sequences of a micro-batch.
        micro_batches: of a step, for each replica.
        chunks: of a stage; more than 1 is the interleaved schedule.
        checkpointing: layers keep their input alone and run their forward pass again.
        sharded_optimizer: replicas divide the optimizer's state: gradients are reduce-scattered, parameters
            gathered.
        overlap: gradients are reduced during the last backward pass.
    """

    dp: int = 1
    fsdp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    micro_batch: int = 1
    micro_batches: int = 1
    chunks: int = 1
    checkpointing: bool = False
    sharded_optimizer: bool = False
    overlap: bool = False

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        return self.dp * self.fsdp * self.tp * self.cp * self.pp

    @property
    def batch(self) -> int:
        """Sequences of a step, of all replicas."""
        return self.dp * self.fsdp * self.micro_batch * self.micro_batches


@dataclass(frozen=True)
class Composed:
    """A composed step.

    Attributes:
        step_ns: what it takes.
        parts: where the time of the stage that works most goes, ns: `compute`, `launch` (the GPU waits for the
            thread), `tp`, `cp`, `ep`, `fsdp`, `bubble`, `gradients`, `optimizer`. They add up to the step.
        memory: peak of each stage, bytes.
    """

    step_ns: float
    parts: dict[str, float]
    memory: tuple[float, ...]

    @property
    def peak_bytes(self) -> float:
        """Memory of the stage that needs most."""
        return max(self.memory)


# A pass of a chunk, ns: kernels with collectives, launches, what it takes from the first launch on, and parts.
ChunkPass = tuple[float, float, float, dict[str, float]]


def compose(model: Model, strategy: Strategy, cluster: Cluster) -> Composed:
    """Return what a step takes and needs.

    Args:
        model: blocks, measured for this micro-batch and these `tp`, `cp` and `ep`.
        strategy: how the step is divided.
        cluster: the GPUs. Ranks fill the nodes in the order tp, cp, dp and fsdp, pp.

    Raises:
        DaydreamError: the layers or the micro-batches do not divide.
    """
    stages = divided(model.blocks, strategy)
    time = network(strategy, cluster)
    passes = [
        [
            [_chunk(blocks, model, strategy, time, backward=back) for back in (False, True)]
            for blocks in chunks
        ]
        for chunks in stages
    ]
    largest = max(block.input_bytes for block in model.blocks if block.is_layer)
    send_ns = time("pp", "send", largest) if strategy.pp > 1 else 0.0
    done, last_start = _run(passes, strategy, send_ns, synchronous=model.synchronous)
    ends = []
    every = []
    for stage, chunks in enumerate(stages):
        blocks = [*chain(*chunks)]
        exposed = 0.0  # all gradients in one, those of experts on their own
        for group, held, replicas in _shares(blocks, strategy):
            gradients = held * model.gradient_bytes
            if strategy.sharded_optimizer:
                exposed += time(group, "reduce_scatter", gradients, replicas)
                exposed += time(group, "all_gather", held * model.parameter_bytes, replicas)
            else:
                exposed += time(group, "all_reduce", gradients, replicas)
        if strategy.overlap:
            hidden = done[stage] - last_start[stage]
            exposed = max(exposed - hidden, exposed / max(len(blocks), 1))
        update = _updated(blocks, strategy) * model.optimizer_ns
        ends.append(done[stage] + exposed + update)
        parts = dict.fromkeys((*PARTS, "bubble"), 0.0)
        for *_, of_pass in chain(*passes[stage]):
            for name, value in of_pass.items():
                parts[name] += value * strategy.micro_batches
        every.append({**parts, "gradients": exposed, "optimizer": update})
    step_ns = max(ends)
    busiest = max(every, key=lambda parts: sum(parts.values()))
    rest = step_ns - sum(busiest.values())
    ahead = min(max(-rest, 0.0), busiest["launch"])  # launches of a pass that the one before hides
    busiest["launch"] -= ahead
    busiest["bubble"] = rest + ahead
    return Composed(step_ns, busiest, peaks(model, strategy))


def divided(blocks: Sequence[Block], strategy: Strategy) -> list[list[list[Block]]]:
    """Return the blocks of each chunk of each stage; chunk c of stage s is the (c * pp + s)th of the model.

    Raises `DaydreamError` where layers, micro-batches or ranks do not divide.
    """
    pp = strategy.pp
    chunks = strategy.chunks
    layers = [number for number, block in enumerate(blocks) if block.is_layer]
    if not layers or len(layers) % (pp * chunks):
        raise DaydreamError("pp does not divide the layers")
    if chunks > 1 and (pp == 1 or strategy.micro_batches % pp):
        raise DaydreamError("chunks need stages that divide the micro-batches")
    if strategy.dp * strategy.fsdp * strategy.tp * strategy.cp % strategy.ep:
        raise DaydreamError("ep does not divide the GPUs of a stage")
    each = len(layers) // (pp * chunks)
    cuts = [0, *(layers[number] for number in range(each, len(layers), each)), len(blocks)]
    parts = [list(blocks[start:end]) for start, end in pairwise(cuts)]
    return [parts[stage::pp] for stage in range(pp)]


Time = Callable[..., float]


def network(strategy: Strategy, cluster: Cluster) -> Time:
    """Return a function of a dimension, an operation, bytes and members that gives ns, remembered.

    Members of a dimension are as many ranks apart as the dimensions inside it have.
    """
    replicas = strategy.dp * strategy.fsdp
    apart = {"tp": 1, "cp": strategy.tp, "ep": 1, "fsdp": strategy.tp, "dp": strategy.tp}
    apart["experts"] = strategy.tp * strategy.ep
    apart["pp"] = strategy.tp * strategy.cp * replicas
    sizes = {"tp": strategy.tp, "cp": strategy.cp, "ep": strategy.ep, "pp": 2}
    cluster = cluster.holding(strategy.world_size)

    @cache
    def time(group: str, operation: str, nbytes: float, members: int | None = None) -> float:
        members = members or sizes[group]
        together = max(1, min(members, cluster.gpus_per_node // apart[group]))
        if members < 2 and operation != "send":
            return 0.0
        return cluster.time_ns(operation, nbytes, max(members, 2), per_node=together)

    return time


def _chunk(
    blocks: Sequence[Block], model: Model, strategy: Strategy, time: Time, *, backward: bool
) -> ChunkPass:
    """Return the forward or the backward pass of blocks that run one after another."""
    parts = dict.fromkeys(PARTS, 0.0)
    gpu = cpu = least = link = gathered = 0.0
    for block in blocks[::-1] if backward else blocks:
        ran = [block.backward if backward else block.forward]
        if backward and strategy.checkpointing and block.is_layer:
            ran.insert(0, block.forward)
        own = 0.0
        for one in ran:
            own += one.gpu_ns
            parts["compute"] += one.gpu_ns
            cpu += one.cpu_ns
            for exchange in one.exchanges:
                took = time(exchange.group, exchange.operation, exchange.nbytes)
                took = exchange.count * max(took - exchange.beside_ns, 0.0)
                own += took
                parts[exchange.group] += took
        if strategy.fsdp > 1:  # all parameters of a block are gathered before it, and blocks ahead
            whole = _parameters(block)
            cpu += SHARDING_NS[backward] * (whole > 0)
            link += time("fsdp", "all_gather", whole * model.parameter_bytes, strategy.fsdp)
            gathered = max(gathered, link) + own
            if backward:
                link += time("fsdp", "reduce_scatter", whole * model.gradient_bytes, strategy.fsdp)
        gpu += own
        least = max(least + own, cpu)
    busy = max(gpu, gathered, link)
    parts["fsdp"] = busy - gpu
    parts["launch"] = max(least - busy, 0.0)
    return busy, cpu, max(least, busy), parts


def _shares(blocks: Sequence[Block], strategy: Strategy) -> list[tuple[str, float, int]]:
    """Return the parameters that a GPU holds, and in how many replicas: those of experts apart from others."""
    found = []
    alike = strategy.dp * strategy.cp * strategy.fsdp
    for group, held, ranks in (
        ("dp", sum(block.parameters for block in blocks), alike),
        ("experts", sum(block.expert_parameters for block in blocks), alike // strategy.ep),
    ):
        shards = max(min(strategy.fsdp, ranks), 1)
        found.append((group, held / shards, max(ranks // shards, 1)))
    return found


def _updated(blocks: Sequence[Block], strategy: Strategy) -> float:
    """Return how many parameters a GPU keeps the optimizer's state of."""
    shares = _shares(blocks, strategy)
    return sum(
        held / (replicas if strategy.sharded_optimizer else 1) for _, held, replicas in shares
    )


def _parameters(block: Block) -> float:
    return block.parameters + block.expert_parameters


class StagePass(NamedTuple):
    """A pass of a micro-batch through a chunk of a model; chunk c is on stage c modulo the number of stages."""

    backward: bool
    chunk: int
    batch: int


def passes_of_stages(
    stages: int, batches: int, chunks: int = 1, *, gpipe: bool = False
) -> list[list[StagePass]]:
    """Return for each stage its passes in the order in which it runs them.

    All forward passes first (`gpipe`), or 1F1B: as many as there are stages after this one, then one forward and
    one backward pass in turn; interleaved where a stage has several chunks (Narayanan et al., "Efficient
    large-scale language model training on GPU clusters using Megatron-LM", SC 2021, section 2.2).
    """
    total = batches * chunks

    def nth(stage: int, turn: int, backward: bool) -> StagePass:  # noqa: FBT001
        turns, place = divmod(turn, stages * chunks)
        chunk, batch = divmod(place, stages)
        if backward:
            chunk = chunks - 1 - chunk
        return StagePass(backward, chunk * stages + stage, turns * stages + batch)

    found = []
    for stage in range(stages):
        ahead = stages - stage - 1
        if chunks > 1:
            ahead = 2 * ahead + (chunks - 1) * stages
        if gpipe or ahead > total:
            ahead = total
        passes = []
        for turn in range(total + ahead):
            if turn < total:
                passes.append(nth(stage, turn, False))
            if turn >= ahead:
                passes.append(nth(stage, turn - ahead, True))
        found.append(passes)
    return found


def in_order(of_stages: Sequence[Sequence[StagePass]], chunks: int) -> list[tuple[int, StagePass]]:
    """Return (stage, pass) of all in an order in which they can be done; `chunks` of all stages."""
    left = [list(passes[::-1]) for passes in of_stages]
    order: list[tuple[int, StagePass]] = []
    # Of each micro-batch, which goes forward, then backward, through all chunks: how many passes are done.
    done: Counter[int] = Counter()
    ready = True
    while ready:
        before = len(order)
        for stage, passes in enumerate(left):
            if not passes:
                continue
            one = passes[-1]
            turn = one.chunk
            if one.backward:
                turn = 2 * chunks - 1 - turn
            if done[one.batch] == turn:
                order.append((stage, passes.pop()))
        done.update(one.batch for _, one in order[before:])
        ready = len(order) > before
    return order


@lru_cache(maxsize=256)
def _order(pp: int, chunks: int, batches: int) -> list[tuple[int, StagePass]]:
    return in_order(passes_of_stages(pp, batches, chunks), pp * chunks)


def _run(
    passes: Sequence[Sequence[Sequence[ChunkPass]]],
    strategy: Strategy,
    send_ns: float,
    *,
    synchronous: bool,
) -> tuple[list[float], list[float]]:
    """Return when each stage has done its last pass, and when that began, ns.

    A long step is run for a few rounds of micro-batches; each further round takes what the last one took.
    """
    pp = strategy.pp
    count = strategy.micro_batches

    def run(batches: int) -> tuple[list[float], list[float]]:
        thread, gpu, start = [0.0] * pp, [0.0] * pp, [0.0] * pp
        ended: dict[StagePass, float] = {}
        for stage, one in _order(pp, strategy.chunks, batches):
            source = one._replace(chunk=one.chunk + (1 if one.backward else -1))
            gpu_ns, cpu_ns, least_ns, _ = passes[stage][one.chunk // pp][one.backward]
            start[stage] = begin = max(gpu[stage], ended.get(source, -send_ns) + send_ns)
            if synchronous:
                gpu[stage] = thread[stage] = begin + least_ns
            else:
                gpu[stage] = max(begin + gpu_ns, thread[stage] + least_ns)
                thread[stage] += cpu_ns
            ended[one] = gpu[stage]
        return gpu, start

    few = SETTLED * pp + count % pp
    if count <= few + pp:
        return run(count)
    before, _ = run(few)
    done, start = run(few + pp)
    rounds = (count - few - pp) // pp
    for stage, earlier in enumerate(before):
        more = rounds * (done[stage] - earlier)
        done[stage] += more
        start[stage] += more
    return done, start


def peaks(model: Model, strategy: Strategy) -> tuple[float, ...]:
    """Return the peak of each stage, bytes: what it keeps of its parameters, and of passes that are under way.

    Raises `DaydreamError` where layers do not divide.
    """
    found = []
    few = min(strategy.micro_batches, (SETTLED + 1) * strategy.pp)
    order = _order(strategy.pp, strategy.chunks, few)
    for stage, chunks in enumerate(divided(model.blocks, strategy)):
        blocks = [*chain(*chunks)]
        held = sum(held for _, held, _ in _shares(blocks, strategy))
        updated = _updated(blocks, strategy)
        kept = held * (model.parameter_bytes + model.gradient_bytes)
        kept += updated * model.optimizer_bytes
        if strategy.fsdp > 1:  # two blocks in full: the one that runs, and the next
            whole = max(map(_parameters, blocks))
            kept += whole * (2 * model.parameter_bytes + model.gradient_bytes)
        # Of each chunk, for one micro-batch: between its passes, and in one of them.
        saved, highest = list[float](), list[float]()
        for chunk in chunks:
            own = high = 0.0
            for block in chunk:
                again = strategy.checkpointing and block.is_layer
                own += block.input_bytes if again else block.saved_bytes
                within = block.workspace_bytes + (block.saved_bytes if again else 0.0)
                high = max(high, own + within)
            saved.append(own)
            highest.append(high)
        now = peak = 0.0
        for at, one in order:
            if at == stage:
                number = one.chunk // strategy.pp
                now -= saved[number] * one.backward
                peak = max(peak, now + highest[number])
                now += saved[number] * (not one.backward)
        found.append(kept + max(peak, updated * model.update_bytes))
    return tuple(found)
