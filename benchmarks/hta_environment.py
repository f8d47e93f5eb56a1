"""The environment HolisticTraceAnalysis runs in: its own, because it needs pandas < 3."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from results import say

PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3")


class MissingError(RuntimeError):
    """It cannot be had here; the message says why."""


@contextmanager
def hta_python(cache: Path | None) -> Iterator[Path]:
    """Give the interpreter of an environment with HTA, made in `cache` or for this once.

    Raises `MissingError` if it cannot be installed.
    """
    if cache is not None:
        yield _made(cache / "hta")
        return
    with tempfile.TemporaryDirectory(prefix="daydream-benchmark-") as folder:
        yield _made(Path(folder) / "hta")


def versions(python: Path) -> dict[str, str]:
    """Return the versions that matter in that environment."""
    names = ("HolisticTraceAnalysis", "pandas", "numpy", "networkx")
    code = f"from importlib.metadata import version\nfor name in {names!r}: print(version(name))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split(), strict=True))


def _made(folder: Path) -> Path:
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if _works(python):
        return python
    say("making an environment with HolisticTraceAnalysis")
    try:
        venv.create(folder, with_pip=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise MissingError(
            f"HolisticTraceAnalysis could not be installed ({said[-1] if said else error})"
        ) from None
    if not _works(python):
        raise MissingError(
            f"HolisticTraceAnalysis cannot be imported with Python {platform.python_version()}"
        )
    return python


def _works(python: Path) -> bool:
    if not python.exists():
        return False
    return subprocess.run([str(python), "-c", "import hta"], capture_output=True, check=False).returncode == 0
