"""`--html`: where the report is written, and what is said about it."""

import pytest


@pytest.mark.parametrize("command", [["replay"], ["whatif", "amp"]])
def test_a_report_is_written_beside_the_answer(ask, folder, command):
    plain = ask(*command, "--trace", "step.parquet")
    done = ask(*command, "--trace", "step.parquet", "--html", "report.html")

    assert done.code == 0
    assert done.out == plain.out
    assert "wrote report.html   open it in a browser" in done.err
    assert (folder / "report.html").read_text("utf-8").startswith("<!doctype html>")


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
