"""Fake worlds beside real ones: what three models ask for, hold and take, however they are divided, on the CPU.

    python validation/worlds.py [--part asked] [--part waits] [--part compute] [--json]

- `asked`: collectives by kind, bytes, dtype and group and messages by peer, in order, of ranks on gloo, as torch's
  flight recorder and profiler have them; and their peaks of memory. Blocks that gloo takes in its calls are apart, and
  blocks whose end torch does not see (one of gloo's threads let them go) are left out on both sides.
- `waits`, `compute`: the time of a step of real ranks (processes, a thread each, pinned), whose collectives take what
  an emulated link takes once all have asked, and move nothing; beside the replay of fake ranks. With `waits`, a block
  sleeps as long as it computed, over a batch too thin to matter. The real job runs twice; where its two times differ by
  more than `AGREE`, the machine was not quiet, and there is no verdict.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]
from torch.nn import functional

MODELS = "GPT", "MLP", "ConvNeXt"
WAYS = {2: ("ddp", "fsdp", "tp", "1f1b"), 4: ("ddp", "fsdp", "tp", "fsdp x tp", "1f1b")}
GB_PER_S = {
    "ddp": 0.2,
    "fsdp": 0.2,
    "tp": 0.05,
    "fsdp x tp": 0.1,
    "1f1b": 0.05,
}  # half of it between nodes of two
WIDTH, BLOCKS, MICRO_BATCHES, ROWS, THIN = 128, 4, 4, 2048, 16
STEPS, TIMED, LEAST = 3, 12, 1024  # bytes of a block that counts
AGREE, MEDIAN, WORST, MEMORY = 0.05, 0.05, 0.12, 0.02
TYPES = {"Float": "float32", "Long": "int64", "Int": "int32", "Byte": "uint8"}
MESSAGES = {"float": "float32"}  # others are of Python objects, and votes
MOST = 1 << 14  # collectives of a line


class Wait(torch.autograd.Function):  # type: ignore[misc]
    """Sleeps in both passes, so many seconds."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        """Return x, later."""
        ctx.seconds = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient, later."""
        time.sleep(ctx.seconds)
        return gradient, None, None


class Block(nn.Module):  # type: ignore[misc]
    """A residual block, which may wait."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.waits = kind, (0.0, 0.0)
        self.norm, self.up, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.Linear(4 * WIDTH, WIDTH),
        )
        if kind == "GPT":
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        if kind == "ConvNeXt":
            self.mix = nn.Conv2d(WIDTH, WIDTH, 7, padding=3, groups=WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many numbers."""
        found = x
        if self.kind == "GPT":
            parts = self.qkv(self.norm(x)).unflatten(-1, (-1, 3, 32)).transpose(1, 2).unbind(-2)
            heads = functional.scaled_dot_product_attention(*parts)
            x = found = x + self.out(heads.transpose(1, 2).flatten(2))
        if self.kind == "ConvNeXt":
            found = self.mix(x.movedim(-1, 1)).movedim(1, -1)
        found = x + self.down(functional.gelu(self.up(self.norm(found))))
        return Wait.apply(found, *self.waits) if any(self.waits) else found


def model_of(kind: str, rows: int) -> tuple[nn.Sequential, torch.Tensor]:
    """Return a model and its input."""
    torch.manual_seed(0)
    first, x = {
        "GPT": lambda: (nn.Embedding(512, WIDTH), torch.randint(512, (rows // 16, 16))),
        "MLP": lambda: (nn.Linear(64, WIDTH), torch.randn(rows, 64)),
        "ConvNeXt": lambda: (nn.Linear(48, WIDTH), torch.randn(rows // 16, 4, 4, 48)),
    }[kind]()
    return nn.Sequential(first, *(Block(kind) for _ in range(BLOCKS))), x


def loss_of(out: torch.Tensor, _: Any = None) -> torch.Tensor:
    """Return a loss."""
    return out.square().mean()


def step_of(way: str, model: nn.Sequential, x: torch.Tensor, optimizer_of: Any) -> Callable[[], None]:
    """Return a training step of this rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.tensor import parallel

    rank, size = dist.get_rank(), dist.get_world_size()
    trained: nn.Module = model
    schedule: Any = None
    if way == "ddp":
        trained = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
    elif way == "1f1b":
        each = BLOCKS // size
        trained = model[rank and 1 + rank * each : 1 + (rank + 1) * each]
        schedule = Schedule1F1B(
            PipelineStage(trained, rank, size, torch.device("cpu")), MICRO_BATCHES, loss_fn=loss_of
        )
    else:
        shares = {"fsdp x tp": 2, "tp": size}.get(way, 1)
        mesh = init_device_mesh("cpu", (size // shares, shares), mesh_dim_names=("dp", "tp"))
        out, back = parallel.ColwiseParallel(), parallel.RowwiseParallel()
        for block in model[1:]:
            plan = {"up": out, "down": back, **({"qkv": out, "out": back} if block.kind == "GPT" else {})}
            if shares > 1:
                parallel.parallelize_module(block, mesh["tp"], plan)
            if "fsdp" in way:
                fully_shard(block, mesh=mesh["dp"])
        if "fsdp" in way:
            fully_shard(model, mesh=mesh["dp"])
    optimizer = optimizer_of(trained.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        if schedule:
            schedule.step(*([] if rank else [x]), **({"target": x} if rank == size - 1 else {}))
        else:
            loss_of(trained(x)).backward()
        if way in ("ddp", "fsdp"):
            nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()

    return step


def lengths_of(kind: str) -> list[list[float]]:
    """Return how long both passes of each block take alone, s."""
    model, x = model_of(kind, ROWS)
    x = model[0](x).detach()
    found = []
    for block in model[1:]:
        took = []
        for _ in range(5):
            at = [time.perf_counter()]
            out = block(x.requires_grad_())
            at.append(time.perf_counter())
            loss_of(out).backward()
            at.append(time.perf_counter())
            took.append(np.diff(at))
        found.append(np.min(took, 0).tolist())
    return found


# What is asked for, and held ---------------------------------------------------------------------


def asked(way: str, kind: str, file: Path, what: str) -> dict[str, Any]:
    """Return collectives, messages and blocks of memory of a few steps, from the making of the model on."""
    from daydream.world.process_group import ASKED, GROUPS

    def recorded() -> list[Any]:
        found: list[Any] = pickle.loads(_dump_fr_trace())["entries"]
        return found

    begin = len(ASKED) if what == "fake" else len(recorded())
    # What records sizes holds what is sent, and so does the flight recorder.
    with torch.profiler.profile(profile_memory=True, record_shapes=what == "gloo") as profile:
        step = step_of(way, *model_of(kind, ROWS // THIN), torch.optim.AdamW)
        for _ in range(STEPS):
            step()
        del step
        gc.collect()
    profile.export_chrome_trace(str(file))
    rows = sorted(
        (row for row in json.loads(file.read_text())["traceEvents"] if "name" in row),
        key=lambda row: row["ts"],
    )
    collectives: list[Any] = []
    messages: list[Any] = []
    if what == "fake":
        for one in ASKED[begin:]:
            p2p = one.operation in ("send", "recv")
            row = [one.operation, one.bytes, one.dtype, one.peer if p2p else GROUPS[one.group][0]]
            if not p2p or one.dtype in MESSAGES.values():
                (messages if p2p else collectives).append(row)
    elif what == "gloo":
        world = vars(dist.distributed_c10d)["_world"]
        ranks = {name: sorted(world.pg_group_ranks[group]) for group, name in world.pg_names.items()}
        for one in recorded()[begin:]:
            operation = one["profiling_name"].removeprefix("gloo:")
            if any("reduce_scatter" in at["name"] for at in one["frames"]):
                operation = "reduce_scatter"  # for which gloo reduces all
            way = "output" if operation == "scatter" else "input"
            types = [TYPES[name] for name in one[f"{way}_dtypes"]]
            moved = zip(one[f"{way}_sizes"], types, strict=True)
            nbytes = sum(int(np.prod(sizes)) * getattr(torch, dtype).itemsize for sizes, dtype in moved)
            collectives.append([operation, nbytes, types[0], ranks[one["process_group"][0]]])
        named = defaultdict(list)
        for row in rows:
            named[row["name"].removeprefix("c10d::").rstrip("_")].append(row)
        for operation in ("send", "recv"):
            for to, of in zip(named[operation], named[f"gloo:{operation}"], strict=True):
                (dtype,), (sizes,) = of["args"]["Input type"], of["args"]["Input Dims"]
                if dtype in MESSAGES:
                    row = [
                        operation,
                        4 * int(np.prod(sizes)),
                        MESSAGES[dtype],
                        int(to["args"]["Concrete Inputs"][2]),
                    ]
                    messages.append((to["ts"], row))
        messages = [row for _, row in sorted(messages)]
    blocks, scratch = blocks_of(rows)
    return {"collectives": collectives, "messages": messages, "blocks": blocks, "scratch": scratch}


def blocks_of(rows: Sequence[Any]) -> tuple[list[list[int]], int]:
    """Return a program's blocks of memory (bytes, events of its begin and end, -1 for unseen); gloo's largest one."""
    calls = [row for row in rows if row["name"].startswith(("c10d::", "fake:")) and "dur" in row]
    starts, ends = np.array([(row["ts"], row["ts"] + row["dur"]) for row in calls]).reshape(-1, 2).T
    alive: dict[int, list[int]] = {}
    found = []
    scratch = 0
    for at, row in enumerate(row for row in rows if row["name"] == "[memory]"):
        nbytes, address = row["args"]["Bytes"], row["args"]["Addr"]
        block = alive.pop(address, [0, 0, 0])
        if nbytes < 0:
            block[2] = at
            continue
        block = alive[address] = [nbytes, at, -1]
        within = int(np.searchsorted(starts, row["ts"])) - 1
        if row["tid"] != os.getpid() or (within >= 0 and row["ts"] < ends[within]):
            scratch = max(scratch, nbytes)
        elif nbytes >= LEAST:
            found.append(block)
    return found, scratch


def peaks(*sides: Sequence[Sequence[int]]) -> list[int]:
    """Return the peaks of a real and a fake rank, bytes. The nth block of a size is the nth block of that size."""
    numbered: list[dict[tuple[int, int], list[int]]] = []
    for blocks in sides:
        times: Counter[int] = Counter()
        numbered.append({})
        for nbytes, *ends in blocks:
            numbered[-1][nbytes, times[nbytes]] = ends
            times[nbytes] += 1
    unseen = {key for of in numbered for key, (_, end) in of.items() if end < 0}
    kept = [[(key[0], ends) for key, ends in of.items() if key not in unseen] for of in numbered]
    changes = [
        sorted((at, sign * n) for n, ends in of for at, sign in zip(ends, (1, -1), strict=True))
        for of in kept
    ]
    return [int(np.cumsum([nbytes for _, nbytes in of]).max()) for of in changes]


# How long it takes -------------------------------------------------------------------------------


class Line:
    """Collectives of a group, or messages from a rank to another: one behind the other once all have asked."""

    def __init__(self, path: Path, place: int, members: int) -> None:
        path.touch()
        os.truncate(path, members * 8 * MOST)
        self.asked = np.memmap(path, np.int64, "r+", shape=(MOST, members))
        self.took: list[int] = []
        self.place, self.ends, self.lock = place, [0], threading.Lock()

    def ask(self, ns: int) -> int:
        """Take in that this rank asks for one that takes so long; return its number."""
        self.asked[len(self.took), self.place] = time.monotonic_ns()
        self.took.append(ns)
        return len(self.took) - 1

    def wait(self, number: int) -> None:
        """Sleep until it is over."""
        with self.lock:
            while (now := len(self.ends) - 1) <= number:
                if self.asked[now].all():
                    self.ends.append(max(int(self.asked[now].max()), self.ends[-1]) + self.took[now])
                else:
                    time.sleep(1e-4)
        time.sleep(max(self.ends[number + 1] - time.monotonic_ns(), 0) / 1e9)


def link(folder: Path, now: dict[str, Any]) -> None:
    """Let collectives of this process take what they take on `now["cluster"]`."""
    from daydream.costs.network.nccl import bytes_of_message
    from daydream.world import process_group

    lines: dict[tuple[Any, ...], Line] = {}
    taken: list[tuple[Line, int]] = []  # of each collective, by its number
    futures: queue.SimpleQueue[tuple[int, Any, Any]] = queue.SimpleQueue()
    own_move = process_group.move

    class Carried(process_group.Done):
        def wait(self, timeout: Any = None) -> bool:
            del timeout
            line, number = taken[self._number]
            line.wait(number)
            return True

        def get_future(self) -> Any:
            futures.put((self._number, future := torch.futures.Future(), self._result))
            return future

    def move(one: process_group.Asked, pairs: Any) -> None:
        ranks, own, message = (
            process_group.GROUPS[one.group][0],
            dist.get_rank(),
            one.operation in ("send", "recv"),
        )
        if message:
            ranks = [own, one.peer][:: 1 if one.operation == "send" else -1]
        if (key := (one.group, message, *ranks)) not in lines:
            lines[key] = Line(folder / "-".join(map(str, key)), ranks.index(own), len(ranks))
        size = bytes_of_message(one.operation, one.bytes, len(ranks))
        together = max(sum(rank // 2 == node for rank in ranks) for node in range(2))
        took = now["cluster"].time_ns(one.operation, size, len(ranks), per_node=together)
        taken.append((lines[key], lines[key].ask(took)))
        own_move(one, pairs)

    def complete() -> None:
        while True:
            number, future, result = futures.get()
            taken[number][0].wait(taken[number][1])
            future.set_result(result)

    process_group.Done = Carried  # type: ignore[misc]
    process_group.move = move
    threading.Thread(target=complete, daemon=True).start()


def timed(step: Callable[[], None]) -> float:
    """Return the median time of a step, s."""
    at = []
    for _ in range(TIMED):
        at.append(time.perf_counter())
        step()
    return float(np.median(np.diff(at[2:])))


def record(step: Callable[[], None], path: Path) -> None:
    """Save a trace of a step."""
    import daydream

    for _ in range(3):
        step()
    with daydream.collect(path, steps=4, force=True) as recording:
        while recording.trace is None:
            step()


def cluster_of(folder: Path, way: str) -> str:
    """Return the file of the emulated link."""
    links = {"intra": GB_PER_S[way], "inter": GB_PER_S[way] / 2}
    each = {name: {"bandwidth_gb_per_s": speed, "latency_us": 20} for name, speed in links.items()}
    path = folder / f"{way}-{os.getpid()}.json"
    path.write_text(json.dumps({"gpus_per_node": 2, **each}))
    return str(path)


# Processes ---------------------------------------------------------------------------------------


def work(what: str, size: int, rank: int, folder: Path) -> None:
    """Be a rank: on `gloo`, likewise for its `memory`, `linked` or `fake`; or measure `lengths`. Prints JSON."""
    from daydream.costs.network.cluster_names import find_cluster
    from daydream.world import script

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    if what == "lengths":
        print(json.dumps({kind: lengths_of(kind) for kind in MODELS}))
        return
    lengths = json.loads((folder / "lengths.json").read_text())
    stages, alone, now = folder / f"{what}-{rank}-{size}", what in ("fake", "linked"), dict[str, Any]()
    stages.mkdir()
    if alone:
        script.make_world({"world_size": size, "rank": rank, "cluster": None, "stages": str(stages)})
    if what == "linked":
        link(folder, now)
    dist.init_process_group("gloo")
    cases = [one for one in json.loads((folder / "cases.json").read_text()) if one[1] == size]
    cases = [one for one in cases if what == "fake" or (one[0] == "asked") != (what == "linked")]
    found: dict[str, list[Any]] = defaultdict(list)
    for case in [*cases, *(cases[::-1] if what == "linked" else [])]:
        part, _, way, kind = case
        title = " ".join(map(str, case))
        left = folder / title  # what each stage gets from the one before it
        left.mkdir(exist_ok=True)
        shutil.copytree(left, stages, dirs_exist_ok=True)
        now["cluster"] = find_cluster(cluster_of(folder, way)).holding(size)
        if part == "asked":
            found[title].append(asked(way, kind, folder / f"{what}-{rank}.json", what))
        elif what == "linked" or not rank or way == "1f1b":
            model, x = model_of(kind, ROWS // (THIN if part == "waits" else 1))
            for block, waits in zip(model[1:], lengths[kind] if part == "waits" else (), strict=False):
                block.waits = [seconds / (MICRO_BATCHES if way == "1f1b" else 1) for seconds in waits]
            step = step_of(way, model, x, torch.optim.SGD)
            if what == "linked":
                found[title].append(timed(step))
            else:
                record(step, folder / f"{title} {rank}.parquet")
            del step, model
        if what == "fake":
            shutil.copytree(stages, left, dirs_exist_ok=True)
        gc.collect()
    print(json.dumps(found), flush=True)
    os._exit(0)  # futures have a thread that never ends


def run(what: str, size: int, folder: Path) -> list[dict[str, Any]]:
    """Return what the ranks of a world found, each a process; fake ones one after the other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        of_all = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": str(size),
        }
    of_all |= {"TORCH_FR_BUFFER_SIZE": "100000" if what == "gloo" else "0", "OMP_NUM_THREADS": "1"}
    started: list[Any] = []
    try:
        for rank in range(size):
            words = [
                sys.executable,
                "-W",
                "ignore",
                __file__,
                "--work",
                what,
                str(size),
                str(rank),
                str(folder),
            ]
            environment = {**os.environ, **of_all, "RANK": str(rank)}
            with (folder / f"out-{rank}").open("w") as file:
                started.append(subprocess.Popen(words, env=environment, stdout=file))
            if what == "fake":
                started[-1].wait()
        if any(process.wait(600) for process in started):
            raise SystemExit(f"a rank of {what} failed")
        return [json.loads((folder / f"out-{rank}").read_text().splitlines()[-1]) for rank in range(size)]
    finally:
        for process in started:
            process.kill()


def compared(cases: Sequence[Sequence[Any]], folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each case."""
    import daydream
    from daydream.collect.launcher.runner import joined_ranks
    from daydream.trace.trace import Trace
    from daydream.world.stages import joined_stages

    parts = {part for part, *_ in cases}
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "lengths.json").write_text(json.dumps(run("lengths", 1, folder)[0]))
    kinds = ["fake", *["gloo", "memory"] * ("asked" in parts), *["linked"] * bool(parts - {"asked"})]
    ran = {
        (what, size): run(what, size, folder)
        for what in kinds
        for size in sorted({size for _, size, *_ in cases})
    }
    for case in cases:
        part, size, way, kind = case
        title = " ".join(map(str, case))
        row = {"part": part, "ranks": size, "way": way, "model": kind}
        if part == "asked":
            gloo, memory, fake = (
                [one[title][0] for one in ran[what, size]] for what in ("gloo", "memory", "fake")
            )
            unequal = [
                {"rank": rank, "what": what, "real": one[what], "fake": other[what]}
                for rank, (one, other) in enumerate(zip(gloo, fake, strict=True))
                for what in ("collectives", "messages")
                if one[what] != other[what]
            ]
            held = [peaks(one["blocks"], other["blocks"]) for one, other in zip(memory, fake, strict=True)]
            row |= {
                "asked": sum(len(one["collectives"]) + len(one["messages"]) for one in gloo),
                "unequal": unequal,
            }
            row |= {
                "peak_bytes": max(one for one, _ in held),
                "gloo_bytes": max(one["scratch"] for one in memory),
            }
            row |= {"peak_error": max((other / one - 1 for one, other in held), key=abs)}
            yield {**row, "ok": not unequal and abs(row["peak_error"]) <= MEMORY}
        else:
            first, again = ran["linked", size][0][title]
            traces = [Trace.load(path) for path in sorted(folder.glob(f"{title} *.parquet"))]
            trace = traces[0] if len(traces) == 1 else joined_stages(traces, joined_ranks)
            found = daydream.replay(trace, cluster=cluster_of(folder, way)).basis_ns / 1e6
            measured = 1e3 * (first + again) / 2
            row |= {"measured_ms": measured, "predicted_ms": found, "again": again / first - 1}
            error = found / measured - 1 if abs(row["again"]) <= AGREE else None
            yield {**row, "error": error, "ok": None if error is None else abs(error) <= WORST}


def told(row: dict[str, Any]) -> str:
    """Return a row in words."""
    if row["part"] == "asked":
        equal = "differ: " + json.dumps(row["unequal"])[:2000] if row["unequal"] else "are equal"
        said = f"{row['asked']:>5} collectives {equal}, peak {row['peak_bytes'] / 1e6:.2f} MB {row['peak_error']:+.2%}"
        said += f", gloo's largest block {row['gloo_bytes'] / 1e6:.2f} MB"
    else:
        said = f"{row['measured_ms']:8.1f} ms, again {row['again']:+.1%}, predicted {row['predicted_ms']:8.1f} ms, "
        said += "no verdict" if row["ok"] is None else f"{row['error']:+.1%}"
    return f"{row['part']:<8}{row['ranks']:>2} {row['way']:<10}{row['model']:<9}{said}"


def main() -> int:
    """Compare, print a table or JSON; return 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=("asked", "waits", "compute"), help="all without")
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--ranks", action="append", type=int, choices=sorted(WAYS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        what, size, rank, folder = options.work
        work(what, int(size), int(rank), Path(folder))
        return 0
    parts = options.part or ("asked", "waits", "compute")
    sizes = [
        (part, size) for part in parts for size in options.ranks or WAYS if (part, size) != ("compute", 4)
    ]
    cases = [(*one, way, kind) for one in sizes for way in WAYS[one[1]] for kind in options.model or MODELS]
    with tempfile.TemporaryDirectory() as folder:
        rows = list(compared(cases, Path(folder)))
    errors = [abs(row["error"]) for row in rows if row.get("error") is not None]
    judged = {"median": median(errors), "worst": max(errors)} if errors else {}
    kept = all(row["ok"] is not False for row in rows) and judged.get("median", 0) <= MEDIAN
    if options.json:
        print(json.dumps({"rows": rows, **judged, "kept": kept}, indent=1))
    else:
        print(*map(told, rows), sep="\n")
        print(f"{len(errors)} verdicts on times", *(f"{name} {error:.1%}" for name, error in judged.items()))
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
