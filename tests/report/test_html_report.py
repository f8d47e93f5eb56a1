"""The HTML report: one file that asks for nothing, says what the screen says, and that no name can break."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import numpy as np
import pytest
from html_document import Document
from machine.programs import PROGRAMS

import daydream
from daydream.report.html.page import page
from daydream.report.timeline import (
    packed,
    simulated_in,
    simulated_window,
)

NASTY = "</script><script>alert('1')</script><!-- \"&amp; \u2028 \x1b[31m"
PROGRAMS_IN_PAGE, DATA_IN_PAGE = 5, 2


def numbers(text: str) -> np.ndarray:
    """Return a packed column, read as `spans.js` does."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8).reshape(4, -1)
    return np.ascontiguousarray(planes.T).view("<i4").reshape(-1).astype(np.int64)


def a_replay(folder: Path, program: str = "synchronizing") -> daydream.Replay:
    PROGRAMS[program]().run(steps=30).write(folder / "step.json.gz", 24, 27)
    return daydream.replay(folder / "step.json.gz")


@pytest.fixture(scope="module")
def replay(tmp_path_factory):
    replay = a_replay(tmp_path_factory.mktemp("trace"))
    replay.notes += ["A note on the recording.", "And another with < and & in it."]
    return replay


@pytest.fixture(scope="module")
def comparison(replay):
    return daydream.whatif(replay, "amp")


@pytest.fixture(scope="module")
def document(replay, comparison):
    return Document(page(comparison))


def test_the_page_loads_nothing(replay, comparison):
    for text in (page(replay), page(comparison)):
        said = Document(text)

        assert not {name for _, name, _ in said.attributes} & {"src", "href", "srcset", "action", "data"}
        assert "default-src 'none'" in text
        assert "The MIT License" in text
        assert "@import" not in text
        assert "url(" not in text
        assert len(said.scripts) == PROGRAMS_IN_PAGE + DATA_IN_PAGE


def test_every_note_and_option_is_in_the_page(document, comparison):
    assert comparison.notes
    assert [note for note in comparison.notes if note.replace("`", "") not in document.words] == []
    assert [name for name, value in comparison.options.items() if value is not None] == [
        name
        for name, value in comparison.options.items()
        if value is not None and name.replace("_", "-") in document.words
    ]


def test_the_same_input_gives_the_same_page(replay, comparison):
    assert page(comparison) == page(daydream.whatif(replay, "amp"))


def test_no_name_can_break_the_page(tmp_path):
    replay = a_replay(tmp_path)
    for before in (replay.graph,):
        for column in ("name", "op", "layer"):
            before.texts[column][:] = [f"{NASTY} {text}" for text in before.texts[column]]
        before.steps[1]["name"] = NASTY
        before.trace.metadata["source"] = NASTY
        before.trace.metadata["devices"] = [{"id": 0, "name": NASTY}]
        before.facts.notes.append(NASTY)
    replay.notes.append(NASTY)
    replay.steps[0].name = NASTY
    comparison = daydream.whatif(replay, "scale", factor=0.5, on="gpu")
    comparison.optimization = NASTY

    text = page(comparison)
    said = Document(text)

    assert len(said.scripts) == PROGRAMS_IN_PAGE + DATA_IN_PAGE
    assert "alert('1')</script>" not in text
    assert "\x1b" not in text
    shown = NASTY.replace("\u2028", "?").replace("\x1b", "?")
    assert any(name.startswith(shown) for name in said.data("timelines-data")["names"])
    assert shown in said.data("steps-chart-data")["names"]
    assert said.words.count(shown) > 5


# The timelines -----------------------------------------------------------------------------------


def test_packed_spans_give_back_the_tasks(replay):
    step, _ = replay.settled.typical()
    window = simulated_window(replay.timeline, replay.settled.copy, step)
    spans = simulated_in(replay.timeline, replay.settled.copy, window)
    names: dict[str, int] = {}
    said = packed("replayed", replay.graph, window, spans, names)

    columns = {name: numbers(text) for name, text in said["columns"].items()}
    inside = (spans.start_ns >= 0) & (spans.start_ns + spans.duration_ns <= window.length_ns)
    assert said["tasks"] == len(spans) == said["first"][-1]
    assert columns["duration"][inside].tolist() == spans.duration_ns[inside].tolist()
    start = np.concatenate([
        np.cumsum(columns["since"][begin:end])
        for begin, end in zip(said["first"], said["first"][1:], strict=False)
    ])  # fmt: skip
    assert start[inside].tolist() == spans.start_ns[inside].tolist()
    texts = replay.graph.texts["name"]
    assert [[*names][code] for code in columns["name"]] == [texts[code] for code in spans.name]


# The critical path -------------------------------------------------------------------------------


# Files -------------------------------------------------------------------------------------------


def test_several_ranks_have_a_report(tmp_path):
    for number in range(2):
        PROGRAMS["multi_stream"]().run(steps=6).write(tmp_path / f"rank{number}.json", 2, 4)
    replay = daydream.replay(tmp_path)
    said = Document(page(daydream.whatif(replay, "scale", factor=0.5, on="gpu")))

    assert "rank 1 " in said.words
    table = next(table for table in said.tables if table[0][1:] == ["rank 0, ms", "rank 1"])
    assert table[-1][0] == "the step"
    assert {step[3] for step in said.data("timelines-data")["timelines"][0]["steps"]} == {0, 1}


# Ranked what-ifs
