"""The timelines of a what-if in a notebook: one frame that holds all it needs, and reaches nothing."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

import daydream
from daydream.errors import GraphError
from daydream.report.html.page import timeline_frame

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NASTY = '</script></iframe><script>parent.document.title = "broken"</script>'
LARGEST = 160_000  # bytes: what a saved notebook grows by


@pytest.fixture(scope="module")
def prediction():
    replay = daydream.replay(EXAMPLES / "synthetic_gpt_gpu.json.gz")
    graph = replay.graph.copy()
    graph.select(kind="kernel", phase="optimizer").set(name=NASTY)
    return daydream.whatif(daydream.replay(graph), "amp")


def page_of(text):
    """Return the page in the frame, as a browser reads the attribute."""
    (found,) = re.findall(r'srcdoc="([^"]*)"', text)
    return html.unescape(found)


def test_it_is_one_small_frame_with_the_program_in_it(prediction):
    text = prediction.interactive()._repr_html_()
    assert re.fullmatch(
        r'<iframe sandbox="allow-scripts" [^<>]*srcdoc="[^"]*" style="[^"<>]*"></iframe>', text
    )
    assert len(text.encode()) < LARGEST
    page = page_of(text)
    assert "uPlot" in page
    assert "default-src 'none'" in page
    assert "allow-same-origin" not in text
    assert NASTY not in page
    assert text == timeline_frame(prediction)._repr_html_()


def test_without_a_prediction_there_is_no_timeline_after(prediction, monkeypatch):
    monkeypatch.setattr(prediction, "reason", "its causes were not recorded")
    with pytest.raises(GraphError, match=r"amp cannot be predicted from this trace, because its causes"):
        prediction.interactive()
