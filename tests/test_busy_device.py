"""A law over the public traces: a busy device gains from faster kernels, or it is said why not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shared import TRACES

import daydream
from daydream.errors import DaydreamError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "validation"))
from sanity import a_busy_device_gains_from_faster_kernels, sources

FOUND = dict(sources(TRACES)) if TRACES.exists() else {}


@pytest.mark.slow
@pytest.mark.skipif(not FOUND, reason="the public traces are not at hand")
@pytest.mark.parametrize("name", FOUND or ["none"])
def test_a_busy_device_gains_from_faster_kernels_or_traced_work_takes_over(name):
    try:
        replay = daydream.replay(FOUND[name])
    except DaydreamError as error:
        pytest.skip(f"refused: {error}")

    assert list(a_busy_device_gains_from_faster_kernels(replay, FOUND[name])) == []
