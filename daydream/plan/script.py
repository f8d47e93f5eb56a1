"""Strategies of a training script: it is emulated, never run on data, once for each shape of its operators."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any

from daydream.collect.load import load
from daydream.costs.devices import find_device, known_devices
from daydream.costs.network.cluster_names import find_cluster
from daydream.errors import DaydreamError, NotApplicableError
from daydream.files.atomic import own_folder
from daydream.lazy import regex
from daydream.parallel import map_on
from daydream.plan.predictor import Job
from daydream.plan.recorded import recorded_model
from daydream.plan.strategies import AXES, Sizes, Strategy
from daydream.predict.replay import replay
from daydream.world.compose import Model
from daydream.world.rows import NEVER_MADE

ERROR = 0.15  # of emulated steps
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
MADE_NONE = NEVER_MADE.partition("\n")[0]
FAILED = regex(r"(?m)^(?:.*\berror: |(?=[\w.]+Error\b))(.+)")
Shape = tuple[int, ...]
Stage = tuple[Model, Sizes, int]


@dataclass
class Emulated(Job):
    """A script, whose shapes are emulated when strategies need them.

    Attributes:
        words: the script and its arguments, as given.
        takes: by axis the argument (`--tensor-parallel`) or the variable of the environment (`TP`).
        function: one in the script that returns arguments for a strategy, given by name.
        gpu: which is emulated.
        machines: the name of the cluster.
        layers: of the whole model, where a few are emulated; else 0.
    """

    words: Sequence[str] = ()
    takes: dict[str, str] = field(default_factory=dict)
    function: str = ""
    gpu: str = ""
    machines: str = ""
    layers: int = 0

    def command(self, strategy: Strategy) -> tuple[list[str], dict[str, str]]:
        """Return the script with the arguments, and the environment, that give it a strategy."""
        words = [*self.words]
        values = {axis: getattr(strategy, axis) for axis in AXES} | {"layers": FEW}
        given = {how: str(values[axis]) for axis, how in self.takes.items()}
        for how, value in given.items():
            words += [how, value] if how.startswith("-") else []
        if self.function:  # compiled alone: nothing else of the script runs
            tree = ast.parse(Path(words[0]).read_text(encoding="utf-8"))
            tree.body = [one for one in tree.body if getattr(one, "name", "") == self.function]
            space: dict[str, Any] = {}
            exec(compile(tree, words[0], "exec"), space)  # noqa: S102 - the user's own
            if self.function not in space:
                raise DaydreamError(f"{words[0]} has no function {self.function}")
            words += map(
                str, space[self.function](**{axis: getattr(strategy, axis) for axis in AXES})
            )
        return words, given

    def prepare(self, strategies: Sequence[Strategy], capacity: int, engine: Any, say: Any) -> None:
        """Emulate each shape; none with more samples where those with fewer do not fit."""
        strategies = [each for each in strategies if not self.sizes.why_not(each)]
        left = {each.shape[:3] for each in strategies}
        for micro_batch in sorted({each.micro_batch for each in strategies}):
            wanted = {each.shape for each in strategies if each.micro_batch == micro_batch}
            shapes = sorted(shape for shape in wanted - {*self.models} if shape[:3] in left)
            found = map_on(engine, Emulated.emulating, self, shapes, batch=1, progress=say)
            for shape, stage in zip(shapes, found, strict=True):
                self.models[shape] = stage if isinstance(stage, str) else stage[0]
            fits = {
                each.shape[:3]
                for each in strategies
                if each.micro_batch == micro_batch
                and isinstance(self.models.get(each.shape), Model)
                and self.memory_bytes(each) <= capacity
            }
            left -= {shape[:3] for shape in wanted} - fits
            for shape in wanted:
                self.models.setdefault(shape, "fewer samples at once do not fit")

    def repeated(self, stage: Stage) -> Stage:
        """Return a stage with all its layers, of which a few were emulated."""
        model, sizes, samples = stage
        if self.layers:
            first, *_, last, tail = model.blocks
            model = replace(model, blocks=(first, *[last] * self.layers, tail))
            sizes = sizes.but(layers=self.layers)
        return model, sizes, samples

    def emulating(self) -> Callable[[Shape], Stage | str]:
        """Return what emulates one stage of the whole model in a shape, or says why that cannot be."""

        def emulated(shape: Shape) -> Stage | str:
            stage = Strategy(**dict(zip(SHAPE, shape, strict=True)))  # type: ignore[arg-type]
            stage = replace(stage, dp=stage.ep // gcd(stage.ep, stage.tp * stage.cp))
            try:
                with own_folder("daydream") as folder:
                    script, variables = self.command(stage)
                    trace = folder / "stage.parquet"
                    world = ["--world", str(stage.world_size), "--cluster", self.machines]
                    for within in (world, []):  # a script for one GPU makes no process group
                        how = ["--emulate", self.gpu, *within, "-o", str(trace)]
                        done = subprocess.run(  # noqa: S603 - our own
                            [sys.executable, *COLLECT, *how, *script],
                            env={**os.environ, **variables},
                            capture_output=True,
                            text=True,
                            check=False,
                        )
                        if trace.exists():
                            return self.repeated(recorded_model(replay(load(trace)), stage))
                        if stage.world_size > 1 or MADE_NONE not in done.stderr:
                            break
                    said = FAILED.search(done.stderr)
                    return said[1] if said else "the script ended without a step"
            except DaydreamError as error:
                return str(error)

        return emulated


def of_script(
    words: Sequence[str], takes: Sequence[str], cluster: str, gpu: str | None, job: tuple[int, int]
) -> Job:
    """Return what a training script tells of a job.

    Args:
        words: the script and its arguments.
        takes: how it takes a strategy: `tp=--tensor-parallel`, `tp=TP`, or a function in it.
        cluster: the machines.
        gpu: which is emulated; by default the usual one of these machines.
        job: how many GPUs, and samples of a step.

    Raises:
        DaydreamError: the script does not run, repeats no block, or how it takes a strategy makes no sense.
    """
    machines = find_cluster(cluster)
    named = [gpu or "", *(one.name for one in known_devices() if one.machine == machines.name)]
    gpu = next(filter(None, named), "")
    if not gpu:
        raise DaydreamError(f"which GPU {cluster} has is not known: name it with --emulate")
    device = find_device(gpu)
    by_axis = dict(one.partition("=")[::2] for one in takes if "=" in one)
    if unknown := by_axis.keys() - {*AXES, "layers"}:
        raise DaydreamError(f"--set {min(unknown)}: axes are {', '.join(AXES)}")
    function = next((one for one in takes if "=" not in one), "")
    given = dict(pairwise(words))
    set_ = {axis: int(given[how]) for axis, how in by_axis.items() if given.get(how, "").isdigit()}
    layers = set_.pop("layers", 0)
    own = Strategy(**{"overlap": True, **set_})  # type: ignore[arg-type]
    found = Emulated(
        {}, machines, device.pcie, ERROR, Sizes(), device.memory * 10**9, {}, own, [], words,
        by_axis, function, gpu, cluster, layers,
    )  # fmt: skip
    stage = found.emulating()(own.shape)
    if isinstance(stage, str):
        raise NotApplicableError(stage)
    model, sizes, samples = stage
    free = {*AXES} if function else by_axis.keys()
    if "micro_batch" not in free:
        own = replace(own, micro_batch=samples or 1)
    found.models[own.shape] = model
    own = replace(own, dp=own.dp * max(job[0] // own.world_size, 1))
    found.own = replace(own, micro_batches=max(job[1] * own.micro_batches // own.batch, 1))
    found.limits = {axis: [getattr(own, axis)] for axis in SHAPE if axis not in free}
    found.sizes = sizes.but(gpus_per_node=machines.gpus_per_node, sequence=sizes.sequence * own.cp)
    return found
