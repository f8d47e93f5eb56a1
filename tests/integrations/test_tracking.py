"""Figures in trackers, pull requests and tests: W&B, MLflow, Markdown, pytest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest
from cli.command_line import daydream as typed
from cli.command_line import held_to
from shared import EXAMPLES, GPT, ROOT
from test_repository import PROJECT

import daydream
from daydream.errors import DaydreamError
from daydream.integrations.step_time import StepTime
from daydream.integrations.tracking import figures, log_to_mlflow, log_to_wandb
from daydream.report.text import code, sentence

# A comparison in MLflow and in Weights & Biases: the real packages, with stores in a folder of the test


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


# `compare --markdown`, and the script of the GitHub Action against a server that answers as GitHub does


ACTION = ROOT / ".github" / "actions" / "step-time"


def compare(*words):
    return typed("compare", str(CPU), str(CPU), *words, folder=ROOT)


@pytest.mark.parametrize(
    ("words", "golden"), [([], "compare.md"), (["--whatif", "fused-adam"], "compare_whatif.md")]
)
def test_a_comparison_is_a_sentence_a_table_and_details(words, golden):
    shown, folded = compare("--markdown", *words).out.split("<details>")
    held_to(golden, shown.replace("\N{NO-BREAK SPACE}", " ").rstrip() + "\n")
    assert folded.count("</details>") == 1


def test_names_of_a_trace_are_neither_markup_nor_people():
    assert code("a|b`c`\n@team <b>") == "`a/b'c' @team <b>`"
    assert code("") == "` `"
    assert len(code("x" * 500)) < 70
    said = sentence("see [x](http://y) <img src=z> @team #12 `a` *b* \x1b[31m\n- c")
    assert not set(said.replace("\\`", "").replace("\\*", "").replace("\\[", "")) & set("`*[<>@\x1b\n")
    assert "#12" not in said
    assert "http://" not in said


class GitHub(BaseHTTPRequestHandler):
    """Comments of one pull request; `answer` is a status to refuse with."""

    comments: list[dict]
    answer = 200

    def do_GET(self):
        self._reply(self.comments)

    def do_POST(self):
        assert self.path == "/repos/o/r/issues/7/comments"
        self.comments.append({"id": 41 + len(self.comments), **self._body()})
        self._reply(self.comments[-1])

    def do_PATCH(self):
        number = int(self.path.removeprefix("/repos/o/r/issues/comments/"))
        (found,) = (each for each in self.comments if each["id"] == number)
        found.update(self._body())
        self._reply(found)

    def _body(self):
        assert self.headers["Authorization"] == "Bearer secret"
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _reply(self, body):
        self.send_response(type(self).answer)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def github(tmp_path):
    """The variables of a runner on pull request 7, and the comments there."""
    handler = type("One", (GitHub,), {"comments": [{"id": 40, "body": "looks good"}]})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    variables = {
        "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}", "GITHUB_EVENT_PATH": str(event),
        "GITHUB_REPOSITORY": "o/r", "GITHUB_TOKEN": "secret", "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "GITHUB_OUTPUT": str(tmp_path / "output"),
    }  # fmt: skip
    yield handler, variables
    server.shutdown()
    server.server_close()


def run(**variables):
    there = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    command = [sys.executable, str(ACTION / "step_time.py")]
    inputs = {"BEFORE": str(CPU), "AFTER": str(CPU), **variables}
    return subprocess.run(
        command, env={**there, **inputs}, capture_output=True, encoding="utf-8", check=False
    )


@pytest.mark.slow
def test_the_action_comments_once_and_then_again_over_it(github):
    handler, variables = github
    first = run(**variables)
    assert first.returncode == 0, first.stderr
    assert [each["id"] for each in handler.comments] == [40, 42]
    second = run(**variables, WHATIF="fused-adam", OPTIONS="--memory-speedup 1.5")
    assert second.returncode == 0, second.stderr
    assert [each["id"] for each in handler.comments] == [40, 42]
    assert handler.comments[1]["body"] == second.stdout.removesuffix("\n")
    assert "`predicted: fused-adam`" in handler.comments[1]["body"]
    folder = Path(variables["RUNNER_TEMP"])
    assert (folder / "summary.md").read_text(encoding="utf-8").count("### Step time") == 2
    assert (folder / "output").read_text().splitlines()[0] == "speedup=1.0"


@pytest.mark.slow
def test_what_github_refuses_is_said_and_fails_nothing(github):
    handler, variables = github
    handler.answer = 403
    done = run(**variables)
    assert done.returncode == 0
    assert "no comment: GitHub answers 403 (of a pull request from a fork" in done.stderr
    done = run(**variables | {"GITHUB_API_URL": "http://127.0.0.1:9"})
    assert done.returncode == 0
    assert "no comment: " in done.stderr


@pytest.mark.slow
def test_the_action_is_a_gate_with_exit_code_3():
    assert run(FAIL_ABOVE_PERCENT="0").returncode == 0
    done = run(FAIL_ABOVE_PERCENT="-1")
    assert done.returncode == 3
    assert "Above the gate" in done.stdout
    assert run(FAIL_ABOVE_PERCENT="few").returncode == 2
    assert run(BEFORE="none.parquet").returncode == 1


def test_inputs_reach_the_script_as_variables_and_not_through_a_shell():
    yaml = pytest.importorskip("yaml", reason="needs the extra `test`")
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    steps = action["runs"]["steps"]
    assert [step["run"] for step in steps if "${{" in step["run"]] == []
    used = {value for step in steps for value in step["env"].values()}
    assert used == {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]}


# The fixture `assert_step_time`, in a pytest of its own, and what it holds a step to


# Of GPT: 16.57 ms a step; with amp 10.22, 8.47 to 11.96
SUITE = """
import sys

LOADED = [name for name in ("numpy", "pyarrow", "click", "daydream.predict") if name in sys.modules]

def test_the_plugin_loads_nothing_until_it_is_used():
    assert LOADED == []

def test_measured(assert_step_time):
    assert_step_time(GPT).below(17).not_slower_than(GPT)

def test_predicted(assert_step_time):
    assert_step_time(GPT, whatif="amp").below(11)

def test_too_long(assert_step_time):
    assert_step_time(GPT, whatif="amp", math_speedup=1.5).below(11)
"""


@pytest.fixture(scope="module")
def replayed():
    return daydream.replay(GPT)


def test_a_pytest_elsewhere_finds_the_fixture(tmp_path):
    (tmp_path / "test_steps.py").write_text(SUITE.replace("GPT", repr(str(GPT))))
    plugin = PROJECT["entry-points"]["pytest11"]["daydream"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:daydream", "-p", plugin, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert "AssertionError: amp on " in done.stdout
    assert "at most 11 ms are allowed" in done.stdout
    assert "step_time.py" not in done.stdout  # the failure is shown where the test is


def test_a_limit_is_held_to_the_nanosecond(replayed):
    step_ns = replayed.basis_ns  # what a prediction is compared with
    StepTime(GPT).below(step_ns / 1e6)
    with pytest.raises(AssertionError, match=r"a step takes 16\.57 ms, at most 16\.573 ms are allowed"):
        StepTime(GPT).below((step_ns - 1) / 1e6)
    with pytest.raises(AssertionError):
        StepTime(GPT).below(float("nan"))


def test_a_prediction_says_its_range():
    with pytest.raises(
        AssertionError, match=r"10\.22 ms \(90% interval 8\.47 ms to 11\.96 ms\), at most 8 ms"
    ):
        StepTime(GPT, whatif="amp").below(8)


def test_percents_are_of_the_baseline():
    slower = StepTime(GPT, whatif="scale", factor=2.0, on="gpu")
    share = slower.step_ns / StepTime(GPT).step_ns - 1
    assert share > 0.5
    slower.not_slower_than(GPT, percent=100 * share + 0.001)
    with pytest.raises(AssertionError, match="longer than 16"):
        slower.not_slower_than(GPT, percent=100 * share - 0.001)


def test_a_trace_that_does_not_replay_is_to_be_recorded_again(monkeypatch):
    step = StepTime(GPT)
    monkeypatch.setattr(type(step._replay), "error", 0.05)
    with pytest.raises(AssertionError, match=r"the replay is \+5\.0% off.*record again"):
        step.below(100)


def test_a_step_that_cannot_be_predicted_passes_no_gate():
    step = StepTime(GPT, whatif="amp")
    step.step_ns, step._why = None, "no kernel is known"
    with pytest.raises(AssertionError, match="cannot be predicted, because no kernel is known"):
        step.below(100)


def test_what_is_no_trace_is_an_error_of_its_own():
    with pytest.raises(daydream.TraceError):
        StepTime("no/such/file.parquet").below(1)
