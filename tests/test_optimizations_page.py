"""The page of all optimizations: the command that makes it, on a machine model's trace and a shipped one."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest
from machine.programs import PROGRAMS

from daydream.transforms.registry import find, names

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "validation"))

from page import read  # noqa: E402


@pytest.fixture(scope="module")
def page():
    return importlib.import_module("optimizations_page")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces") / "kineto"
    folder.mkdir()
    PROGRAMS["multi_stream"]().run(steps=6).write(folder / "tiny_machine.json.gz", 2, 4)
    shutil.copy(ROOT / "examples" / "mlp_cpu.json.gz", folder)
    (folder / "no_trace.json").write_text("{}", encoding="utf-8")
    return folder.parent


@pytest.fixture(scope="module")
def written(page, traces, tmp_path_factory):
    target = tmp_path_factory.mktemp("page") / "optimizations.md"
    target.write_text("# Optimizations\n")
    code = page.main(["--traces", str(traces), "--write", str(target), "--cache", str(traces / "cache")])
    return (
        code,
        target.read_text(encoding="utf-8"),
        read(target.parent / "evaluation", "optimizations"),
    )


def test_every_optimization_predicts_or_says_why_not_and_none_crashes(written):
    code, text, rows = written

    assert code == 0
    assert [name for name in names() if f"- `{name}`: " not in text] == []
    assert {row["trace"] for row in rows} == {"tiny machine", "mlp cpu"}
    assert sorted({row["optimization"].split(" ")[0] for row in rows}) == sorted(names())
    assert [row for row in rows if bool(row["speedup, bound by"]) == bool(row["why not"])] == []


def test_a_crash_is_shown_and_exits_with_one(page, traces, monkeypatch, capsys):
    def breaks(*_, **__):
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(page.daydream, "whatif", breaks)

    assert page.main(["--traces", str(traces), "--only", "amp"]) == 1
    out, err = capsys.readouterr()
    assert "| `amp` | tiny machine | **crash** | ZeroDivisionError: a mistake |" in out
    assert "amp on tiny machine: ZeroDivisionError: a mistake" in err


def test_every_required_option_has_an_example_that_the_optimization_takes(page):
    for name in names():
        options = {option.name: option for option in find(name).options}
        given = page.EXAMPLES.get(name, {})
        assert {each for each, option in options.items() if option.required} <= given.keys(), name
        for each, value in given.items():
            options[each].checked(value)
