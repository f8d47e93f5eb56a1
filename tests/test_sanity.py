"""Every optimization on a trace, held against laws: on a machine model's trace and a shipped one."""

import sys
from pathlib import Path

import pytest
from machine.programs import PROGRAMS

from daydream.transforms.registry import names

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "validation"))

import page  # noqa: E402
import sanity  # noqa: E402


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "tiny_machine.json.gz"
    PROGRAMS["multi_stream"]().run(steps=6).write(path, 2, 4)
    shipped = ROOT / "examples" / "mlp_cpu.json.gz"
    return [sanity.judge(f"kineto/{each.stem}", each, names()) for each in (path, shipped)]


def test_every_optimization_predicts_or_says_why_not_and_no_law_is_broken(judged):
    assert [each.findings for each in judged] == [[], []]
    (_, laws), (_, rows) = sanity.tables(judged)
    assert [row["laws broken"] for row in laws] == ["0", "0"]
    assert sorted({row["optimization"].split()[0] for row in rows}) == sorted(names())
    assert [row for row in rows if bool(row["speedup, bound by"]) == bool(row["why not"])] == []


def test_the_page_lists_every_optimization():
    shown = page.OPTIMIZATIONS.read_text(encoding="utf-8").partition("<!-- end")[0]
    assert shown.partition("-->")[2].strip() == "\n".join(page.listed()).strip()
