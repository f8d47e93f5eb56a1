"""The HTML report in a browser: it draws, sorts, searches, zooms and fits, and the console stays empty."""

from __future__ import annotations

import pytest
from chromium import Chromium, browser
from machine.programs import PROGRAMS
from shared import shared_replay

import daydream
from daydream.report.page import write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser() is None, reason="there is no Chromium here (or name it in $CHROMIUM)"),
]
NASTY = "</script><script>document.title = 'broken'</script>"
MIB = 1 << 20
READY = "document.getElementById('timelines').dataset.ready"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    PROGRAMS["multi_stream"]().run(steps=30).write(folder / "step.json.gz", 24, 29)
    replay = daydream.replay(folder / "step.json.gz")
    names = replay.graph.texts["name"]
    names[:] = [f"{NASTY} {name}" for name in names]
    write(folder / "report.html", daydream.whatif(replay, "scale", factor=0.5, on="gpu"))
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("profile")) as driven:
        yield driven


@pytest.fixture
def wide(chromium, report):
    chromium.open(report)
    chromium.wait_for(READY)
    yield chromium
    assert chromium.messages == []
    assert chromium.requests == [report.as_uri()]


def colours(chromium, chart=0):
    """Return how many different colours a chart's canvas has."""
    return chromium.run(
        f"""(() => {{
          const drawn = document.querySelectorAll('#timelines canvas')[{chart}];
          const copy = new OffscreenCanvas(drawn.width, drawn.height);
          const context = copy.getContext('2d', {{willReadFrequently: true}});
          context.drawImage(drawn, 0, 0);
          const data = context.getImageData(0, 0, drawn.width, drawn.height).data;
          return new Set(new Uint32Array(data.buffer)).size;
        }})()"""
    )


def shown_range(chromium):
    """Return the first and last time that each chart shows, in ms."""
    return chromium.run("[...document.querySelectorAll('.chart')].map(c => [+c.dataset.from, +c.dataset.to])")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_draws_and_fits(chromium, report, width, scheme):
    chromium.open(report, width=width, scheme=scheme)
    chromium.wait_for(READY)

    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert chromium.run("document.querySelectorAll('#timelines canvas').length") == 2
    assert min(colours(chromium, 0), colours(chromium, 1)) > 5
    background = chromium.run("getComputedStyle(document.body).backgroundColor")
    light = sum(int(part) for part in background.strip("rgb()").split(",")) > 3 * 128
    assert light == (scheme == "light")
    assert chromium.messages == []
    assert chromium.requests == [report.as_uri()]


def test_names_are_text_and_nothing_else(wide):
    assert wide.run("document.title") == "daydream what if: scale"
    assert wide.run("document.querySelectorAll('script').length") == 7


def test_both_timelines_zoom_together_and_come_back(wide):
    whole = shown_range(wide)
    wide.run("document.querySelector('#timelines button[title=\"zoom in\"]').click()")
    closer = shown_range(wide)
    wide.run("document.querySelector('#timelines button[title=\"show all\"]').click()")

    assert all(high - low == pytest.approx((whole[0][1] - whole[0][0]) / 2) for low, high in closer)
    assert closer[0] == closer[1]
    assert shown_range(wide) == whole


def test_dragging_over_a_timeline_zooms_and_pointing_tells_what_is_there(wide):
    whole = shown_range(wide)[0]
    left, width, y = wide.drag("#timelines .u-over", 0.4, 0.5)
    low, high = shown_range(wide)[0]

    assert high - low == pytest.approx((whole[1] - whole[0]) / 10, rel=0.1)
    for share in range(20):
        wide.mouse("mouseMoved", left + width * (0.05 + 0.04 * share), y)
        if wide.run("document.querySelector('.details').textContent"):
            break
    assert NASTY in wide.run("document.querySelector('.details strong').textContent")


@pytest.mark.parametrize(
    "name",
    [
        "kineto/v100_recsys_rank1of2_copy_waits.json.gz",
        "kineto/mi300x_resnet_ddp_checkpoint_rank0of8.json.gz",
        "kineto/v100_dlrm_4_of_8_ranks",
        "nsys/a100_gpt2.7b_forward_eager.sqlite.gz",
        "kineto/h100_bert_small_inference.json.gz",
    ],
)
@pytest.mark.parametrize("width", [1280, 390])
def test_public_traces_have_a_report(chromium, tmp_path, name, width):
    replay = shared_replay(name)
    write(tmp_path / "report.html", daydream.whatif(replay, "scale", factor=0.5))
    chromium.open(tmp_path / "report.html", width=width)
    chromium.wait_for(READY)

    assert (tmp_path / "report.html").stat().st_size < 8 * MIB
    assert chromium.run("document.documentElement.scrollWidth") <= width
    assert min(colours(chromium, 0), colours(chromium, 1)) > 5
    assert chromium.messages == []
