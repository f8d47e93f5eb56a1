"""Real changes on a GPU, of models that people train today, beside the trace they are predicted from.

    python benchmarks/gpu_steps.py --fill-cache                       compile every model once, all at a time
    python benchmarks/gpu_steps.py -o validation/h100 --repeats 1     over a minute a model on an H100

It takes torchvision and transformers; the method is that of `recordings.py`, with three steps a trace. Every
step ends with the loss read by the CPU, so it is over when it is timed. All variants of a model live side by
side in one process; a variant's peak is what its steps held at most, beyond what was there before it. Models
start from random weights. Filling the compiler's cache first takes two minutes and saves more. Without a GPU
the models are tiny, and what is measured says nothing.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from recordings import Step, main, measured, record
from torch import nn
from torch.nn import functional

ROUNDS, BLOCK_STEPS, BLOCK_NS, CAPTURED = 5, 5, 150e6, 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = DEVICE == "cpu"
WORDS = 97 if TINY else 32_000
FILL = "--fill-cache"
Change = tuple[str, dict[str, Any], dict[str, Any]]  # what predicts it, and what makes it


ADAM = partial(torch.optim.AdamW, lr=1e-5)
SGD = partial(torch.optim.SGD, lr=1e-3, momentum=0.9)


@dataclass(frozen=True)
class Model:
    """How a model is trained before anything is changed, and what is changed."""

    build: Callable[..., tuple[nn.Module, Callable[[nn.Module, Any, Any], Any], Any, Any]]
    settings: dict[str, Any]
    changes: dict[str, Change]
    optimizer: Callable[..., torch.optim.Optimizer] = ADAM
    blocks: str = ""  # layers of one kind, as `daydream` names them


def changes(*more: str, blocks: str = "") -> dict[str, Change]:
    """Return the changes made to every model, and those of these names."""
    every: dict[str, Change] = {
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
        "checkpoint every block": ("checkpointing", {"layers": f"{blocks}*"}, {"checkpointed": True}),
        "half of the layers": ("remove-layers", {"layers": f"{blocks}[{HALF}]"}, {"half": True}),
        "first layers frozen": ("freeze", {"layers": f"{blocks}[{FIRST}]"}, {"frozen": True}),
        "input from pinned memory": ("pinned-memory", {}, {"pinned": True}),
    }  # fmt: skip
    common = ("optimizer foreach to fused=True", "batch x 2", "torch.compile", "loss read one step later")
    return {title: every[title] for title in every if title in {*common, *more}}


AMP, TF32, GRAPH, LAST = "autocast to bfloat16", "TF32", "CUDA graph of the step", "channels last"
LAYERS, HALF, FIRST = 8, "4-7", "0-3"


def _llama(*, attention: str = "eager", norm: bool = False, half: bool = False, batch: int = 1) -> Any:
    """Return a decoder with rotary positions, grouped heads and gated perceptrons."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama import modeling_llama

    width, tokens = (32, 8) if TINY else (1024, 512)
    config = LlamaConfig(
        vocab_size=WORDS, hidden_size=width, intermediate_size=width * 11 // 4,
        num_attention_heads=4 if TINY else 16, num_key_value_heads=4, max_position_embeddings=tokens,
        num_hidden_layers=LAYERS // 2 if half else LAYERS, attn_implementation=attention, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if norm:
        for module in model.modules():
            if isinstance(module, modeling_llama.LlamaRMSNorm):
                module.forward = partial(_rms_norm, module)
    return (model, _of_tokens, *_texts(4 * batch, tokens))


def _rms_norm(module: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, module.weight.shape, module.weight.to(x.dtype), module.variance_epsilon)


def _t5(*, batch: int = 1) -> Any:
    """Return an encoder and decoder with relative positions, sizes of t5-small."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes: dict[str, int] = {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_heads": 4} if TINY else {}
    config = T5Config(vocab_size=WORDS, decoder_start_token_id=0, use_cache=False, dropout_rate=0.0, **sizes)

    def loss(model: nn.Module, x: Any, y: Any) -> Any:
        return functional.cross_entropy(
            model(input_ids=x, decoder_input_ids=y).logits.flatten(0, 1), y.flatten()
        )

    x, _ = _texts(16 * batch, 8 if TINY else 256)
    y, _ = _texts(16 * batch, 8 if TINY else 64)
    return T5ForConditionalGeneration(config), loss, x, y


def _vision(name: str, rows: int, *, side: int = 224, batch: int = 1) -> Any:
    """Return an image classifier of torchvision."""
    import torchvision

    side = 32 if TINY and name != "vit_b_16" else side
    model = getattr(torchvision.models, name)(weights=None)
    rows = (2 if TINY else rows) * batch
    return model, _of_classes, torch.randn(rows, 3, side, side), torch.randint(1000, (rows,))


def _segmentation(*, batch: int = 1) -> Any:
    """Return DeepLabV3 on ResNet-50, whose images are copied from the CPU in every step."""
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21
    )
    rows, side = (2, 33) if TINY else (8 * batch, 384)

    def loss(model: nn.Module, x: Any, y: Any) -> Any:
        return functional.cross_entropy(model(x)["out"], y)

    return model, loss, torch.randn(rows, 3, side, side), torch.randint(21, (rows, side, side))


class Recommender(nn.Module):
    """Categories and numbers to one score: embeddings, their products with each other, perceptrons."""

    def __init__(self, tables: int = 26, rows: int = 1_000 if TINY else 100_000, width: int = 64) -> None:
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
        number = self.bottom(x[:, :13])
        category = x[:, 13:].long()
        all_of_them = torch.stack(
            [number, *(table(category[:, at]) for at, table in enumerate(self.tables))], 1
        )
        products = all_of_them @ all_of_them.transpose(1, 2)
        return self.top(torch.cat([number, products[:, self.above[0], self.above[1]]], 1))[:, 0]


def _recommender(*, batch: int = 1) -> Any:
    rows = (16 if TINY else 4096) * batch
    x = torch.cat([torch.randn(rows, 13), torch.randint(1_000, (rows, 26)).float()], 1)

    def loss(model: nn.Module, x: Any, y: Any) -> Any:
        return functional.binary_cross_entropy_with_logits(model(x), y)

    return Recommender(), loss, x, torch.randint(2, (rows,)).float()


def _texts(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(WORDS, (rows, tokens)), torch.randint(WORDS, (rows, tokens))


def _of_tokens(model: nn.Module, x: Any, y: Any) -> Any:
    return functional.cross_entropy(model(x).logits.flatten(0, 1), y.flatten())


def _of_classes(model: nn.Module, x: Any, y: Any) -> Any:
    return functional.cross_entropy(model(x), y)


BOTH_TF32 = {"matmul_tf32": True, "cudnn_tf32": True}
TWICE = "accumulate 2 batches"
MODELS: dict[str, Model] = {
    "llama": Model(
        _llama,
        {"amp": True},
        changes(
            GRAPH, TWICE, "scaled_dot_product_attention", "rms_norm in one kernel", "checkpoint every block",
            "half of the layers", "first layers frozen", blocks="model.layers.",
        ),
        blocks="model.layers",
    ),
    "vit": Model(
        partial(_vision, "vit_b_16", 64), {}, changes(AMP, TF32, "bfloat16, fused optimizer", GRAPH, TWICE)
    ),
    "convnext": Model(
        partial(_vision, "convnext_tiny", 64),
        BOTH_TF32,
        changes(AMP, LAST, "bfloat16 and channels last", GRAPH),
        optimizer=SGD,
    ),
    "mobilenet": Model(
        partial(_vision, "mobilenet_v3_large", 32),
        {"cudnn_tf32": True},
        changes(AMP, LAST, GRAPH, TWICE),
        optimizer=SGD,
    ),
    "t5": Model(_t5, BOTH_TF32, changes(AMP, GRAPH, "bfloat16, fused optimizer")),
    "swin": Model(partial(_vision, "swin_t", 64), {"amp": True}, changes(GRAPH, TWICE)),
    "deeplab": Model(
        _segmentation,
        {"cudnn_tf32": True, "copied": True},
        changes(AMP, LAST, "input from pinned memory"),
        optimizer=SGD,
    ),
    "recommender": Model(_recommender, {}, changes(AMP, TF32, GRAPH, TWICE)),
}  # fmt: skip


@dataclass
class Variant:
    """A training step of a model of its own."""

    of: Model
    settings: dict[str, Any]
    peak: int = 0
    late: list[Any] = field(default_factory=list)

    def step(self) -> Step:
        """Build the model; return its step, behind a few that warm up."""
        before = _allocated()
        model, loss_of, x, y = self._built()
        get = self.settings.get
        copied = get("copied")
        if copied:
            x, y = (x.pin_memory(), y.pin_memory()) if get("pinned") else (x, y)
        else:
            x, y = x.to(DEVICE), y.to(DEVICE)
        optimizer = self.of.optimizer(
            model.parameters(), **({"fused": True} if get("fused") else {"foreach": True}),
            **({"capturable": True} if get("graph") and self.of.optimizer is not SGD else {}),
        )  # fmt: skip

        def work() -> Any:
            torch.backends.cuda.matmul.allow_tf32 = get("matmul_tf32", False)
            torch.backends.cudnn.allow_tf32 = get("cudnn_tf32", False)
            here = (x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)) if copied else (x, y)
            if get("channels_last"):
                here = here[0].to(memory_format=torch.channels_last), here[1]
            for _ in range(get("batches", 1)):
                with torch.autocast(DEVICE, torch.bfloat16, enabled=get("amp", False)):
                    loss = loss_of(model, *here)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = _captured(work) if get("graph") else work

        def step() -> None:
            loss = run()
            if get("late"):
                self.late.append(loss)
                loss = self.late.pop(0) if len(self.late) > 1 else loss
            loss.item()

        for _ in range(3):
            step()
        if not TINY:
            torch.cuda.reset_peak_memory_stats()
            step()
            step()
            self.peak = torch.cuda.max_memory_allocated() - before
        return step

    def _built(self) -> tuple[nn.Module, Any, Any, Any]:
        get = self.settings.get
        torch.manual_seed(0)
        asked = {name: get(name) for name in ("batch", "half", "attention", "norm") if get(name)}
        model, loss_of, x, y = self.of.build(**asked)
        model = model.to(DEVICE).train()
        blocks = list(model.get_submodule(self.of.blocks)) if self.of.blocks else []  # type: ignore[call-overload]
        if get("channels_last"):
            model = model.to(memory_format=torch.channels_last)
        if get("checkpointed"):
            from torch.utils.checkpoint import checkpoint

            for block in blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if get("frozen"):
            for block in blocks[: len(blocks) // 2]:
                block.requires_grad_(False)
        if get("compiled"):
            model.compile()
        return model, loss_of, x, y


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


def _allocated() -> int:
    gc.collect()
    return 0 if TINY else torch.cuda.memory_allocated()


def recording(name: str, path: Path) -> dict[str, Any]:
    """Save a trace of a model's step; return the measured ratio and peak of each change that can be made."""
    model = MODELS[name]
    base = Variant(model, model.settings)
    steps: dict[str, Step] = {"base": base.step()}
    unprofiled_ms = record(steps["base"], path, steps=CAPTURED)
    steps["again"] = Variant(model, model.settings).step()
    made, peaks, failed = {}, {}, {}
    for title, (optimization, options, settings) in model.changes.items():
        if TINY and settings.get("graph"):
            continue
        variant = Variant(model, {**model.settings, **settings})
        try:
            steps[title] = variant.step()
        except Exception as error:  # noqa: BLE001 - one change that fails must not lose the others
            failed[title] = f"{type(error).__name__}: {error}"[:300]
            continue
        made[title], peaks[title] = (optimization, options), variant.peak
    found = measured(steps, made, rounds=ROUNDS, block_steps=BLOCK_STEPS, block_ns=BLOCK_NS)
    for title, change in found["changes"].items():
        change["peak_bytes"] = peaks[title]
    speed = unprofiled_ms / found["step_ms"]  # on a CPU that others use, too, a step runs at several
    told = {
        "peak_bytes": base.peak, "recorded_step_ms": round(unprofiled_ms, 3), "speed": round(speed, 4),
    }  # fmt: skip
    return {**found, **told, **({"failed": failed} if failed else {})}


def fill_cache(names: list[str]) -> None:
    """Compile every model once, each in a process of its own."""
    running = [subprocess.Popen([sys.executable, __file__, FILL, name]) for name in names]
    for one in running:
        one.wait()


if __name__ == "__main__":
    if FILL in sys.argv:
        asked = sys.argv[sys.argv.index(FILL) + 1 :]
        if len(asked) == 1:
            one = MODELS[asked[0]]
            Variant(one, {**one.settings, "compiled": True}).step()
        else:
            fill_cache(asked or list(MODELS))
    else:
        main(__doc__, __file__, list(MODELS), recording)
