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


@pytest.mark.parametrize("command", [["replay"], ["whatif", "amp"]])
def test_a_report_ranks_what_ifs_unless_told_not_to(ask, folder, command):
    done = ask(*command, "--trace", "step.parquet", "--html", "report.html")
    ranked = (folder / "report.html").read_text("utf-8")
    without = ask(*command, "--trace", "step.parquet", "--html", "report.html", "--force", "--no-ranking")

    assert "what-ifs for it in" in done.err
    assert "Ranked what-ifs" in ranked
    assert "what-ifs" not in without.err
    assert "Ranked what-ifs" not in (folder / "report.html").read_text("utf-8")


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


def test_report_and_timeline_can_be_asked_for_at_once(ask, folder):
    done = ask("replay --trace step.parquet --html report.html -o lines.json")

    assert done.code == 0
    assert (folder / "report.html").exists()
    assert (folder / "lines.json").exists()
    assert len(done.err.splitlines()) >= 2


def test_a_report_overwrites_nothing_unless_forced(ask, folder):
    (folder / "report.html").write_text("mine")
    done = ask("replay --trace step.parquet --html report.html")

    assert done.code == 1
    assert "exists already" in done.err
    assert (folder / "report.html").read_text() == "mine"
    assert ask("replay --trace step.parquet --html report.html --force").code == 0


def test_a_report_has_the_suffix_that_browsers_know(ask):
    done = ask("replay --trace step.parquet --html report.txt")

    assert done.code == 2
    assert "ends in neither .html nor .htm" in done.err
