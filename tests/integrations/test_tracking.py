"""A comparison in MLflow and in Weights & Biases: the real packages, with stores in a folder of the test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

import daydream
from daydream.errors import DaydreamError
from daydream.integrations.tracking import figures, log_to_mlflow, log_to_wandb

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = EXAMPLES / "mlp_cpu.json.gz"


@pytest.fixture(scope="module")
def replay():
    return daydream.replay(CPU)


@pytest.fixture(scope="module")
def prediction(replay):
    return daydream.whatif(replay, "fused-adam")


@pytest.fixture(scope="module")
def held(replay, prediction):
    return daydream.compare(prediction, replay, names=("before", "after"))


def test_the_figures_are_those_of_the_results(replay, prediction, held):
    alone, both = figures(prediction), figures(held)
    assert alone["before_ms"] == replay.measured_ns / 1e6
    assert alone["predicted_ms"] == both["predicted_ms"] == prediction.predicted_ns / 1e6
    assert alone["predicted_low_ms"] < alone["predicted_ms"] < alone["predicted_high_ms"]
    assert alone["speedup"] == prediction.speedup
    assert both["after_ms"] == both["before_ms"] == replay.measured_ns / 1e6
    assert both["speedup"] == 1.0
    assert both["prediction_error"] == held.error
    plain = figures(daydream.compare(replay, replay))
    assert "predicted_ms" not in plain
    assert "prediction_error" not in plain


@pytest.mark.slow
def test_mlflow_gets_metrics_tags_and_artifacts(held, prediction, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs the extra `mlflow`")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        log_to_mlflow(held, step=3)
    found = mlflow.get_run(run.info.run_id)
    assert found.data.metrics == {f"daydream.{name}": value for name, value in figures(held).items()}
    assert found.data.tags["daydream.change"] == "fused-adam"
    assert found.data.tags["daydream.code"].startswith("torch.optim.AdamW")
    document = json.loads(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/daydream/comparison.json"))
    assert document["after"]["step_ns"] == held.after.step_ns
    page = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/daydream/comparison.html")
    assert "<table>" in page
    with mlflow.start_run() as run:
        log_to_mlflow(prediction, prefix="x.")
    assert mlflow.get_run(run.info.run_id).data.metrics["x.speedup"] == prediction.speedup


OFFLINE = """
import sys, wandb, daydream
from daydream.integrations.tracking import figures, log_to_wandb
run = wandb.init(mode="offline", dir=sys.argv[2], project="p", settings=wandb.Settings(silent=True))
found = daydream.whatif(sys.argv[1], "fused-adam")
log_to_wandb(found)
for name, value in figures(found).items():
    assert run.summary[f"daydream/{name}"] == value, name
assert run.config["daydream/change"] == "fused-adam"
assert run.summary["daydream/comparison"]["_type"] == "html-file"
run.finish()
"""


@pytest.mark.slow
def test_wandb_gets_figures_config_and_a_page(tmp_path):
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    command = [sys.executable, "-c", OFFLINE, str(CPU), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_run_of_wandb_is_asked_for_three_things(prediction, monkeypatch):
    wandb, run = Mock(run=None), Mock()
    wandb.Html.side_effect = lambda text, inject: text * (not inject)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    log_to_wandb(prediction, run=run)
    (logged,) = run.log.call_args.args
    assert logged.pop("daydream/comparison").startswith("<!doctype html>")
    assert logged == {f"daydream/{name}": value for name, value in figures(prediction).items()}
    assert run.config.update.call_args.args[0]["daydream/change"] == "fused-adam"
    with pytest.raises(DaydreamError, match=r"wandb\.init"):
        log_to_wandb(prediction)


@pytest.mark.parametrize(("name", "log"), [("mlflow", log_to_mlflow), ("wandb", log_to_wandb)])
def test_without_the_package_it_says_what_to_install(name, log, prediction, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DaydreamError, match=rf"pip install -e '\.\[{name}\]'"):
        log(prediction)
