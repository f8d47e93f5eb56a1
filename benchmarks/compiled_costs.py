"""What compiled code costs beside its calculation, by phase: calls, graph breaks, parameters, random numbers.

    OMP_NUM_THREADS=1 python benchmarks/compiled_costs.py -o FOLDER      five minutes; quieter is better

Small models that no page judges by: chains of scaled inputs with a parameter of 8 elements each, the same
with graph breaks, products of 8 x 8, dropout of 16 k to 260 k elements, and norms, ReLUs and softmaxes with
it. Each is recorded uncompiled, and timed by phase uncompiled and compiled, in CPU time of the process.
Printed is what compiling added by measurement less what is predicted to be added, us: how far the constants
of `daydream/model/compiled_calls.py` are off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from compiled_steps import Parts, _in_turns
from recordings import KEEP_FREED_MEMORY, record

FORWARD_LINE, BREAK_LINE = "    x = x * self.w{}", "    torch._dynamo.graph_break()"
Model = tuple[Any, Callable[[], Any]]


def chain(length: int, breaks: int = 0) -> Model:
    """Return products with a parameter each, in `breaks + 1` pieces of `length`."""
    import torch
    from torch import nn

    pieces = [
        [FORWARD_LINE.format(piece * length + at) for at in range(length)] for piece in range(breaks + 1)
    ]
    body = f"\n{BREAK_LINE}\n".join("\n".join(piece) for piece in pieces)
    source = f"def forward(self, x):\n{body}\n    return x"
    space: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<chain>", "exec"), space)
    model = type("Chain", (nn.Module,), {"forward": space["forward"]})()
    for number in range(length * (breaks + 1)):
        setattr(model, f"w{number}", nn.Parameter(torch.ones(8)))
    x = torch.randn(8)
    return model, lambda: model(x).sum()


def products(count: int, *, relu: bool) -> Model:
    """Return linear layers of 8 x 8, with a ReLU behind each or without."""
    import torch
    from torch import nn

    parts = [part for _ in range(count) for part in (nn.Linear(8, 8), *([nn.ReLU()] if relu else []))]
    model, x = nn.Sequential(*parts), torch.randn(8, 8)
    return model, lambda: model(x).sum()


def dropout(elements: int) -> Model:
    """Return a scaled input behind a dropout."""
    import torch
    from torch import nn

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(elements))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(x * self.weight, 0.1)

    model, x = Dropped(), torch.randn(elements)
    return model, lambda: model(x).sum()


def blocks(count: int, rows: int, width: int, *, parts: str) -> Model:
    """Return linear layers, each with some of norm (behind a sum), relu, softmax and dropout behind it."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(count if "norm" in parts else 0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for at, layer in enumerate(self.layers):
                y = layer(x)
                if "relu" in parts:
                    y = torch.relu(y)
                if "softmax" in parts:
                    y = torch.softmax(y, -1)
                if "dropout" in parts:
                    y = functional.dropout(y, 0.1)
                x = self.norms[at](x + y) if "norm" in parts else y
            return self.layers[0](x)

    model, x = Blocks(), torch.randn(rows, width)
    return model, lambda: model(x).sum()


@dataclass(frozen=True)
class Case:
    """A model, and how many graph breaks it has."""

    make: Callable[[], Model]
    breaks: int = 0


CASES: dict[str, Case] = {
    **{f"chain of {n}": Case(partial(chain, n)) for n in (1, 4, 12, 24)},
    **{
        f"{b + 1} chains of {n}": Case(partial(chain, n, b), b)
        for n, b in ((1, 1), (1, 2), (1, 4), (6, 1), (6, 4))
    },
    **{f"{n} products": Case(partial(products, n, relu=False)) for n in (1, 6, 16)},
    **{f"{n} products and ReLUs": Case(partial(products, n, relu=True)) for n in (1, 6, 16)},
    **{f"dropout of {n}": Case(partial(dropout, n)) for n in (1 << 14, 1 << 16, 1 << 18)},
    **{
        f"{n} of {parts}, {rows} x {width}": Case(partial(blocks, n, rows, width, parts=parts))
        for n, rows, width in ((1, 8, 8), (8, 8, 8), (4, 512, 64))
        for parts in ("norm", "norm and dropout", "relu", "relu and dropout", "softmax and dropout")
    },
}


def measured(case: Case, path: Path) -> dict[str, list[float]]:
    """Save a trace of the uncompiled step; return the time of each part, ns, uncompiled and compiled."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    base = _parts(case, compiled=False)
    record(base, path)
    times = _in_turns({"base": base, "again": base, "compiled": _parts(case, compiled=True)})
    return {title: [median(part) for part in zip(*rounds, strict=True)] for title, rounds in times.items()}


def _parts(case: Case, *, compiled: bool) -> Parts:
    import torch

    torch.manual_seed(0)
    model, loss = case.make()
    if compiled:
        model.forward = torch.compile(model.forward)
    return Parts(loss, torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False))


def missed(case: Case, path: Path, times: dict[str, list[float]]) -> list[float]:
    """Return what compiling added to forward and backward, less what is predicted: us."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "validation"))
    from ledger_phases import parts_ns

    import daydream

    options = {"graph_breaks": case.breaks} if case.breaks else {}
    told = daydream.whatif(daydream.replay(path), "compile", **options)
    before, after = parts_ns(told.replay.settled), parts_ns(told.after)
    return [
        (times["compiled"][at] - times["base"][at] - after[part] + before[part]) / 1e3
        for at, part in enumerate(("forward", "backward"))
    ]


def main() -> None:
    """Measure each model in a process of its own, and print a row for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder for the traces")
    parser.add_argument("--only", default="*", help="a shell pattern of what to measure")
    parser.add_argument("--one", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(CASES[options.one], options.output)))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    print("| model | forward, us: uncompiled, compiled, missed | backward | control |\n|---|---|---|---|")
    for name, case in CASES.items():
        if not fnmatch(name, options.only):
            continue
        path = options.output / f"{name.replace(' ', '-')}.parquet"
        done = subprocess.run(
            [sys.executable, __file__, "--one", name, "-o", str(path)],
            stdout=subprocess.PIPE, text=True, check=True,
            env={**os.environ, **KEEP_FREED_MEMORY, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        times = json.loads(done.stdout.splitlines()[-1])
        cells = [
            f"{times['base'][at] / 1e3:.0f}, {times['compiled'][at] / 1e3:.0f}, {off:+.0f}"
            for at, off in enumerate(missed(case, path, times))
        ]
        print(f"| {name} | {' | '.join(cells)} | {times['again'][0] / times['base'][0]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
