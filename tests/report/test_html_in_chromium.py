"""The HTML report in a browser: it draws, sorts, searches, zooms and fits, and the console stays empty."""

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time

import pytest
from machine.programs import PROGRAMS
from shared import shared_replay

import daydream
from daydream.report.page import write

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 60


def browser():
    """Return the program of a Chromium, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page; `messages` are what its console said, `requests` what it asked for."""

    def __init__(self, folder):
        to_it, from_us = os.pipe()
        to_us, from_it = os.pipe()
        command = [
            browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
            "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_it, from_it)]

        def connect():
            # It reads commands from descriptor 3 and answers on 4.
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self._process = subprocess.Popen(
            command, preexec_fn=connect, pass_fds=(3, 4),  # noqa: PLW1509 - nothing else hands over these two
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for end in (to_it, from_it, *high):
            os.close(end)
        self._write, self._read, self._buffer, self._last = from_us, to_us, b"", 0
        self._session = ""
        self._events = []
        self.messages = []
        self.requests = []
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise

    def _attach(self):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            self._session = ""
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method, **params):
        """Return what the browser answers."""
        self._last += 1
        said = {"id": self._last, "method": method, "params": params}
        if self._session:
            said["sessionId"] = self._session
        text = json.dumps(said).encode() + b"\0"
        while text:
            text = text[os.write(self._write, text) :]
        until = time.monotonic() + PATIENCE_S
        while True:
            answer = self._next(until)
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]

    def open(self, page, *, width=1280, height=900, scheme="light"):
        """Show a file in a window of this width and colour scheme, and wait until it has loaded."""
        self.messages.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=width < 600,
        )  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self._events.clear()
        self.call("Page.navigate", url=page.as_uri())
        until = time.monotonic() + PATIENCE_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._next(until)

    def run(self, script):
        """Return the value of an expression in the page."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait_for(self, script):
        """Wait until an expression in the page is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.05)

    def mouse(self, kind, x, y, **more):
        """Move or press the mouse: `mouseMoved`, `mousePressed`, `mouseReleased`, `mouseWheel`."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, selector, first, last):
        """Drag over an element between shares of its width; return its left end, its width and the y."""
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        left, top, width, height = self.run(f"(b => [b.left, b.top, b.width, b.height])({box})")
        begin, end, y = left + width * first, left + width * last, top + height / 2
        self.mouse("mouseMoved", begin, y)
        self.mouse("mousePressed", begin, y, button="left", clickCount=1)
        self.mouse("mouseMoved", end, y, button="left")
        self.mouse("mouseReleased", end, y, button="left", clickCount=1)
        return left, width, y

    def _next(self, until):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise EOFError("the browser has gone")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        said = json.loads(text)
        if "method" in said:
            self._hear(said)
        return said

    def _hear(self, event):
        self._events.append(event)
        params = event["params"]
        if event["method"] == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(each.get("value", each)) for each in params["args"]))
        elif event["method"] == "Runtime.exceptionThrown":
            self.messages.append(json.dumps(params["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


# The HTML report in a browser: it draws, sorts, searches, zooms and fits, and the console stays empty


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
