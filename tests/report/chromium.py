"""A headless Chromium for tests, driven over a pipe by the DevTools protocol: only the browser is needed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 60


def browser() -> str | None:
    """Return the program of a Chromium, or None."""
    named = os.environ.get("CHROMIUM")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Chromium:
    """One browser with one page; `messages` are what its console said, `requests` what it asked for."""

    def __init__(self, folder: Path) -> None:
        to_it, from_us = os.pipe()
        to_us, from_it = os.pipe()
        command = [
            browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--hide-scrollbars",
            "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_it, from_it)]

        def connect() -> None:
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
        self._events: list[dict[str, Any]] = []
        self.messages: list[str] = []
        self.requests: list[str] = []
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise

    def _attach(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return what the browser answers."""
        self._last += 1
        said: dict[str, Any] = {"id": self._last, "method": method, "params": params}
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

    def open(self, page: Path, *, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
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

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        said = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression in the page is true."""
        until = time.monotonic() + PATIENCE_S
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move or press the mouse: `mouseMoved`, `mousePressed`, `mouseReleased`, `mouseWheel`."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, selector: str, first: float, last: float) -> tuple[float, float, float]:
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

    def _next(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise EOFError("the browser has gone")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        said: dict[str, Any] = json.loads(text)
        if "method" in said:
            self._hear(said)
        return said

    def _hear(self, event: dict[str, Any]) -> None:
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
