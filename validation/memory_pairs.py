"""Peak memory of real changes on a CPU, measured, and the traces that they are to be predicted from.

    python validation/memory_pairs.py -o validation/memory_peaks             what is measured; half an hour
    python validation/memory_pairs.py -o validation/memory_peaks --traces    the traces

The truth of a change is the peak of a process of its own in which it is made for real. torch's profiler records
every allocation and free from before the model is made; `memory_reader.py`, which is not daydream's, sums
them up and takes the most of the steps after those that warm up. Each change is recorded twice (A/A). A
third process counts the same below torch, without a profiler (`memory_count.c`; it takes a C compiler). For two
ranks that count is the truth: gloo's own threads let go of tensors, which the profiler does not see.
Nothing is predicted here: `memory_accuracy.py` does that from the traces alone.

Who judges: CNN, Encoder, GPT, LSTM and MLP are for development, since causes of their misses were mended; GRU, Mixer
and UNet judge. They were chosen and measured when those mends were done, and predicted then.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from memory_changes import CHANGES, DEVELOPED, MODELS, UNCHANGED, Change
from memory_models import Training
from memory_reader import Steps, read
from torch import distributed
from torch.profiler import ProfilerActivity, profile, record_function

WARM, COUNTED, OF_RANKS = 3, 3, 21  # steps
HERE = Path(__file__).parent
ASKED = "import json, sys, memory_pairs as m; print(json.dumps(getattr(m, sys.argv[1])(*sys.argv[2:])))"


def main() -> None:
    """Measure everything, or what is asked for, each in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="which models; all without")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--traces", action="store_true", help="record the traces alone, measure nothing")
    parser.add_argument(
        "--only",
        action="append",
        choices=[UNCHANGED, *CHANGES],
        help="measure this alone, again; else what is missing",
    )
    options = parser.parse_args()
    options.output.mkdir(exist_ok=True, parents=True)
    page = options.output / "peaks.json"
    document = json.loads(page.read_text(encoding="utf-8")) if page.exists() else {"recordings": {}}
    with tempfile.TemporaryDirectory() as folder:
        counter = library(Path(folder))
        for name in options.models or MODELS:
            found = document["recordings"].setdefault(name, {"role": _role(name), "peaks": {}})
            if options.traces:
                found.update(_in_process("trace", name, str(options.output / f"{name}.parquet")))
                _write(page, document)
            every = (title for title in (UNCHANGED, *CHANGES) if title not in found["peaks"])
            for title in () if options.traces else options.only or every:
                found["peaks"][title] = one = _measured(name, title, counter)
                print(name, title, one, file=sys.stderr, flush=True)
                document["machine"] = f"{platform.machine()}, one thread, {_versions()}"
                _write(page, document)


def _write(page: Path, document: dict[str, Any]) -> None:
    page.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _role(name: str) -> str:
    return "development" if name in DEVELOPED else "judgement"


def _measured(name: str, title: str, counter: Path) -> dict[str, Any]:
    """Return the truth of a change, that of its second recording, and the count beside it."""
    change = CHANGES.get(title)
    made = {"optimization": change.optimization, "options": change.options} if change is not None else {}
    if change is not None and change.ranks > 1:
        first, second = (_in_process("counted", name, title, preload=counter) for _ in range(2))
        return {**made, **first, "again_bytes": second["peak_bytes"]}
    first, second = (_in_process("recorded", name, title) for _ in range(2))
    below = _in_process("counted", name, title, preload=counter)
    return {
        **made, **first, "again_bytes": second["peak_bytes"], "counted_bytes": below["peak_bytes"],
        "with_onednn_bytes": below["with_onednn_bytes"],
    }  # fmt: skip


def _in_process(*asked: str, preload: Path | None = None) -> dict[str, Any]:
    more = {} if preload is None else {"LD_PRELOAD": str(preload)}
    # spawned ranks find the modules by PYTHONPATH
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE), **more}
    done = subprocess.run(
        [sys.executable, "-c", ASKED, *asked], stdout=subprocess.PIPE, text=True, check=True, env=environment
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _versions() -> str:
    return f"Python {platform.python_version()}, torch {torch.__version__}"


# What runs in processes of their own: a model with a change, recorded, and counted below torch (`memory_count.c`).


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
    from daydream.transforms.registry import find

    made = find(change.optimization).apply
    return nullcontext() if made is None else made(step.model, step.optimizer, **change.options)


def library(folder: Path) -> Path:
    """Compile the counter into a folder; processes count that have it in `LD_PRELOAD`."""
    path = folder / "memory_count.so"
    asked = [
        "cc",
        "-O2",
        "-shared",
        "-fPIC",
        "-o",
        str(path),
        str(HERE / "memory_count.c"),
        "-ldl",
        "-lpthread",
    ]
    subprocess.run(asked, check=True)
    return path


class Count:
    """Bytes held, and the most since `restart`, by phase; of this process, all its threads."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        for name in ("counted_held", "counted_most"):
            getattr(self.library, name).restype = ctypes.c_int64
        self.first = [self.held(all_of_it=which) for which in (False, True)]
        self.restart()

    def held(self, *, all_of_it: bool = False) -> int:
        """Return the bytes held now by torch's allocator, or by oneDNN too."""
        return int(self.library.counted_held(int(all_of_it)))

    def restart(self) -> None:
        """Forget the most so far."""
        self.library.counted_restart()
        self.most, self.most_of_all, self.phase = 0, 0, ""

    @contextmanager
    def mark(self, phase: str) -> Iterator[None]:
        """Count a phase of a step."""
        self.library.counted_restart()
        yield
        most, of_all = (int(self.library.counted_most(which)) - self.first[which] for which in (0, 1))
        if most > self.most:
            self.most, self.phase = most, phase
        self.most_of_all = max(self.most_of_all, of_all)


if __name__ == "__main__":
    main()
