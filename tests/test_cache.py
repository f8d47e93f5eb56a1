"""The cache of traces: what it holds, whose it is, and that no damage is believed."""

import errno
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from fuzz.cache_entries import DAMAGES
from machine.programs import PROGRAMS

import daydream
from daydream.cli.source import cache_entry
from daydream.files import cache
from daydream.files.cache import ENTRY, FOLDER, Contents, read_entry, write_entry
from daydream.trace.cached_trace import cached_trace

# Whatever lies in the cache, the answer is right: damage, files of others, entries that somebody made up


pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is kept on Windows")


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """A small trace, and a cache of this test's own that knows it."""
    monkeypatch.setenv("DAYDREAM_CACHE", str(tmp_path / "cache"))
    PROGRAMS["multi_stream"]().run(steps=4).write(tmp_path / "trace.json", 1, 3)
    answer(tmp_path / "trace.json")
    return tmp_path / "trace.json"


def answer(trace):
    """Return what `replay` answers with a cache, and whether the trace came out of it."""
    entry = cache_entry(str(trace), None, None)
    found = cached_trace(entry)
    known = found is not None
    if found is None:
        found = daydream.load(trace)
        found.cache = entry
    replay = daydream.replay(found)
    whatif = daydream.whatif(replay, "scale", factor=0.5, on="gpu")
    return {**replay.to_json(), "whatif": whatif.predicted_ns}, known


def entry_of(trace):
    """Return the file of a trace's entry."""
    return trace.parent / "cache" / FOLDER / (cache_entry(str(trace), None, None).key + ENTRY)


def test_the_second_answer_comes_out_of_the_cache(trace):
    right, known = answer(trace)
    assert known
    entry_of(trace).unlink()
    assert answer(trace) == (right, False)
    assert answer(trace) == (right, True)


def test_what_one_changes_another_does_not_see(trace):
    found = cached_trace(cache_entry(str(trace), None, None))
    one, other = daydream.replay(found), daydream.replay(found)
    one.graph.select().set(duration_ns=0)
    assert other.graph.columns["duration_ns"].any()
    assert daydream.replay(found).replayed_ns == other.replayed_ns


def test_the_entry_of_another_trace_is_not_believed(trace, other):
    right, _ = answer(trace)
    shutil.copyfile(other, entry_of(trace))
    assert answer(trace) == (right, False)


def test_links_folders_pipes_and_open_files_are_not_believed(trace):
    right, _ = answer(trace)
    entry = entry_of(trace)
    aside = trace.parent / "aside"
    entry.rename(aside)
    for put in (
        lambda: entry.symlink_to(aside),
        lambda: (shutil.copyfile(aside, entry), entry.chmod(0o644)),
        lambda: os.mkfifo(entry, 0o600),
        entry.mkdir,
    ):
        entry.unlink(missing_ok=True)
        put()
        assert answer(trace) == (right, False)
    assert answer(trace) == (right, False)  # a folder cannot be replaced


@pytest.mark.parametrize("how", ["link", "open", "file"])
def test_a_folder_that_is_not_the_users_alone_is_not_used(trace, how):
    right, _ = answer(trace)
    folder = trace.parent / "cache" / FOLDER
    aside = trace.parent / "aside"
    if how == "open":
        folder.chmod(0o770)
    else:
        folder.rename(aside)
        folder.symlink_to(aside) if how == "link" else folder.write_text("in the way")
    before = sorted(aside.iterdir()) if aside.exists() else None
    assert answer(trace) == (right, False)
    assert (sorted(aside.iterdir()) if aside.exists() else None) == before


def test_a_folder_or_an_entry_of_another_user_is_not_used(trace, monkeypatch):
    right, _ = answer(trace)
    monkeypatch.setattr(cache.os, "geteuid", lambda: 12345)
    assert answer(trace) == (right, False)


@pytest.mark.parametrize("call", ["write", "rename", "open", "scandir", "mkdir"])
def test_a_disk_that_takes_nothing_is_no_error(trace, monkeypatch, call):
    right, _ = answer(trace)
    shutil.rmtree(trace.parent / "cache")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    key, contents = "0" * 48, Contents({}, {"a": np.arange(5)})
    with monkeypatch.context() as patch:
        patch.setattr(cache.os, call, fail)
        assert not write_entry(key, contents)
        if call == "write":
            assert list((trace.parent / "cache" / FOLDER).iterdir()) == []
    assert answer(trace) == (right, False)


def test_a_trace_that_changes_while_it_is_read_is_not_kept(trace):
    entry = cache_entry(str(trace), None, None)
    entry_of(trace).unlink()
    found = daydream.load(trace)
    found.cache = entry
    trace.write_text(trace.read_text() + " ")
    daydream.replay(found)
    assert list((trace.parent / "cache" / FOLDER).iterdir()) == []


WRITER = """
import sys
import numpy as np
from daydream.files.cache import Contents
from daydream.files.cache import read_entry, write_entry
value = int(sys.argv[1])
for _ in range(100):
    write_entry("f" * 48, Contents({"value": value}, {"a": np.full(5000, value) + np.arange(5000)}))
    found = read_entry("f" * 48)
    assert found is not None
    assert (found.arrays["a"] - np.arange(5000) == found.document["value"]).all()
"""


def test_writers_side_by_side_leave_a_whole_entry(trace):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(number)]) for number in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    left = {path.suffix for path in (trace.parent / "cache" / FOLDER).iterdir()}
    assert left == {ENTRY}


@pytest.fixture
def other(trace):
    """The entry of another trace."""
    PROGRAMS["synchronizing"]().run(steps=4).write(trace.parent / "other.json", 1, 3)
    answer(trace.parent / "other.json")
    return entry_of(trace.parent / "other.json")


def test_no_damage_is_believed(trace, other):
    entry, changed = entry_of(trace), 0
    data, other = entry.read_bytes(), other.read_bytes()
    for number in range(480):
        damaged = DAMAGES[number % len(DAMAGES)](random.Random(number), data, other)
        entry.write_bytes(damaged)
        entry.chmod(0o600)
        if damaged != data:
            changed += 1
            assert read_entry(entry.name.removesuffix(ENTRY)) is None, number
            assert not entry.exists()
    assert changed > 400
