"""Commands that read and write: import, info, example, timeline, report, calibrate, tool."""

import io
import json
import re
import time

import numpy as np
import pytest
from command_line import daydream as run_in
from command_line import process
from machine.programs import PROGRAMS
from shared import EXAMPLES, ROOT, shared_trace
from timeline_files import NS, problems, read, slices, threads

import daydream
from daydream.cli.anonymous import as_before
from daydream.cli.collect import EXAMPLES as SHIPPED
from daydream.cli.output import trace_name
from daydream.cli.source import Progress
from daydream.costs.device.measured import KernelTable
from daydream.report import perfetto as file
from daydream.report.blocks import Title
from daydream.report.text import show

# What commands write where: versions, output names, progress, hints


CODE, GREEN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), "\x1b[32m"


def test_version(ask):
    assert ask("--version").out == f"daydream {daydream.__version__}\n"


def test_without_a_command_the_help_is_shown(ask):
    done = ask()

    assert "Start here:" in done.out + done.err
    assert [
        name for name in ("import", "info", "replay", "whatif") if f"  {name} " not in done.out + done.err
    ] == []


@pytest.mark.parametrize(
    ("sources", "name"),
    [
        (["a/trace.json.gz"], "trace.parquet"),
        (["trace.json"], "trace.parquet"),
        (["worker0.1234.pt.trace.json"], "worker0.1234.parquet"),
        (["report.sqlite.gz"], "report.parquet"),
        (["some/ranks/"], "ranks.parquet"),
        (["profile"], "profile.parquet"),
        (["rank0.json", "rank1.json"], "rank.parquet"),
        (["job-rank0.json", "job-other.json"], "job.parquet"),
        (["a.json", "b.json"], "a.parquet"),
    ],
)
def test_the_output_is_named_after_the_source(sources, name):
    assert trace_name(sources) == name


def test_import_writes_where_it_says(ask, folder):
    (folder / "traces").mkdir()
    named = ask("import step.json.gz -o new.parquet")
    into = ask("import step.json.gz -o traces")
    ranks = ask("import ranks")

    assert [done.code for done in (named, into, ranks)] == [0, 0, 0]
    assert named.err.splitlines()[0].startswith("wrote new.parquet (")
    assert named.err.splitlines()[-1] == "next: daydream info new.parquet"
    assert len(daydream.load(folder / "traces" / "step.parquet")) == len(
        daydream.load(folder / "new.parquet")
    )
    assert {step["rank"] for step in daydream.load(folder / "ranks.parquet").metadata["steps"]} == {0, 1}


def test_steps_can_be_named_by_a_marker_or_found(ask):
    for how, said in (
        ("--step-marker ^Optimizer.step", "from ranges that match '^Optimizer.step'"),
        ("--steps auto", "from period of the launch sequence (auto)"),
    ):
        assert said in " ".join(ask(f"info step.json.gz {how}").out.split())


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def test_who_wants_no_colors_gets_the_words_alone(terminal, monkeypatch):
    shown = [Title("a step"), Title("another")]
    show(shown, terminal)
    assert CODE.search(terminal.getvalue())
    monkeypatch.setenv("NO_COLOR", "1")
    show(shown, plain := Terminal())
    assert plain.getvalue() == CODE.sub("", terminal.getvalue())


def shows(terminal, *said, until):
    """Return what a terminal got when something was said and, after a while, shown."""
    with Progress(terminal, patience_s=0) as progress:
        progress(*said)
        deadline = time.monotonic() + 30
        while until not in terminal.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    return terminal.getvalue()


def test_progress_shows_after_a_while_and_is_erased(terminal):
    written = shows(terminal, "reading [bold]a", 0.5, until="50%")

    # The line may have been drawn before it was said what is done.
    line = next(line for line in CODE.sub("", written).split("\r") if "50%" in line)
    assert line.startswith("reading [bold]a \u2501\u2501\u2501")
    assert re.search(r"\u2501  50% 0:00:0\d$", line)
    assert len(line) <= 80
    assert GREEN in written
    assert written.endswith("\x1b[1A\x1b[2K")


def test_a_dumb_terminal_shows_no_progress(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress(terminal, patience_s=0) as progress:
        progress("reading", 0.5)
        time.sleep(0.5)

    assert terminal.getvalue() == ""


def test_what_people_type_from_habit_leads_on(ask):
    assert ask("help rank").out == ask("rank --help").out
    assert ask("help").out.startswith("Usage: daydream")
    assert ask("list").out == ask("whatif --list").out
    assert "daydream whatif bf16" in ask("BF16").err


# `daydream info --anonymous`: the answers stay to the digit, and no name of a person's does


OF_MODELS = r"GPT|qkv|norm_1|blocks\.|Qwen|self_attn|q_proj|\.py\b|/root|/home"
NUMBERS = ("replayed_ns", "predicted_ns", "predicted_low_ns", "predicted_high_ns")


def in_file(path):
    """Return every text of a trace's file."""
    trace = daydream.Trace.load(path)
    return json.dumps([trace.texts, trace.metadata, trace.handles and trace.handles.to_json()])


@pytest.fixture
def made(ask, tmp_path):
    def make(source):
        target = tmp_path / "sent.parquet"
        assert ask("info", "--anonymous", str(source), "-o", str(target)).code == 0
        return daydream.load(source), target

    return make


@pytest.mark.parametrize("name", ["synthetic_gpt_gpu.json.gz", "train_gpt_h200.parquet"])
def test_whatifs_and_shares_are_those_of_the_trace(made, name):
    trace, target = made(EXAMPLES / name)
    sent = daydream.load(target)

    one, other = (daydream.whatif(each, "amp").to_json() for each in (trace, sent))
    assert {key: one[key] for key in NUMBERS} == {key: other[key] for key in NUMBERS}
    for side in ("before", "after"):
        assert one[side]["ns_by_cause"] == other[side]["ns_by_cause"]
        assert [*one[side]["by_layer"].values()] == [*other[side]["by_layer"].values()]
    one, other = (daydream.explain(each).to_json()["causes"] for each in (trace, sent))
    assert [(each["cause"], each["ns"], each["share"]) for each in one] == [
        (each["cause"], each["ns"], each["share"]) for each in other
    ]


@pytest.mark.parametrize(
    "name",
    [
        "kineto/h100_qwen_0.5b_inference.json.gz",
        "nsys/a100_gpt2.7b_forward_eager.sqlite.gz",
        "train_gpt_h200.parquet",
    ],
)
def test_no_name_of_a_model_or_a_file_survives(made, name):
    trace, target = made(EXAMPLES / name if "/" not in name else shared_trace(name))

    assert not re.search(OF_MODELS, in_file(target))
    own = {text for text in trace.text("layer") if "." in text}
    assert not [text for text in own if json.dumps(text) in in_file(target)]
    assert as_before(trace, daydream.load(target))


def test_names_of_others_are_numbers_and_public_ones_stay(made, tmp_path):
    source = tmp_path / "job.json"
    events = [
        {"name": "nn.Module: SecretNet_0", "cat": "python_function", "ts": 0, "dur": 99, "tid": 1},
        {"name": "aten::linear", "cat": "cpu_op", "ts": 1, "dur": 20, "tid": 1},
        {"name": "secretlib::mix_in", "cat": "cpu_op", "ts": 30, "dur": 20, "tid": 1},
        {"name": "epoch of Secret", "cat": "user_annotation", "ts": 60, "dur": 9, "tid": 1},
    ]
    rows = [{"ph": "X", "pid": 1, **each} for each in events]
    source.write_text(json.dumps({"traceEvents": rows, "host_name": "secret-host"}))

    texts = in_file(made(source)[1])
    assert "ecret" not in texts
    assert "mix_in" not in texts
    assert "aten::linear" in texts


# `daydream example`: what comes with daydream is written where one is


def test_without_a_name_they_are_listed(ask):
    done = ask("example")

    assert [line.split()[0] for line in done.out.splitlines()] == list(SHIPPED)
    assert done.err == "next: daydream example synthetic_gpt_gpu.json.gz\n"


@pytest.mark.parametrize("name", SHIPPED)
def test_an_example_is_what_the_repository_holds(ask, folder, name):
    done = ask("example", name, "-o", f"copy_of_{name}")

    assert done.code == 0
    assert (folder / f"copy_of_{name}").read_bytes() == (EXAMPLES / name).read_bytes()
    assert f"copy_of_{name}" in done.err.splitlines()[-1]


def test_nothing_is_written_over_and_unknown_names_are_refused(ask, folder):
    (folder / "train_gpt.py").write_text("mine")
    kept, unknown = ask("example train_gpt.py"), ask("example gpt")

    assert (kept.code, unknown.code) == (1, 1)
    assert (folder / "train_gpt.py").read_text() == "mine"
    assert "unknown example 'gpt'; choose synthetic_gpt_gpu.json.gz" in unknown.err
    assert ask("example train_gpt.py --force").code == 0


# `--html`: where the report is written, and what is said about it


def test_a_page_is_opened_before_its_changes_are_ranked(ask, folder, monkeypatch):
    opened = []
    page = folder / "step.html"
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append((url, page.read_text("utf-8"))))

    done = ask("report step.parquet --open")
    assert [url for url, _ in opened] == [page.as_uri()]
    assert "Ranked what-ifs" not in opened[0][1]
    assert "Ranked what-ifs" in page.read_text("utf-8")
    assert done.err.endswith("reload it in the browser: changes are ranked now\n")
    assert ask("report step.parquet --open").code == 1  # it exists
    again = ask("report step.parquet --open --force --no-ranking")
    assert (len(opened), "reload" in again.err) == (2, False)


# `-o`: the timeline files are in the Trace Event Format and show what they should


@pytest.mark.parametrize(
    ("command", "trace", "name"),
    [(["replay"], "ranks", "out.json"), (["whatif", "amp"], "step.parquet", "out.json.gz")],
)
def test_the_file_is_in_the_trace_event_format(ask, folder, command, trace, name):
    done = ask(*command, "--trace", trace, "-o", name)

    assert done.code == 0, done.err
    assert done.err.splitlines()[-1] == f"wrote {name}   open it at https://ui.perfetto.dev"
    assert problems(read(folder / name)) == []


def test_times_are_those_of_the_timeline(folder):
    replay = daydream.replay(folder / "step.parquet")
    file.write(folder / "out.json", replay)

    kernels = [event for event in slices(read(folder / "out.json"), "replayed") if event["cat"] == "kernel"]
    timeline = replay.timeline
    chosen = (timeline.copy == 0) & (timeline.column("kind") == "kernel")
    origin = int(replay.graph.trace["start_ns"].min())
    assert sorted(round(event["ts"] * NS) for event in kernels) == sorted(
        (timeline.start_ns[chosen] - origin).tolist()
    )
    assert (
        sum(round(event["dur"] * NS) for event in kernels)
        == replay.graph.columns["duration_ns"][timeline.task[chosen]].sum()
    )


def test_work_that_overlaps_on_one_stream_gets_a_row_of_its_own(tmp_path):
    path = PROGRAMS["cpu_bound"]().run(steps=4).write(tmp_path / "t.json", 1, 3)
    trace = daydream.load(path)
    kernels = np.flatnonzero(trace["kind"] == trace.code("kind", "kernel"))
    trace.columns["start_ns"][kernels[10]] = trace["start_ns"][kernels[9]] + 1
    file.write(tmp_path / "out.json", daydream.replay(trace))
    document = read(tmp_path / "out.json")

    assert problems(document) == []
    assert "stream 7 (overlapping)" in threads(document).values()


# `daydream calibrate` and `--table` as people run them: real processes on a small recorded CPU trace


RECORDED = ROOT / "validation" / "cpu" / "MLP-1.parquet"
BATCH = ("batch-size", "--factor", "2")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A folder with a trace and a table of what a doubled batch asks for."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("calibrated")
    (folder / "t.parquet").write_bytes(RECORDED.read_bytes())
    done = process(
        "calibrate --trace t.parquet --optimization", *BATCH, "-o", "times.parquet", "--json",
        "--call-limit", "0.01", folder=folder,
    )  # fmt: skip
    assert done.code == 0, done.err
    (folder / "said.json").write_text(done.out)
    return folder


def test_it_says_what_was_measured_and_what_was_not(calibrated):
    said = json.loads((calibrated / "said.json").read_text())
    assert said["schema"] == 1
    assert (said["device"], said["optimization"], said["output"]) == ("cpu", "batch-size", "times.parquet")
    assert said["asked"] == len(said["measured"]) + len(said["left_out"])
    assert {"aten::addmm", "aten::mm"} <= {row["op"] for row in said["measured"]}
    assert all(row["duration_ns"] >= 0 and row["repeats"] > 0 for row in said["measured"])
    reasons = {row["op"]: row["reason"] for row in said["left_out"]}
    assert "indices" in reasons["aten::nll_loss_forward"]
    assert (calibrated / "times.parquet").stat().st_size < 20_000


# `daydream tool` as people type it


def test_a_tool_prints_a_table_and_json(ask):
    text = ask("tool kernel-frequency --trace step.parquet").out
    assert text.startswith("kernels (")
    found = ask("tool kernel-frequency --trace step.json.gz --json").json()
    assert found["schema"] == 1
    assert {"name", "count", "total_ns"} == set(found["kernels"][0])
    assert f"{found['kernels'][0]['count']:,}" in text.splitlines()[2]


def test_a_list_of_tools(ask):
    listed = ask("tool --list --json").json()["tools"]
    assert [tool["name"] for tool in listed][:2] == ["kernel-frequency", "top-kernels"]
    assert "idle-gaps" in ask("tool --list").out


# `daydream calibrate --tool` as people run it: a real script that trains, a tool from a file


TRAIN = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(64, 64)
for _ in range(400):
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()
print("trained to the end")
"""
CHANGE = """
from daydream import Graph
from daydream.costs import replace_cost
from daydream.instrument import Tool

def change(graph: Graph) -> None:
    \"\"\"Replace an operator, as measured in place.\"\"\"
    replace_cost(graph, graph.select(op=r"^aten::gelu(_backward)?$"))

def look(op):
    if op["type"] == "gelu":
        import torch
        op.replace_op(torch.relu, inputs=[0], grad=True)

tool = Tool()
tool.add_inst_for_op(look)
"""
NO_TOOL = "def change(graph):\n    '''Nothing.'''\n    graph.select().scale(1.5)\n"


IN_PLACE = "calibrate --tool ./change.py -o times.parquet --json --steps 2 train.py"


@pytest.fixture
def scripts(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "change.py").write_text(CHANGE)
    return tmp_path


@pytest.mark.slow
def test_it_times_what_the_tool_changes_before_and_with_it(scripts):
    done = process(IN_PLACE, folder=scripts)
    assert done.code == 0, done.err
    said = done.json()
    assert (said["schema"], said["tool"], said["device"]) == (1, "./change.py", "cpu")
    assert {(row["op"], row["phase"]) for row in said["measured"]} == {
        ("aten::gelu", "forward"),
        ("aten::gelu", "backward"),
    }
    assert all(row["before_ns"] > 0 and row["duration_ns"] > 0 for row in said["measured"])
    assert said["drift"] > 0
    assert "trained to the end" not in done.out + done.err  # the script ends when it is timed
    table = KernelTable.load(scripts / "times.parquet")
    assert [key[0] for key in table.in_place] == ["gelu"]


def test_a_file_without_a_tool_is_a_mistake_of_usage(scripts):
    (scripts / "change.py").write_text(NO_TOOL)
    done = run_in(IN_PLACE, folder=scripts)
    assert done.code == 2
    assert "has no tool" in done.err
