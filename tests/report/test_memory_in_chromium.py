"""The chart of memory in a browser: it draws, moves with the timelines, and moves them."""

from __future__ import annotations

import json

import pytest
from chromium import Chromium, browser
from memory.recordings import Recording, training_step

import daydream
from daydream.report.html.page import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser() is None, reason="there is no Chromium here (or name it in $CHROMIUM)"),
]
MEMORY = "JSON.stringify(document.getElementById('memory-chart').dataset)"
TIMELINE = "JSON.stringify(document.querySelector('#timelines .chart').dataset)"


@pytest.fixture
def opened(tmp_path):
    recording = Recording()
    for number in range(3, 9):
        training_step(recording, number)
    trace = recording.trace(tmp_path)
    write(tmp_path / "m.html", daydream.replay(trace), memory=daydream.memory_of(trace))
    (tmp_path / "profile").mkdir()
    with Chromium(tmp_path / "profile") as chromium:
        chromium.open(tmp_path / "m.html")
        chromium.wait_for("document.getElementById('timelines').dataset.ready")
        yield chromium
        assert chromium.messages == []
        assert len(chromium.requests) == 1


def shown(chromium, what):
    found = json.loads(chromium.run(what))
    return round(float(found["from"]), 6), round(float(found["to"]), 6)


def test_the_timelines_move_with_the_chart(opened):
    before = shown(opened, TIMELINE)
    opened.drag("#memory-chart .u-over", 0.25, 0.5)

    assert shown(opened, TIMELINE) == shown(opened, MEMORY)
    assert shown(opened, TIMELINE)[1] - shown(opened, TIMELINE)[0] < before[1] - before[0]
