"""A compiled model, collected: every kernel call knows the operators and layers it came from."""

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

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm, self.fc1 = nn.LayerNorm(width), nn.Linear(width, 2 * width)
            self.fc2 = nn.Linear(2 * width, width)

        def forward(self, x):
            return x + self.fc2(nn.functional.gelu(self.fc1(self.norm(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*(Block(32) for _ in range(2)))
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.blocks(x))

    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model)
    data, labels = torch.randn(16, 32), torch.randint(0, 4, (16,))
    for _ in range(40):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(data), labels)
        loss.backward()
        optimizer.step()
    print(loss.item())
""")


def fused_rows(trace):
    names = trace.text("name")
    fused = [bool(re.match(r"(graph_\d+_)?cpp_fused", name)) for name in names]
    return np.flatnonzero(np.array([*fused, False])[trace["name"]])


def test_every_fused_kernel_has_operators_and_layers_and_the_run_is_the_same(folder):
    (folder.path / "train.py").write_text(SCRIPT)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder.path / "cache")}
    plain = folder.finish(folder.start("train.py", **cache))
    first, again = (
        folder.collect("--force", "train.py", **cache) for _ in range(2)
    )  # the second from the cache
    assert plain.out == first.out == again.out
    trace = again.trace()
    rows = fused_rows(trace)
    assert len(rows) >= 3 * 6
    assert (trace["handle"][rows] >= 0).all()
    layers = set(trace.values("layer", rows))
    parts = ("", ".norm", ".fc1", ".fc2")
    assert layers <= {"head", *(f"blocks.{number}{part}" for number in (0, 1) for part in parts)}
    assert {layer.split(".")[1] for layer in layers if layer != "head"} == {"0", "1"}
    assert not any("_orig_mod" in layer for layer in trace.text("layer"))
    assert not any("could not be matched" in note for note in trace.metadata["notes"])


def test_layers_are_known_where_the_program_breaks_the_graph_at_each_block(folder):
    broken = SCRIPT.replace(
        "compiled = ",
        "for block in model.blocks: block.register_forward_hook(lambda *_: torch._dynamo.graph_break())\n"
        "compiled = ",
    )
    (folder.path / "train.py").write_text(broken)
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(folder.path / "cache")}
    plain = folder.finish(folder.start("train.py", **cache))
    collected = folder.collect("--force", "train.py", **cache)
    assert plain.out == collected.out
    trace = collected.trace()
    rows = fused_rows(trace)
    # Both blocks call one graph: only the modules' ranges around its calls tell which is which.
    shares = dict.fromkeys(("blocks.0", "blocks.1"), 0)
    for code, ns in zip(trace["handle"][rows].tolist(), trace["duration_ns"][rows].tolist(), strict=True):
        layers = {handle.layer for handle in trace.handles[trace.handles.identifiers[code]]}
        assert layers == {""} or len({layer[:8] for layer in layers}) == 1
        for layer in {layer[:8] for layer in layers} & {*shares}:
            shares[layer] += ns
    assert 0.2 < shares["blocks.0"] / sum(shares.values()) < 0.8
