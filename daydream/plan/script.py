"""Strategies of a training script: it is emulated, never run on data, once for each shape of its operators."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Sequence
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
from daydream.plan.recorded import recorded_model
from daydream.plan.search import AXES, Job, Sizes, Strategy, needed_bytes, tried
from daydream.predict.replay import replay
from daydream.world import NEVER_MADE
from daydream.world.compose import Model

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
NOT_THERE = ". {} runs in the Python of daydream: {} -m pip install what it imports"
FAILED = regex(r"(?m)^(?:.*\berror: |(?=[\w.]+Error\b))(.+)")
Stage = tuple[Model, Sizes, int]


@dataclass
class Emulated(Job):
    """A script, whose shapes are emulated when strategies need them.

    Attributes:
        words: the script and its arguments, as given.
        takes: by axis the argument (`--tensor-parallel`) or the variable of the environment (`TP`).
        function: one in the script that returns arguments for a strategy, given by name.
        how: the cluster, and arguments of `collect`.
        layers: of the whole model, where a few are emulated; else 0.
    """

    words: Sequence[str] = ()
    takes: dict[str, str] = field(default_factory=dict)
    function: str = ""
    how: Sequence[str] = ()
    layers: int = 0

    def command(self, strategy: Strategy) -> tuple[list[str], dict[str, str]]:
        """Return the script with the arguments, and the environment, that give it a strategy."""
        words, values = [*self.words], {axis: getattr(strategy, axis) for axis in AXES}
        given = {how: str({**values, "layers": FEW}[axis]) for axis, how in self.takes.items()}
        for how, value in given.items():
            words += [how, value] if how.startswith("-") else []
        if self.function:  # compiled alone: nothing else of the script runs
            tree = ast.parse(Path(words[0]).read_text(encoding="utf-8"))
            tree.body = [one for one in tree.body if getattr(one, "name", "") == self.function]
            space: dict[str, Any] = {}
            exec(compile(tree, words[0], "exec"), space)  # noqa: S102 - the user's own
            if self.function not in space:
                raise DaydreamError(f"{words[0]} has no function {self.function}")
            words += map(str, space[self.function](**values))
        return words, given

    def prepare(self, strategies: Sequence[Strategy], capacity: int, engine: Any, say: Any) -> None:
        """Emulate each shape; none with more samples where those with fewer do not fit."""
        strategies = [each for each in strategies if not self.sizes.why_not(each)]
        for micro_batch in sorted({each.micro_batch for each in strategies}):
            mine = [each for each in strategies if each.micro_batch == micro_batch]
            shapes = sorted({each.shape for each in mine} - {*self.models})
            stages = map_on(engine, tried, self.emulate, shapes, batch=1, progress=say)
            for shape, stage in zip(shapes, stages, strict=True):
                self.models[shape] = stage if isinstance(stage, str) else stage[0]
            fits = {
                each.shape
                for each in mine
                if isinstance(self.models[each.shape], Model)
                and needed_bytes(self.memory_bytes(each)) <= capacity
            }
            for *others, samples in {each.shape for each in strategies}:
                if samples > micro_batch and (*others, micro_batch) not in fits:
                    why = "fewer samples at once do not fit"
                    self.models.setdefault((*others, samples), why)

    def emulate(self, shape: Sequence[int]) -> Stage:
        """Return the blocks of one stage with all layers. Raises `DaydreamError` with what the script says."""
        tp, ep, cp, micro_batch = shape
        stage = Strategy(ep // gcd(ep, tp * cp), 1, tp, 1, ep, cp, micro_batch)
        script, variables = self.command(stage)
        with own_folder("daydream") as folder:
            trace = folder / "stage.parquet"
            how = [*self.how[1:], "-o", str(trace)]
            world = ["--world", str(stage.world_size), "--cluster", self.how[0]]
            for words in ([*how, *world], how):  # a script for one GPU makes no process group
                done = subprocess.run(  # noqa: S603 - our own
                    [sys.executable, *COLLECT, *words, *script],
                    env={**os.environ, **variables},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                alone = NEVER_MADE.partition("\n")[0] in done.stderr
                if trace.exists() or stage.world_size > 1 or not alone:
                    break
            if not trace.exists():
                found = FAILED.search(done.stderr)
                said = found[1] if found else "the script ended without a step"
                missing = said.startswith("ModuleNotFoundError")
                raise NotApplicableError(
                    said + NOT_THERE.format(script[0], sys.executable) * missing
                )
            model, sizes, samples = recorded_model(replay(load(trace)), stage)
        if self.layers:
            first, *_, last, tail = model.blocks
            model = replace(model, blocks=(first, *[last] * self.layers, tail))
            sizes = sizes.but(layers=self.layers)
        return model, sizes, samples


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
    by_axis = dict(one.partition("=")[::2] for one in takes if "=" in one)
    if unknown := by_axis.keys() - {*AXES, "layers"}:
        raise DaydreamError(f"--set {min(unknown)}: axes are {', '.join(AXES)}")
    function = next((one for one in takes if "=" not in one), "")
    given = dict(pairwise(words))
    set_ = {axis: int(given[how]) for axis, how in by_axis.items() if given.get(how, "").isdigit()}
    layers = set_.pop("layers", 0)
    own = Strategy(**{"overlap": True, **set_})  # type: ignore[arg-type]
    how = [cluster, "--emulate", device.name]
    found = Emulated(
        {}, machines, device.pcie, ERROR, Sizes(), device.memory * 10**9, {}, own, [],
        words, by_axis, function, how, layers,
    )  # fmt: skip
    model, sizes, samples = found.emulate(own.shape)
    free = {*AXES} if function else by_axis.keys()
    if "micro_batch" not in free:
        own = replace(own, micro_batch=samples or 1)
    found.models[own.shape] = model
    own = replace(own, dp=own.dp * max(job[0] // own.world_size, 1))
    batch = job[1] or own.batch
    found.own = replace(own, micro_batches=max(batch * own.micro_batches // own.batch, 1))
    found.limits = {axis: [getattr(own, axis)] for axis in SHAPE if axis not in free}
    found.sizes = sizes.but(gpus_per_node=machines.gpus_per_node, sequence=sizes.sequence * own.cp)
    return found
