"""Callbacks in the trainers of others: real processes, tiny random models, nothing downloaded."""

import os
import subprocess
import sys
import textwrap

import pytest
from cli.command_line import daydream as typed

import daydream

pytest.importorskip("torch", reason="records real training")


def run(script, *words):
    done = subprocess.run(
        [sys.executable, script, *words], cwd=script.parent, capture_output=True, text=True, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


HUGGING_FACE = textwrap.dedent("""
    import sys
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    set_seed(0)
    sizes = dict(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    words = torch.randint(64, (300, 16))
    callbacks = []
    if len(sys.argv) > 1:
        from daydream.trainers.huggingface import DaydreamCallback
        callbacks.append(DaydreamCallback(sys.argv[1]))
    settings = TrainingArguments(
        "out", max_steps=50, per_device_train_batch_size=4, gradient_accumulation_steps=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )
    data = [{"input_ids": one, "labels": one} for one in words]
    done = Trainer(model, settings, train_dataset=data, callbacks=callbacks).train()
    print("loss", done.training_loss)
""")
LIGHTNING = textwrap.dedent("""
    import sys
    import lightning
    import torch
    from torch import nn

    lightning.seed_everything(0)

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

        def training_step(self, batch, _):
            self.loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            return self.loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    callbacks = []
    if len(sys.argv) > 1:
        from daydream.trainers.lightning import DaydreamCallback
        callbacks.append(DaydreamCallback(sys.argv[1]))
    data = torch.utils.data.TensorDataset(torch.randn(400, 32), torch.randint(10, (400,)))
    model = Model()
    lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=callbacks,
    ).fit(model, torch.utils.data.DataLoader(data, batch_size=8))
    print("loss", model.loss.item())
""")
ACCELERATE = textwrap.dedent("""
    import sys
    import torch
    from accelerate import Accelerator
    from torch import nn

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    data, labels = torch.randn(16, 32), torch.randint(10, (16,))

    def train():
        for _ in range(50):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), labels)
            accelerator.backward(loss)
            optimizer.step()
        print("loss", loss.item())

    if len(sys.argv) > 1:
        import daydream
        with daydream.collect(sys.argv[1]):
            train()
    else:
        train()
""")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "script", "layer"),
    [
        ("transformers", HUGGING_FACE, "transformer.h.0.mlp.c_fc"),
        ("lightning", LIGHTNING, "0"),
        ("accelerate", ACCELERATE, "0"),
    ],
)
def test_the_trace_is_as_good_as_that_of_collect_and_the_run_the_same(package, script, layer, tmp_path):
    pytest.importorskip(package, reason=f"an extra: {package}")
    (tmp_path / "train.py").write_text(script)

    def ran(*words):
        done = run(tmp_path / "train.py", *words)
        return [line for line in done.stdout.splitlines() if line.startswith("loss")], done.stderr

    (plain, _), (recorded, said) = ran(), ran("t.parquet")
    assert plain == recorded
    assert package == "accelerate" or "daydream: wrote t.parquet" in said
    trace = daydream.load(tmp_path / "t.parquet")
    replay = daydream.replay(trace)
    assert abs(replay.error) < 0.01
    assert replay.steps
    assert any(name.endswith(layer) for name in trace.text("layer"))
    assert {"forward", "backward", "optimizer"} <= {*trace.text("phase")}
    collected = ("collect", "--no-suggestions", "-o", "c.parquet", "train.py")
    assert typed(*collected, folder=tmp_path, HF_HUB_OFFLINE="1").code == 0
    collected = daydream.load(tmp_path / "c.parquet").metadata
    assert sum(step["covered"] for step in collected["steps"]) == 3
    assert "steps of the optimizer Adam" in collected["step_source"]


# `daydream.handler` in a script's own torch.profiler: real processes, traces as good as `collect`'s


SCRIPT = textwrap.dedent("""
    import sys
    import torch
    from torch import nn
    from torch.profiler import profile, schedule

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters())
    data, labels = torch.randn(16, 32), torch.randint(10, (16,))

    def train(profiler=None):
        for _ in range(14):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), labels)
            loss.backward()
            optimizer.step()
            if profiler is not None:
                profiler.step()
        print(loss.item())

    if len(sys.argv) == 1:
        train()
    else:
        import daydream
        ready = daydream.handler(sys.argv[1], suggestions="suggestions" in sys.argv)
        cycles = schedule(wait=1, warmup=1, active=4, repeat=2)
        recorded = {"record_shapes": True, "profile_memory": "memory" in sys.argv}
        with profile(schedule=cycles, on_trace_ready=ready, **recorded) as profiler:
            train(profiler)
        ready.close()
        assert not torch.nn.modules.module._global_forward_hooks
        print(*ready.saved)
""")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("handler") / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def loss(script):
    """Return what the script prints where nobody records it."""
    return run(script).stdout.strip()


@pytest.mark.slow
def test_every_cycle_is_a_trace_and_the_run_is_the_same_and_ends_with_suggestions(script, loss):
    done = run(script, "t.parquet", "memory", "suggestions")
    found, names = done.stdout.splitlines()
    assert found == loss
    assert names.split() == ["t.parquet", "t-2.parquet"]
    for name in names.split():
        trace = daydream.load(script.parent / name)
        replay = daydream.replay(trace)
        assert len(trace.metadata["steps"]) == 4
        assert abs(replay.error) < 0.01
        assert {"0", "2"} <= {*trace.text("layer")}
        assert {"forward", "backward", "optimizer"} <= {*trace.text("phase")}
        assert [one["name"] for one in trace.metadata["optimizers"]] == ["Adam"]
        assert trace.memory is not None
        assert daydream.whatif(replay, "fused-adam").predicted_ns < replay.replayed_ns
    said = [line for line in done.stderr.splitlines() if line.startswith("daydream: ")]
    assert said[0] == "daydream: wrote t.parquet"
    assert said[1].startswith("daydream: top suggestions")
    assert any("fused-adam" in line for line in said)


@pytest.mark.slow
def test_a_trace_that_cannot_be_written_is_one_line_and_training_goes_on(script, loss):
    done = run(script, "nowhere/t.parquet")
    said = [line for line in done.stderr.splitlines() if line.startswith("daydream: ")]
    why = "daydream: no trace was written: cannot write nowhere/t.parquet: No such file or directory"
    assert said == [why] * 2
    assert done.stdout.splitlines()[0] == loss


def test_ranks_have_files_of_their_own(monkeypatch, tmp_path):
    from daydream.trainers.handler import own_path

    assert own_path(tmp_path / "t.parquet") == tmp_path / "t.parquet"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert own_path(tmp_path / "t") == tmp_path / "t.rank3.parquet"
    (tmp_path / "t.rank3.parquet").touch()
    assert own_path(tmp_path / "t.parquet") == tmp_path / "t.rank3-2.parquet"
