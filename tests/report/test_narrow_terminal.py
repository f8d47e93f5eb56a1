"""What the reports look like on a terminal of 80 columns: nothing is wider, nothing but names is cut."""

from __future__ import annotations

import io
import os
import shutil
from types import SimpleNamespace

import pytest
from machine.programs import PROGRAMS

import daydream
from daydream.report import layout
from daydream.report.difference import difference_text
from daydream.report.explain import explain_text
from daydream.report.layout import spread, table
from daydream.report.overview import overview
from daydream.report.overview_text import info_text
from daydream.report.ranking import ranking_text
from daydream.report.terminal import replay_text, whatif_text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((80, 24)))
    monkeypatch.setattr(layout, "sys", SimpleNamespace(stdout=Terminal()))  # pytest sets sys.stdout itself


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    path = tmp_path_factory.mktemp("narrow") / "t.json"
    return daydream.replay(daydream.load(PROGRAMS["synchronizing"]().run(steps=12).write(path, 4, 8)))


def texts(replay):
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    yield info_text(overview(replay.graph.trace))
    yield replay_text(replay)
    yield whatif_text(comparison)
    yield explain_text(daydream.explain(replay))
    yield ranking_text(daydream.rank(replay, ["amp", "fused-adam"]), top=4)
    yield difference_text(daydream.compare(comparison, replay))


def test_every_report_fits(replay, narrow):
    for text in texts(replay):
        assert max(map(len, text.splitlines())) <= 80, text


def test_a_narrow_terminal_hides_no_figure(replay, narrow, monkeypatch):
    comparison = daydream.whatif(replay, "scale", on="gpu", factor=0.5)
    shown = whatif_text(comparison).split()
    monkeypatch.undo()

    assert shown == whatif_text(comparison).split()


def test_figures_go_on_below_the_first(narrow):
    line = "step time   " + "   ".join(f"measured {number} ms" for number in range(100, 106))

    assert spread(line) == [
        "  step time   measured 100 ms   measured 101 ms   measured 102 ms",
        "              measured 103 ms   measured 104 ms   measured 105 ms",
    ]


def test_only_the_first_column_of_a_table_is_cut(narrow):
    head, row = table([["name", "before", "after"], ["n" * 90, "1.0", "2.0"]])

    assert len(row) == 80
    assert row.startswith("  nnn")
    assert row.endswith("nnn...     1.0    2.0")
    assert head.split() == ["name", "before", "after"]


def test_what_is_piped_is_whole():
    assert len(table([["name", "x"], ["n" * 90, "1.0"]])[1]) == 97
