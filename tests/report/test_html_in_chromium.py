"""The HTML report in a browser: it draws, sorts, searches, zooms and fits, and the console stays empty."""

from __future__ import annotations

import pytest
from chromium import Chromium, browser
from machine.programs import PROGRAMS
from shared import shared_replay

import daydream
from daydream.report.blocks import Drawing
from daydream.report.html.page import write
from daydream.report.html.render import page_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser() is None, reason="there is no Chromium here (or name it in $CHROMIUM)"),
]
NASTY = "</script><script>document.title = 'broken'</script>"
MIB = 1 << 20
READY = "document.getElementById('timelines').dataset.ready"
COLUMN = (
    "[...document.querySelectorAll('#{0} tbody tr')].filter(row => !row.hidden)"
    ".map(row => row.cells[{1}].textContent)"
)


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


@pytest.mark.parametrize("width", [1280, 390])
def test_figures_stand_above_their_bars_and_steps_fit(chromium, report, width):
    chromium.open(report, width=width)
    chromium.wait_for(READY)
    below = chromium.run(
        """[...document.querySelectorAll('td.b')].filter(cell => cell.offsetParent).map(cell => {
          const words = document.createRange();
          words.selectNodeContents(cell.firstChild);
          const bar = cell.querySelector('.bar').getBoundingClientRect();
          return bar.top - words.getBoundingClientRect().bottom;
        })"""
    )

    assert below
    assert min(below) >= -2  # the box of a text is higher than its figures
    steps = "document.querySelector('#steps .scroll')"
    assert chromium.run(f"{steps}.scrollWidth - {steps}.clientWidth") == 0


def test_instructions_are_for_what_one_points_with(chromium, report):
    for width, shown, hidden in ((1280, "with-mouse", "with-fingers"), (390, "with-fingers", "with-mouse")):
        chromium.open(report, width=width)
        display = "getComputedStyle(document.querySelector('.{0}')).display"
        assert chromium.run(display.format(shown)) == "block"
        assert chromium.run(display.format(hidden)) == "none"


def test_names_are_text_and_nothing_else(wide):
    assert wide.run("document.title") == "daydream what if: scale"
    assert wide.run("document.querySelectorAll('script').length") == 7


def test_a_column_sorts_both_ways(wide):
    values = "[...document.querySelectorAll('#tasks tbody tr')].map(r => Number(r.cells[2].dataset.v))"
    click = "document.querySelectorAll('#tasks thead button')[2].click()"

    wide.run(click)
    down = wide.run(values)
    wide.run(click)

    assert down == sorted(down, reverse=True)
    assert wide.run(values) == sorted(down)
    assert wide.run("document.querySelectorAll('#tasks th')[2].getAttribute('aria-sort')") == "ascending"


def test_a_table_is_searched(wide):
    every = wide.run("document.querySelectorAll('#tasks tbody tr').length")
    word = wide.run("document.querySelector('#tasks tbody tr').cells[0].textContent").split()[-1]
    wide.run(
        f"""(() => {{
          const search = document.querySelector('#tasks .search');
          search.value = {word!r};
          search.dispatchEvent(new Event('input'));
        }})()"""
    )
    found = wide.run(COLUMN.format("tasks", 0))

    assert 0 < len(found) < every
    assert all(word.lower() in name.lower() for name in found)


def test_both_timelines_zoom_together_and_come_back(wide):
    whole = shown_range(wide)
    wide.run("document.querySelector('#timelines button[title=\"zoom in\"]').click()")
    closer = shown_range(wide)
    wide.run("document.querySelector('#timelines button[title=\"show all\"]').click()")

    assert all(high - low == pytest.approx((whole[0][1] - whole[0][0]) / 2) for low, high in closer)
    assert closer[0] == closer[1]
    assert shown_range(wide) == whole


def test_one_step_is_shown_from_its_begin_in_both_timelines(wide):
    begins = wide.run(
        """JSON.parse(document.getElementById('timelines-data').textContent).timelines
          .map(t => t.typical[0] * t.unit_ns / 1e6)"""
    )
    wide.run("document.querySelector('#timelines button[title=\"show the typical step\"]').click()")
    (low, high), (other_low, other_high) = shown_range(wide)

    assert [low, other_low] == pytest.approx(begins)
    assert high - low == pytest.approx(other_high - other_low)
    wide.run("document.querySelector('#timelines button[title=\"zoom in\"]').click()")
    (zoomed, _), (other_zoomed, _) = shown_range(wide)
    assert zoomed - low == pytest.approx(other_zoomed - other_low)


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


def test_keys_and_wheel_move_the_timeline(wide):
    key = "document.querySelector('.charts').dispatchEvent(new KeyboardEvent('keydown', {key: '%s'}))"
    wide.run(key % "+")
    low, _ = shown_range(wide)[0]
    wide.run(key % "ArrowRight")
    assert shown_range(wide)[0][0] > low
    wide.run(key % "Home")
    low, high = shown_range(wide)[0]
    wide.run(
        """document.querySelector('#timelines .u-over').dispatchEvent(new WheelEvent('wheel',
          {deltaY: -300, ctrlKey: true, bubbles: true, cancelable: true, clientX: 600}))"""
    )
    closer = shown_range(wide)[0]
    assert closer[1] - closer[0] < high - low


def test_tasks_are_found_and_recoloured(wide):
    before = colours(wide)
    wide.run(
        """(() => {
          const find = document.querySelector('.toolbar input[type=search]');
          find.value = 'no such task';
          find.dispatchEvent(new Event('input'));
        })()"""
    )
    assert wide.run("document.querySelector('.toolbar output').textContent") == "0 found"
    assert colours(wide) < before
    for mode in ("phase", "change"):
        wide.run(
            f"""(() => {{
              const colour = document.querySelector('.toolbar select');
              colour.value = '{mode}';
              colour.dispatchEvent(new Event('change'));
            }})()"""
        )
    assert "critical path" in wide.run("document.querySelector('.legend').textContent")


def test_a_row_finds_its_tasks_in_the_timeline(wide):
    wide.run(
        """document.querySelector('#kernels tbody .find')
          .dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))"""
    )
    assert NASTY in wide.run("document.querySelector('.toolbar input[type=search]').value")
    assert int(wide.run("document.querySelector('.toolbar output').textContent").split()[0]) > 0


def test_the_page_says_most_without_its_programs(chromium, report, tmp_path):
    text = report.read_text("utf-8").replace("<script>", "<script type='off'>")
    (tmp_path / "plain.html").write_text(text, "utf-8")
    chromium.open(tmp_path / "plain.html")

    cards = "[...document.querySelectorAll('.card > span:first-child')].map(each => each.textContent)"
    assert chromium.run(cards) == ["estimated", "predicted", "speedup"]
    assert chromium.run("document.querySelectorAll('tbody tr').length") > 20


def test_layers_are_nested_as_wide_as_their_work_and_kernels_lie_at_their_figures(chromium, tmp_path):
    point = {"layer": "blocks.1", "kernels": 1, "kind": "compute", "by": "counters"}
    points = [
        {**point, "name": NASTY, "intensity": 10, "rate": 1_000, "ns": 4_000},
        {**point, "name": "k", "intensity": 100, "rate": 10_000, "ns": 1_000},
    ]
    device = {"device": "A100", "bandwidth": 2_000, "cache": 6_000, "peaks": {"float32": 19_500}}
    timelines = {"kinds": [], "phases": [], "why": {}, "names": [], "timelines": [], "changes": False}
    drawn = {
        "timelines": timelines,
        "icicle": {"block.0": 6, "block.1": 2, "head": 2},
        "roofline": {**device, "points": points},
    }
    text = page_of("drawn", [Drawing(name, value) for name, value in drawn.items()])
    (tmp_path / "drawn.html").write_text(text, "utf-8")
    chromium.open(tmp_path / "drawn.html")
    assert chromium.run(
        "[...document.querySelectorAll('.icicle button')]"
        ".map(each => [each.dataset.find, +each.parentNode.style.flexGrow])"
    ) == [["", 10], ["block", 8], ["block.0", 6], ["block.1", 2], ["head", 2]]
    (x0, y0, r0), (x1, y1, r1) = chromium.run(
        """[...document.querySelectorAll('circle:has(title)')]
          .map(each => ['cx', 'cy', 'r'].map(name => +each.getAttribute(name)))"""
    )
    assert x1 > x0
    assert y1 < y0  # more FLOP a second is further up
    assert r0**2 == pytest.approx(4 * r1**2)
    said = chromium.run("document.querySelector('circle title').textContent")
    assert said.split("\n")[1:] == [
        "layer blocks.1", "1 kernel, 4.000 us, known by counters",
        "10 FLOP/B, 1 TFLOP/s, bound by arithmetic",
    ]  # fmt: skip
    assert NASTY in said
    assert chromium.run("document.querySelectorAll('[stroke-dasharray]').length") == 1  # the roof of L2


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
