"""Fake worlds beside real ones: what three models ask for, hold and take, however they are divided, on the CPU.

    python validation/worlds.py [--part asked] [--part waits] [--part compute] [--json]

- `asked`: collectives by kind, bytes, dtype and group and messages by peer, in order, of ranks on gloo, as torch's
  flight recorder and profiler have them; and their peaks of memory. Blocks that gloo takes in its calls are apart, and
  blocks whose end torch does not see (one of gloo's threads let them go) are left out on both sides.
- `waits`, `compute`: the time of a step of real ranks (processes, a thread each, pinned), whose collectives take what
  an emulated link takes once all have asked, and move nothing; beside the replay of fake ranks. With `waits`, a block
  sleeps as long as it computed, over a batch too thin to matter. The real job runs twice. What a rank's threads wait
  for a core in a step is the kernel's count (schedstat); where that of the rank that waits most is more than `AGREE`
  of its step, or the two times differ by more, there is no verdict.
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
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined, unused-ignore]
from torch.nn import functional

PARTS, MODELS = ("asked", "waits", "compute"), ("GPT", "MLP", "ConvNeXt")
WAYS = {2: ("ddp", "fsdp", "tp", "1f1b"), 4: ("ddp", "fsdp", "tp", "fsdp x tp", "1f1b")}
GB_PER_S = {"ddp": 0.2, "fsdp": 0.2, "tp": 0.05, "fsdp x tp": 0.1, "1f1b": 0.05}  # between nodes of two half
WIDTH, BLOCKS, MICRO_BATCHES, ROWS, THIN = 128, 4, 4, 2048, 16
STEPS, TIMED, LEAST = 3, 12, 1024  # bytes of a block that counts
LONGER = {2: 1, 4: 8}  # waits, of blocks and of the link: beside them, what ranks wait for a core is little
AGREE, MEDIAN, WORST, MEMORY = 0.05, 0.05, 0.12, 0.02
TYPES = {"Float": "float32", "Long": "int64", "Int": "int32", "Byte": "uint8"}
P2P = "send", "recv"  # messages count that are of float32: others are of Python objects, and votes
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

    waits = 0.0, 0.0

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH)
        self.down, self.kind = nn.Linear(4 * WIDTH, WIDTH), kind
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
    if kind == "GPT":
        first, x = nn.Embedding(512, WIDTH), torch.randint(512, (rows // 16, 16))
    else:
        sizes = (rows, 64) if kind == "MLP" else (rows // 16, 4, 4, 48)
        first, x = nn.Linear(sizes[-1], WIDTH), torch.randn(sizes)
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
    x, found = model[0](x).detach().requires_grad_(), []
    for block in model[1:]:
        at = []
        for _ in range(5):
            at.append([time.perf_counter()])
            out = block(x)
            at[-1].append(time.perf_counter())
            loss_of(out).backward()
            at[-1].append(time.perf_counter())
        found.append(np.diff(at).min(0).tolist())
    return found


# What is asked for, and held ---------------------------------------------------------------------


def asked(way: str, kind: str, file: Path, what: str) -> dict[str, Any]:
    """Return collectives, messages and blocks of memory of a few steps, from the making of the model on."""
    from daydream.world.process_group import ASKED, GROUPS

    def recorded() -> list[Any]:
        return list(pickle.loads(_dump_fr_trace())["entries"])

    begin = len(ASKED) if what == "fake" else len(recorded())
    # What records sizes holds what is sent, and so does the flight recorder.
    with torch.profiler.profile(profile_memory=True, record_shapes=what == "gloo") as profile:
        step = step_of(way, *model_of(kind, ROWS // THIN), torch.optim.AdamW)
        for _ in range(STEPS):
            step()
        del step
        gc.collect()
    profile.export_chrome_trace(str(file))
    events = json.loads(file.read_text())["traceEvents"]
    rows = sorted((row for row in events if "name" in row), key=lambda row: row["ts"])
    collectives: list[Any] = []
    messages: list[Any] = []  # when, and what
    for one in ASKED[begin:] if what == "fake" else ():
        if one.collective not in P2P:
            collectives.append([one.collective, one.bytes, one.dtype, GROUPS[one.group][0]])
        elif one.dtype == "float32":
            messages.append((len(messages), [one.collective, one.bytes, one.peer]))
    world = vars(dist.distributed_c10d)["_world"]
    ranks = {name: sorted(world.pg_group_ranks[group]) for group, name in world.pg_names.items()}
    for one in recorded()[begin:] if what == "gloo" else ():
        operation = one["profiling_name"].removeprefix("gloo:")
        if any("reduce_scatter" in at["name"] for at in one["frames"]):
            operation = "reduce_scatter"  # for which gloo reduces all
        end = "output" if operation == "scatter" else "input"
        types = [TYPES[name] for name in one[f"{end}_dtypes"]]
        moved = zip(one[f"{end}_sizes"], types, strict=True)
        nbytes = sum(int(np.prod(sizes)) * getattr(torch, dtype).itemsize for sizes, dtype in moved)
        collectives.append([operation, nbytes, types[0], ranks[one["process_group"][0]]])
    for operation in P2P if what == "gloo" else ():
        calls = [row for row in rows if row["name"].rstrip("_") == f"c10d::{operation}"]
        works = [row for row in rows if row["name"] == f"gloo:{operation}"]
        for call, work in zip(calls, works, strict=True):
            (sizes,), peer = work["args"]["Input Dims"], int(call["args"]["Concrete Inputs"][2])
            if work["args"]["Input type"] == ["float"]:
                messages.append((call["ts"], [operation, 4 * int(np.prod(sizes)), peer]))
    held = dict(zip(("blocks", "scratch"), blocks_of(rows), strict=True))
    return {"collectives": collectives, "messages": [one for _, one in sorted(messages)], **held}


def blocks_of(rows: Sequence[Any]) -> tuple[list[list[int]], int]:
    """Return a program's blocks of memory (bytes, events of its begin and end, -1 for unseen); gloo's largest one."""
    calls = [row for row in rows if row["name"].startswith(("c10d::", "fake:")) and "dur" in row]
    starts, ends = np.array([(row["ts"], row["ts"] + row["dur"]) for row in calls]).reshape(-1, 2).T
    alive: dict[int, list[int]] = {}
    found, scratch = [], 0
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
    numbered: list[dict[tuple[int, int], list[int]]] = [{} for _ in sides]
    for blocks, of in zip(sides, numbered, strict=True):
        times: Counter[int] = Counter()
        for nbytes, *ends in blocks:
            of[nbytes, times[nbytes]] = ends
            times[nbytes] += 1
    unseen = {key for of in numbered for key, (_, end) in of.items() if end < 0}
    found = []
    for of in numbered:
        kept = [(key[0], begin, end) for key, (begin, end) in of.items() if key not in unseen]
        changes = sorted([(begin, n) for n, begin, _ in kept] + [(end, -n) for n, _, end in kept])
        found.append(int(np.cumsum([nbytes for _, nbytes in changes]).max()))
    return found


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
        def wait(self, _: Any = None) -> bool:
            line, number = taken[self._number]
            line.wait(number)
            return True

        def get_future(self) -> Any:
            futures.put((self._number, future := torch.futures.Future(), self._result))
            return future

    def move(asked: process_group.Asked, pairs: Sequence[tuple[Any, Any]]) -> None:
        ranks, own, message = process_group.GROUPS[asked.group][0], dist.get_rank(), asked.collective in P2P
        if message:
            ranks = [own, asked.peer] if asked.collective == "send" else [asked.peer, own]
        if (key := (asked.group, message, *ranks)) not in lines:
            lines[key] = Line(folder / "-".join(map(str, key)), ranks.index(own), len(ranks))
        size = bytes_of_message(asked.collective, asked.bytes, len(ranks))
        together = max(sum(rank // 2 == node for rank in ranks) for node in range(2))
        took = now["cluster"].time_ns(asked.collective, size, len(ranks), per_node=together)
        taken.append((lines[key], lines[key].ask(took)))
        own_move(asked, pairs)

    def complete() -> None:
        while True:
            number, future, result = futures.get()
            taken[number][0].wait(taken[number][1])
            future.set_result(result)

    process_group.Done = Carried  # type: ignore[misc]
    process_group.move = move
    threading.Thread(target=complete, daemon=True).start()


def timed(step: Callable[[], None]) -> list[float]:
    """Return the median time of a step, how long this process's threads ran in it and waited for a core, s."""
    at = []
    for _ in range(TIMED):
        threads = [path.read_text().split() for path in Path("/proc/self/task").glob("*/schedstat")]
        ran, waited, _ = np.array(threads, float).sum(0) / 1e9
        at.append([time.perf_counter(), ran, waited])
        step()
    return np.median(np.diff(at[2:], axis=0), 0).tolist()


def record(step: Callable[[], None], path: Path) -> None:
    """Save a trace of a step."""
    import daydream

    for _ in range(3):
        step()
    with daydream.collect(path, steps=4, force=True) as recording:
        while recording.trace is None:
            step()


# Processes ---------------------------------------------------------------------------------------


def work(what: str, size: int, rank: int, folder: Path) -> None:
    """Be a rank: on `gloo`, likewise for its `memory`, `linked` or `fake`. Prints JSON."""
    from daydream.costs.network.cluster_names import find_cluster
    from daydream.world import script

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    cases, lengths = json.loads((folder / "cases.json").read_text())
    stages, now = folder / f"{what}-{rank}-{size}", dict[str, Any]()
    stages.mkdir()
    if what in ("fake", "linked"):
        script.make_world({"world_size": size, "rank": rank, "cluster": None, "stages": str(stages)})
    if what == "linked":
        link(folder, now)
    dist.init_process_group("gloo")
    cases = [
        one
        for one in cases
        if one[1] == size and (what == "fake" or (one[0] == "asked") != (what == "linked"))
    ]
    found: dict[str, list[Any]] = defaultdict(list)
    for part, _, way, kind in [*cases, *(cases[::-1] if what == "linked" else [])]:
        title = f"{part} {size} {way} {kind}"
        left = folder / title  # what each stage gets from the one before it
        left.mkdir(exist_ok=True)
        shutil.copytree(left, stages, dirs_exist_ok=True)
        now["cluster"] = find_cluster(str(folder / f"{way} {size}.json")).holding(size)
        if part == "asked":
            found[title].append(asked(way, kind, folder / f"{what}-{rank}.json", what))
        elif what == "linked" or not rank or way == "1f1b":
            model, x = model_of(kind, ROWS // (THIN if part == "waits" else 1))
            of_blocks = lengths[kind] if part == "waits" else ()
            longer = LONGER[size] / (MICRO_BATCHES if way == "1f1b" else 1)
            for block, waits in zip(model[1:], of_blocks, strict=False):
                block.waits = [seconds * longer for seconds in waits]
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
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    environment |= {"WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    environment["TORCH_FR_BUFFER_SIZE"] = "100000" if what == "gloo" else "0"
    started: list[Any] = []
    try:
        for rank in range(size):
            words = ["-W", "ignore", __file__, "--work", what, str(size), str(rank), str(folder)]
            given = {**environment, "RANK": str(rank)}
            with (folder / f"out-{rank}").open("w") as file:
                started.append(subprocess.Popen([sys.executable, *words], env=given, stdout=file))
            if what == "fake":
                started[-1].wait()
        if any(process.wait(600) for process in started):
            raise SystemExit(f"a rank of {what} failed")
        return [json.loads((folder / f"out-{rank}").read_text().splitlines()[-1]) for rank in range(size)]
    finally:
        for process in started:
            process.kill()


def compared(cases: Sequence[Sequence[Any]], folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a row of the table for each case, and what it says in words."""
    import daydream
    from daydream.trace.trace import Trace
    from daydream.world.stages import joined_stages

    parts = {part for part, *_ in cases}
    lengths = {kind: lengths_of(kind) for _, _, _, kind in cases} if "waits" in parts else {}
    (folder / "cases.json").write_text(json.dumps([cases, lengths]))
    for size, way in {(size, way) for _, size, way, _ in cases}:
        speed = GB_PER_S[way] / LONGER[size]
        links = {"intra": speed, "inter": speed / 2}
        each = {name: {"bandwidth_gb_per_s": gb_per_s, "latency_us": 20} for name, gb_per_s in links.items()}
        (folder / f"{way} {size}.json").write_text(json.dumps({"gpus_per_node": 2, **each}))
    kinds = ["fake", *["gloo", "memory"] * ("asked" in parts), *["linked"] * bool(parts - {"asked"})]
    sizes = sorted({size for _, size, *_ in cases})
    ran = {(what, size): run(what, size, folder) for what in kinds for size in sizes}
    for part, size, way, kind in cases:
        title = f"{part} {size} {way} {kind}"
        row: dict[str, Any] = {"part": part, "ranks": size, "way": way, "model": kind}
        if part == "asked":
            sides = "gloo", "memory", "fake"
            real, memory, fake = ([one[title][0] for one in ran[side, size]] for side in sides)
            row["asked"] = sum(len(one["collectives"] + one["messages"]) for one in real)
            row["unequal"] = [
                {"rank": rank, "what": what, "real": one[what], "fake": other[what]}
                for rank, (one, other) in enumerate(zip(real, fake, strict=True))
                for what in ("collectives", "messages")
                if one[what] != other[what]
            ]
            held = [peaks(one["blocks"], other["blocks"]) for one, other in zip(memory, fake, strict=True)]
            row["peak_bytes"], row["gloo_bytes"] = max(held)[0], max(one["scratch"] for one in memory)
            row["peak_error"] = max((other / one - 1 for one, other in held), key=abs)
            row["ok"] = not row["unequal"] and abs(row["peak_error"]) <= MEMORY
            equal = "differ: " + json.dumps(row["unequal"])[:2000] if row["unequal"] else "are equal"
            said = f"{row['asked']:>5} collectives {equal}, peak {row['peak_bytes'] / 1e6:.2f} MB "
            said += f"{row['peak_error']:+.2%}, gloo's largest block {row['gloo_bytes'] / 1e6:.2f} MB"
        else:
            took = np.array([rank[title] for rank in ran["linked", size]])  # by rank, run, time and its parts
            first, again = took[0, :, 0].tolist()
            traces = [Trace.load(path) for path in sorted(folder.glob(f"{title} *.parquet"))]
            trace = traces[0] if len(traces) == 1 else joined_stages(traces)
            predicted = daydream.replay(trace, cluster=str(folder / f"{way} {size}.json")).basis_ns / 1e6
            _, cpu, queued = took.mean(1).T.tolist()  # by rank
            row |= {
                "measured_ms": 1e3 * (first + again) / 2,
                "predicted_ms": predicted,
                "again": again / first - 1,
            }
            row |= {"queued_ms": 1e3 * max(queued), "cpu_ms": 1e3 * sum(cpu)}
            quiet = max(abs(row["again"]), row["queued_ms"] / row["measured_ms"]) <= AGREE
            error = predicted / row["measured_ms"] - 1
            row |= {"error": error if quiet else None, "ok": abs(error) <= WORST if quiet else None}
            said = f"{row['measured_ms']:8.1f} ms, again {row['again']:+.1%}, all ranks' CPU {row['cpu_ms']:.1f}, "
            said += f"a core waited for {row['queued_ms']:.1f}, predicted {predicted:8.1f} {error:+.1%}"
            said += ", no verdict" * (not quiet)
        yield row, f"{part:<8}{size:>2} {way:<10}{kind:<9}{said}"


def main() -> int:
    """Compare, print a table or JSON; return 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--part", action="append", choices=PARTS, help="all without")
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--ranks", action="append", type=int, choices=sorted(WAYS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if options.work:
        what, size, rank, folder = options.work
        work(what, int(size), int(rank), Path(folder))
    asked_for = [(part, size) for part in options.part or PARTS for size in options.ranks or WAYS]
    sizes = [one for one in asked_for if one != ("compute", 4)]
    cases = [(*one, way, kind) for one in sizes for way in WAYS[one[1]] for kind in options.model or MODELS]
    with tempfile.TemporaryDirectory() as folder:
        rows, said = zip(*compared(cases, Path(folder)), strict=True)
    from evaluate import renew

    keys = ["part", "ranks", "way", "model"]
    for row in rows:
        short: dict[str, Any] = {
            name: round(each, 4) if isinstance(each, float) else each for name, each in row.items()
        }
        renew("worlds", keys, [short | {"unequal": len(row.get("unequal", ()))}])
    errors = [abs(row["error"]) for row in rows if row.get("error") is not None]
    judged = {"median": median(errors), "worst": max(errors)} if errors else {}
    kept = all(row["ok"] is not False for row in rows) and judged.get("median", 0) <= MEDIAN
    if options.json:
        print(json.dumps({"rows": rows, **judged, "kept": kept}, indent=1))
    else:
        print(*said, sep="\n")
        print(f"{len(errors)} verdicts on times", *(f"{name} {error:.1%}" for name, error in judged.items()))
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())
