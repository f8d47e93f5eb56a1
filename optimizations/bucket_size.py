"""Another bucket size for a trace that was recorded with DistributedDataParallel."""

from __future__ import annotations

from bisect import bisect, bisect_left
from itertools import chain

from daydream.optimizations._gradient_collectives import doubt_waiting, modelled

from daydream import Graph, GraphError, NotApplicableError, Selection
from daydream.costs import Cluster, find_cluster, machine_of, workers_of
from daydream.memory import unchanged
from daydream.model import MIB, Gradients, compute_lane, gradients_of
from daydream.transforms import counted, stages

STAGE = stages.COMMUNICATION
EXCLUDES = {"ddp", "p3", "blueconnect"}
CODE = "DistributedDataParallel(model, bucket_cap_mb=100)"
memory = unchanged

NODE = r"evaluate_function: (torch::autograd::)?AccumulateGrad$"  # DDP's hook runs inside


def bucket_size(graph: Graph, *, bucket_mb: float = 25.0, cluster: str | None = None) -> None:
    """Predict another `bucket_cap_mb` of DistributedDataParallel.

    The all-reduces of the backward pass are replaced by those of buckets that are full at `bucket_mb`
    MiB, in the order in which gradients are ready. Each begins when the work launched before its last
    gradient's hook has ended, and what runs after the backward pass waits for the last. They take as
    long as the recorded ones together: a gradient takes its share of the bucket that it was recorded in,
    and each all-reduce the fixed cost of a short one on `cluster` (machines of the trace's GPU if not
    given).

    Where the trace does not say how large each gradient is, those of a recorded bucket share its bytes
    equally: exact for buckets of several recorded ones, a guess for parts of one. Without sizes, as from
    Nsight Systems, a bucket's follows from its time on `cluster`, and each kernel that its thread launched
    since the bucket before counts as a gradient. What recorded times hold of waiting for peers is kept in
    proportion; the range reaches to where none of it is left. Several DistributedDataParallel modules of
    one program are assumed to be one.

    Args:
        bucket_mb (MiB): Size of a gradient bucket.
        cluster (NAME): Machines and network, such as dgx-h100:4, or a file.
    """
    if bucket_mb <= 0:
        raise GraphError(f"bucket_mb must be above 0, not {bucket_mb:g}")
    old = _recorded_reductions(graph)
    if len(set(old.rank.tolist())) > 1:
        graph.does_not_apply(
            "several ranks were recorded together, and their collectives are matched as recorded"
        )
    lane = compute_lane(graph)
    stream = str(old.lane[0])
    if lane == stream or (lane is None and not modelled(graph)):
        graph.does_not_apply("its collectives have no stream of their own")
    sized = bool((old.bytes > 0).all())
    try:
        members = workers_of(graph, None)
    except NotApplicableError:
        if sized:
            raise
        members = max(len(graph.recorded.metadata.get("devices") or []), 2)  # those of the machine
    machines = find_cluster(cluster or machine_of(graph)).holding(members)
    if sized:
        gradients, within = _recorded(graph, old)
    else:
        old.set(bytes=bytes_of_duration(old, machines, members))
        gradients, within = work_of_buckets(graph, old, str(lane))
        last = old.where(lambda tasks: tasks.step == tasks.step[-1])
        sizes = ", ".join(f"{nbytes / MIB:,.0f}" for nbytes in last.bytes.tolist())
        graph.note(
            f"Sizes of buckets are not recorded: by their time between {members} workers of {machines.name} "
            f"they are at most {sizes} MiB. Their gradients are guessed from the work before them."
        )
    buckets = gradients.buckets(bucket_mb)
    if buckets.nbytes.tolist() == old.bytes.tolist():
        graph.does_not_apply(f"its buckets are those of {bucket_mb:g} MiB already")
    fixed = machines.all_reduce_ns(1, members)
    recorded = gradients.nodes.group_by(within)
    new = gradients.nodes.group_by(buckets.number.tolist())
    part = gradients.nbytes / recorded.total(gradients.nbytes)[recorded.number]
    held = dict(zip(range(len(old)), (old.duration_ns - fixed).clip(0), strict=True))
    share = dict(zip(new.keys, new.total(part * [held[bucket] for bucket in within]), strict=True))
    time = [fixed + share[bucket] for bucket in range(len(buckets))]
    steps = len(old.group_by("step"))
    was = counted(round(len(old) / steps), "bucket")
    said = f"{old.total('bytes') / steps / 1e6:,.1f} MB per step in {was} as recorded"

    old.remove()
    awaited = graph.insert_after(
        _ends_of_hooks(graph, gradients.nodes.group_by("step").last()),
        "wait for all-reduces",
        kind="cpu" if lane is None else "kernel",
        lane=lane,
        duration_ns=0,
        gap_ns=0,
        launched=False,
    )
    new_ones = graph.insert_after(
        _ends_of_hooks(graph, buckets.nodes),
        "all-reduce",
        kind="collective",
        lane=stream,
        gap_ns=0,
        duration_ns=time,
        collective="all_reduce",
        bytes=buckets.nbytes,
    )
    transfer = [machines.all_reduce_ns(nbytes, members) for nbytes in buckets.nbytes.tolist()]
    # Peers that came late do not keep a later bucket.
    if not modelled(graph):
        doubt_waiting(new_ones, map(min, transfer, time))
    if lane is not None:
        new_ones.launches().wait_for(lane, on=stream)
    graph.link(new_ones.group_by("step").last(), awaited)
    graph.note(f"{said}, {round(len(buckets) / steps)} now.")


def _recorded_reductions(graph: Graph) -> Selection:
    """Return the all-reduces of buckets: of known size and from a gradient's hook, where operators tell."""
    reductions = graph.select(kind="collective", collective="all_reduce")
    passes = reductions.where(phase="backward")
    if not len(passes) and not len(graph.select(phase="backward", kind="kernel")):  # no phases are known
        passes = reductions
    passes = passes.where(lambda tasks: (tasks.launch >= 0) & (tasks.step >= 0))
    old = passes.where(lambda tasks: tasks.bytes > 0)
    if graph.trace is not None and not graph.trace.is_kind("operator").any() and not len(old):
        return passes.need("all-reduce in the backward pass, with its launch", lacks="ranks")
    old.need("all-reduce of known size in the backward pass, with its launch", lacks="ranks")
    if not len(old.launches().where(within=NODE)):
        graph.does_not_apply("no hook of a gradient launched its all-reduces: they are not of DDP's buckets")
    return old


def _recorded(graph: Graph, old: Selection) -> tuple[Gradients, list[int]]:
    """Return the gradients of the steps that were reduced, and the recorded bucket each was in.

    A bucket is launched by the hook of its last gradient. Where sizes are unknown its gradients
    share the bucket's bytes.
    """
    try:
        found = gradients_of(graph)
        known = True
    except NotApplicableError:
        found = gradients_of(graph, old.total("bytes") / MIB)
        known = False
    steps = old.step.tolist()
    launched = graph.tasks(old.launch).order.tolist()
    kept = [step in steps for step in found.nodes.step.tolist()]
    nodes = found.nodes[kept]
    within = []
    for at, step in zip(nodes.order.tolist(), nodes.step.tolist(), strict=True):
        bucket = min(bisect_left(launched, at), len(old) - 1)
        within.append(bucket - (steps[bucket] > step))  # behind the last launch of its step
    nbytes = found.nbytes[kept] if known else shared_equally(old.bytes.tolist(), within)
    return Gradients(nodes, found.makers[kept], nbytes), within


def _ends_of_hooks(graph: Graph, nodes: Selection) -> Selection:
    """Return the last CPU task of each gradient's node, with the hooks that run inside it."""
    calls = graph.select(kind="cpu", phase="backward").group_by(within=NODE)
    last = calls.last()
    ends = zip(last.next_after(nodes).tolist(), calls.first().next_after(nodes).tolist(), strict=True)
    inside = [last.ids[end] if end < begun else None for end, begun in ends]
    return graph.tasks(
        [node if end is None else end for node, end in zip(nodes.ids.tolist(), inside, strict=True)]
    )


# Bytes of an all-reduce; no more than a GPU's memory
LEAST = 2**10
MOST = 2**36


def bytes_of_duration(old: Selection, cluster: Cluster, members: int) -> list[int]:
    """Return the bytes of each all-reduce, by the shortest time of its place in all steps.

    Recorded times hold waiting for peers, the shortest one least; so it is the most that was moved.
    """
    shortest: dict[int, int] = {}
    places = []
    for step in old.group_by("step"):
        for place, ns in enumerate(step.duration_ns.tolist()):
            shortest[place] = min(ns, shortest.get(place, ns))
            places.append(place)
    sizes = range(LEAST, MOST)
    nbytes = {
        place: sizes[max(bisect(sizes, ns, key=lambda size: cluster.all_reduce_ns(size, members)) - 1, 0)]
        for place, ns in shortest.items()
    }
    return [nbytes[place] for place in places]


def work_of_buckets(graph: Graph, old: Selection, lane: str) -> tuple[Gradients, list[int]]:
    """Return stand-ins for gradients, and the recorded all-reduce that each was in.

    Kernels on `lane` that its thread launched since the bucket before share a bucket's bytes equally.
    """
    calls = graph.tasks(old.launch)
    work = graph.select(kind="kernel", lane=lane).where(lambda tasks: tasks.launch >= 0)
    threads = set(calls.lane.tolist())
    work = work[[thread in threads for thread in graph.tasks(work.launch).lane.tolist()]]
    work.need("backward kernels from the thread that launches its all-reduces")
    of_bucket: list[list[int]] = [[] for _ in calls]
    steps = old.step.tolist()
    behind = calls.next_after(graph.tasks(work.launch)).tolist()
    for task, step, bucket in zip(work.ids.tolist(), work.step.tolist(), behind, strict=True):
        if bucket < len(old) and step == steps[bucket]:
            of_bucket[bucket].append(task)
    before = [*chain(*of_bucket)][:1]
    for bucket, tasks in enumerate(of_bucket):  # nothing was launched since the one before: that again
        of_bucket[bucket] = tasks or before
        before = of_bucket[bucket][-1:]
    within = [bucket for bucket, tasks in enumerate(of_bucket) for _ in tasks]
    nodes = graph.tasks([*chain(*of_bucket)])
    return Gradients(nodes, nodes, shared_equally(old.bytes.tolist(), within)), within


def shared_equally(total: list[int], within: list[int]) -> list[int]:
    """Return whole numbers, one for each entry of `within`, that add up to the total of each group."""
    found = []
    for group, amount in enumerate(total):
        count = within.count(group)  # groups lie together, in order
        found += [(amount + place) // count for place in reversed(range(count))]
    return found
