"""Training loops of every shape, collected as people run them: what a step is in each."""

import json
import textwrap

import pytest

pytest.importorskip("torch", reason="collects real training scripts")

LOOPS = {
    "accumulation": """
        for index in range(4 * 40):
            model(torch.randn(2, 4)).sum().backward()
            if index % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
        """,
    "two optimizers at different rates": """
        other = torch.nn.Linear(4, 4)
        seldom = torch.optim.Adam(other.parameters())
        for index in range(3 * 40):
            step()
            if index % 3 == 2:
                other(torch.randn(2, 4)).sum().backward()
                seldom.step()
        """,
    "a gradient scaler that skips": """
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
        for index in range(40):
            optimizer.zero_grad()
            loss = model(torch.randn(2, 4)).sum() * (float("inf") if index == 7 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if index != 7:
                schedule.step()
        """,
    "a compiled step": """
        update = torch.compile(optimizer.step, backend="eager")
        for _ in range(40):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()
            update()
        """,
    "a closure": """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        data = torch.randn(2, 4)
        def closure():
            optimizer.zero_grad()
            loss = model(data).square().sum()
            loss.backward()
            return loss
        for _ in range(40):
            optimizer.step(closure)
        """,
    "no optimizer": """
        for _ in range(40):
            model(torch.randn(2, 4)).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        """,
}


@pytest.mark.parametrize(
    "loop", [loop if loop == "accumulation" else pytest.param(loop, marks=pytest.mark.slow) for loop in LOOPS]
)
def test_steps_are_found_in(loop, folder):
    folder.script(textwrap.dedent(LOOPS[loop]) + "print('trained')")
    done = folder.collect("train.py")

    assert (done.code, done.out) == (0, "trained\n")
    assert done.steps() == 3
    assert done.trace().metadata["unprofiled_step_ns"]
    assert "Traceback" not in done.err


@pytest.mark.parametrize("loop", [pytest.param("no optimizer", marks=pytest.mark.slow), "accumulation"])
def test_stop_after_ends_the_script_when_the_steps_are_captured(loop, folder):
    folder.script(LOOPS[loop].replace("40", "1_000_000_000"))
    done = folder.collect("--stop-after", "train.py")

    assert done.code == 0
    assert done.steps() == 3


@pytest.mark.slow
@pytest.mark.parametrize(("warmup", "first"), [("0", "step 2"), ("1", "step 2"), ("9", "step 10")])
def test_warm_up_steps_are_skipped(warmup, first, folder):
    folder.script("for _ in range(40):\n    step()\n")
    done = folder.collect("--warmup", warmup, "--steps", "2", "train.py")

    assert done.code == 0
    again = any("captured once more" in note for note in done.trace().metadata["notes"])  # on a busy machine
    assert done.trace().metadata["steps"][0]["name"] == first or again
    assert done.steps() == 2


@pytest.mark.slow
def test_json_says_what_was_recorded(folder):
    folder.script("for _ in range(40):\n    step()\nprint('trained')")
    done = folder.collect("--json", "--steps", "4", "train.py")
    found = json.loads(done.out)

    assert (found["schema"], found["exit_code"], found["covered"], found["steps"]) == (1, 0, 4, 5)
    assert found["trace"] == "train.parquet"
    assert "trained" in done.err


FRAMEWORKS = {
    "accelerate": """
        import torch
        from accelerate import Accelerator
        from torch.utils.data import DataLoader, TensorDataset
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=4)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for (rows,) in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(rows).square().mean())
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        """,
    "lightning": """
        import lightning, torch
        from torch.utils.data import DataLoader, TensorDataset
        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = torch.nn.Linear(8, 8)
            def training_step(self, batch, index):
                return self.net(batch[0]).square().mean()
            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters())
        off = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer = lightning.Trainer(max_steps=45, accelerator="cpu", **off)
        trainer.fit(Model(), DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=4))
        """,
    "transformers": """
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=1, n_head=2))
        texts = [torch.randint(64, (16,)) for _ in range(400)]
        arguments = TrainingArguments(
            output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=45,
            report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
        )
        rows = [dict(input_ids=text, labels=text) for text in texts]
        Trainer(model=model, args=arguments, train_dataset=rows).train()
        """,
}


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_steps_are_found_under(framework, folder):
    pytest.importorskip(framework, reason="runs where it is installed")
    folder.script(FRAMEWORKS[framework], begin="")
    done = folder.collect("train.py")

    assert done.code == 0, done.err
    assert done.steps() == 3
    assert "steps of the optimizer Adam" in done.trace().metadata["step_source"]
