"""Real changes on a CPU, measured beside the trace they are to be predicted from.

    python benchmarks/before_after.py -o validation/cpu      about twenty minutes; alone on the machine
    python benchmarks/before_after.py -o validation/cpu --only torch.compile    this change, beside the others

Small models train on one CPU thread; the method is that of `recordings.py`. What is compiled is compiled
before it is timed (it takes g++, and up to a minute a model the first time). Nothing is predicted
here: `python validation/ledger.py` does that from the traces alone, again whenever daydream changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recordings import Step, main, measured, record

ROUNDS, BLOCK_STEPS, BLOCK_NS = 11, 5, 120e6  # a block has so many steps at least, and takes so long
MODELS = ("GPT-64", "GPT-256", "MLP", "LSTM", "CNN")
WIDTHS = {"GPT-64": (64, 4, 16, 2), "GPT-256": (256, 4, 64, 4)}  # width, heads, context, batch
EVERYWHERE: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # title: the optimization, its options, and what `_step` is given to make the change
    "Adam foreach=False to fused=True": ("fused-adam", {}, {"foreach": None, "fused": True}),
    "Adam foreach=False to True": ("foreach-optimizer", {}, {"foreach": True}),
    "accumulate 2 batches": ("gradient-accumulation", {"batches": 2}, {"batches": 2}),
    "accumulate 4 batches": ("gradient-accumulation", {"batches": 4}, {"batches": 4}),
    "batch x 2": ("batch-size", {"factor": 2.0}, {"batch": 2.0}),
    "batch x 1/2": ("batch-size", {"factor": 0.5}, {"batch": 0.5}),
    "torch.compile": ("compile", {}, {"compiled": True}),
}
OF_BLOCKS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "layers 4 to 2": ("remove-layers", {"layers": "blocks.[23]*"}, {"layers": 2}),
    "layers 4 to 8": ("add-layers", {"layers": "blocks.*", "count": 4}, {"layers": 8}),
    "checkpoint every block": ("checkpointing", {"layers": "blocks.*"}, {"checkpointed": True}),
}


def changes(model: str) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Return the changes that exist for a model."""
    return {**EVERYWHERE, **(OF_BLOCKS if model in WIDTHS else {})}


def recording(name: str, path: Path, only: Sequence[str] = ()) -> dict[str, Any]:
    """Save a trace of a model's step; return the measured ratio of each change, or of `only` these."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    base = _step(name)
    record(base, path)
    made = {title: change for title, change in changes(name).items() if not only or title in only}
    changed = {title: _step(name, **real) for title, (_, _, real) in made.items()}
    return measured(
        {"base": base, "again": base, **changed},
        {title: (optimization, options) for title, (optimization, options, _) in made.items()},
        rounds=ROUNDS, block_steps=BLOCK_STEPS, block_ns=BLOCK_NS,
    )  # fmt: skip


def _step(
    name: str, *, layers: int = 4, batch: float = 1.0, batches: int = 1, checkpointed: bool = False,
    compiled: bool = False, **adam: Any,
) -> Step:  # fmt: skip
    """Return a training step of a model of its own."""
    import torch

    model, loss = _gpt(name, layers, batch) if name in WIDTHS else _small(name, batch)
    if checkpointed:
        _checkpoint(model)
    if compiled:
        model.forward = torch.compile(model.forward)  # its backward pass with it; neither loss nor optimizer
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, **{"foreach": False, **adam})

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(batches):
            loss().backward()
        optimizer.step()

    return step


def _gpt(name: str, layers: int, batch: float) -> tuple[Any, Callable[[], Any]]:
    import torch
    from small_models import GPT, WORDS
    from torch.nn import functional

    width, heads, context, rows = WIDTHS[name]
    rows = round(rows * batch)
    model = GPT(layers=layers, width=width, heads=heads, context=context)
    x, y = torch.randint(WORDS, (rows, context)), torch.randint(WORDS, (rows * context,))
    return model, lambda: functional.cross_entropy(model(x).flatten(0, 1), y)


def _small(name: str, batch: float) -> tuple[Any, Callable[[], Any]]:
    """Return the MLP, LSTM or CNN of `small_models`."""
    import torch
    from small_models import WORDS, cnn, lstm, mlp
    from torch.nn import functional

    model, _ = {"MLP": mlp, "LSTM": lstm, "CNN": cnn}[name]()
    if name == "LSTM":
        rows = round(4 * batch)
        x, y = torch.randint(WORDS, (rows, 16)), torch.randint(WORDS, (rows * 16,))
        return model, lambda: functional.cross_entropy(model(x).flatten(0, 1), y)
    rows = round({"MLP": 16, "CNN": 4}[name] * batch)
    x = torch.randn(rows, *((64,) if name == "MLP" else (3, 16, 16)))
    y = torch.randint(10, (rows,))
    return model, lambda: functional.cross_entropy(model(x), y)


def _checkpoint(model: Any) -> None:
    from torch.utils.checkpoint import checkpoint

    for block in model.blocks:
        block.forward = lambda x, forward=block.forward: checkpoint(forward, x, use_reentrant=False)


if __name__ == "__main__":
    main(__doc__, __file__, MODELS, recording, [*EVERYWHERE, *OF_BLOCKS])
