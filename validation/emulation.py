"""Emulated against recorded: the recordings of an H100 and an H200, each by what was learned from other models.

    python validation/emulation.py --scratch FOLDER            kernels, steps and their intervals, memory
    python validation/emulation.py --scratch FOLDER --write    learn `daydream/world/emulate.tsv` from all

It takes torchvision and transformers, and the extra `gpus`. What the folder holds stays: empty it where emulation
changed; costs and tables may change. With `--write` it prints what a CPU takes, too (`daydream/world/__init__.py`). A
step is what it took without the profiler, a peak what PyTorch's allocator said; models were recorded in
turn in a process that keeps what CUDA graphs of earlier ones left, so peaks begin at the fewest bytes that a step held.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from evaluate import renew
from msgspec import convert

import daydream
from daydream.collect.live.capture import Captured, ProfilerWindow
from daydream.costs.devices import find_device
from daydream.costs.operators import bare_name, operator
from daydream.predict.basis import STUDENT_90
from daydream.trace.schema import DEVICE_KINDS
from daydream.world import cpu, emulate_rows
from daydream.world import emulate_costs as costs
from daydream.world.emulate import emulated

HERE = Path(__file__).parent
sys.path += [str(HERE.parent / name) for name in ("benchmarks", "examples")]
TABLE = HERE.parent / "daydream/world/emulate.tsv"
IDLE = 0.75  # of a step: what the GPU works at most where the CPU decides
LEAST = 3e-5  # of all recorded time: an operator that is learned
NEARLY_ALL = 0.87  # of an operator's time: one format
ALIASES = {  # names that stand for the same kernels, recorded and emulated
    alias: name
    for name, aliases in {
        "copy_": "clone _to_copy slice_backward select_backward", "cat": "stack", "random_": "randint",
        "fill_": "zeros zero_ ones_like ones zeros_like full full_like new_zeros", "clamp_min": "relu",
        "clamp_min_": "relu_", "convolution": "cudnn_convolution _conv_depthwise2d",
        "native_batch_norm": "cudnn_batch_norm", "native_batch_norm_backward": "cudnn_batch_norm_backward",
        "_scaled_dot_product_efficient_attention": "_efficient_attention_forward",
        "_scaled_dot_product_efficient_attention_backward": "_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention": "_cudnn_attention_forward",
        "_scaled_dot_product_cudnn_attention_backward": "_cudnn_attention_backward",
    }.items()
    for alias in aliases.split()
}  # fmt: skip
BY_FORMAT = ("matmul", "convolution")  # families whose rows are by number format
VARIOUS = (  # too many kinds of use to learn one figure from
    "add", "add_", "fill_", "copy_", "mul", "mul_", "t", "bitwise_not", "tril", "nll_loss_backward", "nll_loss_forward",
    "div", "sqrt", "where", "all", "gather", "embedding_dense_backward", "_cudnn_rnn", "_cudnn_rnn_backward",
)  # fmt: skip
SIZES = {  # layers, width, heads, tokens
    "bert": (24, 1024, 16, 256), "gpt": (24, 1024, 16, 512), "gpt_small": (12, 256, 8, 128), "gnmt": (4, 1024, 0, 48),
}  # fmt: skip
BATCHES = {"bert": 16, "gpt": 8, "gpt_small": 4, "train_gpt": 8}  # of all others 64
SETTINGS = {"base": "", "tf32": "tf32", "amp_bf16": "amp"}
# Ways in which a CPU's time may be shared: ns of an operator, a layer (which takes some Python) and a launch.
TRIED = np.array([*product([1.0], range(2, 62, 2), np.arange(0.5, 10.0, 0.5))])
Times = dict[str, tuple[int, int]]  # of an operator: ns of its kernels and copies, and how many these are


class Case(NamedTuple):
    """A recording: its model and change, the GPU, the trace, the step in ms and the peak in bytes (0: not known)."""

    model: str
    change: str
    gpu: str
    trace: Path
    step_ms: float
    peak: int

    def raw(self, scratch: Path) -> Path:
        """Return the file of what was emulated: all of these GPUs run the same."""
        return scratch / f"{self.model}-{self.change}.raw"


class Raw(NamedTuple):
    """An emulated step: what the profiler wrote, its markers and calls, bytes at most, and before."""

    recording: Any
    markers: Any
    calls: list[Any]
    peak: int
    held: int


@cache
def cases() -> list[Case]:
    """Return the recordings of steps that were neither compiled nor captured."""
    found, after = [], json.loads((HERE / "h200/after/steps.json").read_text())
    alone = json.loads((HERE / "h100/measured.json").read_text())["recordings"]
    for path in [*sorted(HERE.glob("h?00/*.parquet")), *sorted(HERE.glob("h200/after/*.parquet"))]:
        gpu, (model, _, change) = path.relative_to(HERE).parts[0], path.stem.partition("-")
        if path.parent.name != "after" and change in ("", "amp"):  # `train_gpt` before amp
            title = "base"
        elif change in SETTINGS and model in after:
            title = change
        else:
            continue
        trace, told = daydream.load(path), after.get(model, {}).get(change or "base", {})
        step_ns = (trace.metadata.get("unprofiled_step_ns") or [told.get("synced_median_us", 0) * 1e3])[0]
        step_ms, peak = step_ns / 1e6, told.get("peak_allocated_bytes")
        if title == "base" and gpu == "h100":
            step_ms, peak = alone.get(model, [{}])[0].get("step_ms", step_ms), None
        peak = peak or (max(trace.memory["allocated_bytes"]) if trace.memory else 0)
        found.append(Case(model, title, gpu, path, step_ms, int(peak)))
    return found


def transformer(name: str) -> Any:
    """Return one of the models without a script of its own: GPTs, BERT, and GNMT's LSTMs."""
    import torch
    from torch import nn
    from torch.nn import functional

    layers, width, heads, tokens = SIZES[name]

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            b, t, c = x.shape
            q, k, v = self.qkv(self.ln_1(x)).view(b, t, 3, heads, c // heads).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-2, -1) * q.size(-1) ** -0.5
            mask = torch.ones(t, t, device=q.device, dtype=torch.bool).tril()
            seen = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
            x = x + self.proj(seen.transpose(1, 2).reshape(b, t, c))
            return x + self.out(functional.gelu(self.fc(self.ln_2(x))))

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(32_000, width), nn.Embedding(tokens, width) if heads else None
            if name == "gnmt":
                self.encoder, self.decoder = (
                    nn.LSTM(width, width, layers, batch_first=True) for _ in range(2)
                )
            elif name == "bert":
                layer = nn.TransformerEncoderLayer(
                    width, heads, 4 * width, activation="gelu", batch_first=True
                )
                self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
            else:
                self.encoder = nn.Sequential(*(Block() for _ in range(layers)), nn.LayerNorm(width))
            self.head = nn.Linear(width, 32_000, bias=not name.startswith("gpt"))

        def forward(self, x: Any) -> Any:
            x = self.wte(x)
            if self.wpe is None:
                return self.head(self.decoder(x, self.encoder(x)[1])[0])
            return self.head(self.encoder(x + self.wpe(torch.arange(x.size(1), device=x.device))))

    return Model()


def prepared(case: Case) -> Callable[[], None]:
    """Return a model on the emulated GPU, and its training step."""
    import gpu_steps  # type: ignore[import-not-found]
    import torch
    import train_gpt  # type: ignore[import-not-found]
    from torch.nn import functional

    batch = BATCHES.get(case.model, 64)
    if case.model in gpu_steps.MODELS:
        return gpu_steps.built(case.model)[1]
    if case.model in SIZES:
        model, words, tokens = transformer(case.model), 32_000, SIZES[case.model][3]
    elif case.model == "train_gpt":
        model, words, tokens = train_gpt.GPT(512, 768, 6, 4, 256), 512, 256
    else:
        import torchvision  # type: ignore[import-not-found, import-untyped, unused-ignore]

        model, words, tokens = getattr(torchvision.models, case.model)(weights=None), 0, 1
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = case.change == "tf32"
    model = model.to("cuda").train()
    x = torch.randn(batch, 3, 224, 224, device="cuda")
    if words:
        x = torch.randint(words, (batch, tokens), device="cuda")
    y, own_way = torch.randint(words or 1000, (batch * tokens,), device="cuda"), case.model == "train_gpt"
    kind: Any = torch.optim.Adam if words else torch.optim.SGD
    how: dict[str, Any] = {} if words else {"momentum": 0.9}
    optimizer = kind(model.parameters(), lr=1e-5, **how, **({} if own_way else {"foreach": False}))

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=case.change == "amp_bf16"):
            scores = model(x)
            loss = functional.cross_entropy(scores.flatten(0, 1) if words else scores, y)
            del scores
        if own_way:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not own_way:
            optimizer.zero_grad()

    return step


def emulate(case: Case, path: Path) -> None:
    """Save a step's recording as the profiler wrote it, with the calls, the peak and what was held before."""
    with emulated(case.gpu) as gpu:
        step = prepared(case)
        step()
        gpu.forget_peak()
        held = gpu.held_bytes
        window = ProfilerWindow(with_stack=False, memory=False)
        window.start()
        window.mark(0)
        step()
        window.mark(1)
        found = window.stop([])
        raw = Raw(found.recording, found.markers, gpu.calls, gpu.peak_bytes, held)
    path.write_bytes(pickle.dumps(raw))


def added(times: Times, name: str, ns: int) -> None:
    """Count a kernel of an operator."""
    bare = name.rpartition("::")[2]
    before = times.get(key := ALIASES.get(bare, bare), (0, 0))
    times[key] = before[0] + ns, before[1] + 1


@cache
def recorded(path: Path) -> tuple[Times, int]:
    """Return what the last whole step of a recording ran, and ns in which something did."""
    trace = daydream.load(path)
    times: Times = {}
    steps = trace.metadata["steps"]
    last = max((number for number, step in enumerate(steps) if step["covered"]), default=0)
    rows = np.flatnonzero(trace.is_kind(*DEVICE_KINDS) & (trace["step"] == last))
    start, ns = trace["start_ns"][rows].astype(np.int64), trace["duration_ns"][rows].astype(np.int64)
    for name, each in zip(np.array(trace.values("op"), object)[rows], ns.tolist(), strict=True):
        added(times, str(name), each)
    order = np.argsort(start)
    end = np.maximum.accumulate((start + ns)[order])
    return times, int(end[-1] - start.min() - np.maximum(start[order][1:] - end[:-1], 0).sum())


class Cpu(NamedTuple):
    """What is learned of CPUs: `CPU_NS`, the ranges of `daydream.world.cpu`, what programs take by machine."""

    ns: list[int]
    several: float
    own: float
    times: dict[str, list[float]]


@cache
def launched(case: Case, scratch: Path) -> Any:
    """Return what the CPU would take for a step by each way that is tried, as the logarithm of a part of the step."""
    trace = clocked(pickle.loads(case.raw(scratch).read_bytes()), case.gpu)
    return np.log(case.step_ms * 1e6 / (TRIED @ [*cpu.counted(trace).values()]))


@cache
def learn_cpu(scratch: Path, left_out: str = "") -> Cpu:
    """Return what a CPU takes: weights by which programs of a machine differ least, of steps that wait for it."""
    seen = defaultdict(list)
    for case in cases():
        waits = recorded(case.trace)[1] < IDLE * case.step_ms * 1e6
        if waits and case.raw(scratch).exists() and not is_of(case.model, left_out):
            seen[case.gpu, case.model.partition("_")[0]].append(launched(case, scratch))
    off = np.stack([one for steps in seen.values() for one in steps], axis=1)
    program = np.repeat(range(len(seen)), [len(steps) for steps in seen.values()])
    weight = 1 / np.bincount(program)[program]
    machine = np.array([one for one, _ in seen])[program]
    level = {one: np.average(off[:, machine == one], 1, weight[machine == one]) for one in {*machine}}
    own = off - np.stack([level[one] for one in machine], axis=1)
    best = (np.abs(own) @ weight).argmin()
    typical = np.average(off[best], weights=weight)
    several, same = (
        float(np.exp(STUDENT_90[free - 1] * (apart**2 @ weight / free) ** 0.5))
        for apart, free in ((off[best] - typical, len(seen) - 1), (own[best], len(seen) - len(level)))
    )
    times = {
        one: [np.exp(off[best][program == each].mean() - typical) for each in {*program[machine == one]}]
        for one in level
    }
    return Cpu((np.exp(typical) * TRIED[best]).round(-2).astype(int).tolist(), several, same, times)


def ran(calls: list[Any], gpu: str) -> Times:
    """Return what an emulated step ran."""
    times: Times = {}
    for call in calls:
        for kernel in costs.kernels_of(call, find_device(gpu)):
            added(times, call.name, kernel.duration_ns)
    return times


@cache
def ideals(path: Path, gpu: str) -> dict[tuple[str, tuple[str, str]], Any]:
    """Return, by operator and by what it is learned as, ns at the peaks by FLOP and bytes, calls, ns expected."""
    found: Any = defaultdict(lambda: np.zeros(4))
    for call in pickle.loads(path.read_bytes()).calls:
        name, number, device = bare_name(call.name), costs.number_format(call), find_device(gpu)
        family = operator(name).family
        by_format = family in BY_FORMAT or (family == "normalization" and number.endswith("float16"))
        if call.nbytes and not call.copies and number != "depthwise":
            key = name, (ALIASES.get(name, name), number if by_format else "")
            found[key] += (*costs.ideal_ns(call, device), 1, costs.roofline_ns(call, device))
    return dict(found)


def learn(scratch: Path, left_out: str = "") -> list[list[str]]:
    """Return the table: rows of operators that recordings have, and the others as they are.

    Parts of the peaks are medians over recordings, weighted by their time; a recording counts for an operator of
    which one format takes nearly all of the time.
    """
    seen, names, total = defaultdict(list), defaultdict(set), 0
    for case in cases():
        path, device = case.raw(scratch), find_device(case.gpu)
        if not path.exists() or is_of(case.model, left_out):
            continue
        times, _ = recorded(case.trace)
        total += sum(ns for ns, _ in times.values())
        of_key: Any = defaultdict(lambda: np.zeros(4))
        of_operator: Counter[str] = Counter()
        for (name, key), each in ideals(path, case.gpu).items():
            names[key].add(name)
            of_key[key] += each
            of_operator[key[0]] += each[3]
        for key, (arithmetic, traffic, calls, expected) in of_key.items():
            ns, kernels = times.get(key[0], (0, 0))
            if ns and expected > NEARLY_ALL * of_operator[key[0]]:
                busy = max(ns - (device.floor_ns or costs.FLOOR_NS) * kernels, 0.1 * ns)
                seen[key].append((kernels / calls, arithmetic / busy, traffic / busy, ns))
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    rows = {row[0]: row for row in (line.split("\t") for line in lines)}
    known = {name: row for name, row in rows.items() if row[-1] != "recordings"}
    for (shown, number), each in seen.items():
        for name in names[shown, number] if sum(one[3] for one in each) > LEAST * total else ():
            label, family = f"{name} {number}".strip(), operator(name).family
            if shown not in VARIOUS and rows.get(label, ["recordings"])[-1] == "recordings":
                others = known.get(f"{family} {number}".strip()) or known.get(family, known[""])
                by_flop = [(one[1], one[3]) for one in each if one[1] > one[2]]
                by_bytes = [(one[2], one[3]) for one in each if one[1] <= one[2] and family not in BY_FORMAT]
                parts = [middle(by_flop, others[2]), middle(by_bytes, others[3])]
                count = max(round(median(one[0] for one in each)), 1)
                known[label] = [label, str(count), *parts, others[4], "recordings"]
    return [known.pop("operator"), *(known[key] for key in sorted(known))]


def is_of(model: str, other: str) -> bool:
    """Return whether two models are one, or of one kind: a small GPT and a larger one."""
    return bool(other) and model.partition("_")[0] == other.partition("_")[0]


def middle(weighted: list[Any], otherwise: str) -> str:
    """Return the median of values with weights."""
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return f"{min(value, 2):.3g}"
    return otherwise


def judged(case: Case, scratch: Path) -> dict[str, Any]:
    """Return a row: figures recorded and emulated, and errors; by the tables that count now."""
    row: dict[str, Any] = {"recording": f"{case.model} {case.change} {case.gpu}"}

    def compare(title: str, there: float, here: float) -> None:
        row.update({title: f"{there:.1f} {here:.1f}", f"{title}: error": here / there - 1})

    raw: Raw = pickle.loads(case.raw(scratch).read_bytes())
    (times, busy_ns), own = recorded(case.trace), costs.measured_call_ns
    for title, lookup in (("kernels, ms", lambda *_: None), ("by tables, ms", own)):
        costs.measured_call_ns = lookup
        found = ran(raw.calls, case.gpu)
        compare(title, busy_ns / 1e6, sum(each[0] for each in found.values()) / 1e6)
    compare("kernels", *(sum(each[1] for each in one.values()) for one in (times, found)))
    before, path = 0, HERE / f"h200/after/{case.model}-base_memory.parquet"
    if case.gpu == "h200" and path.exists():
        trace = daydream.load(path)
        memory: Any = trace.memory
        step = next(step for step in trace.metadata["steps"] if step["covered"])
        at = np.array(memory["time_ns"])
        within = (memory["device"] >= 0) & (at >= step["start_ns"]) & (at <= step["end_ns"])
        before = int(np.array(memory["allocated_bytes"])[within].min()) - raw.held
    if case.peak:
        compare("peak, MiB", (case.peak - before) / 2**20, raw.peak / 2**20)
    known = learn_cpu(scratch, case.model)
    machine = cpu.own_cpu(known.times[case.gpu], known.own)
    for title, of_cpu in (("", cpu.some_cpu("typical", known.several)), (" of that CPU", machine)):
        trace = clocked(pickle.loads(case.raw(scratch).read_bytes()), case.gpu, of_cpu)
        result = daydream.whatif(trace, "scale", on="gpu", factor=1 + 1e-9)  # a change of nothing
        low, high = ((at or 0) / 1e6 for at in (result.predicted_low_ns, result.predicted_high_ns))
        compare(f"step{title}, ms", case.step_ms, result.replayed_ns / 1e6)
        row[f"inside{title}"] = f"{low:.1f} to {high:.1f}"
        row[f"outside{title}: error"] = float(not low <= case.step_ms <= high)
        row[f"high / low{title}: error"] = high / low
    shares = []
    for one in (daydream.load(case.trace), trace):
        of_layer, kernels = Counter[str](), one.is_kind("kernel")
        took = one["duration_ns"][kernels] / one["duration_ns"][kernels].sum()
        for layer, share in zip(np.array(one.values("layer"), object)[kernels], took, strict=True):
            of_layer[str(layer)] += share
        shares.append(of_layer)
    row["other layer: error"] = 1 - sum(min(share, shares[1][one]) for one, share in shares[0].items())
    return row


def clocked(raw: Raw, gpu: str, of_cpu: Any = None) -> Any:
    """Return the trace of an emulated step, by the tables that count now."""
    of_cpu = of_cpu or cpu.some_cpu("typical")
    device = find_device(gpu)
    nothing: Any = {"memory": [], "held_bytes": raw.held, "read": 0, "compiled": False, "left_out": {}}
    emulation: Any = SimpleNamespace(device=device, calls=raw.calls, **nothing)
    (_, begin), (_, end) = emulate_rows.emulate(raw.recording, raw.markers, emulation, of_cpu)
    return Captured(raw.recording, []).trace(([("step 1", begin, end)], "a step"))


def main() -> None:
    """Emulate what the folder lacks, learn, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scratch", type=Path, required=True, help="folder of what is emulated")
    parser.add_argument("--write", action="store_true", help="learn the table from all recordings")
    options = parser.parse_args()
    scratch = options.scratch
    scratch.mkdir(parents=True, exist_ok=True)
    for case in cases():
        if not case.raw(scratch).exists():
            emulate(case, case.raw(scratch))
    if options.write:
        TABLE.write_text("".join("\t".join(row) + "\n" for row in learn(scratch)), encoding="utf-8")
        print(learn_cpu(scratch))
        return
    table = []
    for case in (one for one in cases() if one.raw(scratch).exists()):
        rows = {
            row[0]: convert(row[1:-1], costs.Learned, strict=False) for row in learn(scratch, case.model)[1:]
        }
        costs.learned = lambda rows=rows: rows  # type: ignore[assignment]
        cpu.CPU_NS.update(zip(cpu.CPU_NS, learn_cpu(scratch, case.model).ns, strict=True))
        table.append(judged(case, scratch))
        said = {
            title: f"{each:+.1%}" if isinstance(each, float) else each for title, each in table[-1].items()
        }
        print(*said.values(), sep="  ", flush=True)
        renew("emulation", ["recording"], [said])
    for title in {title: 0 for row in table for title in row if title.endswith("error")}:
        found = np.abs([row[title] for row in table if title in row])
        print(
            f"{title}: median {np.median(found):.1%}, mean {found.mean():.1%}, worst {found.max():.1%}, of {len(found)}"
        )


if __name__ == "__main__":
    main()
