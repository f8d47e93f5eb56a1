"""Modes of torch.compile, dynamic shapes, recompilation, graph breaks: collected, nothing else is compiled.

Each script prints how much was compiled: frames, graphs, kernels, misses of Inductor's cache. With and
without `collect` that must be the same.
"""

from __future__ import annotations

import re
import shutil
import textwrap

import numpy as np
import pytest

pytest.importorskip("torch", reason="collects real training scripts")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
]

SCRIPT = textwrap.dedent("""
    import torch
    from torch import nn
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.fc = nn.LayerNorm(width), nn.Linear(width, width)

        def forward(self, x):
            return x + nn.functional.gelu(self.fc(self.norm(x)))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block(16) for _ in range(2))
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            x = self.blocks[0](x)
            BREAK
            return self.head(self.blocks[1](x))

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    COMPILE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(40):
        rows = ROWS
        x, y = torch.randn(rows, 16), torch.randint(0, 4, (rows,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(run(x), y)
        loss.backward()
        optimizer.step()
    print(loss.item(), sorted(counters["stats"].items()), sorted(counters["frames"].items()))
    print(sum(counters["graph_break"].values()), metrics.generated_kernel_count)
    print(sorted(counters["inductor"].items()))
""")
MODES = {
    "fullgraph": ("run = torch.compile(model, fullgraph=True)", "16"),
    "reduce-overhead": ("run = torch.compile(model, mode='reduce-overhead')", "16"),
    "dynamic": ("run = torch.compile(model, dynamic=True)", "16 + step"),
    "recompiles": ("run = torch.compile(model, dynamic=False)", "(16, 24)[step % 2]"),
    "the module itself": ("model.compile(); run = model", "16"),
    "its blocks": ("[block.compile() for block in model.blocks]; run = model", "16"),
}


def script(compile_: str, rows: str = "16", *, breaks: str = "pass") -> str:
    return SCRIPT.replace("COMPILE", compile_).replace("ROWS", rows).replace("BREAK", breaks)


def both(folder, text: str):
    """Run a script with and without `collect`, side by side, each with compiler caches of its own."""
    (folder.path / "train.py").write_text(text)
    alone = folder.start("train.py", TORCHINDUCTOR_CACHE_DIR=str(folder.path / "plain"))
    collected = folder.collect("--force", "train.py", TORCHINDUCTOR_CACHE_DIR=str(folder.path / "collected"))
    plain = folder.finish(alone)
    assert plain.out == collected.out
    assert "global hooks" not in collected.err
    return collected.trace()


@pytest.mark.parametrize("mode", MODES)
def test_nothing_more_is_compiled_and_every_fused_kernel_is_matched(folder, mode: str):
    trace = both(folder, script(*MODES[mode]))
    names = trace.text("name")
    fused = np.array([*(bool(re.match(r"(graph_\d+_)?cpp_fused", name)) for name in names), False])
    rows = np.flatnonzero(fused[trace["name"]])
    assert len(rows) >= 3 * 4
    assert (trace["handle"][rows] >= 0).all()
    layers = {layer for layer in trace.values("layer", rows) if layer}
    assert {layer[:8] for layer in layers} >= {"blocks.0", "blocks.1"}
    assert not any("could not be matched" in note for note in trace.metadata["notes"])


def test_a_sequential_root_that_torch_itself_skips_is_compiled_neither_with_nor_without_collect(folder):
    text = script(
        "model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)); model.compile(); run = model"
    )
    trace = both(folder, text)
    assert not any("CompiledFxGraph" in name for name in trace.text("name"))


def test_where_and_why_the_graph_breaks_is_recorded_and_told(folder):
    import daydream

    text = script("run = torch.compile(model)", breaks="print('', end='')")
    line = text.splitlines().index(next(one for one in text.splitlines() if "print('', end" in one)) + 1
    trace = both(folder, text)
    sources = {one["source"] for one in trace.metadata["graph_breaks"]}
    assert f"train.py({line}): forward" in sources
    assert any(f"train.py({line})" in note for note in daydream.explain(trace).notes())
