"""What `memory_pairs.py` runs in processes of their own: a model with a change, recorded and counted."""

from __future__ import annotations

import importlib
import json
import socket
import tempfile
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from memory_changes import CHANGES, UNCHANGED, Change
from memory_count import Count
from memory_models import Training
from memory_reader import Steps, read
from torch import distributed
from torch.profiler import ProfilerActivity, profile, record_function

WARM, COUNTED, OF_RANKS = 3, 3, 21  # steps


def recorded(name: str, title: str) -> dict[str, Any]:
    """Return the most bytes that are held in a steady step, by what torch's profiler records.

    It records from before the model is made, so that the sum of its rows is all that is held. What
    the tensors themselves hold before the step stands next to it.
    """
    held = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        step = _training(name, title, mark=lambda phase: record_function(f"{Steps.PHASE}{phase}"))
        with _applied(title, step):
            for _ in range(WARM):
                step()
            for number in range(COUNTED):
                held.append(step.held())
                with record_function(f"{Steps.STEP}{number}"):
                    step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recording.export_chrome_trace(str(path))
        steps = read(path)
    most = max(range(COUNTED), key=lambda number: steps.peaks[number])
    return {
        "peak_bytes": steps.peaks[most],
        "phase": steps.phases[most],
        "steps_bytes": steps.peaks,
        "held_bytes": held[most],
        "held_by_no_tensor_bytes": steps.before[most] - sum(held[most].values()),
        "left_behind_bytes": [later - before for before, later in pairwise(steps.before)],
    }


def counted(name: str, title: str) -> dict[str, Any]:
    """Return the same without the profiler, counted below torch; of several ranks the median over steps and ranks.

    `ranks_bytes` are their medians, `steps_bytes` the least and the most of any step: what a thread of gloo lets go
    of may still be there when the next unit is asked for, or not.
    """
    ranks = CHANGES.get(title, Change("")).ranks
    if ranks == 1:
        return _counted(name, title, COUNTED)
    with tempfile.TemporaryDirectory() as folder:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes: Any = torch.multiprocessing
        processes.spawn(_rank, (name, title, port, ranks, folder), nprocs=ranks)
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]
    steps = sorted(peak for each in found for peak in each["steps_bytes"])
    middle = steps[len(steps) // 2]
    of_ranks = [sorted(each["steps_bytes"])[OF_RANKS // 2] for each in found]
    return {**found[0], "peak_bytes": middle, "ranks_bytes": of_ranks, "steps_bytes": [steps[0], steps[-1]]}


def _rank(rank: int, name: str, title: str, port: int, ranks: int, folder: str) -> None:
    where = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(_counted(name, title, OF_RANKS)))
    distributed.barrier()
    distributed.destroy_process_group()


def _counted(name: str, title: str, steps: int) -> dict[str, Any]:
    count = Count()
    step = _training(name, title, mark=count.mark)
    found, held = [], []
    with _applied(title, step):
        for _ in range(WARM):
            step()
        for _ in range(steps):
            held.append(step.held())
            count.restart()
            step()
            found.append((count.most, count.phase, count.most_of_all))
    middle = sorted(range(steps), key=lambda number: found[number][0])[steps // 2]
    return {
        "peak_bytes": found[middle][0],
        "phase": found[middle][1],
        "steps_bytes": [one[0] for one in found],
        "held_bytes": held[middle],
        "with_onednn_bytes": found[middle][2],
    }


def trace(name: str, path: str) -> dict[str, Any]:
    """Save the trace of the unchanged step that predictions are made from."""
    import daydream

    step = _training(name, UNCHANGED)
    for _ in range(WARM):
        step()
    recording = daydream.collect(path, steps=COUNTED, force=True)
    with recording:
        while recording.trace is None:
            step()
    return {"trace": Path(path).name}


def _training(name: str, title: str, **how: Any) -> Training:
    """Return the step of a model with a change that its arguments make."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    change = CHANGES.get(title, Change(""))
    return Training(name, wrap=lambda model: _wrapped(model, change), **change.made, **how)


def _wrapped(model: Any, change: Change) -> Any:
    if change.optimization == "ddp":
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model)
    if change.optimization == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for unit in (*model.blocks, model):
            fully_shard(unit, reshard_after_forward=change.options["stage"] == 3)
    return model


def _applied(title: str, step: Training) -> AbstractContextManager[None]:
    """Make a change for real as the optimization's own file does."""
    change = CHANGES.get(title)
    if change is None or not change.applied:
        return nullcontext()
    file = importlib.import_module(f"daydream.optimizations.{change.optimization.replace('-', '_')}")
    made: AbstractContextManager[None] = file.apply(step.model, step.optimizer, **change.options)
    return made
