"""Ranked what-ifs in the HTML report: what the ranking says, and what it leaves out."""

from __future__ import annotations

import pytest
from html_document import Document
from test_html_report import a_replay

import daydream
from daydream.predict.rank import rank
from daydream.report.html.page import page


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    return a_replay(tmp_path_factory.mktemp("ranked"))


def test_what_ifs_are_ranked_with_what_bounds_the_step_then(replay):
    ranking = rank(replay, ["amp", "scale", "ddp", "gist", "dataloader"], pairs=0, with_curves=False)
    said = Document(page(replay, daydream.whatif(replay, "amp"), ranking))
    table = next(table for table in said.tables if table[0][0].startswith("what if"))
    best = ranking.optimizations[0]

    assert table[0][1:5] == ["predicted", "90 % interval", "saves", "speed-up"]
    assert table[1][0] == best.optimization + best.summary.replace("`", "")
    assert table[1][1] == f"{best.predicted_ns / 1e6:,.3f}"
    assert table[1][4] == f"{best.speedup:.2f}x"
    assert f"All are of the estimated step, {best.replayed_ns / 1e6:.3f} ms now." in said.words
    assert table[1][5].startswith(best.bound)
    assert ranking.left_out
    for name, reason in ranking.left_out.items():
        assert [name, reason] in next(rows for rows in said.tables if rows[0] == ["left out", "why"])


def test_a_ranking_in_which_nothing_saves_says_so(replay):
    ranking = rank(replay, ["dataloader"], pairs=0, with_curves=False)
    text = page(replay, ranking=ranking)

    assert "None would make the step shorter." in text
    assert "Ranked what-ifs" not in page(replay)
