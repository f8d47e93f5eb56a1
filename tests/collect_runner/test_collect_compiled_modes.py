"""Modes of torch.compile, dynamic shapes, recompilation, graph breaks: collected, nothing else is compiled.

The script prints for each mode how much was compiled: frames, graphs, kernels. With and without `collect`
that must be the same. One process without it runs all modes. Nothing is read from caches of graphs, so
that all is compiled each time; machine code is kept between the modes.
"""

import re
import shutil
import textwrap
from collections import Counter

import numpy as np
import pytest

pytest.importorskip("torch", reason="collects real training scripts")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler"),
]

SCRIPT = textwrap.dedent("""
    import sys
    import torch
    from torch import nn
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x):
            return x + torch.sigmoid(self.fc(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(2))

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))

    class Broken(Model):
        def forward(self, x):
            x = self.blocks[0](x)
            print("", end="")  # breaks here
            return self.blocks[1](x)

    class Looping(Model):
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
                print("", end="")  # breaks in a loop
            return x

    def fullgraph():
        model = Model()
        return model, torch.compile(model, fullgraph=True)

    def dynamic():
        model = Model()
        return model, torch.compile(model, dynamic=True)

    def the_module_itself():
        model = Model()
        model.compile()
        return model, model

    def its_blocks():
        model = Model()
        for block in model.blocks:
            block.compile()
        return model, model

    def sequential_root():
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        model.compile()
        return model, model

    def broken():
        model = Broken()
        return model, torch.compile(model)

    def looping():
        model = Looping()
        return model, torch.compile(model)

    def train(mode):
        torch.manual_seed(0)
        model, run = globals()[mode]()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(STEPS):
            rows = 16 + step % 4 if mode == "dynamic" else 16
            optimizer.zero_grad()
            loss = run(torch.randn(rows, 16)).square().mean()
            loss.backward()
            optimizer.step()
        print(mode, loss.item(), sorted(counters["stats"].items()), sorted(counters["frames"].items()),
              sum(counters["graph_break"].values()), metrics.generated_kernel_count,
              sorted(counters["inductor"].items()))

    torch.set_num_threads(1)
    for mode in sys.argv[1:]:
        torch._dynamo.reset()
        counters.clear()
        metrics.reset()
        train(mode)
""").replace("STEPS", "24")
MODES = ("fullgraph", "dynamic", "the_module_itself", "its_blocks")
OTHERS = ("sequential_root", "broken", "looping")
# Shapes that change in the fourth step that is recorded: for each recording of steps that `collect` makes.
NEW_SHAPE = SCRIPT.partition("    for step in range")[0].partition("def fullgraph")[0] + textwrap.dedent("""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Model()
    run = torch.compile(model, dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recordings, recorded = 0, 0
    for step in range(30):
        recorded = recorded + 1 if torch.autograd._profiler_enabled() else 0
        recordings += recorded == 4
        optimizer.zero_grad()
        run(torch.randn(16 + 8 * recordings, 16)).square().mean().backward()
        optimizer.step()
""")
QUICK = ("--force", "--steps", "6", "--warmup", "3")


@pytest.fixture(scope="module")
def compilers(tmp_path_factory):
    """Return what the scripts' environments have: one folder of machine code, no cache of graphs."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("code")),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


@pytest.fixture(scope="module")
def alone(folder_of_file, compilers):
    """Return what the script says of each mode where nobody records it."""
    (folder_of_file.path / "train.py").write_text(SCRIPT)
    done = folder_of_file.python("train.py", *MODES, *OTHERS, **compilers)
    assert done.code == 0, done.err
    return {line.partition(" ")[0]: line for line in done.out.splitlines()}


def collected(folder, mode, alone, compilers):
    """Collect a mode, and hold what the script says against what it said without."""
    (folder.path / "train.py").write_text(SCRIPT)
    done = folder.collect(*QUICK, "train.py", mode, **compilers)
    assert done.out.splitlines() == [alone[mode]]
    assert "global hooks" not in done.err
    return done


def fused_rows(trace):
    names = [bool(re.match(r"(graph_\d+_)?cpp_fused", name)) for name in trace.text("name")]
    return np.flatnonzero(np.array([*names, False])[trace["name"]])


@pytest.mark.parametrize("mode", MODES)
def test_nothing_more_is_compiled_and_every_fused_kernel_is_matched(folder, mode, alone, compilers):
    trace = collected(folder, mode, alone, compilers).trace()
    rows = fused_rows(trace)
    assert len(rows) >= 3 * 4
    assert (trace["handle"][rows] >= 0).all()
    layers = {layer for layer in trace.values("layer", rows) if layer}
    assert {layer[:8] for layer in layers} >= {"blocks.0", "blocks.1"}
    assert not any("could not be matched" in note for note in trace.metadata["notes"])
    if mode == "its_blocks":  # both call one graph: only the modules' ranges around its calls tell them apart
        calls = Counter((layer or "")[:8] for layer in trace.values("layer", rows))
        assert calls["blocks.0"] == calls["blocks.1"] > 0


def test_what_comes_from_the_cache_of_graphs_is_matched_too(folder, compilers):
    (folder.path / "train.py").write_text(SCRIPT)
    cached = {**compilers, "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1"}
    for _ in range(2):
        trace = folder.collect(*QUICK, "--force", "train.py", "fullgraph", **cached).trace()
    rows = fused_rows(trace)
    assert len(rows) >= 3 * 4
    assert (trace["handle"][rows] >= 0).all()
    assert {*trace.values("layer", rows)} <= {"blocks.0", "blocks.0.fc", "blocks.1", "blocks.1.fc"}
    assert not any("_orig_mod" in layer for layer in trace.text("layer"))


def test_a_sequential_root_that_torch_itself_skips_is_compiled_neither_with_nor_without_collect(
    folder, alone, compilers
):
    trace = collected(folder, "sequential_root", alone, compilers).trace()
    assert not any("CompiledFxGraph" in name for name in trace.text("name"))


def line_of(words):
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if words in line)


def test_where_and_why_the_graph_breaks_is_recorded_and_told(folder, alone, compilers):
    import daydream

    trace = collected(folder, "broken", alone, compilers).trace()
    sources = {one["source"] for one in trace.metadata["graph_breaks"]}
    assert f"train.py({line_of('# breaks here')}): forward" in sources
    assert any(f"train.py({line_of('# breaks here')})" in note for note in daydream.explain(trace).notes)
    assert "uncompiled_frames" not in trace.metadata


def test_a_function_that_a_break_in_a_loop_leaves_uncompiled_is_told(folder, alone, compilers):
    import daydream

    trace = collected(folder, "looping", alone, compilers).trace()
    (told,) = trace.metadata["uncompiled_frames"]
    begins = line_of("class Looping") + 1
    assert told["source"] == f"train.py({begins}): forward"
    assert told["at"] == f"train.py({line_of('# breaks in a loop')}): forward"
    assert told["reason"].startswith("graph break in loop")
    (note,) = [note for note in daydream.explain(trace).notes if "left uncompiled" in note]
    assert note.startswith(f"train.py({begins}): forward was left uncompiled: graph break in loop (")


def test_a_step_that_compiles_anew_while_it_is_recorded_is_left_out_and_both_codes_are_matched(
    folder, compilers
):
    (folder.path / "train.py").write_text(NEW_SHAPE)
    cached = {**compilers, "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}  # else torch gives graphs no key of their own
    trace = folder.collect(*QUICK, "train.py", **cached).trace()
    steps = trace.metadata["steps"]
    (anew,) = [number for number, step in enumerate(steps) if "compiled" in (step.get("why_not") or "")]
    assert 1 < anew < len(steps) - 1
    assert not steps[anew]["covered"]
    rows = fused_rows(trace)
    assert (trace["handle"][rows] >= 0).all()
    before, after = (
        {trace.handles.identifiers[code] for code in trace["handle"][rows[chosen]].tolist()}
        for chosen in (trace["step"][rows] < anew, trace["step"][rows] >= anew)
    )
    assert before
    assert after
    assert not before & after
    assert not any("could not be matched" in note for note in trace.metadata["notes"])
