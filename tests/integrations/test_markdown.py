"""`compare --markdown`, and the script of the GitHub Action against a server that answers as GitHub does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cli.command_line import daydream

from daydream.report.markdown import code, sentence

ROOT = Path(__file__).resolve().parents[2]
CPU = str(ROOT / "examples" / "mlp_cpu.json.gz")
ACTION = ROOT / ".github" / "actions" / "step-time"
PLAIN = """\
**5.282 → 5.282 ms per step, 1.00x; the step times overlap, so this may be noise**

|  | step, ms | range, ms | speedup |
| --- | ---: | ---: | ---: |
| `before` | 5.282 | 5.128 to 5.476 |  |
| `after` | 5.282 | 5.128 to 5.476 | 1.00x |
"""
PREDICTED = """\
**fused-adam: predicted 3.894 ms, measured 5.282 ms per step; not as predicted, error -26.3%**

from 5.282 ms: predicted 1.36x, measured 1.00x

|  | step, ms | range, ms | speedup |
| --- | ---: | ---: | ---: |
| `before` | 5.282 |  |  |
| `predicted: fused-adam` | 3.894 | 3.643 to 4.146 | 1.36x |
| `after` | 5.282 | 5.128 to 5.476 | 1.00x |
"""


def compare(*words):
    return daydream("compare", CPU, CPU, *words, folder=ROOT)


@pytest.mark.parametrize(("words", "expected"), [([], PLAIN), (["--whatif", "fused-adam"], PREDICTED)])
def test_a_comparison_is_a_sentence_a_table_and_details(words, expected):
    done = compare("--markdown", *words)
    said = done.out.replace("\N{NO-BREAK SPACE}", " ")
    assert said.startswith(expected)
    assert said.count("<details>") == said.count("</details>") == 1


def test_markdown_and_json_exclude_each_other():
    done = compare("--markdown", "--json")
    assert (done.code, done.out) == (2, "")


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
    inputs = {"BEFORE": CPU, "AFTER": CPU, **variables}
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
