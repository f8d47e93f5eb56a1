"""What is known of a job: of a recorded step's blocks, or of a script that is emulated, never run on data."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from daydream.collect import load
from daydream.costs.device.input_sizes import recorded_length, samples_per_step
from daydream.costs.devices import device_of, find_device, known_devices
from daydream.costs.network.cluster_names import find_cluster
from daydream.costs.network.nccl import bytes_of_message
from daydream.costs.workload.operator import itemsize
from daydream.errors import DaydreamError, NotApplicableError
from daydream.files.atomic import own_folder
from daydream.graph.build import build
from daydream.graph.calls import has_device_work
from daydream.graph.graph import Graph
from daydream.graph.tables import covered_steps
from daydream.lazy import regex
from daydream.memory.allocations import AFTER, BEFORE
from daydream.memory.lifetimes import allocations
from daydream.memory.prediction import last_whole_step, up_to
from daydream.model.blocks import repeated_blocks
from daydream.optimizations.pipeline import input_bytes
from daydream.parallel import map_on
from daydream.plan.search import AXES, Job, Limits, Strategy, answers, needed_bytes, tried
from daydream.predict.replay import Replay
from daydream.report.blocks import percent
from daydream.text import counted
from daydream.world import NEVER_MADE
from daydream.world.compose import GROUPS, Exchange, Model, compose
from daydream.world.parts import Parts

OF_TRACE = (
    "From the trace of one GPU with {} a step: tp, ep, cp and other micro-batches are not predicted. Plan "
    "from the script for these."
)
NO_GPU = (
    "no GPU ran in this trace, and plans are for GPUs: give the script, which is emulated on one: "
    "`daydream plan train.py --gpus N --cluster {}`"
)
ERROR = 0.05  # of kernels beside transfers, and of blocks that are not alike
PASSES = ("forward", "loss"), ("backward",)
UPDATE = ("optimizer",)
NO_MODULE = ("None", "loss", "<top>")
EMULATION_ERROR = 0.15  # of emulated steps
FEW = 2  # layers that stand for all, where the script takes their number
SHAPE = ("tp", "ep", "cp", "micro_batch")
COLLECT = [
    "-m",
    "daydream",
    "collect",
    "--steps",
    "1",
    "--warmup",
    "1",
    "--stop-after",
    "--no-suggestions",
]
NOT_THERE = ". {} runs in the Python of daydream: {} -m pip install what it imports"
FAILED = regex(r"(?m)^(?:.*\berror: |(?=[\w.]+Error\b))(.+)")


class Recorded(NamedTuple):
    """The blocks of a trace, what they cannot be divided by, and what a step covers: 0 where unknown."""

    model: Model
    limits: Limits
    sequence: int
    samples: int


def of_trace(replay: Replay, cluster: str) -> Job:
    """Return what the trace of one GPU tells of a job: everything but tp, ep, cp and other micro-batches.

    Raises:
        NotApplicableError: the model repeats no block, is not trained, or the trace has collectives or no GPU.
        TraceError: no memory was recorded.
        DaydreamError: there is no such cluster.
    """
    graph = replay.graph
    machines = find_cluster(cluster)
    if not has_device_work(graph):
        raise NotApplicableError(NO_GPU.format(cluster))
    if len(graph.select(kind="collective")):
        raise NotApplicableError(
            "this is one of several ranks; plan from the trace of one GPU alone"
        )
    device = device_of(graph)
    model, limits, sequence, samples = recorded_model(graph)
    if not samples:
        raise NotApplicableError(
            "the trace does not tell how many samples a step has: it has no shapes"
        )
    one_ns = compose(model, Strategy(micro_batch=samples), machines).step_ns
    off = one_ns / replay.replayed_ns - 1
    composed = f"Composed of its blocks the recorded step is {percent(off, signed=True)} off"
    notes = [OF_TRACE.format(counted(samples, "sample")), f"{composed}; the interval has that."]
    usual = [one.name for one in known_devices() if one.machine == machines.name]
    if usual and device.name not in usual:
        there = f"recorded {device.name}; {cluster} has {usual[0]}."
        notes.insert(0, f"Time and memory are those of the {there}")
    known, *_ = graph.recorded.metadata.get("devices") or [{}]
    return Job(
        {(1, 1, 1, samples): model},
        machines,
        device.pcie,
        abs(off) + ERROR,
        sequence,
        known.get("memory_bytes") or device.memory * 10**9,
        {"tp": [1], "ep": [1], "cp": [1], "micro_batch": [samples], **limits},
        notes=notes,
    )


def recorded_model(graph: Graph, of: Strategy | None = None) -> Recorded:
    """Return the blocks of a trace.

    `of` is the strategy that was recorded, of one stage. Raises as `of_trace` does.
    """
    trace = graph.recorded
    tasks = graph.select(phase=("forward", "backward"))
    repeated = repeated_blocks(graph)
    outermost = dict.fromkeys(str(layer).partition(".")[0] for layer in tasks.layer)
    families = repeated or [[one for one in outermost if one not in NO_MODULE]]
    longest = max(families, key=lambda one: tasks.group_by(block=one).tasks.total("duration_ns"))
    parts = Parts(longest)
    update_ns, steps = _times(graph, parts, of or Strategy())
    held = allocations(trace)
    step = last_whole_step(held)
    held = up_to(held, step)
    nbytes = 0
    for one in held.parameters.get(0, []):
        number = prod(one["shape"])
        parts.add_parameter(str(one.get("layer")), number)
        nbytes += number * (itemsize(one["dtype"]) or 4)
    if not nbytes:
        raise NotApplicableError("the parameters are not known; record with `daydream collect`")
    total = float(parts.elements.sum())
    on_gpu = held["device"] == 0
    lasting = held["bytes"][held.lasting & ~held.where(kind="workspace") & on_gpu].sum()
    reported = sum(one.get("state_bytes") or 0 for one in trace.metadata.get("optimizers", []))
    mine = on_gpu & (held["step"] == step)
    left = mine & held.where(kind="gradient") & ~held.where(end_phase=PASSES[1])
    own = max(nbytes - int(held["bytes"][left].sum()), 0)  # gradients that are not of each step
    states = max(reported, int(lasting) - nbytes - own)
    saved = np.flatnonzero(held.where(kind="activation", phase=PASSES[0]) & mine)
    saved = saved[np.argsort(held["begin"][saved], kind="stable")]
    layers = np.array(held.texts("layer"))[saved]
    np.add.at(parts.saved, parts.places(layers, 0), held["bytes"][saved])
    places, now = held.held(0, 0)
    besides = []  # of parameters, gradients and state: while computing, and in the update
    for phases in PASSES[0] + PASSES[1], UPDATE:
        begin = held["begin"][held.where(phase=phases) & mine]
        within = (places >= begin.min(initial=AFTER)) & (places <= begin.max(initial=BEFORE))
        besides.append(max(int(now[within].max(initial=0)) - 2 * nbytes - states, 0))
    parts.workspace += max(besides[0] - parts.saved.sum(), 0)
    parts.inputs += input_bytes(graph, longest[-1]) or 0
    each = nbytes / total
    model = Model(
        parts.blocks(steps), each, each, states / total, update_ns / total, besides[1] / total
    )
    limits = {} if repeated else {"pp": [1]}
    return Recorded(model, limits, recorded_length(graph) or 0, samples_per_step(graph) or 0)


def _times(graph: Graph, parts: Parts, of: Strategy) -> tuple[float, int]:
    """Add what blocks take and exchange in all steps; return what an update takes, ns, and the number of steps."""
    axis_of = {
        one["name"]: (len(one["ranks"]), axis)  # what its name says, last
        for one in graph.recorded.metadata.get("groups", ())
        for axis in sorted(GROUPS, key=lambda axis: axis in str(one.get("description")))
        if getattr(of, axis) == len(one["ranks"]) > 1
    }
    steps = np.flatnonzero(covered_steps(graph)).tolist()
    tasks = graph.select(step=steps)
    tasks = tasks[~graph.in_background[tasks.ids]]
    update = np.zeros(2)
    for step, (back, phases) in product(steps, enumerate((*PASSES, UPDATE))):
        mine = tasks.where(step=step, phase=phases)
        sent = mine.kind == "collective"
        on_cpu = (mine.kind == "cpu").astype(int)
        own = mine.duration_ns * ~sent + mine.gap_ns * on_cpu
        if phases == UPDATE:
            np.add.at(update, on_cpu, own)
            continue
        place = parts.places(mine.layer, back)
        where: Any = place, back, on_cpu
        np.add.at(parts.ns, where, own)
        columns = place, mine.ids, mine.group, mine.collective, mine.bytes
        each = (column[sent].tolist() for column in columns)
        for at, task, name, operation, nbytes in zip(*each, strict=True):
            if name in axis_of:
                members, axis = axis_of[name]
                size = bytes_of_message(operation, max(nbytes, 0), members)
                begin = graph.order[task]
                waits = graph.links["dst"][graph.links["src"] == task]
                inside = (mine.order > begin) & (mine.order < graph.order[waits].max(initial=begin))
                beside = float(own[inside & (on_cpu == 0)].sum())
                parts.exchanges[at, back][Exchange(axis, operation, size, 1, beside)] += 1
    on_gpu, on_cpu = parts.ns.sum((0, 1))  # whichever of the two the step waits for
    return update[int(on_cpu > on_gpu)] / len(steps), len(steps)


@dataclass
class Emulated(Job):
    """A script, whose shapes are emulated when strategies need them.

    Attributes:
        words: the script and its arguments, as given.
        takes: by axis the argument (`--tensor-parallel`) or the variable of the environment (`TP`); by an empty
            text a function in the script that returns arguments for a strategy, given by name.
        gpu: which is emulated.
        layers: of the whole model, where a few are emulated; else 0.
    """

    words: Sequence[str] = ()
    takes: dict[str, str] = field(default_factory=dict)
    gpu: str = ""
    layers: int = 0

    def command(self, strategy: Strategy) -> tuple[list[str], dict[str, str]]:
        """Return the script with the arguments, and the environment, that give it a strategy."""
        values = {axis: getattr(strategy, axis) for axis in AXES}
        words = [*self.words]
        variables: dict[str, str] = {}
        for axis, how in self.takes.items():
            value = str(values.get(axis, FEW))
            if not axis:
                words += map(str, self.function(how)(**values))
            elif how.startswith("-"):
                words += [how, value]
            else:
                variables[how] = value
        return words, variables

    def function(self, name: str) -> Any:
        """Return a function of the script, compiled alone: nothing else of the script runs."""
        script = self.words[0]
        space: dict[str, Any] = {}
        tree = ast.parse(Path(script).read_text(encoding="utf-8"))
        tree.body = [one for one in tree.body if getattr(one, "name", "") == name]
        exec(compile(tree, script, "exec"), space)  # noqa: S102 - the user's own
        if name not in space:
            raise DaydreamError(f"{script} has no function {name}")
        return space[name]

    def prepare(self, strategies: Sequence[Strategy], capacity: int, engine: Any, say: Any) -> None:
        """Emulate each shape; none with more samples where those with fewer do not fit."""
        large = set[Any]()
        for samples in sorted({each.micro_batch for each in strategies}):
            some = [
                each
                for each in strategies
                if each.micro_batch == samples and each.shape[:-1] not in large
            ]
            shapes = sorted({each.shape for each in some} - {*self.models})
            stages = map_on(engine, tried, self.emulate, shapes, batch=1, progress=say)
            models = [getattr(stage, "model", stage) for stage in stages]
            self.models.update(zip(shapes, models, strict=True))
            sizes, _ = answers(self.memory_bytes, some)
            fits = {each.shape for each in sizes if needed_bytes(sizes[each]) <= capacity}
            large |= {each.shape[:-1] for each in some if each.shape not in fits}

    def emulate(self, shape: Sequence[int]) -> Recorded:
        """Return the blocks of one stage with all layers. Raises `DaydreamError` with what the script says."""
        tp, ep, cp, micro_batch = shape
        stage = Strategy(ep // gcd(ep, tp * cp), 1, tp, 1, ep, cp, micro_batch)
        found = recorded_model(self.graph(stage), stage)
        if self.layers:
            first, *_, last, tail = found.model.blocks
            blocks = first, *[last] * self.layers, tail
            found = found._replace(model=replace(found.model, blocks=blocks))
        return found

    def graph(self, strategy: Strategy) -> Graph:
        """Return the graph of an emulated step. Raises `DaydreamError` with what the script says."""
        script, variables = self.command(strategy)
        with own_folder("daydream") as folder:
            trace = folder / "stage.parquet"
            how = ["--emulate", self.gpu, "-o", str(trace)]
            for world in (["--world", str(strategy.world_size)], []):
                done = subprocess.run(  # noqa: S603 - our own
                    [sys.executable, *COLLECT, *how, *world, *script],
                    env={**os.environ, **variables},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if strategy.world_size > 1 or NEVER_MADE.partition("\n")[0] not in done.stderr:
                    break  # else it is a script for one GPU, which makes no process group
            if not trace.exists():
                found = FAILED.search(done.stderr)
                said = found[1] if found else "the script ended without a step"
                missing = said.startswith("ModuleNotFoundError")
                raise NotApplicableError(
                    said + NOT_THERE.format(script[0], sys.executable) * missing
                )
            return build(load(trace))


def of_script(
    words: Sequence[str], takes: Sequence[str], cluster: str, gpu: str | None, job: tuple[int, int]
) -> Job:
    """Return what a training script tells of a job.

    Args:
        words: the script and its arguments.
        takes: how it takes a strategy: `tp=--tensor-parallel`, `tp=TP`, or a function in it.
        cluster: the machines.
        gpu: which is emulated; by default the usual one of these machines.
        job: how many GPUs, and samples of a step, 0 for as many for each GPU as now.

    Raises:
        DaydreamError: the script does not run, repeats no block, or how it takes a strategy makes no sense.
    """
    machines = find_cluster(cluster)
    usual = [one.name for one in known_devices() if one.machine == machines.name]
    if not (gpu or usual):
        raise DaydreamError(f"which GPU {cluster} has is not known: name it with --emulate")
    device = find_device(gpu or usual[0])
    by_axis = dict(one.partition("=")[::2] if "=" in one else ("", one) for one in takes)
    if unknown := by_axis.keys() - {*AXES, "layers", ""}:
        raise DaydreamError(f"--set {min(unknown)}: axes are {', '.join(AXES)}")
    each = [part for word in words for part in word.split("=", 1)]
    given = {**os.environ, **dict(pairwise(each))}
    set_ = {axis: int(given[how]) for axis, how in by_axis.items() if given.get(how, "").isdigit()}
    layers = set_.pop("layers", 0)
    if not layers and (how := by_axis.get("layers")):
        raise DaydreamError(
            f"{how} is not given: put it and the number of layers behind {words[0]}"
        )
    own = Strategy(**{"overlap": True, **set_})  # type: ignore[arg-type]
    found = Emulated(
        {}, machines, device.pcie, EMULATION_ERROR, 0, device.memory * 10**9, {}, own, [],
        words, by_axis, device.name, layers,
    )  # fmt: skip
    model, limits, sequence, samples = found.emulate(own.shape)
    free = {*AXES} if "" in by_axis else by_axis.keys()
    if "micro_batch" not in free:
        own = replace(own, micro_batch=samples or 1)
    found.models[own.shape] = model
    own = replace(own, dp=own.dp * max(job[0] // own.world_size, 1))
    batch = job[1] or own.batch
    found.own = replace(own, micro_batches=max(batch * own.micro_batches // own.batch, 1))
    fixed = {axis: [getattr(own, axis)] for axis in SHAPE if axis not in free}
    found.limits = {"tp": range(1, machines.gpus_per_node + 1), **limits, **fixed}
    found.sequence = sequence * own.cp
    return found
