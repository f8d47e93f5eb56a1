"""Thousands of damaged cache entries: each is found to be damaged, and the answer stays what it is."""

import random
import sys

import pytest
from fuzz.cache_entries import DAMAGES
from machine.programs import PROGRAMS
from test_cache import answer, entry_of

from daydream.files.cache import ENTRY, read_entry

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is kept on Windows")


@pytest.fixture
def entry(tmp_path, monkeypatch):
    """The entry of `trace.json`, beside that of `other.json`."""
    monkeypatch.setenv("DAYDREAM_CACHE", str(tmp_path / "cache"))
    for name, program in (("trace.json", "multi_stream"), ("other.json", "synchronizing")):
        PROGRAMS[program]().run(steps=4).write(tmp_path / name, 1, 3)
        answer(tmp_path / name)
    return entry_of(tmp_path / "trace.json")


def test_no_damage_is_believed(entry, tmp_path):
    data, other, changed = entry.read_bytes(), entry_of(tmp_path / "other.json").read_bytes(), 0
    for number in range(480):
        damaged = DAMAGES[number % len(DAMAGES)](random.Random(number), data, other)
        entry.write_bytes(damaged)
        entry.chmod(0o600)
        if damaged != data:
            changed += 1
            assert read_entry(entry.name.removesuffix(ENTRY)) is None, number
            assert not entry.exists()
    assert changed > 400


@pytest.mark.slow
def test_no_damage_changes_an_answer(entry, tmp_path):
    trace = tmp_path / "trace.json"
    data, other, right = entry.read_bytes(), entry_of(tmp_path / "other.json").read_bytes(), answer(trace)[0]
    for number in range(300):
        damaged = DAMAGES[number % len(DAMAGES)](random.Random(number), data, other)
        entry.write_bytes(damaged)
        entry.chmod(0o600)
        assert answer(trace) == (right, damaged == data), number
