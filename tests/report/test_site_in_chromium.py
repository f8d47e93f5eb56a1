"""The documentation site in a browser: as wide as the window, without a message, asking no other host."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from chromium import Chromium, browser

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser() is None, reason="there is no Chromium here (or name it in $CHROMIUM)"),
]


class Address(str):
    """A page of the server, where a file is expected."""

    __slots__ = ()

    def as_uri(self) -> str:
        return str(self)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of the built site, and its address."""
    pytest.importorskip("mkdocs", reason="needs the extra `docs`")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_say_nothing_and_ask_only_their_own_server(width, site, tmp_path):
    folder, address = site
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    pages = [page for page in pages if not page.startswith("optimizations/")]
    wrong = []
    with Chromium(tmp_path / "profile") as chromium:
        for page in [*pages, "optimizations/ddp.html"]:
            chromium.open(Address(address + page), width=width)
            wide = chromium.run("document.documentElement.scrollWidth")
            wrong += [f"{page}: {wide} pixels wide"] if wide > width else []
            wrong += [f"{page}: {message}" for message in chromium.messages]
            others = [asked for asked in chromium.requests if not asked.startswith((address, "data:"))]
            wrong += [f"{page}: asks {asked}" for asked in others]

    assert wrong == []
