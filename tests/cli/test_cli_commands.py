"""What commands write where: versions, output names, progress, hints."""

import io
import re
import time

import pytest

import daydream
from daydream.cli.output import trace_name
from daydream.cli.source import Progress

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
