"""Judge strategies of parallel training against configurations that others measured.

    python validation/strategies.py --table shared/truth/megatron_a100_one_node.csv [--json] [--write] [--jobs 2]

Each shape of a table (model, tp, cp, ep, micro-batch) is two layers of `examples/megatron_gpt.py`, emulated on the
table's GPU as `daydream plan` emulates a script; the plan predicts all rows from these, with launches as they were.
One factor, fitted to every tenth row, scales all times, for what the runs do that nobody wrote down (clocks,
logging); the figures are of the other rows, and without the factor `unscaled_median_error`. Rows that cannot be
predicted are listed, with why.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from daydream.costs.network.cluster_names import find_cluster
from daydream.errors import DaydreamError
from daydream.graph.graph import Graph
from daydream.memory.lifetimes import allocations
from daydream.memory.prediction import last_whole_step
from daydream.plan.jobs import Emulated, recorded_model
from daydream.plan.search import Job, Strategy
from daydream.world.compose import Block, Model, peaks
from daydream.world.parts import Parts

ROOT = Path(__file__).resolve().parent.parent
EVERY = 10  # one row of so many fits the factor
PAYS = 0.7  # to which part of their error the factor must bring these rows: it is not there to fit noise
LEAST = 5  # rows of a group whose order counts
GIB = 2**30
_toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
RUNS: dict[str, Any] = _toml.loads((ROOT / "validation/runs.toml").read_text(encoding="utf-8"))


@dataclass
class Row:
    """A measured configuration.

    Attributes:
        name: as the table has it.
        group: rows that are compared with each other.
        measured_ms: time of a step.
        script: arguments of `examples/megatron_gpt.py` but for layers.
        layers: how many, of each kind.
        strategy: how it was divided.
        run: how it was run, in `runs.toml`.
        compared_by: what times are divided by before they are compared.
        measured_bytes: peak memory, 0 where unknown.
        why_not: why it cannot be predicted.
    """

    name: str
    group: str
    measured_ms: float
    script: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    strategy: Strategy = field(default_factory=Strategy)
    run: str = ""
    compared_by: float = 1.0
    measured_bytes: float = 0.0
    why_not: str = ""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What its blocks depend on."""
        one = self.strategy
        return self.script, (one.tp, one.cp, one.ep, one.micro_batch), self.run, len(self.layers)


# Adam reads and writes 12 bytes of state each, 2 to 4 of gradients, and norm and scaling of gradients 8.
UPDATE_BYTES, BANDWIDTH = 38, 0.8
TAKES = {  # how the script takes a strategy
    "tp": "--tensor-parallel", "cp": "--context-parallel", "ep": "--expert-parallel",
    "micro_batch": "--micro-batch",
}  # fmt: skip
APART = "experts|fp8|_zp|mla|memory_speed|uneven|embedding_loss|release"  # what names do not tell in full


def megatron_rows(table: Sequence[dict[str, str]]) -> Iterator[Row]:
    """Yield the rows of vTrain's tables. What many nodes trained was only possible with checkpointing."""
    for one in table:
        gpus, batch, micro, hidden, layers = (
            int(one[key]) for key in ("# GPUs", "global batch", "micro batch", "hidden size", "# layers")
        )
        tp, dp, pp = (int(one[f"{key} parallelism"]) for key in ("tensor", "data", "pipeline"))
        again = "Parameters (billion)" in one
        strategy = Strategy(dp, 1, tp, pp, 1, 1, micro, batch // dp // micro, checkpointing=again)
        heads, length = one["attention heads"], one["sequence length"]
        yield Row(
            f"t {tp}, d {dp}, p {pp}, micro-batch {micro}",
            f"hidden {hidden}, {layers} layers, {gpus} GPUs, batch {batch}",
            float(one["iteration time (ms)"]),
            (f"--hidden={hidden}", f"--heads={heads}", f"--sequence={length}"),
            (layers,),
            strategy,
            "vtrain",
        )


def b200_rows(table: Sequence[dict[str, str]]) -> Iterator[Row]:
    """Yield the rows of SimuMax' table of B200; the case's name tells the strategy."""
    for one in table:
        told = re.findall(r"_(tp|pp|ep|cp|dp|mbc|seq)(\d+)", one["case"])
        of: dict[str, Any] = {"seq": 4096, **{key: int(value) for key, value in told}}
        experts, layers = one["model"] == "deepseekv2", int(one["layers"])
        count, length = of.pop("mbc"), of.pop("seq")
        yield Row(
            one["case"],
            f"{one['model']}, length {length}, {count} micro-batches",
            float(one["real_ms"]),
            (f"--model={'deepseek-v2' if experts else 'llama3-70b'}", f"--sequence={length}"),
            (1, layers - 1) if experts else (layers,),
            Strategy(**of, micro_batches=count, sharded_optimizer=True),
            "simumax",
            of["dp"],
            float(one["real_allocated_gib"]) * GIB,
        )


def sailor_rows(table: Sequence[dict[str, str]]) -> Iterator[Row]:
    """Yield the rows of Sailor's plans: OPT-350M (Zhang et al., 2022, table 1)."""
    for one in table:
        dp, tp, pp, micro, batch = (int(one[key]) for key in ("dp", "tp", "pp", "mbs", "gbs"))
        yield Row(
            Path(one["file"]).stem,
            f"{one['cluster']}, {pp * dp * tp} GPUs, batch {batch}",
            float(one["real_s"]) * 1e3,
            ("--hidden=1024", "--heads=16", "--sequence=2048", "--dtype=float32", "--attention-dropout=0"),
            (24,),
            Strategy(dp, 1, tp, pp, micro_batch=micro, micro_batches=batch // dp // micro),
            "sailor",
            measured_bytes=float(one["max_mem"]),
            why_not=f"a job of different GPUs: {one['gpu']}" if "+" in one["gpu"] else "",
        )


def ci_rows(table: Sequence[dict[str, str]]) -> Iterator[Row]:
    """Yield the rows of Megatron-LM's functional tests: the case's name tells what differs from its suite.

    Micro-batches are of 4, on 8 GPUs; files that name no GPU are of when all tests ran on A100. With Transformer
    Engine attention is one kernel where a test resumes or may be nondeterministic; others ask for
    `--attention-backend unfused`.
    """
    for one in table:
        name, golden = one["case"], one["golden"]
        told = re.match(r"(gpt3|bert|t5)_mcore(?:_te)?_tp(\d)_pp(\d)(?:_vp(\d))?", name)
        row = Row(name, f"{one['suite']}, {golden}", float(one["iter_s"]) * 1e3)
        row.measured_bytes = float(one["mem_max"] or 0)
        if told is None or re.search(APART, name):
            row.why_not = "its flags are in a file that the table does not have (model_config.yaml)"
        else:
            tp, pp, each = (int(number or 0) for number in told.groups()[1:])
            cp = int((*re.findall(r"_cp(\d)", name), 1)[0])
            row.layers, batch, script = RUNS["tests"][told[1]]
            row.run = next((gpu for gpu in ("gb200", "h100") if gpu in golden), "a100")
            dp = max((4 if "1node" in name else 8) // tp // pp // cp, 1)
            chunks = sum(row.layers) // pp // each if each and pp > 1 else 1
            row.strategy = Strategy(
                dp, 1, tp, pp, 1, cp, 4, batch // dp // 4, chunks,
                "recompute" in name, "dist_optimizer" in name, "overlap_grad" in name,
            )  # fmt: skip
            flash = "te_" in name and re.search("resume|nondeterministic|_cp", name)
            row.script = (*script, "--dtype=bfloat16", *(["--flash"] if flash else []))
        yield row


READERS: dict[str, Callable[[Sequence[dict[str, str]]], Iterator[Row]]] = {  # by a column that only they have
    "iteration time (ms)": megatron_rows,
    "real_reserved_gib": b200_rows,
    "red_grads_s": sailor_rows,
    "golden": ci_rows,
}


def blocks_of(shape: tuple[Any, ...]) -> tuple[Block, ...]:
    """Return the blocks of a shape, two layers of one kind or a layer of each of two."""
    script, (tp, cp, ep, micro_batch), name, kinds = shape
    how = RUNS[name]
    words = [str(ROOT / "examples/megatron_gpt.py"), *script, "--device=cuda", "--steps=2", "--layers=2"]
    job = Emulated({}, find_cluster(how["cluster"]), words=words, takes=TAKES, gpu=how["device"])
    stage = Strategy(ep // gcd(ep, tp * cp), 1, tp, 1, ep, cp, micro_batch)
    graph = job.graph(stage)
    graph.select(kind="cpu").set(duration_ns=0, gap_ns=0)
    launches = graph.select(kind=("kernel", "memcpy")).launches()
    _, begin = np.unique(graph.recorded["parent"][launches.row], return_index=True)  # of each operator
    launches[np.sort(begin)].set(duration_ns=how["launch_ns"])
    blocks = recorded_model(graph, stage).model.blocks
    besides = workspaces(graph, [block.name for block in blocks[1:-1]])
    first, *layers, last = map(lambda block, most: replace(block, workspace_bytes=most), blocks, besides)
    return first, *layers[-kinds:], last


def workspaces(graph: Graph, layers: Sequence[str]) -> list[float]:
    """Return what passes of blocks hold at most besides what they leave, bytes: a plan has one figure for all."""
    held, parts = allocations(graph.recorded), Parts(layers)
    own = (held["step"] == last_whole_step(held)) & (held["device"] == 0)
    layer, (places, now) = np.array(held.texts("layer")), held.held(0, 0)
    for back, phases in enumerate((("forward", "loss"), ("backward",))):
        rows = np.flatnonzero(own & held.where(phase=phases))
        begin = held["begin"][rows]
        rows, begin = rows[np.argsort(begin, kind="stable")], np.sort(begin)
        place = parts.places(layer[rows], back)
        first = np.flatnonzero(np.diff(place, prepend=-1))
        cuts = np.searchsorted(places, [*begin[first], begin[-1] + 1])
        for at, (start, end) in zip(place[first].tolist(), pairwise(cuts), strict=True):
            base = now[start - 1] if back else max(now[start - 1], now[end - 1])
            parts.workspace[at] = max(parts.workspace[at], now[start:end].max() - base)
    return list(parts.workspace.tolist())


def predict(row: Row, blocks: tuple[Block, ...]) -> tuple[float, float]:
    """Return the step in ms and the peak in bytes. Raises `DaydreamError`."""
    from daydream.costs.devices import find_device

    how, strategy = RUNS[row.run], row.strategy
    if how.get("shared_messages"):
        blocks = tuple(replace(block, input_bytes=block.input_bytes / strategy.tp) for block in blocks)
    first, *layers, last = blocks
    if strategy.pp > 1 and "untied" not in how:  # the last stage has a copy of the embedding
        last = replace(last, parameters=last.parameters + first.parameters)
    cluster = find_cluster(how["cluster"])
    cluster = replace(cluster, inter=cluster.inter.scaled(how.get("way_out", 1)))
    all_layers = [block for block, count in zip(layers, row.layers, strict=True) for _ in range(count)]
    model = Model(
        (first, *all_layers, last),
        optimizer_ns=UPDATE_BYTES / (find_device(how["device"]).bandwidth * BANDWIDTH),
        **{"synchronous": strategy.pp > 1, **how.get("model", {})},
    )
    found = Job({strategy.shape: model}, cluster).predict(strategy)
    added_ns = how.get("each_parameter", 0) * len(all_layers) / strategy.pp * how["launch_ns"]
    held = peaks(model, strategy)[how["logs"]] if "logs" in how else found.memory_bytes
    return (found.step_ns + added_ns) / 1e6, held


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """Return the correlation of ranks; 0 where one does not vary."""
    from pandas import Series

    left, right = (Series(values).rank() for values in (one, other))
    return float(left.corr(right)) if min(left.nunique(), right.nunique()) > 1 else 0.0


def judged(rows: Sequence[Row], predicted: np.ndarray, memory: np.ndarray) -> dict[str, Any]:
    """Return how near predictions are: the object that `truth/INDEX.md` describes, and more."""
    measured = np.array([row.measured_ms for row in rows])
    fits = np.arange(len(rows)) % EVERY == 0
    off = np.sort(np.log(measured / predicted)[fits])
    half = len(off) // 2 + 1  # the middle of the closest half: what makes the median error least
    closest = int((off[half - 1 :] - off[: len(off) - half + 1]).argmin())
    middle = float(off[closest] + off[closest + half - 1]) / 2
    pays = np.median(np.abs(off - middle)) < PAYS * np.median(np.abs(off))
    scale = float(np.exp(middle)) if pays else 1.0
    judges = ~fits if len(rows) > EVERY else fits
    errors = np.abs(predicted * scale / measured - 1)[judges]
    by = np.array([row.compared_by for row in rows])
    members = defaultdict(list)
    for number, row in enumerate(rows):
        members[row.group].append(number)
    groups: list[dict[str, Any]] = []
    for key, of in members.items():
        real, ours = measured[of] / by[of], predicted[of] / by[of]
        groups.append(
            {
                "key": key,
                "rows": len(of),
                "spearman": spearman(real, ours),
                "best_measured": rows[of[int(real.argmin())]].name,
                "best_predicted": rows[of[int(ours.argmin())]].name,
                "regret": float(real[ours.argmin()] / real.min() - 1),
            }
        )
    ordered = [one["spearman"] for one in groups if one["rows"] >= LEAST]
    known = np.array([row.measured_bytes for row in rows])
    found = {
        "rows": len(rows),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "spearman": spearman(measured, predicted),
        "median_regret": float(np.median([one["regret"] for one in groups])),
        "median_group_spearman": float(np.median(ordered)) if ordered else 0.0,
        "scale": scale,
        "unscaled_median_error": float(np.median(np.abs(predicted / measured - 1))),
        "groups": groups,
    }
    if known.any():
        off = np.abs(memory[known > 0] / known[known > 0] - 1)
        found |= {
            "memory_median_error": float(np.median(off)),
            "memory_p90_error": float(np.quantile(off, 0.9)),
        }
    return found


def judge(path: Path, jobs: int) -> dict[str, Any]:
    """Return how near the predictions of a table are."""
    with path.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    reader = next((read for column, read in READERS.items() if table and column in table[0]), None)
    if reader is None:
        raise DaydreamError(f"{path} is none of the tables that truth/INDEX.md describes")
    rows = list(reader(table))
    shapes = sorted({row.shape for row in rows if not row.why_not}, key=str)
    kept, times, memory = [], [], []
    with ThreadPoolExecutor(jobs) as pool:  # each starts a process
        blocks = {shape: pool.submit(blocks_of, shape) for shape in shapes}
    for row in rows:
        try:
            took, held = (0.0, 0.0) if row.why_not else predict(row, blocks[row.shape].result())
        except (DaydreamError, RuntimeError, SystemExit, ValueError) as error:
            row.why_not = f"its layers cannot be emulated or composed: {error}"
        if not row.why_not:
            kept.append(row)
            times.append(took)
            memory.append(held)
    found = judged(kept, np.array(times), np.array(memory)) if kept else {"rows": 0, "groups": []}
    found["not_predicted"] = [{"name": row.name, "why": row.why_not} for row in rows if row.why_not]
    return found


def main() -> None:
    """Print how near the predictions of a table are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/evaluation")
    asked = parser.parse_args()
    try:
        found = judge(asked.table, asked.jobs)
    except (DaydreamError, OSError) as error:
        sys.exit(f"error: {error}")
    figures = {key: f"{each:.4g}" for key, each in found.items() if not isinstance(each, list)}
    if asked.write:
        from evaluate import renew

        left_out = str(len(found["not_predicted"]))
        renew("strategies", ["table"], [{"table": asked.table.stem, **figures, "not predicted": left_out}])
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for key, value in figures.items():
        print(f"{key:>24} {value}")
    print(f"{'not predicted':>24} {len(found['not_predicted'])}")


if __name__ == "__main__":
    main()
