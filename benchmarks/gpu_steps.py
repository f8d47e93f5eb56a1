"""Real changes on a GPU, of models that people train today, beside the trace they are predicted from.

    python benchmarks/gpu_steps.py -o validation/h100 --repeats 1     over a minute a model on an H100

It takes torchvision and transformers. Models start from random weights, and every step ends with the loss read by the
CPU, so it is over when it is timed. A recording is a process of its own: a step is recorded as `daydream collect` does
and the trace is saved, then every change is made for real. All variants live side by side, and blocks of their steps
take turns, every other round backwards; a ratio is the median over rounds of variant over unchanged, a peak what a
variant's steps held at most, beyond what was there before it. `again` is the unchanged step once more (A/A): a
recording where it is further than 5% from 1 is left out and made again. So is one whose unchanged step ran at another
speed by more than 10% when it was recorded. malloc is told to keep freed memory: whether glibc hands it back depends on
what a process did before. Nothing is predicted here: `validation/evaluate.py` does that from the traces alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

MOST_TRIES, QUIET = 10, {"control": 0.05, "speed": 0.1}  # how far from 1
ROUNDS, BLOCK_STEPS, BLOCK_NS, CAPTURED = 5, 5, 150e6, 3
# Bytes: what is mapped on its own (glibc takes no more), kept at the heap's top, and added to it at once.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_TOP_PAD_": str(64 << 20),
}  # fmt: skip
WORDS, LAYERS = 32_000, 8
ADAM, SGD = partial(torch.optim.AdamW, lr=1e-5), partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
Step = Callable[[], Any]
CHANGES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # what predicts it, and what makes it
    "autocast to bfloat16": ("amp", {}, {"amp": True}),
    "TF32": ("tf32", {}, {"matmul_tf32": True, "cudnn_tf32": True}),
    "optimizer foreach to fused=True": ("fused-optimizer", {}, {"fused": True}),
    "batch x 2": ("batch-size", {"factor": 2.0}, {"batch": 2}),
    "accumulate 2 batches": ("gradient-accumulation", {"batches": 2}, {"batches": 2}),
    "torch.compile": ("compile", {}, {"compiled": True}),
    "CUDA graph of the step": ("cuda-graphs", {}, {"graph": True}),
    "loss read one step later": ("remove-sync", {"which": "item|local_scalar"}, {"late": True}),
    "channels last": ("channels-last", {}, {"channels_last": True}),
    "bfloat16 and channels last": ("amp+channels-last", {}, {"amp": True, "channels_last": True}),
    "bfloat16, fused optimizer": ("amp+fused-optimizer", {}, {"amp": True, "fused": True}),
    "scaled_dot_product_attention": ("flash-attention", {}, {"attention": "sdpa"}),
    "rms_norm in one kernel": ("fused-norm", {}, {"norm": True}),
    "checkpoint every block": ("checkpointing", {"layers": "model.layers.*"}, {"checkpointed": True}),
    "half of the layers": ("remove-layers", {"layers": "model.layers.[4-7]"}, {"half": True}),
    "first layers frozen": ("freeze", {"layers": "model.layers.[0-3]"}, {"frozen": True}),
    "input from pinned memory": ("pinned-memory", {}, {"pinned": True}),
}  # fmt: skip
COMMON = "optimizer foreach to fused=True", "batch x 2", "torch.compile", "loss read one step later"
AMP, TF32, GRAPH, LAST = "autocast to bfloat16", "TF32", "CUDA graph of the step", "channels last"
TWICE, BOTH_TF32 = "accumulate 2 batches", {"matmul_tf32": True, "cudnn_tf32": True}


def _llama(*, attention: str = "eager", norm: bool = False, half: bool = False, batch: int = 1) -> Any:
    """Return a decoder with rotary positions, grouped heads and gated perceptrons."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=1024, intermediate_size=2816, num_attention_heads=16, num_key_value_heads=4,
        max_position_embeddings=512, num_hidden_layers=LAYERS // 2 if half else LAYERS,
        attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for module in model.modules():
        if norm and isinstance(module, modeling_llama.LlamaRMSNorm):
            module.forward = partial(_rms_norm, module)
    x, y = torch.randint(WORDS, (2, 4 * batch, 512))
    return model, lambda x, y: functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten()), x, y


def _rms_norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, module.weight.shape, module.weight.to(x.dtype), module.variance_epsilon)


def _t5(*, batch: int = 1) -> Any:
    """Return an encoder and decoder with relative positions, sizes of t5-small."""
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(vocab_size=WORDS, decoder_start_token_id=0, use_cache=False, dropout_rate=0.0)
    )

    def loss(x: Any, y: Any) -> Any:
        scores = model(input_ids=x, decoder_input_ids=y).logits
        return functional.cross_entropy(scores.flatten(0, 1), y.flatten())

    return model, loss, torch.randint(WORDS, (16 * batch, 256)), torch.randint(WORDS, (16 * batch, 64))


def _vision(name: str, rows: int, *, batch: int = 1) -> Any:
    """Return an image classifier of torchvision."""
    import torchvision

    model, rows = getattr(torchvision.models, name)(weights=None), rows * batch
    x, y = torch.randn(rows, 3, 224, 224), torch.randint(1000, (rows,))
    return model, lambda x, y: functional.cross_entropy(model(x), y), x, y


def _segmentation(*, batch: int = 1) -> Any:
    """Return DeepLabV3 on ResNet-50, whose images are copied from the CPU in every step."""
    import torchvision

    make = torchvision.models.segmentation.deeplabv3_resnet50
    model = make(weights=None, weights_backbone=None, num_classes=21)
    x, y = torch.randn(8 * batch, 3, 384, 384), torch.randint(21, (8 * batch, 384, 384))
    return model, lambda x, y: functional.cross_entropy(model(x)["out"], y), x, y


class Recommender(nn.Module):
    """Categories and numbers to one score: embeddings, their products with each other, perceptrons."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.register_buffer("above", torch.triu_indices(tables + 1, tables + 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of rows of 13 numbers and the categories, as floats, behind them."""
        number, category = self.bottom(x[:, :13]), x[:, 13:].long()
        every = torch.stack([number, *(table(category[:, at]) for at, table in enumerate(self.tables))], 1)
        products = every @ every.transpose(1, 2)
        return self.top(torch.cat([number, products[:, self.above[0], self.above[1]]], 1))[:, 0]


def _recommender(*, batch: int = 1) -> Any:
    rows, model = 4096 * batch, Recommender()
    x = torch.cat([torch.randn(rows, 13), torch.randint(1_000, (rows, 26)).float()], 1)
    y = torch.randint(2, (rows,)).float()
    return model, lambda x, y: functional.binary_cross_entropy_with_logits(model(x), y), x, y


class Model(NamedTuple):
    """How a model is trained before anything is changed, and what is changed besides what all have in common."""

    build: Callable[..., tuple[nn.Module, Callable[[Any, Any], Any], Any, Any]]
    settings: dict[str, Any]
    changes: tuple[str, ...]
    optimizer: Callable[..., torch.optim.Optimizer] = ADAM


MODELS = {
    "llama": Model(_llama, {"amp": True}, (
        GRAPH, TWICE, "scaled_dot_product_attention", "rms_norm in one kernel", "checkpoint every block",
        "half of the layers", "first layers frozen",
    )),
    "vit": Model(partial(_vision, "vit_b_16", 64), {}, (AMP, TF32, "bfloat16, fused optimizer", GRAPH, TWICE)),
    "convnext": Model(
        partial(_vision, "convnext_tiny", 64), BOTH_TF32, (AMP, LAST, "bfloat16 and channels last", GRAPH), SGD
    ),
    "mobilenet": Model(
        partial(_vision, "mobilenet_v3_large", 32), {"cudnn_tf32": True}, (AMP, LAST, GRAPH, TWICE), SGD
    ),
    "t5": Model(_t5, BOTH_TF32, (AMP, GRAPH, "bfloat16, fused optimizer")),
    "swin": Model(partial(_vision, "swin_t", 64), {"amp": True}, (GRAPH, TWICE)),
    "deeplab": Model(
        _segmentation, {"cudnn_tf32": True, "copied": True}, (AMP, LAST, "input from pinned memory"), SGD
    ),
    "recommender": Model(_recommender, {}, (AMP, TF32, GRAPH, TWICE)),
}  # fmt: skip


def built(name: str, **changed: Any) -> tuple[nn.Module, Step, int]:
    """Return a model with some settings changed, its training step, warm, and the peak of that, bytes."""
    gc.collect()
    before, of = torch.cuda.memory_allocated(), MODELS[name]
    get = {**of.settings, **changed}.get
    torch.manual_seed(0)
    asked = {each: get(each) for each in ("batch", "half", "attention", "norm") if get(each)}
    model, loss_of, x, y = of.build(**asked)
    model = model.to("cuda").train()
    if get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    if get("checkpointed"):
        from torch.utils.checkpoint import checkpoint

        for block in model.get_submodule("model.layers"):
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    if get("frozen"):
        for block in model.get_submodule("model.layers")[: LAYERS // 2]:
            block.requires_grad_(False)
    if get("compiled"):
        model.compile()
    if get("pinned"):
        x, y = x.pin_memory(), y.pin_memory()
    elif not get("copied"):
        x, y = x.to("cuda"), y.to("cuda")
    how = {"fused": True} if get("fused") else {"foreach": True}
    if get("graph") and of.optimizer is not SGD:
        how["capturable"] = True
    optimizer = of.optimizer(model.parameters(), **how)

    def work() -> Any:
        torch.backends.cuda.matmul.allow_tf32 = get("matmul_tf32", False)
        torch.backends.cudnn.allow_tf32 = get("cudnn_tf32", False)
        image, label = x, y
        if get("copied"):
            image, label = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
        if get("channels_last"):
            image = image.to(memory_format=torch.channels_last)
        for _ in range(get("batches", 1)):
            with torch.autocast("cuda", torch.bfloat16, enabled=get("amp", False)):
                loss = loss_of(image, label)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run, late = _captured(work) if get("graph") else work, list[Any]()

    def step() -> None:
        loss = run()
        if get("late"):
            late.append(loss)
            loss = late.pop(0) if len(late) > 1 else loss
        loss.item()

    for _ in range(3):
        step()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    return model, step, torch.cuda.max_memory_allocated() - before


def _captured(work: Step) -> Step:
    """Return a replay of the work as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss: Any = work()

    def run() -> Any:
        graph.replay()
        return loss

    return run


def recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step; return the measured ratio and peak of each change that can be made."""
    import daydream

    _, base, base_peak = built(name)
    for _ in range(10):
        base()
    with daydream.collect(path, steps=CAPTURED, force=True) as recorded:
        while recorded.trace is None:
            base()
    unprofiled_ms = median(recorded.trace.metadata["unprofiled_step_ns"]) / 1e6
    steps, made, failed = {"base": base, "again": built(name)[1]}, dict[str, Any](), {}
    for title, (optimization, options, settings) in CHANGES.items():
        if title in COMMON or title in MODELS[name].changes:
            try:
                _, steps[title], peak = built(name, **settings)
            except Exception as error:  # noqa: BLE001 - one change that fails must not lose the others
                failed[title] = f"{type(error).__name__}: {error}"[:300]
                continue
            made[title] = {"optimization": optimization, "options": options, "peak_bytes": peak}
    step_ms, ratios = measured(steps)
    for title, change in made.items():
        change["measured"] = ratios[title]
    speed = unprofiled_ms / step_ms  # on a CPU that others use, too, a step runs at several
    return {
        "step_ms": round(step_ms, 3), "control": ratios["again"], "changes": made, "peak_bytes": base_peak,
        "recorded_step_ms": round(unprofiled_ms, 3), "speed": round(speed, 4), **({"failed": failed} if failed else {}),
    }  # fmt: skip


def measured(steps: dict[str, Step]) -> tuple[float, dict[str, float]]:
    """Return the ms of the step `base`, and the ratio of each step to it, in turns."""
    for step in steps.values():
        for _ in range(3):
            step()
    block = max(BLOCK_STEPS, round(BLOCK_NS / _timed(steps["base"], BLOCK_STEPS)))
    times: dict[str, list[float]] = {title: [] for title in steps}
    for number in range(ROUNDS):
        for title in list(steps)[:: 1 if number % 2 else -1]:
            times[title].append(_timed(steps[title], block))
    base = times["base"]
    ratios = {
        title: round(median(a / b for a, b in zip(of, base, strict=True)), 4) for title, of in times.items()
    }
    return median(base) / 1e6, ratios


def _timed(step: Step, block: int) -> float:
    """Return the median time of a step in ns, over a block behind one that warms up."""
    times = []
    for _ in range(block + 1):
        begin = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - begin)
    return median(times[1:])


def main() -> None:
    """Record models in turn, each in a new process: write traces and one JSON document, `measured.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", help="which models; all without")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the folder to write to")
    parser.add_argument("--repeats", type=int, default=3, help="recordings of each model that count")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no recording later than this")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder: Path = options.output
    if options.one:
        print(json.dumps(recording(options.one, folder)))
        return
    folder.mkdir(exist_ok=True, parents=True)
    page = folder / "measured.json"
    document = json.loads(page.read_text()) if page.exists() else {"recordings": {}, "left_out": {}}
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    document["machine"] = (
        f"one {torch.cuda.get_device_name()}, one thread, {versions}, malloc keeps freed memory"
    )
    names = options.models or list(MODELS)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    document["left_out"] |= dict.fromkeys(names, 0)
    until = time.monotonic() + 60 * options.minutes
    environment = {**os.environ, **KEEP_FREED_MEMORY, "OMP_NUM_THREADS": "1"}
    for name in names * MOST_TRIES:
        if len(found[name]) < options.repeats and time.monotonic() < until:
            trace = folder / f"{name}-{len(found[name]) + 1}.parquet"
            words = [sys.executable, __file__, "--one", name, "-o", str(trace)]
            done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True, env=environment)
            one = json.loads(done.stdout.splitlines()[-1])
            quiet = all(abs(one[what] - 1) <= limit for what, limit in QUIET.items())
            if quiet:
                found[name].append({"trace": trace.name, **one})
            else:
                document["left_out"][name] += 1
                trace.unlink()
            print(name, "ok" if quiet else "restless", one, file=sys.stderr, flush=True)
            document["recordings"] |= {model: kept for model, kept in found.items() if kept}
            page.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
